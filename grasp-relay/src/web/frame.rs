//! What all pages share: their shell, their headers, the stylesheet, and how they are sent and kept.
//!
//! A page loads its stylesheet and pictures from this server and nothing else; its policy is a header, so that nothing a
//! stranger wrote can come before it.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ETAG, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bitcoin_hashes::sha256;
use flate2::Compression;
use flate2::write::GzEncoder;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// A branch that joins another one.
const ICON: &str = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16' fill='none' stroke='#0b57d0' \
                    stroke-width='1.8'><circle cx='4' cy='3.5' r='2'/><circle cx='4' cy='12.5' r='2'/>\
                    <circle cx='12' cy='6' r='2'/><path d='M4 5.5v5M12 8c0 2.5-4 2-6.5 3.5'/></svg>";

/// The name of the stylesheet, which changes with its content.
static STYLE_NAME: LazyLock<String> = LazyLock::new(|| {
    let hash = sha256::Hash::hash(STYLE.as_bytes()).to_string();
    format!("style-{}.css", hash.get(..16).unwrap_or_default())
});

/// The policy of pages without a script.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

/// The policy of content of repositories.
const FILE_POLICY: &str = "default-src 'none'; sandbox";

/// Bodies below this are not compressed.
const SMALLEST_COMPRESSED: usize = 600;

pub(crate) const HTML: &str = "text/html; charset=utf-8";

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

/// A page: its content, and what its headers follow from.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    root: String,
    content: Markup,
    status: StatusCode,
    caching: Caching,
    is_indexed: bool,
    script: Option<&'static str>,
}

impl Page {
    /// Creates a page with this title and content; `root` is the path of the landing page, as `/` or `/mount/`.
    pub fn new(title: impl Into<String>, root: impl Into<String>, content: Markup) -> Self {
        Self {
            title: title.into(),
            root: root.into(),
            content,
            status: StatusCode::OK,
            caching: Caching::default(),
            is_indexed: true,
            script: None,
        }
    }

    /// Answers with another status than 200. Search engines do not list such a page.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self.without_index()
    }

    /// Sets how long clients may use the page.
    #[must_use]
    pub fn cached(mut self, caching: Caching) -> Self {
        self.caching = caching;
        self
    }

    /// Asks search engines not to list the page.
    #[must_use]
    pub fn without_index(mut self) -> Self {
        self.is_indexed = false;
        self
    }

    /// Adds the one script that the page may run; it may make requests to this server.
    #[must_use]
    pub(crate) fn with_script(mut self, script: &'static str) -> Self {
        self.script = Some(script);
        self
    }

    /// Returns the page as HTML.
    pub fn html(&self) -> String {
        let root = &self.root;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    @if !self.is_indexed { meta name="robots" content="noindex, nofollow"; }
                    title { (self.title) }
                    link rel="stylesheet" href=(format!("{root}-/{}", *STYLE_NAME));
                    link rel="icon" type="image/svg+xml" href=(format!("{root}-/icon.svg"));
                }
                body {
                    header {
                        a class="skip" href="#main" { "Skip to content" }
                        nav aria-label="Pages" {
                            a href=(root) { "Repositories" }
                            a href=(format!("{root}status")) { "Status" }
                        }
                    }
                    main id="main" { (self.content) }
                    footer { "grasp " (env!("CARGO_PKG_VERSION")) }
                    @if let Some(script) = self.script { script { (PreEscaped(script)) } }
                }
            }
        }
        .into_string()
    }

    /// Compresses the page, to be sent or kept.
    pub(crate) fn encode(&self, tag: Option<String>) -> EncodedPage {
        let policy = match self.script {
            None => POLICY.to_owned(),
            Some(script) => {
                let hash = BASE64.encode(sha256::Hash::hash(script.as_bytes()).to_byte_array());
                format!("{POLICY}; script-src 'sha256-{hash}'; connect-src 'self'")
            }
        };
        EncodedPage {
            status: self.status,
            content_type: HTML,
            policy,
            caching: self.caching,
            is_attachment: false,
            tag,
            body: EncodedBody::new(self.html().into_bytes()),
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let html = self.html();
        let mut encoded = self.encode(None);
        encoded.body = EncodedBody::Plain(html.into());
        encoded.response(&HeaderMap::new())
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

/// Returns the routes of what pages load, and of `robots.txt`, to be merged below the mount.
pub fn assets(root: &str) -> Router {
    let robots = robots(root);
    let style = format!("/-/{}", *STYLE_NAME);
    Router::new()
        .route(&style, get(style_sheet))
        .route("/-/icon.svg", get(icon))
        .route("/robots.txt", get(async move || robots))
}

async fn icon() -> Response {
    let mut response = ICON.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("image/svg+xml"));
    headers.insert(CACHE_CONTROL, Caching::ForADay.header());
    insert_text(headers, CONTENT_SECURITY_POLICY, FILE_POLICY);
    insert_protection(headers);
    response
}

async fn style_sheet(headers: HeaderMap) -> Response {
    static ENCODED: LazyLock<EncodedPage> = LazyLock::new(|| EncodedPage {
        status: StatusCode::OK,
        content_type: "text/css; charset=utf-8",
        policy: POLICY.to_owned(),
        caching: Caching::ForADay,
        is_attachment: false,
        tag: None,
        body: EncodedBody::new(STYLE.as_bytes().to_vec()),
    });
    let mut response = ENCODED.response(&headers);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(CACHE_CONTROL, forever);
    response
}

/// Returns the rules for crawlers: repositories may be listed, with their branches; not every commit that ever was.
fn robots(root: &str) -> String {
    let mut text = String::from("User-agent: *\n");
    for path in ["commit/", "log/", "raw/", "*?from="] {
        text.push_str(&format!("Disallow: {root}*/*/{path}\n"));
    }
    text.push_str(&format!(
        "Disallow: {root}-/confirm\nDisallow: {root}status\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::new(
            "A <title>",
            "/git/",
            html! { p { ("content ".repeat(200)) } },
        )
    }

    fn header<'a>(response: &'a Response, name: &str) -> &'a str {
        let value = response.headers().get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn the_stylesheet_is_small_and_has_an_address_of_its_own() {
        assert!(STYLE.len() <= 10 * 1024, "{}", STYLE.len());
        assert!(page().html().contains("href=\"/git/-/style-"));
        assert!(!page().html().contains("<style"));
    }

    #[test]
    fn a_page_may_load_from_this_server_only_and_run_nothing() {
        let response = page().into_response();
        let policy = header(&response, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'"));
        assert!(!policy.contains("unsafe") && !policy.contains("script"));
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        assert_eq!(header(&response, "referrer-policy"), "no-referrer");
    }

    #[test]
    fn a_script_is_allowed_by_its_hash() {
        let response = page().with_script("alert(1)").into_response();
        let policy = header(&response, "content-security-policy");
        let allowed =
            "script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='; connect-src 'self'";
        assert!(policy.ends_with(allowed), "{policy}");
    }

    #[tokio::test]
    async fn pages_are_compressed_for_clients_that_accept_it() {
        let encoded = page().encode(Some("x-1".into()));
        let body = async |headers: &HeaderMap| {
            let response = encoded.response(headers);
            let encoding = header(&response, "content-encoding").to_owned();
            assert_eq!(header(&response, "etag"), "W/\"x-1\"");
            let body = axum::body::to_bytes(response.into_body(), 100_000).await;
            (encoding, body.unwrap())
        };
        let plain = body(&HeaderMap::new()).await;
        assert_eq!((plain.0.as_str(), plain.1), ("", page().html().into()));
        let mut headers = HeaderMap::new();
        headers.insert("accept-encoding", HeaderValue::from_static("br, gzip"));
        let (encoding, compressed) = body(&headers).await;
        assert!(encoding == "gzip" && compressed.len() < 1_000);
        headers.insert("accept-encoding", HeaderValue::from_static("gzip;q=0"));
        assert_eq!(body(&headers).await.0, "");
    }

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
