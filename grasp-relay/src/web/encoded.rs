//! Answers as they are kept and sent: with their headers, and compressed.

use std::io::Write as _;

use axum::body::{Body, Bytes};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ETAG, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

/// The policy of content of repositories.
const FILE_POLICY: &str = "default-src 'none'; sandbox";

/// Bodies below this are not compressed.
const SMALLEST_COMPRESSED: usize = 600;

/// How long clients may use a page without asking again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Never.
    NoStore,
    /// They keep it, and ask each time whether it has changed.
    #[default]
    Revalidate,
    /// For a day: its address names its content.
    ForADay,
}

impl Caching {
    pub(crate) fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::NoStore => "no-store",
            Self::Revalidate => "no-cache",
            Self::ForADay => "max-age=86400",
        })
    }
}

/// A body as it is kept: compressed unless it is small.
#[derive(Clone, Debug)]
pub(crate) enum EncodedBody {
    Plain(Bytes),
    Gzip { compressed: Bytes, length: usize },
}

impl EncodedBody {
    pub(crate) fn new(plain: Vec<u8>) -> Self {
        if plain.len() < SMALLEST_COMPRESSED {
            return Self::Plain(plain.into());
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(5));
        // Writing to memory does not fail.
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        match written {
            Ok(compressed) => Self::Gzip {
                length: plain.len(),
                compressed: compressed.into(),
            },
            Err(_) => Self::Plain(plain.into()),
        }
    }

    /// Returns the bytes that it takes in memory.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Gzip { compressed, .. } => compressed.len(),
        }
    }

    fn plain(&self) -> Bytes {
        match self {
            Self::Plain(bytes) => bytes.clone(),
            Self::Gzip { compressed, length } => {
                let mut plain = Vec::with_capacity(*length);
                let mut decoder = flate2::write::GzDecoder::new(&mut plain);
                let written = decoder.write_all(compressed);
                let written = written.and_then(|()| decoder.try_finish());
                drop(decoder);
                debug_assert!(written.is_ok(), "this process has compressed it");
                plain.into()
            }
        }
    }
}

/// A page with its headers, as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct EncodedPage {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) policy: String,
    pub(crate) caching: Caching,
    /// Is to be saved, and not shown.
    pub(crate) is_attachment: bool,
    /// The value of its `ETag`, without quotes.
    pub(crate) tag: Option<String>,
    pub(crate) body: EncodedBody,
}

impl EncodedPage {
    /// Creates an answer that is no page but content of a repository. A browser runs nothing of it, whatever its type.
    pub(crate) fn file(content_type: &'static str, is_attachment: bool, body: EncodedBody) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            policy: FILE_POLICY.into(),
            caching: Caching::default(),
            is_attachment,
            tag: None,
            body,
        }
    }

    /// Adds the version of the page.
    pub(crate) fn tagged(self, caching: Caching, tag: String) -> Self {
        Self {
            caching,
            tag: Some(tag),
            ..self
        }
    }

    /// Returns the bytes that the page takes in memory, beside its key.
    pub(crate) fn memory(&self) -> usize {
        self.body.memory() + self.policy.len() + self.tag.as_ref().map_or(0, String::len)
    }

    /// Returns whether a client gets it without work: compressed, or small.
    pub(crate) fn is_ready_for(&self, headers: &HeaderMap) -> bool {
        const MAX_INFLATED: usize = 64 * 1024;
        match &self.body {
            EncodedBody::Plain(_) => true,
            EncodedBody::Gzip { length, .. } => accepts_gzip(headers) || *length <= MAX_INFLATED,
        }
    }

    /// Answers a request with these headers.
    pub(crate) fn response(&self, headers: &HeaderMap) -> Response {
        let mut response = match &self.body {
            EncodedBody::Gzip { compressed, .. } if accepts_gzip(headers) => {
                let mut response = Response::new(Body::from(compressed.clone()));
                let encoding = HeaderValue::from_static("gzip");
                response.headers_mut().insert(CONTENT_ENCODING, encoding);
                response
            }
            body => Response::new(Body::from(body.plain())),
        };
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Cookie"));
        headers.insert(CACHE_CONTROL, self.caching.header());
        insert_text(headers, CONTENT_SECURITY_POLICY, &self.policy);
        insert_protection(headers);
        if self.is_attachment {
            insert_text(headers, CONTENT_DISPOSITION, "attachment");
        }
        if let Some(tag) = &self.tag {
            insert_text(headers, ETAG, &quoted(tag));
        }
        response
    }
}

/// Adds the headers that every answer with content of strangers has.
pub(crate) fn insert_protection(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

pub(crate) fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Returns a tag as a header has it. It is weak: compressed and plain pages share it.
fn quoted(tag: &str) -> String {
    format!("W/\"{tag}\"")
}

/// Returns whether a client has the page with this tag.
pub(crate) fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let quoted = quoted(tag);
    let given = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut given = given.filter_map(|value| value.to_str().ok());
    given.any(|list| list.split(',').any(|one| one.trim() == quoted))
}

/// Answers that the page with this tag is the current one.
pub(crate) fn not_modified(tag: &str, caching: Caching) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    let headers = response.headers_mut();
    insert_text(headers, ETAG, &quoted(tag));
    headers.insert(CACHE_CONTROL, caching.header());
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Cookie"));
    response
}

pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|list| {
        list.split(',').any(|one| {
            let (name, parameters) = one.split_once(';').unwrap_or((one, ""));
            name.trim() == "gzip" && !parameters.contains("q=0")
                || name.trim() == "gzip" && parameters.contains("q=0.")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_a_page_is_recognised_by_its_tag() {
        let mut headers = HeaderMap::new();
        assert!(!has_tag(&headers, "a-1"));
        headers.insert(
            "if-none-match",
            HeaderValue::from_static("\"z\", W/\"a-1\""),
        );
        assert!(has_tag(&headers, "a-1") && !has_tag(&headers, "a-2"));
    }
}
