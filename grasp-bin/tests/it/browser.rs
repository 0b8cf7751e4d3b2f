//! The pages in a real browser: with a desktop's and a phone's width, in the light and the dark scheme.

mod devtools;

use std::path::Path;

use self::devtools::{Browser, View};
use crate::support::{Server, command, run_to_end, skipped};

const DESKTOP: View = View {
    width: 1200,
    phone: false,
    scheme: "light",
};
const DARK: View = View {
    width: 800,
    phone: false,
    scheme: "dark",
};
const PHONE: View = View {
    width: 320,
    phone: true,
    scheme: "light",
};

/// True if no element reaches beyond the right edge of the screen.
const FITS: &str = "document.documentElement.scrollWidth <= innerWidth";

/// True if nothing was loaded from another origin.
const SAME_ORIGIN: &str =
    "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))";

/// Texts with less contrast to their background than 4.5 to 1 (WCAG AA).
const LOW_CONTRAST: &str = r"(() => {
  const rgb = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => {
    v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)); };
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const canvas = dark ? [18, 18, 18] : [255, 255, 255];
  const behind = (e) => e ? over(rgb(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : canvas;
  const shown = (e) => e ? Number(getComputedStyle(e).opacity) * shown(e.parentElement) : 1;
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('.skip')) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.tagName === 'SCRIPT') continue;
    const back = behind(e), front = rgb(getComputedStyle(e).color);
    const seen = over([...front.slice(0, 3), (front[3] ?? 1) * shown(e)], back);
    const [a, b] = [light(seen), light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.tagName + ' ' + e.textContent.trim().slice(0, 20));
  }
  return bad.join('; ');
})()";

/// Violations of accessibility: language, title, landmarks, one top heading, names of links and columns.
const INACCESSIBLE: &str = r"(() => {
  const bad = [], all = (s) => [...document.querySelectorAll(s)];
  if (!document.documentElement.lang) bad.push('no language');
  if (!document.title) bad.push('no title');
  for (const mark of ['main', 'header nav[aria-label]', 'main > h1, main > * > h1:not(.md h1)']) if (all(mark).length !== 1) bad.push('not one ' + mark);
  if (all('a').some((a) => !a.textContent.trim())) bad.push('a link without a name');
  if (all('table:not(.md table)').some((t) => !t.caption || [...t.querySelectorAll('th')].some((th) => !th.scope))) bad.push('a table without caption or scope');
    if (all('img:not([alt])').length) bad.push('a picture without a description');
  return bad.join('; ');
})()";

/// Words in headings and states that are broken across lines.
const BROKEN_WORDS: &str = r"(() => {
  const bad = [];
  for (const e of document.querySelectorAll('th, td:not(:first-child):not(.md td)')) {
    for (const node of e.childNodes) for (const word of (node.textContent ?? '').matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) bad.push(word[0]);
    }
  }
  return bad.join(' ');
})()";

const README: &str = "# A project\n\nText with `code`, [a file](src/main.rs) and **more**.\n\n![a picture](docs/picture.svg)\n\n\
                      ![badge](https://elsewhere.example/badge.svg)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nfn main() {}\n```\n\n\
                      <script>alert(1)</script><img src=docs/picture.svg alt=again onerror=alert(2)>\n";

const CODE: &str = "//! What it is.\n\n/// Says hello.\nfn main() {\n    let number = 42; // why\n    println!(\"hello {number}\");\n}\n";

const PICTURE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='40'><script>alert(3)</script>\
                       <rect width='80' height='40' fill='teal'/></svg>";

/// Pushes a repository to the server, and returns the URL of its page.
fn push(server: &Server, home: &Path) -> String {
    let work = home.join("a-repository-with-quite-a-long-name");
    std::fs::create_dir_all(&work).unwrap();
    let git = |args: &[&str]| {
        let who = [
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ];
        let mut git = std::process::Command::new("git");
        let done = run_to_end(
            git.args(who)
                .args(args)
                .current_dir(&work)
                .env("HOME", home),
        );
        assert!(done.ok, "{done:?}");
    };
    git(&["init", "-q", "-b", "main"]);
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("README.md", README);
    write("src/main.rs", CODE);
    write("docs/picture.svg", PICTURE);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first\n\nIt has a body."]);
    write("src/main.rs", &CODE.replace("hello", "good bye"));
    git(&[
        "commit",
        "-qam",
        "second, with a subject that is somewhat longer than others are",
    ]);
    let push = ["push", "--server", server.host()];
    let pushed = run_to_end(command().args(push).current_dir(&work).env("HOME", home));
    assert!(pushed.ok, "{pushed:?}");
    let url = pushed
        .out
        .lines()
        .find_map(|line| line.trim().strip_prefix("git clone "));
    url.unwrap().to_owned()
}

#[tokio::test]
async fn pages_are_readable_on_desktop_and_phone_in_light_and_dark_scheme() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start(&dir.path().join("profile")).await else {
        skipped("chromium is not installed");
        return;
    };
    // A relay that does not run, so that the status page has something to show.
    let unreachable = "bootstrap = ['ws://127.0.0.1:9']\n";
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("grasp.toml"), unreachable).unwrap();
    let server = Server::start(&data);
    let repository = push(&server, dir.path());
    let root = format!("http://{}", server.host());
    let owner = repository.rsplit_once('/').unwrap().0.to_owned();
    let pages = [
        ("landing", format!("{root}/")),
        ("repository", repository.clone()),
        ("tree", format!("{repository}/tree/main/src")),
        ("file", format!("{repository}/file/main/src/main.rs")),
        ("document", format!("{repository}/file/main/README.md")),
        (
            "picture",
            format!("{repository}/file/main/docs/picture.svg"),
        ),
        ("log", format!("{repository}/log/main")),
        ("commit", newest_commit(&repository)),
        ("refs", format!("{repository}/refs")),
        ("owner", owner),
        ("status", format!("{root}/status")),
    ];
    browser.take_messages();
    for (name, url) in &pages {
        for (view, at) in [("desktop", DESKTOP), ("dark", DARK), ("phone", PHONE)] {
            browser.open(url, &at).await;
            assert_eq!(
                browser.evaluate(FITS).await,
                true,
                "{name} in view {view} is too wide"
            );
            assert_eq!(
                browser.evaluate(LOW_CONTRAST).await,
                "",
                "{name} in view {view}"
            );
            assert_eq!(
                browser.evaluate(INACCESSIBLE).await,
                "",
                "{name} in view {view}"
            );
            assert_eq!(
                browser.evaluate(BROKEN_WORDS).await,
                "",
                "{name} in view {view}"
            );
            assert_eq!(
                browser.evaluate(SAME_ORIGIN).await,
                true,
                "{name} loads from another origin"
            );
            assert_eq!(
                browser.take_messages(),
                Vec::<String>::new(),
                "{name} in view {view} writes to the console"
            );
            browser.save_screenshot(&format!("{name}-{view}")).await;
        }
    }
    // Markdown and code are rendered by the worker, and nothing of a document runs.
    browser.open(&repository, &DESKTOP).await;
    let rendered = "document.querySelectorAll('.md h1, .md table, .md .k').length";
    assert_eq!(browser.evaluate(rendered).await, 3);
    let dark = "getComputedStyle(document.documentElement).colorScheme";
    assert_eq!(browser.evaluate(dark).await, "light dark");
}

/// Returns the address of the newest commit that a page links to.
fn newest_commit(repository: &str) -> String {
    let rest = repository.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let (_, page) = crate::support::get(host, &format!("/{path}"));
    let (_, link) = page.split_once("/commit/").expect("a link to a commit");
    format!("{repository}/commit/{}", &link[..40])
}

#[tokio::test]
async fn pages_are_the_same_without_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start(&dir.path().join("profile")).await else {
        skipped("chromium is not installed");
        return;
    };
    let server = Server::start(&dir.path().join("data"));
    let repository = push(&server, dir.path());
    for page in ["", "/tree/main", "/file/main/src/main.rs", "/log/main"] {
        let mut texts = Vec::new();
        for is_on in [true, false] {
            browser.run_scripts(is_on).await;
            browser.open(&format!("{repository}{page}"), &DESKTOP).await;
            texts.push(browser.evaluate("document.body.innerText").await);
        }
        assert_eq!(texts[0], texts[1], "{page}");
        assert_eq!(browser.take_messages(), Vec::<String>::new(), "{page}");
    }
}

#[tokio::test]
async fn the_status_page_updates_itself() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut browser) = Browser::start(&dir.path().join("profile")).await else {
        skipped("chromium is not installed");
        return;
    };
    let server = Server::start(&dir.path().join("data"));
    browser
        .open(&format!("http://{}/status", server.host()), &DESKTOP)
        .await;
    browser
        .until("document.getElementById('freshness').textContent.startsWith('Updated')")
        .await;
    let repositories = "document.querySelector('[data-figure=repositories]').textContent";
    assert_eq!(browser.evaluate(repositories).await, "0");
    push(&server, dir.path());
    browser.until(&format!("{repositories} === '1'")).await;
    drop(server);
    browser
        .until("document.getElementById('freshness').textContent.includes('does not respond')")
        .await;
}
