//! A control plane over a real database file, and requests to its router.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use hearth_control::{Control, ControlConfig, Recovered};
use hearth_model::id::{SandboxId, TeamId};
use hearth_model::node::Report;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::node::TestNode;

pub(crate) struct Server {
    pub(crate) control: Control,
    pub(crate) node: Arc<TestNode>,
    pub(crate) reports: mpsc::Sender<Report>,
    pub(crate) recovered: Recovered,
    pub(crate) key: String,
    router: Router,
    stop: CancellationToken,
    dir: Arc<TempDir>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|_| panic!("not JSON: {} {:?}", self.status, self.text))
    }

    /// Asserts the contract of every error and returns its message.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        let body = self.json();
        assert_eq!(body["code"], json!(status), "{}", self.text);
        body["message"].as_str().expect("a message").to_owned()
    }

    #[track_caller]
    pub(crate) fn ok(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl Fn(&mut ControlConfig)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let node = TestNode::new();
        let mut server = Self::over(dir, node, String::new(), &change).await;
        server.key = server.new_key("default").await;
        server
    }

    async fn over(
        dir: Arc<TempDir>,
        node: Arc<TestNode>,
        key: String,
        change: &impl Fn(&mut ControlConfig),
    ) -> Self {
        let mut config = ControlConfig::new(dir.path().join("hearth.db"));
        change(&mut config);
        let control = Control::open(config, Arc::clone(&node) as _).await.unwrap();
        let recovered = control.recover().await.unwrap();
        let (reports, receiver) = mpsc::channel(16);
        let stop = CancellationToken::new();
        control.spawn_background(receiver, &stop);
        Self {
            router: control.router(),
            control,
            node,
            reports,
            recovered,
            key,
            stop,
            dir,
        }
    }

    /// What a crash leaves: a second server on the same file and node. The first is not
    /// told to finish anything.
    pub(crate) async fn crash_and_start(&self) -> Self {
        self.stop.cancel();
        Self::over(
            Arc::clone(&self.dir),
            Arc::clone(&self.node),
            self.key.clone(),
            &|_| {},
        )
        .await
    }

    pub(crate) fn db_path(&self) -> PathBuf {
        self.dir.path().join("hearth.db")
    }

    pub(crate) async fn new_key(&self, team: &str) -> String {
        let team = TeamId::parse(team).unwrap();
        let key = self.control.keys().create(&team, "test").await.unwrap();
        key.secret.expose().to_owned()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let answer = Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        };
        if answer.status == StatusCode::NO_CONTENT {
            assert_eq!(answer.text, "");
        }
        answer
    }

    pub(crate) async fn call_as(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Answer {
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("X-API-KEY", key)
            .body(body.map_or_else(Body::empty, |text| Body::from(text.to_owned())))
            .unwrap();
        self.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call_as(&self.key, "GET", path, None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call_as(&self.key, "DELETE", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call_as(&self.key, "POST", path, Some(&body.to_string()))
            .await
    }

    /// A sandbox of the template `base`; fields of `more` are added to the request.
    pub(crate) async fn create(&self, more: Value) -> SandboxId {
        let mut body = json!({"templateID": "base"});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = self.post("/v2/sandboxes", &body).await.ok(201);
        SandboxId::parse(answer.json()["sandboxID"].as_str().unwrap()).unwrap()
    }

    /// Ids of a list, page by page.
    pub(crate) async fn list_all(&self, query: &str) -> Vec<String> {
        let mut ids = Vec::new();
        let mut token = String::new();
        loop {
            let answer = self
                .get(&format!("/v2/sandboxes?{query}{token}"))
                .await
                .ok(200);
            for item in answer.json().as_array().unwrap() {
                ids.push(item["sandboxID"].as_str().unwrap().to_owned());
            }
            match answer.header("x-next-token") {
                Some(next) => token = format!("&nextToken={next}"),
                None => return ids,
            }
        }
    }

    /// Kinds of a sandbox's events, oldest first.
    pub(crate) async fn event_kinds(&self, id: &SandboxId) -> Vec<String> {
        let answer = self.get(&format!("/sandboxes/{id}/logs")).await.ok(200);
        answer.json()["logEntries"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|entry| entry["fields"]["event"].as_str().map(str::to_owned))
            .collect()
    }
}

/// Waits until `check` holds; fails after ten seconds.
pub(crate) async fn until<F, Fut>(what: &'static str, mut check: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + Duration::from_secs(10);
    while !check().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
