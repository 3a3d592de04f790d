//! Metrics, logs, templates, health.

use std::time::Duration;

use hearth_control::ControlConfig;
use serde_json::{Value, json};

use crate::node::{line, now_ms};
use crate::server::{Server, until};

fn fast(config: &mut ControlConfig) {
    config.sample_every = Duration::from_millis(30);
}

#[tokio::test]
async fn readings_come_by_themselves_and_keep_to_their_range() {
    let server = Server::start_with(fast).await;
    let before_s = now_ms() / 1000 - 10;
    let id = server.create(json!({})).await;
    let path = format!("/sandboxes/{id}/metrics");
    until("two readings", || async {
        server.get(&path).await.json().as_array().unwrap().len() >= 2
    })
    .await;
    let list = server.get(&path).await.json();
    let first = &list[0];
    for (name, want) in [
        ("cpuCount", json!(2)),
        ("cpuUsedPct", json!(12.5)),
        ("memUsed", json!(1 << 20)),
        ("memTotal", json!(1 << 30)),
        ("memCache", json!(4096)),
        ("diskUsed", json!(7)),
        ("diskTotal", json!(17_179_869_184_u64)),
    ] {
        assert_eq!(first[name], want, "{name}");
    }
    assert!(first["timestamp"].is_string());
    assert!(first["timestampUnix"].as_i64().unwrap() > before_s);

    let empty = server
        .get(&format!("{path}?start={}&end={before_s}", before_s - 60))
        .await;
    assert_eq!(empty.ok(200).json(), json!([]));
    let some = server
        .get(&format!("{path}?start={before_s}"))
        .await
        .ok(200);
    assert!(!some.json().as_array().unwrap().is_empty());
    for query in [
        "start=x",
        "start=-1",
        "start=9&end=8",
        "end=99999999999999999999",
    ] {
        server.get(&format!("{path}?{query}")).await.refused(400);
    }

    // The last of each, and nothing of others.
    let other = server.new_key("other").await;
    let many = format!("/sandboxes/metrics?sandbox_ids={id},i0000000000000000000000");
    let own = server.get(&many).await.ok(200).json();
    assert_eq!(own["sandboxes"].as_object().unwrap().len(), 1);
    assert_eq!(own["sandboxes"][id.as_str()]["cpuCount"], json!(2));
    let theirs = server.call_as(&other, "GET", &many, None).await.ok(200);
    assert_eq!(theirs.json(), json!({"sandboxes": {}}));
    server.get("/sandboxes/metrics").await.refused(400);
    let ids = vec![id.as_str(); 101].join(",");
    server
        .get(&format!("/sandboxes/metrics?sandbox_ids={ids}"))
        .await
        .refused(400);
}

#[tokio::test]
async fn logs_merge_lifecycle_and_agent() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let now = now_ms();
    *server.node.lines.lock().unwrap() = vec![
        line(now + 10_000, "warn", "disk is nearly full"),
        line(now + 20_000, "nonsense", "process 7 ended"),
    ];
    let path = format!("/sandboxes/{id}/logs");
    let body = server.get(&path).await.ok(200).json();
    let lines: Vec<Value> = body["logs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| serde_json::from_str(item["line"].as_str().unwrap()).unwrap())
        .collect();
    let seen: Vec<_> = lines
        .iter()
        .map(|l| (l["logger"].as_str().unwrap(), l["level"].as_str().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("lifecycle", "info"),
            ("lifecycle", "info"),
            ("agent", "warn"),
            ("agent", "info")
        ]
    );
    assert!(
        lines
            .iter()
            .all(|l| l["message"].is_string() && l["timestamp"].is_string())
    );
    assert_eq!(body["logEntries"].as_array().unwrap().len(), 4);

    let count = |body: Value, name: &str| body[name].as_array().unwrap().len();
    let late = format!("{path}?start={}", now + 15_000);
    assert_eq!(count(server.get(&late).await.json(), "logs"), 1);
    assert_eq!(
        count(server.get(&format!("{path}?limit=3")).await.json(), "logs"),
        3
    );

    let v2 = format!("/v2/sandboxes/{id}/logs");
    let messages = |query: &'static str| {
        let path = format!("{v2}?{query}");
        let server = &server;
        async move {
            let body = server.get(&path).await.ok(200).json();
            let list = body["logs"].as_array().unwrap().clone();
            let texts: Vec<String> = list
                .iter()
                .map(|l| l["message"].as_str().unwrap().to_owned())
                .collect();
            texts
        }
    };
    // Backward by default, from now: the agent's lines of the future are not there.
    assert_eq!(messages("").await, ["sandbox started", "sandbox created"]);
    let all = messages("direction=forward").await;
    assert_eq!(all.len(), 4);
    assert_eq!(all[0], "sandbox created");
    assert_eq!(
        messages("direction=forward&level=warn").await,
        ["disk is nearly full"]
    );
    assert_eq!(
        messages("direction=forward&search=process").await,
        ["process 7 ended"]
    );
    for query in ["limit=1001", "direction=up", "level=loud", "cursor=x"] {
        server.get(&format!("{v2}?{query}")).await.refused(400);
    }

    // After the end the lifecycle can still be read, by its own team.
    server.delete(&format!("/sandboxes/{id}")).await.ok(204);
    let body = server.get(&path).await.ok(200).json();
    assert_eq!(count(body, "logs"), 4);
    let other = server.new_key("other").await;
    server
        .call_as(&other, "GET", &path, None)
        .await
        .refused(404);
}

#[tokio::test]
async fn templates_can_be_read() {
    let server = Server::start().await;
    for path in ["/templates", "/v2/templates", "/default-templates"] {
        let list = server.get(path).await.ok(200).json();
        assert_eq!(list.as_array().unwrap().len(), 2, "{path}");
        for name in [
            "templateID",
            "buildID",
            "cpuCount",
            "memoryMB",
            "diskSizeMB",
            "public",
            "aliases",
            "names",
            "createdAt",
            "updatedAt",
            "createdBy",
            "lastSpawnedAt",
            "spawnCount",
            "buildCount",
            "envdVersion",
            "buildStatus",
        ] {
            assert!(list[0].as_object().unwrap().contains_key(name), "{name}");
        }
    }
    for name in ["base", "BASE", "base:default", "tplbase000000000000"] {
        let path = format!("/templates/{name}");
        let one = server.get(&path).await.ok(200).json();
        assert_eq!(one["templateID"], "tplbase000000000000");
        assert_eq!(one["builds"].as_array().unwrap().len(), 1);
    }
    let alias = server.get("/templates/aliases/base").await.ok(200).json();
    assert_eq!(
        alias,
        json!({"templateID": "tplbase000000000000", "public": true})
    );
    for path in [
        "/templates/aliases/nobody",
        "/templates/nobody",
        "/templates/team%2Fbase",
        "/templates/aliases/..%2F..",
        "/templates/aliases/%00",
        "/templates/aliases/%ff",
    ] {
        server.get(path).await.refused(404);
    }
}

#[tokio::test]
async fn health_needs_no_key_but_a_recovery() {
    let server = Server::start().await;
    server.call_as("", "GET", "/health", None).await.ok(204);
    let early = hearth_control::Control::open(
        ControlConfig::new(server.db_path()),
        std::sync::Arc::clone(&server.node) as _,
    )
    .await
    .unwrap();
    let request = axum::http::Request::get("/health")
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = tower::ServiceExt::oneshot(early.router(), request)
        .await
        .unwrap();
    assert_eq!(answer.status(), 503);
}
