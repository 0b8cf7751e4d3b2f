//! The pages in a real browser: with scripts and without, on desktop and phone, in the light and the dark scheme.

mod admin;
mod checks;
mod devtools;
mod site;

use std::path::Path;

use self::checks::{check_by_axe, check_first_paint, check_load, check_view};
use self::devtools::{Browser, PHONE_WIDTH, View};
use self::site::Site;
use crate::support::{Server, skipped};

const DESKTOP: View = View {
    width: 1200,
    scheme: "light",
};

/// Starts a browser, or says that none is installed.
async fn start(dir: &Path) -> Option<Browser> {
    let browser = Browser::start(&dir.join("profile")).await;
    if browser.is_none() {
        skipped("chromium is not installed");
    }
    browser
}

/// Starts a server with further settings.
fn serve(dir: &Path, settings: &str) -> Server {
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("grasp.toml"), settings).unwrap();
    Server::start(&data)
}

/// The text of a page without the time that has passed since.
const TEXT: &str = r"document.body.innerText.replace(/\d+ \w+ ago/g, 'ago')";

/// A relay that does not run, so that the status page has something to show.
const UNREACHABLE: &str = "bootstrap = ['ws://127.0.0.1:9']\n";

#[tokio::test]
async fn every_page_is_readable_in_every_view_with_scripts_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = serve(dir.path(), UNREACHABLE);
    let site = Site::create(&server, dir.path()).await;
    for has_scripts in [true, false] {
        browser.run_scripts(has_scripts).await;
        for (name, url) in &site.pages {
            browser.open(url, DESKTOP).await;
            check_load(&mut browser, name, &site.root);
            for width in [DESKTOP.width, 800, PHONE_WIDTH] {
                for scheme in ["light", "dark"] {
                    check_view(&mut browser, name, View { width, scheme }).await;
                    let picture = format!("{name}-{width}-{scheme}");
                    browser.save_screenshot(&picture).await;
                }
            }
            assert_eq!(browser.take_messages(), Vec::<String>::new(), "{name}");
        }
    }
    browser.run_scripts(true).await;
    check_first_paint(&mut browser, &site.repository, DESKTOP).await;
    // Markdown and code are rendered by the worker, and nothing of a document runs.
    browser.open(&site.repository, DESKTOP).await;
    let rendered = "document.querySelectorAll('.md h1, .md table, .md .k').length";
    assert_eq!(browser.evaluate(rendered).await, 3);
    let dark = "getComputedStyle(document.documentElement).colorScheme";
    assert_eq!(browser.evaluate(dark).await, "light dark");
}

#[tokio::test]
async fn axe_finds_nothing_serious_on_any_page() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let Some(axe) = checks::axe() else {
        skipped("axe-core is not installed");
        return;
    };
    let server = serve(dir.path(), UNREACHABLE);
    let site = Site::create(&server, dir.path()).await;
    let phone = View {
        width: PHONE_WIDTH,
        scheme: "dark",
    };
    for (name, url) in &site.pages {
        browser.open(url, DESKTOP).await;
        check_by_axe(&mut browser, &axe, name, DESKTOP).await;
        check_by_axe(&mut browser, &axe, name, phone).await;
    }
}

#[tokio::test]
async fn nothing_of_a_repository_runs_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = Server::start(&dir.path().join("data"));
    let site = Site::create(&server, dir.path()).await;
    let ran = "document.documentElement.dataset?.ran ?? 'no'";
    for path in [
        "raw/main/docs/picture.svg",
        "feed/issues.atom",
        "feed/pulls.atom",
    ] {
        browser
            .open(&format!("{}/{path}", site.repository), DESKTOP)
            .await;
        assert_eq!(browser.evaluate(ran).await, "no", "{path}");
        let is_own = |url: &String| url.starts_with(&site.root);
        assert!(browser.requests().iter().all(is_own), "{path}");
    }
    // Without the policy of the server it runs.
    let svg = std::fs::read_to_string(
        dir.path()
            .join("a-repository-with-quite-a-long-name/docs/picture.svg"),
    );
    let file = dir.path().join("picture.svg");
    std::fs::write(&file, svg.unwrap()).unwrap();
    browser
        .open(&format!("file://{}", file.display()), DESKTOP)
        .await;
    assert_eq!(browser.evaluate(ran).await, "1");
}

#[tokio::test]
async fn a_page_is_confirmed_without_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = serve(dir.path(), "[pages]\nconfirm = 'always'\n");
    let site = Site::push(&server, dir.path());
    browser.run_scripts(false).await;
    let commit = site.newest_commit();
    browser.open(&commit, DESKTOP).await;
    let heading = "document.querySelector('h1')?.textContent ?? ''";
    assert_eq!(browser.evaluate(heading).await, "One moment");
    for width in [DESKTOP.width, PHONE_WIDTH] {
        for scheme in ["light", "dark"] {
            check_view(&mut browser, "confirmation", View { width, scheme }).await;
        }
    }
    browser.click("main button").await;
    browser
        .until(&format!("({heading}).startsWith('second')"))
        .await;
}

#[tokio::test]
async fn pages_have_the_icon_and_the_colour_of_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let icon = dir.path().join("icon.svg");
    let picture =
        "<svg xmlns='http://www.w3.org/2000/svg' width='16' height='16'><circle r='8'/></svg>";
    std::fs::write(&icon, picture).unwrap();
    let icon = icon.display();
    let settings = format!("[pages]\nicon = '{icon}'\naccent = '#7a1fa2,#e1bee7'\n");
    let server = serve(dir.path(), &settings);
    let site = Site::push(&server, dir.path());
    browser.open(&site.repository, DESKTOP).await;
    check_load(&mut browser, "branded", &site.root);
    let link = "getComputedStyle(document.querySelector('.tree a')).color";
    let shown = "document.querySelector('header img').naturalWidth";
    for (scheme, colour) in [
        ("light", "rgb(122, 31, 162)"),
        ("dark", "rgb(225, 190, 231)"),
    ] {
        let width = PHONE_WIDTH;
        check_view(&mut browser, "branded", View { width, scheme }).await;
        assert_eq!(browser.evaluate(link).await, colour);
        browser.save_screenshot(&format!("branded-{scheme}")).await;
    }
    assert_eq!(browser.evaluate(shown).await, 16);
}

#[tokio::test]
async fn pages_are_the_same_without_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = Server::start(&dir.path().join("data"));
    let site = Site::create(&server, dir.path()).await;
    for (name, url) in site.pages.iter().filter(|(name, _)| *name != "status") {
        let mut texts = Vec::new();
        for is_on in [true, false] {
            browser.run_scripts(is_on).await;
            browser.open(url, DESKTOP).await;
            texts.push(browser.evaluate(TEXT).await);
        }
        assert_eq!(texts[0], texts[1], "{name}");
    }
}

#[tokio::test]
async fn the_status_page_updates_itself() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = start(dir.path()).await else {
        return;
    };
    let server = Server::start(&dir.path().join("data"));
    browser
        .open(&format!("http://{}/status", server.host()), DESKTOP)
        .await;
    browser
        .until("document.getElementById('freshness').textContent.startsWith('Updated')")
        .await;
    let repositories = "document.querySelector('[data-figure=repositories]').textContent";
    assert_eq!(browser.evaluate(repositories).await, "0");
    Site::push(&server, dir.path());
    browser.until(&format!("{repositories} === '1'")).await;
    drop(server);
    browser
        .until("document.getElementById('freshness').textContent.includes('does not respond')")
        .await;
}
