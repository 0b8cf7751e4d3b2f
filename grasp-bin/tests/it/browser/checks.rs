//! What every page must hold, as expressions that the browser evaluates.

use serde_json::Value;

use super::devtools::{Browser, View};

/// Elements that reach beyond the right edge of the screen, if that makes the page wider than it.
const TOO_WIDE: &str = r"(() => {
  const page = document.documentElement;
  if (page.scrollWidth <= page.clientWidth) return '';
  const wide = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > page.clientWidth);
  return wide.map((e) => e.tagName + '.' + (e.getAttribute('class') ?? '')).slice(0, 8).join(' ');
})()";

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
    const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
    for (let node; (node = texts.nextNode());) for (const word of node.textContent.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) bad.push(word[0]);
    }
  }
  return bad.join(' ');
})()";

/// Bytes of a page with its stylesheet, compressed.
const MAX_BYTES: u64 = 50_000;

/// Milliseconds until something is seen, of a page that was opened before.
const MAX_FIRST_PAINT: f64 = 300.0;

/// Variable with the path of axe-core, which `.ci/run` installs.
const AXE_VAR: &str = "GRASP_AXE";

/// Runs axe-core, and returns what it calls serious or critical.
const RUN_AXE: &str = r"axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => one.id + ': ' + one.nodes.map((node) => node.html).slice(0, 3).join(' ')).join('; '))";

/// Milliseconds until the browser has painted something.
const FIRST_PAINT: &str =
    "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1";

/// Checks a page that is shown in some view: what a visitor sees.
pub(super) async fn check_view(browser: &mut Browser, name: &str, view: View) {
    browser.show(view).await;
    let rules: [(&str, &str, Value); 4] = [
        ("nothing reaches beyond the screen", TOO_WIDE, "".into()),
        ("contrast", LOW_CONTRAST, "".into()),
        ("accessibility", INACCESSIBLE, "".into()),
        ("whole words", BROKEN_WORDS, "".into()),
    ];
    for (rule, expression, expected) in rules {
        let found = browser.evaluate(expression).await;
        assert_eq!(found, expected, "{rule}: {name} in {view:?}");
    }
}

/// Checks what a page requested and wrote while it was loaded: nothing from elsewhere, nothing to the console, few bytes.
pub(super) fn check_load(browser: &mut Browser, name: &str, origin: &str) {
    let requests = browser.requests();
    let is_own = |url: &String| url.starts_with(origin);
    assert!(requests.iter().all(is_own), "{name} requests {requests:?}");
    let is_here = requests.iter().any(is_own) && browser.bytes() > 0;
    assert!(is_here, "{name} was not requested");
    let bytes = browser.bytes();
    assert!(bytes <= MAX_BYTES, "{name} has {bytes} bytes");
    let messages = browser.take_messages();
    assert!(messages.is_empty(), "{name} writes {messages:?}");
}

/// Returns axe-core, if it was installed.
pub(super) fn axe() -> Option<String> {
    let path = std::env::var_os(AXE_VAR)?;
    Some(std::fs::read_to_string(path).expect("axe-core"))
}

/// Checks a page by axe-core.
pub(super) async fn check_by_axe(browser: &mut Browser, axe: &str, name: &str, view: View) {
    browser.show(view).await;
    // Its value cannot be sent.
    browser.evaluate(&format!("{axe}; 0")).await;
    let found = browser.evaluate(RUN_AXE).await;
    assert_eq!(found, "", "axe-core: {name} in {view:?}");
}

/// Checks that a page is painted soon. Other work on the machine makes it slow, never fast: the best of some loads counts.
pub(super) async fn check_first_paint(browser: &mut Browser, url: &str, view: View) {
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        browser.open(url, view).await;
        browser.until(&format!("({FIRST_PAINT}) >= 0")).await;
        let painted = browser.evaluate(FIRST_PAINT).await;
        best = best.min(painted.as_f64().expect("a time"));
        if best <= MAX_FIRST_PAINT {
            return;
        }
    }
    panic!("{url} is painted after {best} ms at best");
}
