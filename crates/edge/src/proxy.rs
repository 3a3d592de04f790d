//! One request from its head to its answer: control, a sandbox, or a refusal.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use hearth_model::id::SandboxId;
use hearth_model::limits::{AGENT_PORT, CONTROL_PORT};
use hearth_model::node::Endpoint;
use hearth_model::route::{Head, Route, RouteError, Target, is_agent_internal, route};
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::accept::Edge;
use crate::answer::{Refusal, bad_request, bad_signature};
use crate::body::{AnswerBody, SandboxBody};
use crate::connection::{Exchange, Shared};
use crate::headers::{self, Origin, SANDBOX_ID, SANDBOX_PORT};
use crate::pool::StreamSlot;
use crate::routes::Lookup;
use crate::upgrade::Upgrade;
use crate::upstream::Way;

/// Answers one request. Whatever goes wrong is an answer.
pub(crate) async fn answer(
    edge: Arc<Edge>,
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let exchange = shared.begin();
    let answer = match destination(&edge, &request).await {
        Ok(Destination::Control) => control(&edge, &shared, request).await,
        Ok(Destination::Sandbox(target)) => {
            sandbox(&edge, &shared, &exchange, &target, request).await
        }
        Err(refused) => refused,
    };
    Ok(answer.map(|body| body.holding(exchange)))
}

enum Destination {
    Control,
    Sandbox(Target),
}

async fn destination(
    edge: &Edge,
    request: &Request<Incoming>,
) -> Result<Destination, Response<AnswerBody>> {
    if request.method() == Method::CONNECT {
        return Err(bad_request("invalid request: CONNECT is not offered"));
    }
    if let Err(error) = headers::check_framing(request.headers()) {
        return Err(bad_request(&error.to_string()));
    }
    match named(request) {
        Ok(Route::Control) => Ok(Destination::Control),
        Ok(Route::Sandbox(target)) => Ok(Destination::Sandbox(target)),
        Ok(Route::Signed(file)) => match edge.routes.by_signature(&file).await {
            Some(sandbox) => Ok(Destination::Sandbox(Target {
                sandbox,
                port: file.port(),
            })),
            None => Err(bad_signature()),
        },
        Err(error) => Err(bad_request(&error.to_string())),
    }
}

fn named(request: &Request<Incoming>) -> Result<Route, RouteError> {
    let values = |name: &str| -> Vec<&[u8]> {
        let values = request.headers().get_all(name).iter();
        values.map(HeaderValue::as_bytes).collect()
    };
    route(&Head {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query(),
        authority: request.uri().authority().map(|a| a.as_str()),
        hosts: values(header::HOST.as_str()),
        sandbox_ids: values(SANDBOX_ID),
        sandbox_ports: values(SANDBOX_PORT),
        host_optional: request.version() == Version::HTTP_10,
    })
}

async fn control(
    edge: &Edge,
    shared: &Shared,
    mut request: Request<Incoming>,
) -> Response<AnswerBody> {
    request.extensions_mut().insert(ConnectInfo(shared.peer));
    let request = request.map(axum::body::Body::new);
    match edge.control.clone().oneshot(request).await {
        Ok(answer) => answer.map(AnswerBody::control),
        Err(never) => match never {},
    }
}

async fn sandbox(
    edge: &Edge,
    shared: &Arc<Shared>,
    exchange: &Exchange,
    target: &Target,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let asked = request.headers().clone();
    let result = async {
        if is_hidden(target.port, request.uri().path()) {
            return Err(Refusal::Hidden);
        }
        let (endpoint, gone) = find(edge, &target.sandbox).await?;
        let slot = edge
            .pool
            .enter(&target.sandbox, edge.config.max_streams_per_sandbox)
            .ok_or(Refusal::TooManyStreams(edge.config.max_streams_per_sandbox))?;
        let forward = Forward {
            edge,
            shared,
            exchange,
            endpoint,
            port: target.port,
            gone: gone.clone(),
        };
        tokio::select! {
            biased;
            () = gone.cancelled() => Err(Refusal::NotFound(None)),
            answer = forward.run(slot, request) => answer,
        }
    };
    match result.await {
        Ok(answer) => answer,
        // The end was decided while the request was on its way: by now its reason may be known.
        Err(Refusal::NotFound(None)) => match find(edge, &target.sandbox).await {
            Err(refusal) => refusal.answer(&target.sandbox, &asked),
            Ok(_) => Refusal::NotFound(None).answer(&target.sandbox, &asked),
        },
        Err(refusal) => refusal.answer(&target.sandbox, &asked),
    }
}

/// The agent's control port, and the routes on its public port that only its node may use.
fn is_hidden(port: u16, path: &str) -> bool {
    port == CONTROL_PORT || (port == AGENT_PORT && is_agent_internal(path))
}

async fn find(edge: &Edge, id: &SandboxId) -> Result<(Endpoint, CancellationToken), Refusal> {
    match edge.routes.lookup(id).await {
        Lookup::Running { gone, .. } if gone.is_cancelled() => Err(Refusal::NotFound(None)),
        Lookup::Running { endpoint, gone } => Ok((endpoint, gone)),
        Lookup::Changing => Err(Refusal::Changing),
        Lookup::Ended { reason } => Err(Refusal::NotFound(Some(Box::new(reason)))),
        Lookup::Unknown => Err(Refusal::NotFound(None)),
    }
}

/// A request on its way into a running sandbox.
struct Forward<'a> {
    edge: &'a Edge,
    shared: &'a Arc<Shared>,
    exchange: &'a Exchange,
    endpoint: Endpoint,
    port: u16,
    gone: CancellationToken,
}

impl Forward<'_> {
    async fn run(
        self,
        slot: StreamSlot,
        mut request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        // The agent speaks HTTP/1.1 only. A change of protocol there would carry requests past
        // the check of internal routes.
        let wanted = headers::wanted_upgrade(request.headers()).filter(|_| self.port != AGENT_PORT);
        let client = wanted.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        let host = head
            .headers
            .get(header::HOST)
            .cloned()
            .or_else(|| HeaderValue::from_str(head.uri.authority()?.as_str()).ok());
        headers::to_sandbox(
            &mut head.headers,
            self.port,
            Origin {
                client: self.shared.peer.ip(),
                host: host.as_ref(),
            },
        );
        if host.is_none() {
            // HTTP/1.0 without Host, named by headers; HTTP/1.1 inside needs one.
            let own = format!("{}:{}", self.endpoint.address, self.port);
            if let Ok(own) = HeaderValue::from_str(&own) {
                head.headers.insert(header::HOST, own);
            }
        }
        if let Some(protocol) = wanted {
            headers::set_upgrade(&mut head.headers, protocol);
        }
        head.version = Version::HTTP_11;
        head.uri = origin_form(&head.uri);
        head.extensions.clear();

        let way = Way {
            edge: self.edge,
            endpoint: &self.endpoint,
            port: self.port,
            gone: &self.gone,
            slot: &slot,
        };
        let answer = way.send(head, body).await?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.upgrade(client, answer, slot);
        }
        let (mut head, body) = answer.into_parts();
        if let Err(error) = headers::check_framing(&head.headers) {
            tracing::debug!(port = self.port, %error, "a sandbox's answer is refused");
            return Err(Refusal::BadAnswer(self.port));
        }
        headers::strip_hop_by_hop(&mut head.headers);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        self.exchange.hang_on(self.gone.clone());
        let body = SandboxBody {
            inner: body,
            gone: self.gone,
            abort: self.edge.abort.clone(),
            _slot: slot,
        };
        Ok(Response::from_parts(head, AnswerBody::sandbox(body)))
    }

    fn upgrade(
        self,
        client: Option<OnUpgrade>,
        mut answer: Response<Incoming>,
        slot: StreamSlot,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let protocol = answer.headers().get(header::UPGRADE).cloned();
        let (Some(client), Some(protocol)) = (client, protocol) else {
            tracing::debug!(port = self.port, "a sandbox changed the protocol unasked");
            return Err(Refusal::BadAnswer(self.port));
        };
        let sandbox = hyper::upgrade::on(&mut answer);
        let mut kept: HeaderMap = std::mem::take(answer.headers_mut());
        headers::strip_hop_by_hop(&mut kept);
        kept.remove(header::CONTENT_LENGTH);
        headers::set_upgrade(&mut kept, protocol);
        let upgrade = Upgrade {
            client,
            sandbox,
            shared: Arc::clone(self.shared),
            gone: self.gone,
            abort: self.edge.abort.clone(),
            slot,
        };
        self.edge.tasks.spawn(upgrade.run());
        let mut switched = Response::new(AnswerBody::whole(""));
        *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *switched.headers_mut() = kept;
        Ok(switched)
    }
}

/// The target as an origin server gets it: path and query, byte for byte.
fn origin_form(uri: &Uri) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(
        uri.path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/")),
    );
    Uri::from_parts(parts).unwrap_or_default()
}
