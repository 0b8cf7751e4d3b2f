//! A headless Chromium, controlled over its DevTools protocol.

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
}

/// The width and the color scheme in which a page is shown.
pub(crate) struct View {
    pub(crate) width: u32,
    pub(crate) phone: bool,
    pub(crate) scheme: &'static str,
}

impl Browser {
    /// Starts a browser, if one is installed.
    pub(crate) async fn start(profile: &Path) -> Option<Self> {
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
        };
        let target = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page.enable", "Log.enable", "Runtime.enable"] {
            browser.call(domain, json!({})).await;
        }
        Some(browser)
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) async fn open(&mut self, url: &str, view: &View) {
        let metrics = json!({
            "width": view.width, "height": 800, "deviceScaleFactor": 1, "mobile": view.phone,
        });
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let scheme = json!({"name": "prefers-color-scheme", "value": view.scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}))
            .await;
        self.call("Page.navigate", json!({"url": url})).await;
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")
            .await;
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

    /// Evaluates an expression in the page.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
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
            let event = answer["method"].as_str().unwrap_or_default();
            let events = [
                "Log.entryAdded",
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
            ];
            if events.contains(&event) {
                self.messages.push(answer["params"].to_string());
            }
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
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
