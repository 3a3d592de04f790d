//! Whether the server of the state folder answers.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;

use super::{Finding, chain};
use crate::cli::env::Client;

/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(5);

pub(super) async fn check(state: &Path) -> Finding {
    let name = "server";
    let client = match Client::load(state) {
        Ok(client) => client,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Finding::warn(
                name,
                format!("none was started from {} yet", state.display()),
                "`make up` or `hearth serve`",
            );
        }
        Err(e) => {
            return Finding::warn(
                name,
                format!("reading the client's settings: {e}"),
                "run it as root",
            );
        }
    };
    let url = format!("{}/health", client.api_url.trim_end_matches('/'));
    let Ok(uri) = url.parse() else {
        return Finding::warn(
            name,
            format!("{url:?} in client.json is not a URL"),
            "remove client.json and make a key",
        );
    };
    let http: HttpClient<_, Empty<Bytes>> = HttpClient::builder(TokioExecutor::new()).build_http();
    match tokio::time::timeout(DEADLINE, http.get(uri)).await {
        Ok(Ok(answer)) if answer.status().is_success() => {
            Finding::ok(name, format!("ready on {}", client.api_url))
        }
        Ok(Ok(answer)) => Finding::warn(
            name,
            format!("{url} answers {}", answer.status()),
            "it is starting, or something else listens there: look at its log",
        ),
        Ok(Err(e)) => Finding::warn(
            name,
            format!("{url}: {}", chain(&e)),
            "`make up` or `hearth serve` starts it",
        ),
        Err(_) => Finding::warn(
            name,
            format!("{url} did not answer within {} s", DEADLINE.as_secs()),
            "look at its log",
        ),
    }
}
