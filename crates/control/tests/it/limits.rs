//! The limit of live sandboxes of a team, under a race.

use hearth_control::keys::{Keys, TeamLimits};
use hearth_model::id::TeamId;
use serde_json::json;

use crate::node::Mood;
use crate::server::Server;

async fn limit(keys: &Keys, team: &str, max_live: Option<u32>) {
    let limits = TeamLimits {
        max_live,
        max_timeout_h: None,
    };
    let team = TeamId::parse(team).unwrap();
    keys.set_team_limits(&team, limits).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_at_once_at_a_limit_of_one_hundred() {
    let server = Server::start().await;
    // Set by another process, as `hearth` does.
    let cli = Keys::open(&server.db_path()).await.unwrap();
    limit(&cli, "default", Some(100)).await;
    let body = json!({"templateID": "base"});
    let answers =
        futures::future::join_all((0..200).map(|_| server.post("/v2/sandboxes", &body))).await;
    let made = answers.iter().filter(|a| a.status == 201).count();
    assert_eq!(made, 100);
    assert_eq!(server.node.count(), 100);
    let refused: Vec<_> = answers.iter().filter(|a| a.status != 201).collect();
    assert_eq!(refused.len(), 100);
    for answer in refused {
        let text = answer.refused(429);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(text.contains("default") && text.contains("100"), "{text}");
    }
    // Another team is not touched; room comes back with an end; no limit is no limit.
    let other = server.new_key("other").await;
    server
        .call_as(&other, "POST", "/v2/sandboxes", Some(&body.to_string()))
        .await
        .ok(201);
    let id = server.list_all("limit=1").await.remove(0);
    server.delete(&format!("/sandboxes/{id}")).await.ok(204);
    server.create(json!({})).await;
    server.post("/v2/sandboxes", &body).await.refused(429);
    limit(&cli, "default", None).await;
    server.create(json!({})).await;
}

#[tokio::test]
async fn what_is_being_created_counts_and_what_failed_does_not() {
    let server = Server::start().await;
    limit(&server.control.keys(), "default", Some(1)).await;
    server.node.set_mood(Mood::Hang);
    let (server, body) = (&server, json!({"templateID": "base"}));
    let first = server.post("/v2/sandboxes", &body);
    let second = async {
        while server
            .node
            .creates
            .load(std::sync::atomic::Ordering::SeqCst)
            == 0
        {
            tokio::task::yield_now().await;
        }
        let answer = server.post("/v2/sandboxes", &body).await;
        let error = hearth_model::node::CreateError::StartFailed { detail: "x".into() };
        server.node.set_mood(Mood::Fail(error));
        answer
    };
    let (first, second) = futures::future::join(first, second).await;
    second.refused(429);
    first.refused(500);
    server.node.set_mood(Mood::Good);
    server.create(json!({})).await;
}

#[tokio::test]
async fn a_team_may_have_shorter_lives() {
    let server = Server::start().await;
    let limits = TeamLimits {
        max_live: None,
        max_timeout_h: Some(1),
    };
    let team = TeamId::parse("default").unwrap();
    server
        .control
        .keys()
        .set_team_limits(&team, limits)
        .await
        .unwrap();
    let id = server.create(json!({"timeout": 3600})).await;
    let want = "Timeout cannot be greater than 1 hour";
    for (path, body) in [
        (
            "/v2/sandboxes".to_owned(),
            json!({"templateID": "base", "timeout": 3601}),
        ),
        (format!("/sandboxes/{id}/timeout"), json!({"timeout": 3601})),
        (
            format!("/v2/sandboxes/{id}/connect"),
            json!({"timeout": 3601}),
        ),
    ] {
        assert_eq!(server.post(&path, &body).await.refused(400), want, "{path}");
    }
}
