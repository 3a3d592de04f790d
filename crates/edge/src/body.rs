//! Bodies that pass through: frames are handed on one at a time, never collected.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use crate::connection::Exchange;
use crate::pool::StreamSlot;
use crate::upstream::Progress;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer, with what has to be given back when its last byte was written or it
/// was dropped.
pub(crate) struct AnswerBody {
    kind: Kind,
    exchange: Option<Exchange>,
}

enum Kind {
    /// Made by the edge itself.
    Whole(Full<Bytes>),
    Control(axum::body::Body),
    Sandbox(SandboxBody),
}

/// What a sandbox answers, with its place among the sandbox's streams.
pub(crate) struct SandboxBody {
    pub(crate) inner: Incoming,
    pub(crate) gone: CancellationToken,
    pub(crate) abort: CancellationToken,
    pub(crate) _slot: StreamSlot,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
#[error("the connection into the sandbox was cut")]
struct Cut;

impl AnswerBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::of(Kind::Whole(Full::new(bytes.into())))
    }

    pub(crate) fn control(body: axum::body::Body) -> Self {
        Self::of(Kind::Control(body))
    }

    pub(crate) fn sandbox(body: SandboxBody) -> Self {
        Self::of(Kind::Sandbox(body))
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            exchange: None,
        }
    }

    /// Ties the exchange on the client's connection to this body's life.
    pub(crate) fn holding(mut self, exchange: Exchange) -> Self {
        self.exchange = Some(exchange);
        self
    }
}

impl SandboxBody {
    /// A connection that is dropped looks to its body like an orderly end; whether it was one
    /// is decided here.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match polled {
            Poll::Ready(None) if self.gone.is_cancelled() || self.abort.is_cancelled() => {
                Poll::Ready(Some(Err(Cut.into())))
            }
            other => other.map_err(Into::into),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match &mut this.kind {
            Kind::Whole(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Control(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Sandbox(body) => {
                let polled = body.poll(cx);
                if let (Poll::Ready(Some(Err(_))), Some(exchange)) = (&polled, &this.exchange) {
                    // To a client that reads to the end of the connection, FIN would be an
                    // orderly end.
                    exchange.reset_on_close();
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(body) => body.is_end_stream(),
            Kind::Control(body) => body.is_end_stream(),
            Kind::Sandbox(body) => body.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(body) => body.size_hint(),
            Kind::Control(body) => body.size_hint(),
            Kind::Sandbox(body) => body.inner.size_hint(),
        }
    }
}

/// The body of a request on its way into a sandbox. It notes that bytes move, so that a long
/// upload is not taken for a port that does not answer.
pub(crate) struct UploadBody {
    inner: Option<Incoming>,
    progress: Arc<Progress>,
}

impl UploadBody {
    pub(crate) fn new(inner: Incoming, progress: Arc<Progress>) -> Self {
        Self {
            inner: Some(inner),
            progress,
        }
    }

    pub(crate) fn empty(progress: Arc<Progress>) -> Self {
        Self {
            inner: None,
            progress,
        }
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(inner).poll_frame(cx);
        if polled.is_ready() {
            this.progress.touch();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
