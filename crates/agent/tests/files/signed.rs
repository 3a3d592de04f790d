//! Who may: tokens and signed URLs.

use std::time::{SystemTime, UNIX_EPOCH};

use hearth_model::secret::Secret;
use hearth_model::signature::{Claim, Operation, sign};

use crate::harness::Agent;

const TOKEN: &str = "secret-token";

/// Query of a signed URL.
fn query(path: &str, operation: Operation, user: &str, expires_in: Option<i64>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expiration =
        expires_in.map(|seconds| (i64::try_from(now.as_secs()).unwrap() + seconds).to_string());
    let claim = Claim {
        path,
        operation,
        user,
        expiration: expiration.as_deref(),
    };
    let signature = sign(&claim, &Secret::new(TOKEN))
        .replace('+', "%2B")
        .replace('/', "%2F");
    let mut query = format!("path={path}&signature={signature}");
    if !user.is_empty() {
        query.push_str(&format!("&username={user}"));
    }
    if let Some(expiration) = expiration {
        query.push_str(&format!("&signature_expiration={expiration}"));
    }
    query
}

#[test]
fn signatures_open_what_they_name() {
    let agent = Agent::with_token(TOKEN);
    let upload = |query: &str| {
        let kind = ("Content-Type", "application/octet-stream");
        agent.send("POST", &format!("/files?{query}"), &[kind], b"content")
    };
    let download = |query: &str| agent.get(&format!("/files?{query}"));

    upload(&query("f", Operation::Write, "", None)).ok();
    upload(&query("f", Operation::Write, "daemon", Some(60))).ok();
    let read = query("f", Operation::Read, "", Some(60));
    assert_eq!(download(&read).body, b"content");
    assert_eq!(
        download(&query("f", Operation::Read, "root", None)).body,
        b"content"
    );

    // Not for the other operation, path, user or time.
    upload(&read).refused(401);
    download(&query("f", Operation::Write, "", None)).refused(401);
    download(&read.replace("path=f", "path=./f")).refused(401);
    download(&format!("{read}&username=daemon")).refused(401);
    download(&read.replace("expiration=", "expiration=1")).refused(401);
    download("path=f&signature=v1_x").refused(401);
    download("path=f&signature=").refused(401);
    download("path=f").refused(401);

    let late = download(&query("f", Operation::Read, "", Some(-10)));
    assert_eq!(late.status, 401);
    assert_eq!(
        late.text(),
        r#"{"code":401,"message":"signature is already expired"}"#
    );
    let late = upload(&query("f", Operation::Write, "", Some(-10)));
    assert_eq!(late.refused(401), "signature is already expired");
}

#[test]
fn the_token_opens_everything() {
    let agent = Agent::with_token(TOKEN);
    let right = ("X-Access-Token", TOKEN);
    let wrong = ("X-Access-Token", "secret-tokem");
    agent.put("f", &[right], b"x").ok();
    agent.put("f", &[wrong], b"y").refused(401);
    assert_eq!(agent.send("GET", "/files?path=f", &[right], b"").body, b"x");
    agent
        .send("GET", "/files?path=f", &[wrong], b"")
        .refused(401);
    let body = br#"{"source_paths":["f"],"destination":"g"}"#;
    agent.send("POST", "/files/compose", &[], body).refused(401);
    agent
        .send("POST", "/files/compose", &[wrong], body)
        .refused(401);
    agent.send("POST", "/files/compose", &[right], body).ok();
    let stat = serde_json::json!({ "path": "g" });
    assert_eq!(agent.call("Stat", &stat).status, 401);
    agent.call_with("Stat", &stat, &[right]).ok();
}
