//! A headless Chromium, controlled over its DevTools protocol.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Time within which the browser must respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page. Killed when dropped.
pub(crate) struct Browser {
    child: Child,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    last: u64,
    /// What the browser has written to the console: messages, errors and violations of the policy.
    messages: Vec<String>,
    /// Events that pages want to have signed.
    drafts: VecDeque<Value>,
    /// The addresses that pages have requested, and the bytes that came.
    requests: Vec<String>,
    bytes: u64,
}

/// The width and the color scheme in which a page is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) width: u32,
    pub(crate) scheme: &'static str,
}

/// The width of a small phone.
pub(crate) const PHONE_WIDTH: u32 = 320;

impl Browser {
    /// Starts a browser, if one is installed.
    pub(crate) async fn start(profile: &Path) -> Option<Self> {
        Self::start_with(profile, &[]).await
    }

    /// Starts a browser with an extension that lets the process of the test sign for its pages (NIP-07).
    pub(crate) async fn start_with_signer(profile: &Path) -> Option<Self> {
        let signer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/browser/signer");
        let signer = signer.display();
        let flags = [
            format!("--load-extension={signer}"),
            format!("--disable-extensions-except={signer}"),
        ];
        let mut browser = Self::start_with(profile, &flags).await?;
        let binding = json!({"name": "askedToSign"});
        browser.call("Runtime.addBinding", binding).await;
        Some(browser)
    }

    async fn start_with(profile: &Path, further: &[String]) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-port=0",
        ];
        let start = |name: &&str| {
            let mut browser = Command::new(name);
            browser
                .args(flags)
                .args(further)
                .arg(format!("--user-data-dir={}", profile.display()));
            browser
                .arg("about:blank")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        };
        let child = names.iter().find_map(start)?;
        let address = address(&profile.join("DevToolsActivePort")).await;
        let (socket, _) = tokio_tungstenite::connect_async(&address).await.unwrap();
        let mut browser = Self {
            child,
            socket,
            session: None,
            last: 0,
            messages: Vec::new(),
            drafts: VecDeque::new(),
            requests: Vec::new(),
            bytes: 0,
        };
        let target = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Log", "Runtime", "Network", "Audits"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        // Each page is loaded with all that belongs to it.
        let nothing_kept = json!({"cacheDisabled": true});
        browser.call("Network.setCacheDisabled", nothing_kept).await;
        Some(browser)
    }

    /// Opens a page in a view and waits until it is loaded.
    pub(crate) async fn open(&mut self, url: &str, view: View) {
        self.show(view).await;
        // The page before is gone as soon as the new one is there.
        self.call("Page.navigate", json!({"url": "about:blank"}))
            .await;
        self.until("document.readyState === 'complete' && location.href === 'about:blank'")
            .await;
        self.forget();
        self.call("Page.navigate", json!({"url": url})).await;
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")
            .await;
    }

    /// Shows the page in another view.
    pub(crate) async fn show(&mut self, view: View) {
        let metrics = json!({
            "width": view.width, "height": 800, "deviceScaleFactor": 1, "mobile": view.width == PHONE_WIDTH,
        });
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let scheme = json!({"name": "prefers-color-scheme", "value": view.scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}))
            .await;
    }

    /// Clicks on an element as a visitor does, by the mouse.
    pub(crate) async fn click(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const element = document.querySelector('{selector}'); \
             element.scrollIntoView({{ block: 'center' }}); const box = element.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        );
        let place = self.evaluate(&place).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Runs the scripts of pages, or not.
    pub(crate) async fn run_scripts(&mut self, is_on: bool) {
        let params = json!({"value": !is_on});
        self.call("Emulation.setScriptExecutionDisabled", params)
            .await;
    }

    /// Returns what was written to the console since the last call.
    pub(crate) fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// Returns the addresses that were requested since the page was opened.
    pub(crate) fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Returns the bytes that came since the page was opened, compressed and with their heads.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn forget(&mut self) {
        self.messages.clear();
        self.requests.clear();
        self.bytes = 0;
    }

    /// Evaluates an expression in the page; waits for the value of a promise.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Evaluates an expression until it is true.
    pub(crate) async fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.evaluate(expression).await != true {
            assert!(
                began.elapsed() < RESPONSE_TIMEOUT,
                "not true in time: {expression}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a page wants to have an event signed, and returns what it has of it.
    pub(crate) async fn asked_to_sign(&mut self) -> Value {
        let began = Instant::now();
        loop {
            // Events of the browser come with its answers.
            self.evaluate("0").await;
            if let Some(draft) = self.drafts.pop_front() {
                return draft;
            }
            assert!(
                began.elapsed() < RESPONSE_TIMEOUT,
                "nothing is to be signed"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns whether a page wants to have something signed that was not signed yet.
    pub(crate) fn has_drafts(&self) -> bool {
        !self.drafts.is_empty()
    }

    /// Saves a screenshot of the page, if `GRASP_TEST_PICTURES` names a directory.
    pub(crate) async fn save_screenshot(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("GRASP_TEST_PICTURES") else {
            return;
        };
        let params = json!({"captureBeyondViewport": false});
        let screenshot = self.call("Page.captureScreenshot", params).await;
        let file = Path::new(&dir).join(format!("{name}.png.base64"));
        std::fs::write(file, screenshot["data"].as_str().unwrap()).unwrap();
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut call = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = session.as_str().into();
        }
        self.socket
            .send(Message::text(call.to_string()))
            .await
            .unwrap();
        loop {
            let message = tokio::time::timeout(RESPONSE_TIMEOUT, self.socket.next())
                .await
                .unwrap();
            let Message::Text(text) = message.unwrap().unwrap() else {
                continue;
            };
            let answer: Value = serde_json::from_str(&text).unwrap();
            self.take_event(&answer);
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn take_event(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Log.entryAdded"
            | "Runtime.consoleAPICalled"
            | "Runtime.exceptionThrown"
            | "Audits.issueAdded" => self.messages.push(params.to_string()),
            "Runtime.bindingCalled" => {
                let payload = params["payload"].as_str().unwrap_or_default();
                self.drafts.extend(serde_json::from_str::<Value>(payload));
            }
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str();
                self.requests.extend(url.map(str::to_owned));
            }
            "Network.loadingFinished" => {
                let bytes = params["encodedDataLength"].as_f64();
                self.bytes += bytes.unwrap_or_default() as u64;
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the address that the browser writes to a file.
async fn address(file: &Path) -> String {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some((port, path)) = text.trim().split_once('\n') {
            return format!("ws://127.0.0.1:{port}{path}");
        }
        assert!(
            began.elapsed() < RESPONSE_TIMEOUT,
            "the browser does not start"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
