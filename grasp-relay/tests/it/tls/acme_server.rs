//! A double of an ACME server: it checks no signature and no domain, and issues what is asked for.

use std::sync::{Mutex, MutexGuard};

use axum::body::Bytes;
use axum::http::{Request, Response};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair,
};
use serde_json::{Value, json};

const BASE: &str = "https://acme.example.com";
pub(super) const DIRECTORY: &str = "https://acme.example.com/directory";

/// What the types of problems begin with.
const ERROR: &str = "urn:ietf:params:acme:error:";

const DAY: i64 = 24 * 60 * 60;

#[derive(Default)]
struct State {
    orders: usize,
    is_ready: bool,
    issued: Vec<String>,
    replaced: Vec<String>,
    /// What the last order replaces.
    replaces: Option<String>,
    /// The certificate is to be renewed at once.
    is_overdue: bool,
    limit: Option<u64>,
    /// The account was removed.
    has_forgotten: bool,
    /// Why checks fail.
    failure: Option<Failure>,
    issuer: Option<CertifiedIssuer<'static, KeyPair>>,
}

/// What the server tells about a check that failed.
#[derive(Clone, Copy, Default)]
pub(super) struct Failure {
    /// What the order says.
    pub(super) of_order: Option<&'static str>,
    /// What the challenge says; without it, the authorization cannot be read.
    pub(super) of_challenge: Option<&'static str>,
}

#[derive(Default)]
pub(super) struct AcmeServer(Mutex<State>);

impl AcmeServer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns the number of orders, refused ones included.
    pub(super) fn orders(&self) -> usize {
        self.lock().orders
    }

    pub(super) fn issued(&self) -> usize {
        self.lock().issued.len()
    }

    /// Returns the identifiers of the certificates that orders named as replaced.
    pub(super) fn replaced(&self) -> Vec<String> {
        self.lock().replaced.clone()
    }

    /// Wants the present certificate to be renewed at once.
    pub(super) fn want_renewal(&self) {
        self.lock().is_overdue = true;
    }

    /// Refuses orders, for this many seconds as it says.
    pub(super) fn limit_orders_for(&self, seconds: Option<u64>) {
        self.lock().limit = seconds;
    }

    /// Removes the account.
    pub(super) fn forget_account(&self) {
        self.lock().has_forgotten = true;
    }

    /// Lets every check of the domain fail.
    pub(super) fn fail_checks(&self, failure: Failure) {
        self.lock().failure = Some(failure);
    }

    pub(super) fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let path = request.uri().path().to_owned();
        if path.starts_with("/renewal/") {
            return self.renewal_info();
        }
        match path.as_str() {
            "/directory" => directory(),
            "/nonce" => response(200, &json!({}), &[]),
            "/account" => {
                self.lock().has_forgotten = false;
                let location = format!("{BASE}/account/1");
                response(201, &json!({"status": "valid"}), &[("location", &location)])
            }
            "/orders" => self.new_order(&payload(request)),
            "/order" => response(200, &self.order(), &[]),
            "/authorization" => self.authorization(),
            "/challenge" => {
                self.lock().is_ready = true;
                response(200, &challenge("tls-alpn-01", "valid"), &[])
            }
            "/finalize" => self.finalize(&payload(request)),
            "/certificate" => {
                let chain = self.lock().issued.last().cloned().unwrap_or_default();
                text_response(200, chain, &[])
            }
            other => panic!("no such resource: {other}"),
        }
    }

    fn new_order(&self, order: &Value) -> Response<Bytes> {
        let mut state = self.lock();
        state.orders += 1;
        if state.has_forgotten {
            return problem(400, "accountDoesNotExist", "no such account");
        }
        if let Some(seconds) = state.limit {
            let problem = json!({
                "type": format!("{ERROR}rateLimited"),
                "detail": "too many orders", "status": 429,
            });
            return response(429, &problem, &[("retry-after", &seconds.to_string())]);
        }
        state.is_ready = false;
        state.replaces = order["replaces"].as_str().map(str::to_owned);
        if let Some(replaced) = state.replaces.clone() {
            state.replaced.push(replaced);
        }
        drop(state);
        let location = format!("{BASE}/order");
        response(201, &self.order(), &[("location", &location)])
    }

    fn order(&self) -> Value {
        let state = self.lock();
        let is_issued = state.orders == state.issued.len();
        let failure = state.failure.filter(|_| state.is_ready);
        let status = match (is_issued, state.is_ready) {
            _ if failure.is_some() => "invalid",
            (true, _) => "valid",
            (false, true) => "ready",
            (false, false) => "pending",
        };
        let mut order = json!({
            "status": status,
            "authorizations": [format!("{BASE}/authorization")],
            "finalize": format!("{BASE}/finalize"),
            "certificate": format!("{BASE}/certificate"),
        });
        if let Some(replaces) = &state.replaces {
            order["replaces"] = json!(replaces);
        }
        if let Some(detail) = failure.and_then(|failure| failure.of_order) {
            order["error"] = json!({"type": format!("{ERROR}unauthorized"), "detail": detail});
        }
        order
    }

    fn authorization(&self) -> Response<Bytes> {
        let state = self.lock();
        let failure = state.failure.filter(|_| state.is_ready);
        let status = match state.is_ready {
            _ if failure.is_some() => "invalid",
            true => "valid",
            false => "pending",
        };
        let mut challenges = ["tls-alpn-01", "http-01"].map(|kind| challenge(kind, status));
        if let Some(failure) = failure {
            let Some(detail) = failure.of_challenge else {
                return problem(500, "serverInternal", "no authorizations today");
            };
            challenges[0]["error"] =
                json!({"type": format!("{ERROR}connection"), "detail": detail});
        }
        let authorization = json!({
            "identifier": {"type": "dns", "value": super::DOMAIN},
            "status": status,
            "challenges": challenges,
        });
        response(200, &authorization, &[])
    }

    fn finalize(&self, request: &Value) -> Response<Bytes> {
        let csr = base64_url(request["csr"].as_str().unwrap());
        let mut csr = CertificateSigningRequestParams::from_der(&csr.into()).unwrap();
        let mut state = self.lock();
        let issuer = state.issuer.get_or_insert_with(issuer);
        let now = std::time::SystemTime::now();
        csr.params.not_before = now.into();
        csr.params.not_after = (now + std::time::Duration::from_secs(90 * DAY as u64)).into();
        csr.params.use_authority_key_identifier_extension = true;
        let chain = csr.signed_by(issuer).unwrap().pem();
        state.issued.push(chain);
        state.is_overdue = false;
        // A refused order counts, too.
        state.orders = state.issued.len();
        drop(state);
        response(200, &self.order(), &[])
    }

    fn renewal_info(&self) -> Response<Bytes> {
        if !self.lock().is_overdue {
            let problem = json!({"type": "about:blank", "detail": "nothing known"});
            return response(404, &problem, &[("retry-after", "21600")]);
        }
        let window = json!({"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"});
        let info = json!({"suggestedWindow": window});
        response(200, &info, &[("retry-after", "21600")])
    }
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_identifier_method = KeyIdMethod::Sha256;
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn directory() -> Response<Bytes> {
    let directory = json!({
        "newNonce": format!("{BASE}/nonce"),
        "newAccount": format!("{BASE}/account"),
        "newOrder": format!("{BASE}/orders"),
        "renewalInfo": format!("{BASE}/renewal"),
    });
    response(200, &directory, &[])
}

fn challenge(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "url": format!("{BASE}/challenge"),
        "token": "a-token", "status": status,
    })
}

/// Returns the content of a signed request.
fn payload(request: &Request<Bytes>) -> Value {
    let signed: Value = serde_json::from_slice(request.body()).unwrap();
    let payload = base64_url(signed["payload"].as_str().unwrap());
    serde_json::from_slice(&payload).unwrap_or_default()
}

fn base64_url(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == letter).unwrap();
        bits = (bits << 6) | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap());
        }
    }
    bytes
}

fn response(status: u16, body: &Value, headers: &[(&str, &str)]) -> Response<Bytes> {
    text_response(status, body.to_string(), headers)
}

fn problem(status: u16, kind: &str, detail: &str) -> Response<Bytes> {
    let problem = json!({"type": format!("{ERROR}{kind}"), "detail": detail, "status": status});
    response(status, &problem, &[])
}

fn text_response(status: u16, body: String, headers: &[(&str, &str)]) -> Response<Bytes> {
    let mut response = Response::builder()
        .status(status)
        .header("replay-nonce", "a-nonce");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(body.into()).unwrap()
}
