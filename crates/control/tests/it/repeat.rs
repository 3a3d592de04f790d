//! Idempotency keys.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::node::Mood;
use crate::server::{Answer, Server};

pub(crate) async fn create(server: &Server, api_key: &str, key: &str, body: &Value) -> Answer {
    let request = Request::post("/v2/sandboxes")
        .header("x-api-key", api_key)
        .header("idempotency-key", key)
        .body(Body::from(body.to_string()))
        .unwrap();
    server.send(request).await
}

#[tokio::test]
async fn the_same_request_is_answered_once() {
    let server = Server::start().await;
    let body = json!({"templateID": "base", "metadata": {"a": "b"}});
    let first = create(&server, &server.key, "k-1", &body).await.ok(201);
    let again = create(&server, &server.key, "k-1", &body).await.ok(201);
    assert_eq!(first.text, again.text);
    assert_eq!(server.node.count(), 1);

    let other_body = json!({"templateID": "base"});
    let answer = create(&server, &server.key, "k-1", &other_body).await;
    answer.refused(409);
    assert_eq!(answer.json()["error_code"], "idempotency_request_mismatch");

    // Keys are a team's own.
    let other = server.new_key("other").await;
    let theirs = create(&server, &other, "k-1", &body).await.ok(201);
    assert_ne!(theirs.text, first.text);
    // It survives a restart.
    let next = server.crash_and_start().await;
    let again = create(&next, &next.key, "k-1", &body).await.ok(201);
    assert_eq!(first.text, again.text);
}

#[tokio::test]
async fn a_repeat_during_the_create_is_told_so() {
    let server = Server::start().await;
    server.node.set_mood(Mood::Hang);
    let (server, body) = (&server, json!({"templateID": "base"}));
    let first = create(server, &server.key, "k", &body);
    let second = async {
        while server
            .node
            .creates
            .load(std::sync::atomic::Ordering::SeqCst)
            == 0
        {
            tokio::task::yield_now().await;
        }
        let answer = create(server, &server.key, "k", &body).await;
        server.node.set_mood(Mood::Good);
        answer
    };
    let (first, second) = futures::future::join(first, second).await;
    second.refused(409);
    assert_eq!(second.json()["error_code"], "idempotency_in_progress");
    let first = first.ok(201);
    let third = create(server, &server.key, "k", &body).await.ok(201);
    assert_eq!(first.text, third.text);
}

#[tokio::test]
async fn a_failed_create_frees_its_key() {
    let server = Server::start().await;
    let body = json!({"templateID": "base"});
    let error = hearth_model::node::CreateError::NoCapacity {
        what: "memory".into(),
    };
    server.node.set_mood(Mood::Fail(error));
    create(&server, &server.key, "k", &body).await.refused(503);
    server.node.set_mood(Mood::Good);
    create(&server, &server.key, "k", &body).await.ok(201);
}

#[tokio::test]
async fn keys_have_a_form() {
    let server = Server::start().await;
    let body = json!({"templateID": "base"});
    let long = "a".repeat(256);
    for key in ["", "UPPER", "a b", "a_b", "\u{e4}", long.as_str()] {
        create(&server, &server.key, key, &body).await.refused(400);
    }
    create(&server, &server.key, &"a".repeat(255), &body)
        .await
        .ok(201);
}
