//! What all pages share: their shell, their headers, the stylesheet and the icon.
//!
//! A page loads its stylesheet and pictures from this server and nothing else; its policy is a header, so that nothing a
//! stranger wrote can come before it.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bitcoin_hashes::sha256;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::branding::{Branding, Icon, mark};
use super::encoded::{Caching, EncodedBody, EncodedPage};
use super::shown;

const STYLE: &str = include_str!("style.css");

/// The version of what pages look like. A change of it makes clients ask again. It is part of a header, in which scanners
/// take four numbers with dots for an address of the network behind the server.
const LAYOUT_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-2");

/// The policy of pages without a script.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

pub(crate) const HTML: &str = "text/html; charset=utf-8";

/// What the pages of one server have in common: where they are, whose they are, and what they look like. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Frame(Arc<Look>);

#[derive(Debug)]
struct Look {
    /// The path of the landing page, as `/` or `/mount/`.
    root: String,
    /// The name of the server.
    name: String,
    /// The name of the stylesheet, which changes with its content.
    style_name: String,
    style: String,
    icon_name: &'static str,
    icon: Icon,
    /// The icon is the operator's.
    has_own_icon: bool,
}

impl Frame {
    /// Creates the frame of the pages below the path of a landing page, as `/` or `/mount/`.
    pub fn new(root: impl Into<String>, name: impl Into<String>, branding: &Branding) -> Self {
        let style = format!("{STYLE}{}", branding.style());
        let hash = sha256::Hash::hash(style.as_bytes()).to_string();
        let icon = branding.icon();
        Self(Arc::new(Look {
            root: root.into(),
            name: name.into(),
            style_name: format!("style-{}.css", hash.get(..16).unwrap_or_default()),
            style,
            icon_name: icon.name(),
            icon,
            has_own_icon: branding.icon.is_some(),
        }))
    }

    /// Returns the path of the landing page.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// Returns a text that changes with what the pages look like.
    pub(crate) fn version(&self) -> String {
        let Look {
            name, style_name, ..
        } = &*self.0;
        let hash = sha256::Hash::hash(format!("{name} {style_name}").as_bytes()).to_string();
        format!("{LAYOUT_VERSION}-{}", hash.get(..8).unwrap_or_default())
    }
}

/// A link to a feed.
#[derive(Clone, Debug)]
pub(crate) struct FeedLink {
    pub(crate) title: &'static str,
    pub(crate) path: String,
}

impl FeedLink {
    /// Returns links to feeds as people see them.
    pub(crate) fn line(feeds: &[Self]) -> Markup {
        html! {
            p class="small" {
                "Atom feeds:"
                @for feed in feeds { " " a href=(feed.path) { (feed.title) } }
            }
        }
    }
}

/// A page: its content, and what its headers follow from.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    frame: Frame,
    content: Markup,
    status: StatusCode,
    caching: Caching,
    is_indexed: bool,
    /// The one of its addresses that search engines should list.
    canonical: Option<String>,
    feeds: Vec<FeedLink>,
    script: Option<&'static str>,
    has_trusted_types: bool,
}

impl Page {
    /// Creates a page with this title and content.
    pub fn new(title: impl Into<String>, frame: &Frame, content: Markup) -> Self {
        Self {
            title: title.into(),
            frame: frame.clone(),
            content,
            status: StatusCode::OK,
            caching: Caching::default(),
            is_indexed: true,
            canonical: None,
            feeds: Vec::new(),
            script: None,
            has_trusted_types: false,
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

    /// Names the address that search engines should list the page at, as a URL.
    #[must_use]
    pub(crate) fn at(mut self, url: String) -> Self {
        self.canonical = Some(url);
        self
    }

    /// Names the feeds of what the page shows.
    #[must_use]
    pub(crate) fn with_feeds(mut self, feeds: Vec<FeedLink>) -> Self {
        self.feeds = feeds;
        self
    }

    /// Adds the one script that the page may run; it may make requests to this server.
    #[must_use]
    pub(crate) fn with_script(mut self, script: &'static str) -> Self {
        self.script = Some(script);
        self
    }

    /// Refuses that the script makes HTML of text.
    #[must_use]
    pub(crate) fn with_trusted_types(mut self) -> Self {
        self.has_trusted_types = true;
        self
    }

    /// Returns the page as HTML.
    pub fn html(&self) -> String {
        let Look {
            root,
            name,
            style_name,
            icon_name,
            icon,
            has_own_icon,
            ..
        } = &*self.frame.0;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    @if !self.is_indexed { meta name="robots" content="noindex, nofollow"; }
                    title { (self.title) }
                    @if let Some(url) = &self.canonical { link rel="canonical" href=(url); }
                    @for feed in &self.feeds {
                        link rel="alternate" type="application/atom+xml" title=(feed.title) href=(feed.path);
                    }
                    link rel="stylesheet" href=(format!("{root}-/{style_name}"));
                    link rel="icon" type=(icon.content_type) href=(format!("{root}-/{icon_name}"));
                }
                body {
                    header {
                        a class="skip" href="#main" { "Skip to content" }
                        nav aria-label="Pages" {
                            a class="home" href=(root) {
                                @if *has_own_icon {
                                    img src=(format!("{root}-/{icon_name}")) alt="" width="20" height="20";
                                } @else { (mark()) }
                                bdi { (shown(name)) }
                            }
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
        let mut policy = match self.script {
            None => POLICY.to_owned(),
            Some(script) => {
                let hash = BASE64.encode(sha256::Hash::hash(script.as_bytes()).to_byte_array());
                format!("{POLICY}; script-src 'sha256-{hash}'; connect-src 'self'")
            }
        };
        if self.has_trusted_types {
            policy.push_str("; require-trusted-types-for 'script'; trusted-types 'none'");
        }
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

/// Returns the routes of what pages load, and of `robots.txt`, to be merged below the mount.
pub fn assets(frame: &Frame) -> Router {
    let Look {
        root,
        style_name,
        style,
        icon_name,
        icon,
        ..
    } = &*frame.0;
    let robots = robots(root);
    let style = style_sheet(style);
    let icon = icon.clone();
    Router::new()
        .route(
            &format!("/-/{style_name}"),
            get(async move |headers: HeaderMap| style_response(&style, &headers)),
        )
        .route(
            &format!("/-/{icon_name}"),
            get(async move || icon_response(&icon)),
        )
        .route("/robots.txt", get(async move || robots))
}

fn icon_response(icon: &Icon) -> Response {
    let body = EncodedBody::Plain(icon.bytes.clone().into());
    let mut icon = EncodedPage::file(icon.content_type, false, body);
    icon.caching = Caching::ForADay;
    icon.response(&HeaderMap::new())
}

fn style_sheet(style: &str) -> EncodedPage {
    EncodedPage {
        status: StatusCode::OK,
        content_type: "text/css; charset=utf-8",
        policy: POLICY.to_owned(),
        caching: Caching::ForADay,
        is_attachment: false,
        tag: None,
        body: EncodedBody::new(style.as_bytes().to_vec()),
    }
}

fn style_response(style: &EncodedPage, headers: &HeaderMap) -> Response {
    let mut response = style.response(headers);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, forever);
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
        let frame = Frame::new("/git/", "us", &Branding::default());
        Page::new(
            "A <title>",
            &frame,
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
    fn crawlers_are_told_which_pages_to_leave_alone_below_the_mount() {
        let rules = robots("/git/");
        for path in [
            "/git/*/*/commit/",
            "/git/*/*/log/",
            "/git/*/*/raw/",
            "/git/-/confirm",
        ] {
            assert!(rules.contains(&format!("\nDisallow: {path}\n")), "{rules}");
        }
        assert!(!rules.contains("Disallow: /git/\n") && !rules.contains("tree"));
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
}
