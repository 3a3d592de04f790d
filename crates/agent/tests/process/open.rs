//! The small routes, who may use them, and what browsers are told.

use serde_json::json;

use crate::stand::{Agent, TOKEN, send};
use crate::wire::Reply;

#[test]
fn only_health_is_open() {
    let agent = Agent::start();
    let ask = |target: &str, token: Option<&str>| {
        let headers: Vec<_> = token.into_iter().map(|t| ("X-Access-Token", t)).collect();
        Reply::read(send(agent.port, "GET", target, &headers, b""), false)
    };
    assert_eq!(ask("/health", None).status, 204);
    for target in [
        "/metrics",
        "/envs",
        "/nothing",
        "/process.Process/List",
        "//health",
        "/health/",
    ] {
        for token in [None, Some(""), Some("access toke"), Some("access tokens")] {
            ask(target, token).refused(401);
        }
    }
    assert_eq!(
        ask("/envs", Some(TOKEN)).ok(),
        json!({ "BOTH": "1", "SANDBOX": "yes" })
    );
    let list = send(
        agent.port,
        "POST",
        "/process.Process/List",
        &[("Content-Type", "application/json")],
        b"{}",
    );
    Reply::read(list, false).refused(401);
}

#[test]
fn metrics_are_this_machines() {
    let agent = Agent::start();
    let metrics = Reply::read(agent.send("GET", "/metrics", &[], b""), false).ok();
    let number = |name: &str| {
        metrics[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {metrics}"))
    };
    assert!(number("ts") > 1_700_000_000);
    assert!(number("cpu_count") >= 1);
    assert!(metrics["cpu_used_pct"].is_number());
    assert!(number("mem_used") > 0 && number("mem_used") < number("mem_total"));
    assert_eq!(number("mem_total_mib"), number("mem_total") >> 20);
    assert_eq!(number("mem_used_mib"), number("mem_used") >> 20);
    assert!(number("disk_used") > 0 && number("disk_used") < number("disk_total"));
    assert!(number("mem_cache") > 0);
}

#[test]
fn browsers_may_come_from_anywhere() {
    let agent = Agent::start();
    let headers = [
        ("Origin", "https://app.example"),
        ("Access-Control-Request-Method", "POST"),
        (
            "Access-Control-Request-Headers",
            "x-access-token,authorization",
        ),
    ];
    // A preflight has no token.
    let reply = Reply::read(
        send(
            agent.port,
            "OPTIONS",
            "/process.Process/Start",
            &headers,
            b"",
        ),
        false,
    );
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), "*");
    assert_eq!(
        reply.header("access-control-allow-headers"),
        "x-access-token,authorization"
    );
    assert!(
        reply
            .header("access-control-allow-methods")
            .contains("POST")
    );
    let reply = Reply::read(send(agent.port, "GET", "/envs", &headers[..1], b""), false);
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (401, "*")
    );
}
