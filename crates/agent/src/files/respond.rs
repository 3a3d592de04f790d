//! The answer to a download: status, headers and which bytes.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use super::download::Source;
use super::http::Refusal;
use super::kind;
use super::range::{self, Answer, Coding};

/// Builds the answer to a download.
pub(super) fn answer(
    source: Source,
    name: &str,
    headers: &HeaderMap,
    permit: OwnedSemaphorePermit,
) -> Result<Response, Refusal> {
    let size = source.content.size();
    let coding = range::coding(headers);
    let decided = range::decide(headers, size, source.modified);
    let mut out = HeaderMap::new();
    let modified = httpdate::fmt_http_date(source.modified);
    insert(&mut out, header::LAST_MODIFIED, &modified);
    insert(&mut out, header::ACCEPT_RANGES, "bytes");
    insert(&mut out, header::VARY, "Accept-Encoding");
    insert(
        &mut out,
        header::CONTENT_DISPOSITION,
        &kind::disposition(name),
    );
    insert(
        &mut out,
        header::CONTENT_TYPE,
        kind::media_type(name, &source.start),
    );
    let (status, body) = match decided {
        Answer::NotModified => {
            out.remove(header::CONTENT_TYPE);
            (StatusCode::NOT_MODIFIED, Body::empty())
        }
        Answer::PreconditionFailed => {
            return Err(Refusal(
                StatusCode::PRECONDITION_FAILED,
                "the file has changed".to_owned(),
            ));
        }
        Answer::Unsatisfiable => {
            let refusal = Refusal(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range is not within the file".to_owned(),
            );
            let mut response = refusal.into_response();
            let range = format!("bytes */{}", size.unwrap_or(0));
            insert(response.headers_mut(), header::CONTENT_RANGE, &range);
            return Ok(response);
        }
        Answer::Part { start, length } => {
            let total = size.unwrap_or(0);
            let range = format!("bytes {start}-{}/{total}", start + length - 1);
            insert(&mut out, header::CONTENT_RANGE, &range);
            insert(&mut out, header::CONTENT_LENGTH, &length.to_string());
            let body = stream(source.stream(start, Some(length)), permit);
            (StatusCode::PARTIAL_CONTENT, body)
        }
        Answer::Whole if coding == Coding::NotAcceptable => {
            return Err(Refusal(
                StatusCode::NOT_ACCEPTABLE,
                "none of the encodings in Accept-Encoding is supported; gzip and identity are"
                    .to_owned(),
            ));
        }
        // Clients take an empty body for what it is only when its length says so.
        Answer::Whole if coding == Coding::Gzip && size != Some(0) => {
            insert(&mut out, header::CONTENT_ENCODING, "gzip");
            (StatusCode::OK, stream(source.gzip_stream(), permit))
        }
        Answer::Whole => {
            if let Some(size) = size {
                insert(&mut out, header::CONTENT_LENGTH, &size.to_string());
            }
            (StatusCode::OK, stream(source.stream(0, size), permit))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = out;
    Ok(response)
}

/// A body that holds its permit until it is over.
fn stream(
    bytes: impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    permit: OwnedSemaphorePermit,
) -> Body {
    let held = bytes
        .inspect_err(|error| tracing::warn!(%error, "a download broke off"))
        .map(move |item| {
            let _held = &permit;
            item
        });
    Body::from_stream(held)
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => {
            headers.insert(name, value);
        }
        // Every value here is made of printable ASCII.
        Err(error) => tracing::error!(%name, %error, "a header could not be written"),
    }
}
