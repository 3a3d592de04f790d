//! What a start finds after the server was ended at any moment.

use hearth_control::Recovered;
use hearth_model::end::EndCause;
use hearth_model::id::SandboxId;
use serde_json::json;

use crate::node::Mood;
use crate::server::{Server, until};

#[tokio::test]
async fn running_sandboxes_are_served_again_and_their_timers_go_on() {
    let server = Server::start().await;
    let id = server
        .create(json!({"timeout": 2, "metadata": {"a": "b"}}))
        .await;
    let long = server.create(json!({})).await;
    let before = server.get(&format!("/sandboxes/{id}")).await.json();

    let next = server.crash_and_start().await;
    assert_eq!(
        next.recovered,
        Recovered {
            adopted: 2,
            ..Recovered::default()
        }
    );
    assert_eq!(
        next.get(&format!("/sandboxes/{id}")).await.ok(200).json(),
        before
    );
    until("its timer ended it", || async { !next.node.holds(&id) }).await;
    assert_eq!(next.node.kills_of(&id), [EndCause::Timeout]);
    assert!(next.node.holds(&long));
    next.get(&format!("/sandboxes/{long}")).await.ok(200);
}

#[tokio::test]
async fn a_deadline_that_passed_meanwhile_is_kept() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    set(&server, &id, "deadline_ms = 1").await;
    let next = server.crash_and_start().await;
    until("it ended", || async { !next.node.holds(&id) }).await;
    let text = next.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(text.contains("its timeout passed"), "{text}");
}

#[tokio::test]
async fn what_is_gone_is_declared_lost() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.lose(&id);
    let next = server.crash_and_start().await;
    assert_eq!(next.recovered.lost, 1);
    let text = next.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(
        text.ends_with("its processes were gone when the server came back (by hearth)"),
        "{text}"
    );
    assert_eq!(
        next.event_kinds(&id).await,
        ["created", "started", "died", "ended"]
    );
}

#[tokio::test]
async fn an_interrupted_create_is_given_up_and_its_key_is_free() {
    let server = Server::start().await;
    let body = json!({"templateID": "base"});
    let key = server.key.clone();
    let first = crate::repeat::create(&server, &key, "k", &body)
        .await
        .ok(201);
    let id = SandboxId::parse(first.json()["sandboxID"].as_str().unwrap()).unwrap();
    // As if the crash came before the start was recorded, the node having made it.
    set(&server, &id, "state = 'creating', started_ms = NULL").await;
    change(&server, "UPDATE idempotency SET answer = NULL").await;
    let next = server.crash_and_start().await;
    assert_eq!(next.recovered.unfinished, 1);
    until("it is removed", || async { !next.node.holds(&id) }).await;
    let text = next.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(
        text.contains("the server stopped while it was being created"),
        "{text}"
    );
    until("it is recorded", || async {
        next.event_kinds(&id).await.last().unwrap() == "ended"
    })
    .await;
    let second = crate::repeat::create(&next, &key, "k", &body).await.ok(201);
    assert_ne!(second.text, first.text);
}

#[tokio::test]
async fn an_interrupted_end_is_finished_with_its_reason() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let reason = r#"{"at_ms":5,"cause":"killed","actor":"key","id":"key_1"}"#;
    set(
        &server,
        &id,
        &format!("state = 'ending', end_reason = '{reason}'"),
    )
    .await;
    let next = server.crash_and_start().await;
    assert_eq!(next.recovered.ending, 1);
    until("it is removed", || async { !next.node.holds(&id) }).await;
    assert_eq!(next.node.kills_of(&id), [EndCause::Killed]);
    let text = next.get(&format!("/sandboxes/{id}")).await.refused(404);
    assert!(
        text.ends_with("ended at 1970-01-01T00:00:00.005Z: killed on request (by API key key_1)"),
        "{text}"
    );
}

#[tokio::test]
async fn what_belongs_to_nobody_is_removed() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let stranger = server.node.plant(&id);
    let undead = server.create(json!({})).await;
    set(&server, &undead, "state = 'ended'").await;
    let next = server.crash_and_start().await;
    assert_eq!((next.recovered.adopted, next.recovered.strangers), (1, 2));
    until("they are removed", || async {
        !next.node.holds(&stranger) && !next.node.holds(&undead)
    })
    .await;
    assert!(next.node.holds(&id));
}

#[tokio::test]
async fn a_stop_lets_a_create_finish() {
    let server = Server::start().await;
    server.node.set_mood(Mood::Hang);
    let body = json!({"templateID": "base"});
    let create = server.post("/v2/sandboxes", &body);
    let stop = async {
        until("the node was asked", || async {
            server
                .node
                .creates
                .load(std::sync::atomic::Ordering::SeqCst)
                == 1
        })
        .await;
        let open = async {
            tokio::task::yield_now().await;
            server.node.set_mood(Mood::Good);
        };
        futures::future::join(server.control.shutdown(), open).await;
    };
    let (created, ()) = futures::future::join(create, stop).await;
    created.ok(201);
    assert_eq!(server.node.count(), 1);
    let next = server.crash_and_start().await;
    assert_eq!(next.recovered.adopted, 1);
}

/// Changes the row of a sandbox behind the server's back.
async fn set(server: &Server, id: &SandboxId, what: &str) {
    change(
        server,
        &format!("UPDATE sandboxes SET {what} WHERE id = '{id}'"),
    )
    .await;
}

async fn change(server: &Server, statement: &str) {
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", server.db_path().display()))
        .await
        .unwrap();
    let done = sqlx::query(statement).execute(&pool).await.unwrap();
    assert_eq!(done.rows_affected(), 1, "{statement}");
}
