//! The page of administration: a shell whose script makes the calls of NIP-86, signed by an extension of the browser.
//!
//! It holds nothing that is not public. What it shows comes from calls that the server authorizes.

use maud::html;

use super::encoded::Caching;
use super::frame::{Frame, Page};

const SCRIPT: &str = include_str!("admin.js");

/// Returns the page.
pub fn admin(frame: &Frame) -> Page {
    let content = html! {
        h1 { "Administration" }
        noscript { p { "This page needs its script. " code { "grasp admin" } " does the same on the command line." } }
        p id="note" class="small" role="status" {
            "Sign in with a key that has a role at this server. A browser extension signs for it (NIP-07); each change is signed by itself."
        }
        p { button id="signin" type="button" hidden { "Sign in" } }
        nav id="tabs" class="tabs" aria-label="Administration" hidden {}
        div id="asked" aria-live="polite" {}
        div id="view" {}
    };
    Page::new("Administration", frame, content)
        .without_index()
        .cached(Caching::NoStore)
        .with_script(SCRIPT)
        .with_trusted_types()
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use crate::web::Branding;

    #[test]
    fn the_script_is_small_and_makes_no_html() {
        assert!(SCRIPT.len() <= 12 * 1024, "{}", SCRIPT.len());
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
        ] {
            assert!(!SCRIPT.contains(sink), "{sink}");
        }
    }

    #[test]
    fn the_policy_runs_that_script_only_and_refuses_html_from_it() {
        let response = admin(&Frame::new("/m/", "us", &Branding::default())).into_response();
        let policy = response.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(policy.contains("script-src 'sha256-") && policy.contains("connect-src 'self'"));
        assert!(policy.ends_with("; require-trusted-types-for 'script'; trusted-types 'none'"));
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}
