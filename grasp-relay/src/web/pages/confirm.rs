//! The confirmation that a visitor wants an expensive page.
//!
//! Crawlers come from thousands of addresses, one request each. While they have used half of what pages may use, expensive
//! pages are shown to those who pressed a button: it sets a cookie for a day, which is good for one network.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bitcoin_hashes::{HashEngine as _, hmac, sha256};
use grasp_core::resources::Claimant;
use maud::html;

use crate::server::Config;
use crate::web::encoded::{Caching, insert_text};
use crate::web::frame::{Frame, Page};

/// The path, below the mount, that the button leads to.
pub(crate) const CONFIRM_PATH: &str = "/-/confirm";

/// The longest form that is read.
pub(crate) const MAX_FORM_BYTES: usize = 4 * 1024;

const COOKIE: &str = "grasp-confirmed";

const DAY: u64 = 24 * 60 * 60;

/// Signs and checks confirmations.
pub(super) struct Confirmation {
    key: [u8; 32],
    secure: bool,
}

impl Confirmation {
    /// Creates a signer; nodes of one server share its key.
    pub(super) fn new(config: &Config) -> Self {
        let mut key = [0; 32];
        match config.node_key {
            Some(shared) => key = shared.derive("confirmation of pages"),
            // Without random numbers no cookie is set, because the key would be known.
            None if getrandom::fill(&mut key).is_err() => {
                tracing::error!("no random numbers available");
            }
            None => {}
        }
        Self {
            key,
            secure: config.secure,
        }
    }

    /// Returns the sign of a day for a client's widest network.
    fn sign(&self, claimant: &Claimant, day: u64) -> String {
        let network = claimant.network.and_then(|it| it.prefixes().next());
        let network = network.map(|it| it.to_string()).unwrap_or_default();
        let mut engine = hmac::HmacEngine::<sha256::HashEngine>::new(&self.key);
        engine.input(format!("{day} {network}").as_bytes());
        format!("{day}.{}", engine.finalize())
    }

    /// Returns whether a request has the confirmation of today or yesterday.
    pub(super) fn is_in(&self, claimant: &Claimant, headers: &HeaderMap, now: u64) -> bool {
        if self.key == [0; 32] {
            return false;
        }
        let today = now / DAY;
        let expected = [today, today.saturating_sub(1)].map(|day| self.sign(claimant, day));
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut values = cookies
            .flat_map(|list| list.split(';'))
            .filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        values.any(|value| expected.iter().any(|sign| is_equal(sign, value)))
    }

    /// Sets the cookie and leads back to a page of this server.
    pub(super) fn confirm(
        &self,
        claimant: &Claimant,
        form: &[u8],
        now: u64,
        root: &str,
    ) -> Response {
        let mut fields = url::form_urlencoded::parse(form);
        let back = fields.find(|(name, _)| name == "back");
        let back = back.map(|(_, value)| value.into_owned());
        let back = back.filter(|path| is_own_path(path, root));
        let Some(back) = back else {
            return (StatusCode::BAD_REQUEST, "no page to lead back to\n").into_response();
        };
        let secure = if self.secure { "; Secure" } else { "" };
        let sign = self.sign(claimant, now / DAY);
        let cookie =
            format!("{COOKIE}={sign}; Path={root}; Max-Age={DAY}; HttpOnly; SameSite=Lax{secure}");
        let mut response = StatusCode::SEE_OTHER.into_response();
        let headers = response.headers_mut();
        insert_text(headers, header::LOCATION, &back);
        insert_text(headers, header::SET_COOKIE, &cookie);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Compares two texts in a time that depends on their lengths only.
fn is_equal(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    a.len() == b.len() && pairs.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// Returns whether a path leads to a page of this server, in any browser.
fn is_own_path(path: &str, root: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    let rest = path.strip_prefix(root);
    rest.is_some_and(|rest| !rest.starts_with('/')) && path.bytes().all(is_plain)
}

/// Returns the page with the button, which leads back to this path.
pub(super) fn button(frame: &Frame, back: &str) -> Response {
    let action = format!("{}{}", frame.root().trim_end_matches('/'), CONFIRM_PATH);
    let content = html! {
        h1 { "One moment" }
        p {
            "Crawlers keep this server busy, and this page takes work. Press the button to see it; "
            "that holds for a day. Cloning needs none."
        }
        form method="post" action=(action) {
            input type="hidden" name="back" value=(back);
            button type="submit" { "Show the page" }
        }
    };
    Page::new("One moment", frame, content)
        .cached(Caching::NoStore)
        .with_status(StatusCode::TOO_MANY_REQUESTS)
        .into_response()
}

#[cfg(test)]
mod tests {
    use grasp_core::resources::ClientNetwork;

    use super::*;
    use crate::web::Branding;

    fn at(address: &str) -> Claimant {
        Claimant::at(ClientNetwork::of(address.parse().unwrap()))
    }

    fn confirmation() -> Confirmation {
        Confirmation {
            key: [7; 32],
            secure: true,
        }
    }

    fn cookie_of(response: &Response) -> HeaderMap {
        let set = response.headers()["set-cookie"].to_str().unwrap();
        let (cookie, _) = set.split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        let other = format!("a=b; {cookie}");
        headers.insert("cookie", other.parse().unwrap());
        headers
    }

    #[test]
    fn the_button_confirms_for_a_day_and_one_network() {
        let form = b"back=%2Fgit%2Fnpub1x%2Fy.git%2Flog%2Fmain%3Ffrom%3D1";
        let now = 100 * DAY;
        let response = confirmation().confirm(&at("192.0.2.1"), form, now, "/git/");
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        assert_eq!(
            response.headers()["location"],
            "/git/npub1x/y.git/log/main?from=1"
        );
        let headers = cookie_of(&response);
        let is_in = |address, now| confirmation().is_in(&at(address), &headers, now);
        assert!(is_in("192.0.2.1", now) && is_in("192.0.2.77", now + DAY));
        assert!(!is_in("192.0.2.1", now + 2 * DAY) && !is_in("198.51.100.1", now));
        let other = Confirmation {
            key: [8; 32],
            ..confirmation()
        };
        assert!(!other.is_in(&at("192.0.2.1"), &headers, now));
        assert!(!confirmation().is_in(&at("192.0.2.1"), &HeaderMap::new(), now));
    }

    #[test]
    fn the_button_leads_to_own_pages_only() {
        for bad in [
            "",
            "back=",
            "back=https%3A%2F%2Fevil.example",
            "back=%2F%2Fevil.example",
            "back=%2Fgit%2F%2Fevil.example",
            "back=%2Fother",
            "back=%2Fgit%2F%5Cevil",
            "back=%2Fgit%2Fa%0D%0ASet-Cookie%3A+x",
        ] {
            let response = confirmation().confirm(&at("192.0.2.1"), bad.as_bytes(), 0, "/git/");
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{bad}");
        }
        assert!(is_own_path("/npub1x/y.git", "/") && !is_own_path("//evil.example", "/"));
    }

    #[test]
    fn the_button_is_no_page_for_search_engines() {
        let frame = Frame::new("/", "us", &Branding::default());
        let response = button(&frame, "/npub1x/y.git/log/main");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}
