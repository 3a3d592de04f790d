//! One request into a sandbox and the head of its answer.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hearth_model::limits::AGENT_PORT;
use hearth_model::node::Endpoint;
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::accept::Edge;
use crate::answer::Refusal;
use crate::body::UploadBody;
use crate::config::{MAX_BUFFER, MAX_HEAD, MAX_HEADERS};
use crate::connection::{millis, now_ms};
use crate::dial::{DialError, Dialled, dial};
use crate::pool::StreamSlot;

/// When a request last moved.
#[derive(Debug)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(now_ms())))
    }

    pub(crate) fn touch(&self) {
        self.0.store(now_ms(), Ordering::Relaxed);
    }

    /// Returns when nothing moved for `limit`.
    async fn stalled(&self, limit: Duration) {
        loop {
            let since = now_ms().saturating_sub(self.0.load(Ordering::Relaxed));
            let Some(left) = millis(limit).checked_sub(since).filter(|left| *left > 0) else {
                return;
            };
            tokio::time::sleep(Duration::from_millis(left)).await;
        }
    }
}

/// Where a request goes, found and counted.
pub(crate) struct Way<'a> {
    pub(crate) edge: &'a Edge,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) port: u16,
    pub(crate) gone: &'a CancellationToken,
    pub(crate) slot: &'a StreamSlot,
}

impl Way<'_> {
    /// Sends the request and waits for the head of its answer.
    ///
    /// # Errors
    /// What to tell the client instead.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection into the sandbox.
    pub(crate) async fn send(
        &self,
        head: Parts,
        body: Incoming,
    ) -> Result<Response<Incoming>, Refusal> {
        let progress = Progress::start();
        let limit = self.edge.config.answer_timeout;
        tokio::select! {
            answer = self.exchange(head, body, &progress) => answer,
            () = progress.stalled(limit) => Err(Refusal::NoAnswer(self.port)),
        }
    }

    async fn exchange(
        &self,
        head: Parts,
        body: Incoming,
        progress: &Arc<Progress>,
    ) -> Result<Response<Incoming>, Refusal> {
        // A request that changes nothing and has no body can be told again word for word.
        let repeatable = body.is_end_stream()
            && matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let spare = repeatable.then(|| head.clone());
        let mut request = Request::from_parts(head, UploadBody::new(body, Arc::clone(progress)));
        let keeps = self.port == AGENT_PORT;
        if keeps && let Some(mut sender) = self.slot.take(self.endpoint.address) {
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    self.slot.keep(self.endpoint.address, sender);
                    return Ok(answer);
                }
                Err(mut error) => match (error.take_message(), spare) {
                    // Not one byte of it was written: it is as if it had not been tried.
                    (Some(unsent), _) => request = unsent,
                    // The agent closed while the request was on its way.
                    (None, Some(head)) => {
                        request =
                            Request::from_parts(head, UploadBody::empty(Arc::clone(progress)));
                    }
                    (None, None) => return Err(self.broken(error.error())),
                },
            }
        }
        let mut sender = self.open().await?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| self.broken(&error))?;
        if keeps {
            self.slot.keep(self.endpoint.address, sender);
        }
        Ok(answer)
    }

    fn broken(&self, error: &hyper::Error) -> Refusal {
        tracing::debug!(port = self.port, %error, "no HTTP answer from a sandbox");
        Refusal::BadAnswer(self.port)
    }

    async fn open(&self) -> Result<SendRequest<UploadBody>, Refusal> {
        let limit = self.edge.config.connect_timeout;
        let dialled = dial(self.endpoint, self.port, limit)
            .await
            .map_err(|error| {
                if let DialError::Host(source) = &error {
                    tracing::warn!(port = self.port, error = %source, "cannot open a connection");
                    return Refusal::Overloaded;
                }
                tracing::debug!(port = self.port, %error, "port not open");
                Refusal::PortClosed(self.port)
            })?;
        match dialled {
            Dialled::Direct(socket) => self.handshake(TokioIo::new(socket)).await,
            Dialled::Tunnel(stream) => self.handshake(stream).await,
        }
    }

    async fn handshake<I>(&self, io: I) -> Result<SendRequest<UploadBody>, Refusal>
    where
        I: Read + Write + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .max_header_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(io)
            .await
            .map_err(|error| self.broken(&error))?;
        self.edge.tasks.spawn(drive(
            connection.with_upgrades(),
            self.gone.clone(),
            self.edge.abort.clone(),
        ));
        Ok(sender)
    }
}

/// Moves a connection's bytes until it ends, its sandbox is gone or the server stops.
async fn drive(
    connection: impl Future<Output = hyper::Result<()>>,
    gone: CancellationToken,
    abort: CancellationToken,
) {
    tokio::select! {
        result = connection => {
            if let Err(error) = result {
                tracing::debug!(%error, "connection into a sandbox ended early");
            }
        }
        () = gone.cancelled() => {}
        () = abort.cancelled() => {}
    }
}
