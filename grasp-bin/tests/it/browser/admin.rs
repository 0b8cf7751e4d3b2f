//! The page of administration, with an extension that signs.

use std::path::Path;

use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use serde_json::Value;

use super::checks::check_view;
use super::devtools::{Browser, PHONE_WIDTH, View};
use super::site::Site;
use super::{DESKTOP, serve};
use crate::support::{Server, grasp, run_to_end, skipped};

const NOTE: &str = "document.getElementById('note').textContent";

/// The first screen after signing in.
const OVERVIEW: &str = "document.getElementById('view').dataset.screen === 'Overview'";

/// A reason that would run if it were not shown as text.
const HOSTILE: &str = "<img src=x onerror=document.documentElement.dataset.ran=1>";

async fn start(dir: &Path) -> Option<Browser> {
    let browser = Browser::start_with_signer(&dir.join("profile")).await;
    if browser.is_none() {
        skipped("chromium is not installed");
    }
    browser
}

/// Signs what the page wants to have signed next, as an extension does that its user allows it.
async fn sign(browser: &mut Browser, keys: &Keys) {
    let draft = browser.asked_to_sign().await;
    assert_eq!(draft["kind"], 27_235);
    let mut event = EventBuilder::new(Kind::HttpAuth, draft["content"].as_str().unwrap());
    for tag in draft["tags"].as_array().unwrap() {
        let values: Vec<&str> = tag
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        event = event.tag(Tag::parse(values).unwrap());
    }
    let at = Timestamp::from_secs(draft["created_at"].as_u64().unwrap());
    let event = event.custom_created_at(at).finalize(keys).unwrap();
    let signed = format!("window.signed({}); 0", event.as_json());
    browser.evaluate(&signed).await;
}

/// Shows one of the screens.
async fn open_tab(browser: &mut Browser, name: &str) {
    let mark = "document.querySelector('#tabs a[data-next]')?.removeAttribute('data-next')";
    let choose = format!(
        "{mark}; [...document.querySelectorAll('#tabs a')].find((a) => a.textContent === '{name}').dataset.next = 1"
    );
    browser.evaluate(&choose).await;
    browser.click("#tabs a[data-next]").await;
    let is_shown = format!("document.getElementById('view').dataset.screen === '{name}'");
    browser.until(&is_shown).await;
}

/// Confirms and signs the change that the page asks about, and waits until it is made.
async fn confirm(browser: &mut Browser, keys: &Keys) -> String {
    browser
        .until("document.getElementById('confirm') !== null")
        .await;
    assert!(
        !browser.has_drafts(),
        "nothing is signed before it is confirmed"
    );
    let asked = browser
        .evaluate("document.getElementById('asked').textContent")
        .await;
    browser.click("#confirm").await;
    sign(browser, keys).await;
    browser.until(&format!("{NOTE}.endsWith('done.')")).await;
    asked.as_str().unwrap().to_owned()
}

async fn sign_in(browser: &mut Browser, server: &Server, keys: &Keys) {
    let page = format!("http://{}/admin", server.host());
    browser.open(&page, DESKTOP).await;
    browser.click("#signin").await;
    sign(browser, keys).await;
}

fn can_clone(repository: &str, dir: &Path) -> bool {
    let mut git = std::process::Command::new("git");
    run_to_end(git.args(["ls-remote", repository]).current_dir(dir)).ok
}

#[tokio::test]
async fn an_operator_bans_and_unbans_a_repository_in_the_browser() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let operator = Keys::generate();
    let server = serve(
        dir.path(),
        &format!("operator = '{}'\n", operator.public_key()),
    );
    let site = Site::push(&server, dir.path());
    assert!(can_clone(&site.repository, dir.path()));
    sign_in(&mut browser, &server, &operator).await;
    browser.until(OVERVIEW).await;
    // One signature for all screens.
    for tab in ["Overview", "Repositories", "People", "Network", "Audit"] {
        open_tab(&mut browser, tab).await;
        for width in [DESKTOP.width, PHONE_WIDTH] {
            for scheme in ["light", "dark"] {
                check_view(&mut browser, tab, View { width, scheme }).await;
            }
        }
        browser.show(DESKTOP).await;
        browser.save_screenshot(&format!("admin-{tab}")).await;
    }
    assert!(!browser.has_drafts());
    open_tab(&mut browser, "Repositories").await;
    browser.click("button[data-method=\"grasp.banrepo\"]").await;
    let asked = confirm(&mut browser, &operator).await;
    assert!(asked.contains("1 repository, "), "{asked}");
    assert!(!can_clone(&site.repository, dir.path()));
    open_tab(&mut browser, "People").await;
    browser
        .click("button[data-method=\"grasp.unbanrepo\"]")
        .await;
    confirm(&mut browser, &operator).await;
    assert!(can_clone(&site.repository, dir.path()));
    open_tab(&mut browser, "Audit").await;
    let rows = browser
        .evaluate("document.querySelectorAll('#view tbody tr').length")
        .await;
    assert_eq!(rows, 2);
    assert_eq!(browser.take_messages(), Vec::<String>::new());
    let origin = format!("http://{}/", server.host());
    let requests = browser.requests();
    assert!(
        requests.iter().all(|url| url.starts_with(&origin)),
        "{requests:?}"
    );
}

#[tokio::test]
async fn texts_of_others_are_text_on_the_page_of_administration() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let operator = Keys::generate();
    let server = serve(
        dir.path(),
        &format!("operator = '{}'\n", operator.public_key()),
    );
    let data = dir.path().join("data");
    let ban = [
        "admin",
        "ban",
        HOSTILE,
        "--reason",
        HOSTILE,
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let banned = grasp(&ban);
    // A name cannot have a slash, which this one has not.
    assert!(banned.ok, "{banned:?}");
    sign_in(&mut browser, &server, &operator).await;
    browser.until(OVERVIEW).await;
    for tab in ["People", "Audit"] {
        open_tab(&mut browser, tab).await;
        let shown = browser
            .evaluate("document.getElementById('view').textContent")
            .await;
        assert!(shown.as_str().unwrap().contains(HOSTILE), "{tab}: {shown}");
        assert_eq!(
            browser
                .evaluate("document.querySelectorAll('#view img').length")
                .await,
            0
        );
    }
    let ran = "document.documentElement.dataset.ran ?? 'no'";
    assert_eq!(browser.evaluate(ran).await, "no");
    // A text that became HTML would be refused by the policy.
    let refused =
        "(() => { try { document.body.innerHTML = 'x'; return false; } catch { return true; } })()";
    assert_eq!(browser.evaluate(refused).await, true);
}

#[tokio::test]
async fn a_key_without_a_role_sees_nothing_on_the_page_of_administration() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = serve(
        dir.path(),
        &format!("operator = '{}'\n", Keys::generate().public_key()),
    );
    sign_in(&mut browser, &server, &Keys::generate()).await;
    browser.until(&format!("{NOTE}.includes('no role')")).await;
    assert_eq!(
        browser
            .evaluate("document.getElementById('tabs').hidden")
            .await,
        true
    );
    assert_eq!(
        browser
            .evaluate("document.getElementById('view').childNodes.length")
            .await,
        0
    );
}
