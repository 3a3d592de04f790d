//! Who gets a request, and the exact words when nobody does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hearth_edge::Lookup;
use hearth_model::end::{Actor, EndCause, EndReason};
use hearth_model::id::SandboxId;
use hearth_model::secret::Secret;
use hearth_model::signature::{Claim, Operation, sign};

use crate::stand::{Stand, body, http, mirror, named, status, text};

#[tokio::test]
async fn headers_then_host_then_control() {
    let stand = Stand::new().await;
    let (a, b) = (stand.sandbox(), stand.sandbox());
    let port = http(a.address, 0, |_| async { text("a") }).await;
    http(b.address, port, |_| async { text("b") }).await;

    assert_eq!(body(&stand.ask(&a, port, "GET /").await), "a");
    let by_host = |host: String| {
        let stand = &stand;
        async move {
            stand
                .raw(format!(
                    "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                ))
                .await
        }
    };
    for host in [
        format!("{port}-{}.localhost:3000", b.id),
        format!("{port}-{}.LOCALHOST.", b.id.as_str().to_uppercase()),
        format!("{port}-{}-6532622b.example.test", b.id),
    ] {
        assert_eq!(body(&by_host(host.clone()).await), "b", "{host}");
    }
    // Both name a sandbox: the headers win.
    let both = stand
        .raw(format!(
            "GET / HTTP/1.1\r\nHost: {port}-{}.localhost\r\nConnection: close\r\n{}\r\n",
            b.id,
            named(&a, port)
        ))
        .await;
    assert_eq!(body(&both), "a");
    let absolute = stand
        .raw(format!(
            "GET http://{port}-{id}.localhost/x HTTP/1.1\r\nHost: {port}-{id}.localhost\r\nConnection: close\r\n\r\n",
            id = b.id
        ))
        .await;
    assert_eq!(body(&absolute), "b");
    for host in ["localhost", "127.0.0.1:3000", "[::1]:3000"] {
        assert_eq!(body(&by_host(host.into()).await), "control /", "{host}");
    }
    let posted = stand
        .raw("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
        .await;
    assert_eq!(body(&posted), "hi");
}

#[tokio::test]
async fn what_names_nothing_is_400_text() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = http(sandbox.address, 0, |_| async { text("reached") }).await;
    let good = format!("GET / HTTP/1.1\r\nHost: {port}-{}.x\r\n", sandbox.id);
    let answer = stand.raw(format!("{good}Connection: close\r\n\r\n")).await;
    assert_eq!(body(&answer), "reached");

    let id = &sandbox.id;
    for request in [
        "GET / HTTP/1.1\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost:\r\n".into(),
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n".into(),
        format!("{good}Host: localhost\r\n"),
        format!("GET / HTTP/1.1\r\nHost: user@{port}-{id}.x\r\n"),
        format!("GET / HTTP/1.1\r\nHost: 0-{id}.x\r\n"),
        format!("GET / HTTP/1.1\r\nHost: 99999-{id}.x\r\n"),
        "GET / HTTP/1.1\r\nHost: 80-nosuch.x\r\n".into(),
        "GET / HTTP/1.1\r\nHost: [::1\r\n".into(),
        format!("GET http://other/ HTTP/1.1\r\nHost: {port}-{id}.x\r\n"),
        format!("GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {id}\r\n"),
        format!("GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Port: {port}\r\n"),
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: ../{id}\r\nE2b-Sandbox-Port: {port}\r\n"
        ),
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {port}x\r\n"
        ),
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {port}\r\n"
        ),
        format!("CONNECT {port}-{id}.x:80 HTTP/1.1\r\nHost: {port}-{id}.x:80\r\n"),
    ] {
        let answer = stand
            .raw(format!("{request}Connection: close\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), 400, "{request:?} {answer}");
        assert!(answer.contains("content-type: text/plain"), "{request:?}");
        assert!(
            body(&answer).starts_with("invalid") || body(&answer).contains("header"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn sandboxes_that_cannot_answer() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = http(sandbox.address, 0, |_| async { text("open") }).await;
    assert_eq!(body(&stand.ask(&sandbox, port, "GET /").await), "open");

    // The port is closed, and no agent is there to look at its loopback.
    let closed = stand.ask(&sandbox, 1, "GET /").await;
    assert_eq!(status(&closed), 502);
    assert_eq!(
        body(&closed),
        format!(
            r#"{{"sandboxId":"{}","message":"The sandbox is running but port is not open","port":1,"code":502}}"#,
            sandbox.id
        )
    );
    let agent_down = stand.ask(&sandbox, 49983, "GET /health").await;
    assert!(
        body(&agent_down).contains("port is not open"),
        "{agent_down}"
    );

    stand.table.set(&sandbox.id, Lookup::Changing);
    assert_eq!(status(&stand.ask(&sandbox, port, "GET /").await), 409);

    stand.table.set(
        &sandbox.id,
        Lookup::Ended {
            reason: EndReason {
                at_ms: 1_700_000_000_000,
                cause: EndCause::Killed,
                actor: Actor::Key { id: "k1".into() },
            },
        },
    );
    let ended = stand.ask(&sandbox, port, "GET /").await;
    assert_eq!(status(&ended), 502);
    assert_eq!(
        body(&ended),
        format!(
            r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502,"endedAt":"2023-11-14T22:13:20Z","reason":"killed on request","by":"API key k1"}}"#,
            sandbox.id
        )
    );

    let unknown = SandboxId::random();
    let answer = stand
        .raw(format!(
            "GET / HTTP/1.1\r\nHost: {port}-{unknown}.x\r\nConnection: close\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&answer), 502);
    assert!(answer.contains("content-type: text/html"), "{answer}");
    assert!(answer.contains("The sandbox was not found"), "{answer}");
}

#[tokio::test]
async fn the_agents_internal_routes_and_control_port_are_hidden() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let hits = Arc::new(AtomicUsize::new(0));
    for port in [49982, 49983] {
        let hits = Arc::clone(&hits);
        http(sandbox.address, port, move |_| {
            hits.fetch_add(1, Ordering::Relaxed);
            async { text("agent") }
        })
        .await;
    }
    let user = http(sandbox.address, 0, |_| async { text("user") }).await;
    assert_eq!(
        body(&stand.ask(&sandbox, 49983, "GET /health").await),
        "agent"
    );
    assert_eq!(hits.load(Ordering::Relaxed), 1);

    for path in [
        "/init",
        "//init",
        "/%69nit",
        "/%2569nit",
        "/x/..//init",
        "/x/%2e%2e/init",
        "/init?x=1",
        "/freeze",
        "/unfreeze",
        "/collapse",
        "/fsfreeze",
        "/fsthaw",
        "/upgrade",
    ] {
        for method in ["GET", "POST", "PUT", "OPTIONS", "BREW"] {
            let answer = stand
                .ask(&sandbox, 49983, &format!("{method} {path}"))
                .await;
            assert_eq!(status(&answer), 404, "{method} {path}");
        }
        // They are ordinary paths on a user's port.
        let answer = stand.ask(&sandbox, user, &format!("GET {path}")).await;
        assert_eq!(body(&answer), "user", "{path}");
    }
    let absolute = format!(
        "POST http://localhost/init HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
        named(&sandbox, 49983)
    );
    assert_eq!(status(&stand.raw(absolute).await), 404);
    for path in ["/health", "/tunnel?port=22", "/"] {
        let answer = stand.ask(&sandbox, 49982, &format!("GET {path}")).await;
        assert_eq!(status(&answer), 404, "{path}");
    }
    assert_eq!(hits.load(Ordering::Relaxed), 1, "none of them arrived");
}

#[tokio::test]
async fn a_signed_url_finds_its_sandbox() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    http(sandbox.address, 49983, mirror).await;
    let token = Secret::random();
    stand.table.sign(&sandbox.id, &token);
    let url = |path: &str, token: &Secret| {
        let claim = Claim {
            path,
            operation: Operation::Read,
            user: "",
            expiration: None,
        };
        let signature = sign(&claim, token).replace('+', "%2B");
        format!("/files?path={path}&signature={signature}")
    };
    let get = async |target: String| {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stand.raw(request).await
    };
    let good = url("a.txt", &token);
    let answer = get(good.clone()).await;
    assert_eq!(status(&answer), 200);
    assert!(
        body(&answer).starts_with(&format!("GET {good}\n")),
        "{answer}"
    );
    let other = get(url("a.txt", &Secret::random())).await;
    assert_eq!(status(&other), 401);
    let changed = get(good.replace("a.txt", "b.txt")).await;
    assert_eq!(status(&changed), 401);
    let twice = get(format!("{good}&path=b.txt")).await;
    assert_eq!(status(&twice), 400);
    // Without a signature it is a path of the control API.
    assert_eq!(body(&get("/files?path=a".into()).await), "control /files");
}
