//! Bad input and other people's sandboxes. Each refusal stands beside the same request
//! where it is allowed.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use crate::server::Server;

fn create(server: &Server) -> axum::http::request::Builder {
    Request::post("/v2/sandboxes").header("x-api-key", &server.key)
}

const GOOD: &str = r#"{"templateID":"base"}"#;

#[tokio::test]
async fn a_wrong_key_gets_one_text_whatever_is_wrong() {
    let server = Server::start().await;
    server.get("/v2/sandboxes").await.ok(200);
    let revoked = server.new_key("default").await;
    let keys = server.control.keys();
    let id = keys.list(None).await.unwrap().last().unwrap().id.clone();
    server
        .call_as(&revoked, "GET", "/v2/sandboxes", None)
        .await
        .ok(200);
    keys.revoke(&id, None).await.unwrap();

    let mut texts = std::collections::BTreeSet::new();
    let long = format!("e2b_{}", "0".repeat(60_000));
    for key in [
        "",
        "e2b_",
        "e2b_0000000000000000000000000000000000000000",
        &revoked,
        &long,
        "'",
    ] {
        for (method, path) in [
            ("GET", "/v2/sandboxes"),
            ("POST", "/v2/sandboxes"),
            ("GET", "/volumes"),
        ] {
            let answer = server.call_as(key, method, path, None).await;
            texts.insert(answer.refused(401));
        }
    }
    let request = Request::get("/v2/sandboxes").body(Body::empty()).unwrap();
    texts.insert(server.send(request).await.refused(401));
    assert_eq!(texts.len(), 1, "{texts:?}");
}

#[tokio::test]
async fn another_teams_sandbox_is_no_sandbox_on_every_route() {
    let server = Server::start().await;
    let own = server.create(json!({})).await;
    let ended = server.create(json!({})).await;
    server.delete(&format!("/sandboxes/{ended}")).await.ok(204);
    let other = server.new_key("other").await;
    let nobody = hearth_model::id::SandboxId::random();
    for (method, route, body, own_status) in [
        ("GET", "/sandboxes/ID", None, 200),
        ("POST", "/v2/sandboxes/ID/connect", Some("{}"), 200),
        (
            "POST",
            "/sandboxes/ID/connect",
            Some(r#"{"timeout":9}"#),
            200,
        ),
        (
            "POST",
            "/sandboxes/ID/timeout",
            Some(r#"{"timeout":900}"#),
            204,
        ),
        ("POST", "/sandboxes/ID/refreshes", None, 204),
        ("GET", "/sandboxes/ID/metrics", None, 200),
        ("GET", "/sandboxes/ID/logs", None, 200),
        ("GET", "/v2/sandboxes/ID/logs", None, 200),
        ("POST", "/sandboxes/ID/pause", None, 400),
        ("POST", "/sandboxes/ID/resume", None, 409),
        ("POST", "/sandboxes/ID/fork", Some("{}"), 400),
        ("POST", "/sandboxes/ID/snapshots", Some("{}"), 400),
        ("PUT", "/sandboxes/ID/network", Some("{}"), 400),
        ("DELETE", "/sandboxes/ID", None, 204),
    ] {
        for id in [&own, &ended, &nobody] {
            let path = route.replace("ID", id.as_str());
            let answer = server.call_as(&other, method, &path, body).await;
            // Word for word what an id of nobody gets.
            assert_eq!(
                answer.refused(404),
                format!("sandbox \"{id}\" not found"),
                "{method} {path}"
            );
        }
        let path = route.replace("ID", own.as_str());
        let answer = server.call_as(&server.key, method, &path, body).await;
        assert_eq!(
            answer.status.as_u16(),
            own_status,
            "{method} {path}: {}",
            answer.text
        );
        if own_status == 400 {
            assert!(
                answer
                    .refused(400)
                    .contains("not supported by this server yet")
            );
        }
    }
}

#[tokio::test]
async fn hostile_ids_name_nothing() {
    let server = Server::start().await;
    let long = "i".repeat(60_000);
    for id in [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "i%00",
        "%252e",
        "%ff%fe",
        "%d0%b6",
        "i0000000000000000000000'--",
        &long,
        "debug_sandbox_id",
    ] {
        for (method, path) in [
            ("GET", format!("/sandboxes/{id}")),
            ("DELETE", format!("/sandboxes/{id}")),
            ("POST", format!("/v2/sandboxes/{id}/connect")),
            ("GET", format!("/sandboxes/{id}/logs")),
        ] {
            let answer = server.call_as(&server.key, method, &path, None).await;
            let text = answer.refused(404);
            assert!(text.len() < 400, "{} characters", text.len());
        }
    }
}

#[tokio::test]
async fn bad_bodies_are_refused_with_a_reason() {
    let server = Server::start().await;
    let send = |request: Request<Body>| server.send(request);
    let good = || create(&server).body(Body::from(GOOD)).unwrap();
    send(good()).await.ok(201);

    let identity = create(&server).header("content-encoding", "identity");
    send(identity.body(Body::from(GOOD)).unwrap()).await.ok(201);
    let gzip = create(&server).header("content-encoding", "gzip");
    send(gzip.body(Body::from(GOOD)).unwrap())
        .await
        .refused(415);

    let multipart = create(&server).header("content-type", "multipart/form-data; boundary=b");
    let body = "--b\r\nContent-Disposition: form-data; name=\"templateID\"\r\n\r\nbase\r\n--b--";
    send(multipart.body(Body::from(body)).unwrap())
        .await
        .refused(400);

    for body in [
        "",
        "{",
        "null",
        "[]",
        "\"base\"",
        "{\"templateID\":\"base\"",
        "\u{0}",
        "{}",
    ] {
        send(create(&server).body(Body::from(body)).unwrap())
            .await
            .refused(400);
    }
    // Invalid UTF-8, and a body that breaks off.
    let bytes = b"{\"templateID\":\"\xff\"}".to_vec();
    send(create(&server).body(Body::from(bytes)).unwrap())
        .await
        .refused(400);
    let broken = futures::stream::iter([
        Ok(bytes::Bytes::from_static(b"{\"templateID\":")),
        Err(std::io::Error::other("connection reset")),
    ]);
    let text = send(create(&server).body(Body::from_stream(broken)).unwrap())
        .await
        .refused(400);
    assert!(text.contains("before it was complete"), "{text}");
    assert_eq!(server.node.count(), 2);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_however_it_comes() {
    let server = Server::start().await;
    let limit = hearth_model::limits::MAX_JSON_BODY;
    let fill = |size: usize| {
        let head = r#"{"templateID":"base","ignored":""#;
        format!("{head}{}\"}}", "x".repeat(size - head.len() - 2))
    };
    let just = create(&server).body(Body::from(fill(limit))).unwrap();
    server.send(just).await.ok(201);

    let text = fill(limit + 1);
    let announced = create(&server)
        .header("content-length", text.len())
        .body(Body::from(text.clone()))
        .unwrap();
    let message = server.send(announced).await.refused(413);
    assert!(message.contains(&limit.to_string()), "{message}");
    // Without a length, never read to its end.
    let endless = futures::stream::repeat_with(|| {
        Ok::<_, std::io::Error>(bytes::Bytes::from_static(&[b' '; 4096]))
    });
    let streamed = create(&server).body(Body::from_stream(endless)).unwrap();
    server.send(streamed).await.refused(413);
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_in_json() {
    let server = Server::start().await;
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("GET", "/sandboxes/", 404),
        ("GET", "//sandboxes", 404),
        ("PUT", "/v2/sandboxes", 405),
        ("PATCH", "/sandboxes", 405),
        ("DELETE", "/health", 405),
        ("GET", "/sandboxes/i0000000000000000000000/connect", 405),
        ("POST", "/templates", 410),
        ("POST", "/templates/base", 410),
        ("POST", "/v3/templates", 400),
        ("GET", "/snapshots", 400),
        ("POST", "/volumes", 400),
        ("GET", "/secrets", 400),
        ("DELETE", "/templates/base", 400),
        ("DELETE", "/templates/nobody", 404),
        ("GET", "/templates/base/tags", 400),
        ("PATCH", "/v2/templates/base", 400),
    ] {
        server
            .call_as(&server.key, method, path, None)
            .await
            .refused(status);
    }
}

#[tokio::test]
async fn the_options_of_later_issues_are_refused_by_name() {
    let server = Server::start().await;
    for (field, value) in [
        ("autoPause", json!(true)),
        ("autoPauseMemory", json!(false)),
        ("autoResume", json!({"enabled": true})),
        ("network", json!({"denyOut": ["0.0.0.0/0"]})),
        ("mcp", json!({"exa": {}, "x": 1})),
        (
            "iam",
            json!({"tokens": {"a": {"audience": "b", "tokenType": "JWT-SVID"}}}),
        ),
        ("volumeMounts", json!([{"name": "a", "path": "/b"}])),
    ] {
        for path in ["/sandboxes", "/v2/sandboxes"] {
            let body = json!({"templateID": "base", field: value});
            let text = server.post(path, &body).await.refused(400);
            assert!(text.contains(field), "{text}");
        }
    }
    assert_eq!(server.node.count(), 0);
}
