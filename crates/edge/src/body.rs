//! Bodies that pass through: frames are handed on one at a time, never collected.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::connection::Exchange;
use crate::pool::StreamSlot;
use crate::upstream::Progress;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer, with what has to be given back when its last byte was written or it
/// was dropped.
pub(crate) struct AnswerBody {
    kind: Kind,
    _exchange: Option<Exchange>,
    _slot: Option<StreamSlot>,
}

enum Kind {
    /// Made by the edge itself.
    Whole(Full<Bytes>),
    Control(axum::body::Body),
    Sandbox(Incoming),
}

impl AnswerBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::of(Kind::Whole(Full::new(bytes.into())))
    }

    pub(crate) fn control(body: axum::body::Body) -> Self {
        Self::of(Kind::Control(body))
    }

    pub(crate) fn sandbox(body: Incoming, slot: StreamSlot) -> Self {
        Self {
            _slot: Some(slot),
            ..Self::of(Kind::Sandbox(body))
        }
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            _exchange: None,
            _slot: None,
        }
    }

    /// Ties the exchange on the client's connection to this body's life.
    pub(crate) fn holding(mut self, exchange: Exchange) -> Self {
        self._exchange = Some(exchange);
        self
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().kind {
            Kind::Whole(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Control(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Sandbox(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(body) => body.is_end_stream(),
            Kind::Control(body) => body.is_end_stream(),
            Kind::Sandbox(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(body) => body.size_hint(),
            Kind::Control(body) => body.size_hint(),
            Kind::Sandbox(body) => body.size_hint(),
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
