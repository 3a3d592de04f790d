//! Lists: order, pages, filters.

use serde_json::json;

use crate::server::Server;

#[tokio::test]
async fn pages_hold_every_sandbox_once_in_order() {
    let server = Server::start().await;
    let mut made = Vec::new();
    for n in 0..7 {
        let id = server
            .create(json!({"metadata": {"n": n.to_string()}}))
            .await;
        made.push(id.to_string());
        // Starts are told apart by milliseconds; equal ones are ordered by id.
        if n % 2 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
    }
    for limit in [1, 2, 3, 7, 100] {
        let ascending = server.list_all(&format!("limit={limit}&order=asc")).await;
        let mut descending = server.list_all(&format!("limit={limit}")).await;
        descending.reverse();
        assert_eq!(ascending, descending, "limit {limit}");
        let mut sorted = (ascending.clone(), made.clone());
        sorted.0.sort();
        sorted.1.sort();
        assert_eq!(sorted.0, sorted.1, "limit {limit}");
    }
    assert_eq!(server.list_all("limit=1").await[0], made[6]);

    let answer = server.get("/v2/sandboxes?limit=2").await.ok(200);
    assert_eq!(answer.header("x-total-running"), Some("7"));
    let token = answer.header("x-next-token").unwrap();
    let text = server
        .get(&format!("/v2/sandboxes?order=asc&nextToken={token}"))
        .await
        .refused(400);
    assert_eq!(text, "Invalid next token");
    server
        .get("/v2/sandboxes?nextToken=garbage")
        .await
        .refused(400);

    // Another team sees nothing, and cannot use the token to see more.
    let other = server.new_key("other").await;
    for path in [
        "/v2/sandboxes".to_owned(),
        format!("/v2/sandboxes?nextToken={token}"),
        "/sandboxes".into(),
    ] {
        let answer = server.call_as(&other, "GET", &path, None).await.ok(200);
        assert_eq!(answer.json(), json!([]), "{path}");
    }
    assert_eq!(
        server
            .get("/sandboxes")
            .await
            .ok(200)
            .json()
            .as_array()
            .unwrap()
            .len(),
        7
    );
}

#[tokio::test]
async fn filters_choose() {
    let server = Server::start().await;
    let odd = "a&b=c %/\u{e4}\u{1f525}";
    let a = server
        .create(json!({"metadata": {"user": "ann", "k": odd, odd: "v"}}))
        .await
        .to_string();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let b = server
        .create(json!({"metadata": {"user": "ann"}, "templateID": "other"}))
        .await
        .to_string();
    // As Python sends it, after three encodings.
    let encode = |text: &str| -> String { text.bytes().map(|b| format!("%{b:02X}")).collect() };
    let twice = |text: &str| encode(&encode(text));
    let pair = |k: &str, v: &str| encode(&format!("{}={}", twice(k), twice(v)));
    let started = server.get(&format!("/sandboxes/{b}")).await.json()["startedAt"]
        .as_str()
        .unwrap()
        .to_owned();
    for (query, want) in [
        (format!("metadata={}", pair("user", "ann")), vec![&b, &a]),
        (format!("metadata={}", pair("k", odd)), vec![&a]),
        (format!("metadata={}", pair(odd, "v")), vec![&a]),
        (
            format!("metadata={}%26{}", pair("user", "ann"), pair("k", odd)),
            vec![&a],
        ),
        (format!("metadata={}", pair("user", "an")), vec![]),
        (format!("metadata={}", pair("USER", "ann")), vec![]),
        (format!("metadata={}", pair("user", "' OR 1=1 --")), vec![]),
        ("state=running".into(), vec![&b, &a]),
        ("state=running,paused".into(), vec![&b, &a]),
        ("state=paused".into(), vec![]),
        ("template=base".into(), vec![&a]),
        ("template=tplother000000000000".into(), vec![&b]),
        ("template=nobody".into(), vec![]),
        (format!("startedAfter={started}"), vec![&b]),
        (
            "startedAfter=2020-01-01T00:00:00%2B01:00".into(),
            vec![&b, &a],
        ),
        ("startedAfter=2999-01-01T00:00:00Z".into(), vec![]),
    ] {
        let got = server.list_all(&query).await;
        assert_eq!(got.iter().collect::<Vec<_>>(), want, "{query}");
    }
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=-1",
        "order=up",
        "state=dead",
        "metadata=novalue",
        "metadata=%25zz",
        "startedAfter=today",
        "template=base:default",
        "template=..%2Fx",
        "nextToken=%00",
    ] {
        server
            .get(&format!("/v2/sandboxes?{query}"))
            .await
            .refused(400);
    }
}

#[tokio::test]
async fn a_list_item_has_the_fields_of_the_contract() {
    let server = Server::start().await;
    server.create(json!({})).await;
    let list = server.get("/v2/sandboxes").await.ok(200).json();
    let item = list[0].as_object().unwrap();
    for name in [
        "templateID",
        "sandboxID",
        "clientID",
        "startedAt",
        "endAt",
        "cpuCount",
        "memoryMB",
        "diskSizeMB",
        "state",
        "envdVersion",
        "alias",
        "metadata",
    ] {
        assert!(item.contains_key(name), "{name}");
    }
    // Secrets are for one who asks for the sandbox by its id.
    assert!(!item.contains_key("envdAccessToken"));
}
