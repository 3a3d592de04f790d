//! Create, look at, connect, time out, die, kill.

use std::time::{Duration, Instant};

use hearth_control::routes::Lookup;
use hearth_model::end::{Actor, EndCause};
use hearth_model::node::{CreateError, Report};
use hearth_model::signature::{Claim, Operation, sign, verify};
use serde_json::json;

use crate::node::{Mood, now_ms};
use crate::server::{Server, until};

#[tokio::test]
async fn a_create_answers_as_the_contract_says() {
    let server = Server::start().await;
    let answer = server
        .post(
            "/v2/sandboxes",
            &json!({"templateID": "base", "envVars": {"A": "b"}, "metadata": {"m": "n"},
                "allow_internet_access": false, "unknown": [1]}),
        )
        .await
        .ok(201);
    let body = answer.json();
    let mut names: Vec<&String> = body.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "alias",
            "clientID",
            "domain",
            "envdAccessToken",
            "envdVersion",
            "sandboxID",
            "templateID",
            "trafficAccessToken"
        ]
    );
    assert_eq!(body["alias"], "base");
    assert_eq!(body["templateID"], "tplbase000000000000");
    assert_eq!(body["domain"], json!(null));
    assert_eq!(body["trafficAccessToken"], json!(null));

    let id = hearth_model::id::SandboxId::parse(body["sandboxID"].as_str().unwrap()).unwrap();
    let spec = server.node.spec(&id);
    assert_eq!(spec.env["A"], "b");
    assert_eq!(spec.internet, hearth_model::sandbox::Internet::Closed);
    assert_eq!(spec.access_token.expose(), body["envdAccessToken"]);

    let detail = server.get(&format!("/sandboxes/{id}")).await.ok(200).json();
    for (name, want) in [
        ("sandboxID", json!(id.as_str())),
        ("templateID", json!("tplbase000000000000")),
        ("clientID", json!("6532622b")),
        ("cpuCount", json!(2)),
        ("memoryMB", json!(1024)),
        ("diskSizeMB", json!(20480)),
        ("state", json!("running")),
        ("metadata", json!({"m": "n"})),
        ("allowInternetAccess", json!(false)),
        ("envdAccessToken", body["envdAccessToken"].clone()),
        (
            "lifecycle",
            json!({"onTimeout": "kill", "autoResume": false}),
        ),
        ("domain", json!(null)),
        ("tier", json!("test")),
    ] {
        assert_eq!(detail[name], want, "{name}");
    }
    assert_eq!(lifetime(&detail), 300_000);
    // Old clients append the client id.
    server
        .get(&format!("/sandboxes/{id}-6532622b"))
        .await
        .ok(200);
    assert_eq!(server.event_kinds(&id).await, ["created", "started"]);
}

#[tokio::test]
async fn v1_and_v2_differ_in_their_default_timeout() {
    let server = Server::start().await;
    let answer = server
        .post("/sandboxes", &json!({"templateID": "base", "secure": true}))
        .await
        .ok(201);
    let id = answer.json()["sandboxID"].as_str().unwrap().to_owned();
    let detail = server.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(lifetime(&detail), 15_000);
}

#[tokio::test]
async fn connect_never_shortens_and_timeout_does() {
    let server = Server::start().await;
    let id = server.create(json!({"timeout": 600})).await;
    let end = || async { end_ms(&server.get(&format!("/sandboxes/{id}")).await.json()) };
    let first = end().await;

    for (path, body) in [
        (format!("/v2/sandboxes/{id}/connect"), json!({})),
        (format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 0})),
        (
            format!("/sandboxes/{id}/connect"),
            json!({"timeout": 10, "memory": false}),
        ),
    ] {
        let answer = server.post(&path, &body).await.ok(200);
        assert_eq!(answer.json()["sandboxID"], json!(id.as_str()));
        assert!(answer.json()["envdAccessToken"].is_string());
        assert_eq!(end().await, first, "{path} {body}");
    }
    // No body at all.
    let path = format!("/v2/sandboxes/{id}/connect");
    server
        .call_as(&server.key, "POST", &path, None)
        .await
        .ok(200);
    server
        .post(
            &format!("/sandboxes/{id}/refreshes"),
            &json!({"duration": 30}),
        )
        .await
        .ok(204);
    assert_eq!(end().await, first);

    server.post(&path, &json!({"timeout": 3600})).await.ok(200);
    assert!(end().await > first + 2_900_000);
    server
        .post(&format!("/sandboxes/{id}/timeout"), &json!({"timeout": 60}))
        .await
        .ok(204);
    let short = end().await;
    assert!((now_ms() + 50_000..=now_ms() + 60_000).contains(&short));
    server
        .post(
            &format!("/sandboxes/{id}/refreshes"),
            &json!({"duration": 3600}),
        )
        .await
        .ok(204);
    assert!(end().await > short + 3_500_000);
    // The v1 route has no default.
    let text = server
        .post(&format!("/sandboxes/{id}/connect"), &json!({}))
        .await
        .refused(400);
    assert!(text.contains("timeout is required"), "{text}");
    assert_eq!(
        server.event_kinds(&id).await,
        [
            "created",
            "started",
            "connected",
            "connected",
            "connected",
            "connected",
            "refreshed",
            "connected",
            "timeout_set",
            "refreshed"
        ]
    );
}

#[tokio::test]
async fn a_timeout_ends_within_a_second_and_says_why() {
    let server = Server::start().await;
    let id = server.create(json!({"timeout": 1})).await;
    let started = Instant::now();
    until("it is gone from the node", || async {
        !server.node.holds(&id)
    })
    .await;
    let took = started.elapsed();
    assert!(took > Duration::from_millis(900), "{took:?}");
    assert!(took < Duration::from_millis(2000), "{took:?}");
    let text = server.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(
        text.starts_with(&format!("sandbox \"{id}\" not found: it ended at 2")),
        "{text}"
    );
    assert!(text.ends_with(": its timeout passed (by hearth)"), "{text}");
    assert_eq!(server.node.kills_of(&id), [EndCause::Timeout]);
    until("it is recorded", || async {
        server.event_kinds(&id).await == ["created", "started", "expired", "ended"]
    })
    .await;
}

#[tokio::test]
async fn a_timeout_of_zero_ends_at_once() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let started = Instant::now();
    server
        .post(&format!("/sandboxes/{id}/timeout"), &json!({"timeout": 0}))
        .await
        .ok(204);
    until("it is gone", || async { !server.node.holds(&id) }).await;
    assert!(started.elapsed() < Duration::from_millis(800));
}

#[tokio::test]
async fn a_kill_returns_when_all_is_given_back() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let Lookup::Running(route) = server.control.routes().lookup(&id).await.unwrap() else {
        panic!("it runs");
    };
    assert!(!route.gone.is_cancelled());
    server.delete(&format!("/sandboxes/{id}")).await.ok(204);
    assert!(!server.node.holds(&id));
    assert!(route.gone.is_cancelled());
    let Lookup::Ended(reason) = server.control.routes().lookup(&id).await.unwrap() else {
        panic!("it ended");
    };
    assert_eq!(reason.cause, EndCause::Killed);
    assert!(matches!(reason.actor, Actor::Key { .. }));

    let path = format!("/sandboxes/{id}");
    let text = server.delete(&path).await.refused(404);
    assert!(
        text.contains("killed on request (by API key key_"),
        "{text}"
    );
    for (method, path, body) in [
        ("GET", path.clone(), None),
        ("POST", format!("{path}/timeout"), Some(r#"{"timeout":5}"#)),
        ("POST", format!("{path}/refreshes"), None),
        ("POST", format!("{path}/connect"), Some(r#"{"timeout":5}"#)),
        ("POST", format!("/v2{path}/connect"), None),
        ("POST", format!("{path}/pause"), None),
        ("POST", format!("{path}/resume"), None),
        ("GET", format!("{path}/metrics"), None),
    ] {
        let again = server.call_as(&server.key, method, &path, body).await;
        assert_eq!(again.refused(404), text, "{method} {path}");
    }
    assert_eq!(
        server.event_kinds(&id).await,
        ["created", "started", "killed", "ended"]
    );
}

#[tokio::test]
async fn of_many_kills_one_succeeds() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let path = format!("/sandboxes/{id}");
    let answers = futures::future::join_all((0..20).map(|_| server.delete(&path))).await;
    let done = answers.iter().filter(|a| a.status == 204).count();
    let gone = answers.iter().filter(|a| a.status == 404).count();
    assert_eq!((done, gone), (1, 19));
    assert_eq!(server.node.kills_of(&id).len(), 1);
}

#[tokio::test]
async fn a_death_is_recorded_with_its_cause() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.lose(&id);
    server
        .reports
        .send(Report::Died {
            id: id.clone(),
            cause: EndCause::OutOfMemory,
        })
        .await
        .unwrap();
    let path = format!("/sandboxes/{id}");
    until("it is gone", || async {
        server.get(&path).await.status == 404
    })
    .await;
    let text = server.get(&path).await.refused(404);
    assert!(
        text.ends_with("it exceeded its memory limit (by the sandbox itself)"),
        "{text}"
    );
    assert_eq!(
        server.event_kinds(&id).await,
        ["created", "started", "died", "ended"]
    );
}

#[tokio::test]
async fn failed_starts_have_their_codes_and_leave_nothing() {
    let server = Server::start().await;
    let body = json!({"templateID": "base"});
    for (error, status, code) in [
        (
            CreateError::NoCapacity {
                what: "memory".into(),
            },
            503,
            json!("sandbox_capacity_unavailable"),
        ),
        (
            CreateError::NoTemplate {
                template: "base".into(),
            },
            404,
            json!(null),
        ),
        (
            CreateError::StartFailed {
                detail: "no shell".into(),
            },
            500,
            json!("sandbox_create_failed"),
        ),
    ] {
        server.node.set_mood(Mood::Fail(error.clone()));
        let answer = server.post("/v2/sandboxes", &body).await;
        answer.refused(status);
        assert_eq!(answer.json()["error_code"], code, "{error}");
    }
    assert_eq!(server.list_all("").await.len(), 0);
    // The limit counts only what is alive.
    server.node.set_mood(Mood::Good);
    server.create(json!({})).await;
    let text = server
        .post("/v2/sandboxes", &json!({"templateID": "nobody"}))
        .await
        .refused(404);
    assert_eq!(text, "template \"nobody\" not found");
}

#[tokio::test]
async fn a_create_that_hangs_is_given_up_and_cleaned_up() {
    for mood in [Mood::Hang, Mood::Deaf] {
        let server =
            Server::start_with(|config| config.create_deadline = Duration::from_millis(100)).await;
        server.node.set_mood(mood.clone());
        let answer = server
            .post("/v2/sandboxes", &json!({"templateID": "base"}))
            .await;
        answer.refused(504);
        assert_eq!(answer.json()["error_code"], "sandbox_placement_timeout");
        assert_eq!(answer.header("should-retry"), Some("false"));
        // A node that finishes after all leaves no orphan.
        server.node.set_mood(Mood::Good);
        until("nothing is left", || async {
            server.node.count() == 0 && counts_live(&server).await == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_stop_the_create() {
    let server = Server::start().await;
    server.node.set_mood(Mood::Hang);
    let body = json!({"templateID": "base"});
    {
        let request = server.post("/v2/sandboxes", &body);
        tokio::pin!(request);
        tokio::select! {
            _ = &mut request => panic!("it hangs"),
            () = until("the node was asked", || async {
                server.node.creates.load(std::sync::atomic::Ordering::SeqCst) == 1
            }) => {}
        }
    }
    server.node.set_mood(Mood::Good);
    until("it runs", || async { server.list_all("").await.len() == 1 }).await;
    assert_eq!(server.node.count(), 1);
}

#[tokio::test]
async fn a_kill_overtakes_a_create() {
    for mood in [Mood::Hang, Mood::Deaf] {
        let server = Server::start().await;
        server.node.set_mood(mood.clone());
        let (server, body) = (&server, json!({"templateID": "base"}));
        let create = server.post("/v2/sandboxes", &body);
        let kill = async {
            let mut id = None;
            while id.is_none() {
                id = creating_id(server).await;
            }
            let id = id.unwrap();
            // Not shown while it is being created, and not to be extended.
            let text = server.get(&format!("/sandboxes/{id}")).await.refused(409);
            assert!(text.contains("being created"), "{text}");
            let path = format!("/sandboxes/{id}");
            let kill = server.delete(&path);
            let open = async {
                until("the kill reached the node", || async {
                    !server.node.kills_of(&id).is_empty()
                })
                .await;
                server.node.set_mood(Mood::Good);
            };
            futures::future::join(kill, open).await.0.ok(204);
            id
        };
        let (created, id) = futures::future::join(create, kill).await;
        let text = created.refused(500);
        assert!(text.contains("killed on request"), "{text}");
        assert!(!server.node.holds(&id));
        assert_eq!(counts_live(server).await, 0);
    }
}

#[tokio::test]
async fn a_death_during_the_create_is_not_served() {
    let server = Server::start().await;
    server.node.set_mood(Mood::Deaf);
    let (server, body) = (&server, json!({"templateID": "base"}));
    let create = server.post("/v2/sandboxes", &body);
    let die = async {
        let mut id = None;
        while id.is_none() {
            id = creating_id(server).await;
        }
        let id = id.unwrap();
        let cause = EndCause::Crashed { detail: "x".into() };
        let report = Report::Died {
            id: id.clone(),
            cause,
        };
        server.reports.send(report).await.unwrap();
        until("it is recorded", || async {
            matches!(
                server.control.routes().lookup(&id).await.unwrap(),
                Lookup::Ended(_)
            )
        })
        .await;
        server.node.set_mood(Mood::Good);
    };
    let (created, ()) = futures::future::join(create, die).await;
    created.refused(500);
    assert_eq!(server.node.count(), 0);
}

#[tokio::test]
async fn a_signature_finds_its_sandbox_while_it_runs() {
    let server = Server::start().await;
    let (a, b) = (
        server.create(json!({})).await,
        server.create(json!({})).await,
    );
    let claim = Claim {
        path: "/home/user/x",
        operation: Operation::Read,
        user: "user",
        expiration: None,
    };
    let routes = server.control.routes();
    let whose = |signature: &str| {
        let found = routes.find_signed(|token| verify(&claim, token, signature));
        found.map(|running| running.id.clone())
    };
    let signed_for = |id| sign(&claim, &server.node.spec(id).access_token);
    let signature = signed_for(&a);
    assert_eq!(whose(&signature), Some(a.clone()));
    assert_eq!(whose(&signed_for(&b)), Some(b));
    assert_eq!(whose("v1_short"), None);
    server.delete(&format!("/sandboxes/{a}")).await.ok(204);
    assert_eq!(whose(&signature), None);
}

#[tokio::test]
async fn down_ends_everything() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.create(json!({})).await;
    let ended = server
        .control
        .end_all(EndCause::Down, Actor::Operator)
        .await
        .unwrap();
    assert_eq!((ended, server.node.count()), (2, 0));
    let text = server.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(text.contains("(by the operator)"), "{text}");
}

/// The id of a sandbox being created, from the store: no client can see it.
async fn creating_id(server: &Server) -> Option<hearth_model::id::SandboxId> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let id: Option<String> =
        sqlx::query_scalar("SELECT id FROM sandboxes WHERE state = 'creating'")
            .fetch_optional(&open(server).await)
            .await
            .unwrap();
    id.map(|id| hearth_model::id::SandboxId::parse(&id).unwrap())
}

pub(crate) async fn counts_live(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM sandboxes WHERE state <> 'ended'")
        .fetch_one(&open(server).await)
        .await
        .unwrap()
}

async fn open(server: &Server) -> sqlx::SqlitePool {
    sqlx::SqlitePool::connect(&format!("sqlite://{}", server.db_path().display()))
        .await
        .unwrap()
}

fn end_ms(detail: &serde_json::Value) -> i64 {
    at(detail, "endAt")
}

fn lifetime(detail: &serde_json::Value) -> i64 {
    at(detail, "endAt") - at(detail, "startedAt")
}

fn at(detail: &serde_json::Value, name: &str) -> i64 {
    let text = detail[name].as_str().unwrap();
    let time =
        time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).unwrap();
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap()
}
