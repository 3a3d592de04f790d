//! Which headers pass in both directions.

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use crate::stand::{Body, Stand, body, http, mirror, named, status};

#[tokio::test]
async fn a_sandbox_sees_the_client_but_none_of_our_names() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = http(sandbox.address, 0, mirror).await;
    let request = |port| {
        format!(
            "GET /a%2Fb/../c?q=%20 HTTP/1.1\r\nHost: My.Host:3000\r\nConnection: close, X-Hop\r\n{}\
             X-Hop: 1\r\nX-Hearth-Control: stolen\r\nX-Access-Token: token\r\n\
             E2b-Traffic-Access-Token: traffic\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n\
             Cookie: kept\r\nTE: trailers\r\nX_Hearth_Control: stolen\r\n\r\n",
            named(&sandbox, port)
        )
    };
    let answer = stand.raw(request(port)).await;
    let mut lines: Vec<&str> = body(&answer).trim_end().lines().collect();
    assert_eq!(lines.remove(0), "GET /a%2Fb/../c?q=%20");
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "cookie: kept",
            "host: My.Host:3000",
            "te: trailers",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: My.Host:3000",
            "x-forwarded-proto: http"
        ]
    );
    // The agent and the code interpreter check the token, and nothing else gets it.
    http(sandbox.address, 49983, mirror).await;
    http(sandbox.address, 49999, mirror).await;
    for port in [49983, 49999] {
        let answer = stand.raw(request(port)).await;
        assert!(answer.contains("x-access-token: token"), "{port} {answer}");
        assert!(!answer.contains("stolen"), "{port} {answer}");
    }
}

#[tokio::test]
async fn what_a_sandbox_answers_is_data() {
    let stand = Stand::new().await;
    let (a, b) = (stand.sandbox(), stand.sandbox());
    let port = http(a.address, 0, |_| async {
        http::Response::builder()
            .status(201)
            .header("E2b-Sandbox-Id", "i0000000000000000000000000")
            .header("Connection", "x-hop, keep-alive")
            .header("X-Hop", "1")
            .header("Keep-Alive", "timeout=1")
            .header("Set-Cookie", "a=1")
            .header("Set-Cookie", "b=2")
            .body(crate::stand::text("hi").into_body())
            .expect("valid")
    })
    .await;
    http(b.address, port, |_| async { crate::stand::text("b") }).await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            named(&a, port)
        ))
        .await;
    let head = client.until("\r\n\r\n").await;
    assert_eq!(status(&head), 201);
    assert!(
        head.contains("set-cookie: a=1\r\nset-cookie: b=2\r\n"),
        "{head}"
    );
    assert!(
        !head.contains("x-hop") && !head.contains("keep-alive"),
        "{head}"
    );
    assert_eq!(client.until("hi").await, "hi");
    // The same connection then serves another sandbox, and control.
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            named(&b, port)
        ))
        .await;
    assert_eq!(status(&client.until("\r\n\r\nb").await), 200);
    client
        .send("GET /y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(body(&client.rest().await), "control /y");
}

#[tokio::test]
async fn head_and_lengths_are_kept() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = http(sandbox.address, 0, |request| async move {
        let mut answer = crate::stand::text("");
        if request.uri().path() == "/len" {
            answer.headers_mut().insert(
                "content-length",
                http::HeaderValue::from_static("5000000000"),
            );
        }
        if request.uri().path() == "/304" {
            *answer.status_mut() = http::StatusCode::NOT_MODIFIED;
        }
        answer
    })
    .await;
    let answer = stand.ask(&sandbox, port, "HEAD /len").await;
    assert!(
        answer.contains("content-length: 5000000000\r\n"),
        "{answer}"
    );
    assert_eq!(body(&answer), "");
    let answer = stand.ask(&sandbox, port, "HEAD /").await;
    assert!(!answer.contains("transfer-encoding"), "{answer}");
    let answer = stand.ask(&sandbox, port, "GET /").await;
    assert!(answer.contains("content-length: 0\r\n"), "{answer}");
    let answer = stand.ask(&sandbox, port, "GET /304").await;
    assert_eq!((status(&answer), body(&answer)), (304, ""));
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = http(sandbox.address, 0, |request| async move {
        let collected = request.into_body().collect().await.expect("whole");
        let trailers = collected.trailers().cloned().expect("trailers came");
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"data"))),
            Ok(Frame::trailers(trailers)),
        ];
        let mut answer =
            http::Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))));
        answer
            .headers_mut()
            .insert("trailer", http::HeaderValue::from_static("x-sum"));
        answer
    })
    .await;
    let answer = stand
        .raw(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTE: trailers\r\nTrailer: x-sum\r\n\
             Transfer-Encoding: chunked\r\n{}\r\n3\r\nabc\r\n0\r\nx-sum: 17\r\n\r\n",
            named(&sandbox, port)
        ))
        .await;
    assert!(
        answer.ends_with("4\r\ndata\r\n0\r\nx-sum: 17\r\n\r\n"),
        "{answer}"
    );
}
