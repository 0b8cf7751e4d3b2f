//! Orders and renews a certificate at an ACME server (RFC 8555).

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request, Response};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, BodyWrapper, BytesResponse,
    CertificateIdentifier, ChallengeType, Error as AcmeError, HttpClient, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};

use super::Certificates;
use super::certificate::{Certificate, CertificateError};
use super::challenge::PendingChallenge;
use super::schedule::{ChallengeKind, OrderRecord, PresentCertificate, RenewalStep, RenewalWindow};
use super::storage::{TlsItem, TlsStore, TlsStoreError};
use crate::clock::Clock;

/// The interval between looks at what is stored, which another node may have changed, and at what is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The time that one order may take.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// How often, and how long, an order is looked at until the ACME server has decided.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(90));

/// The failure of a request to an ACME server.
pub type AcmeClientError = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests to an ACME server. The caller decides how to resolve, to connect and whom to trust.
pub type AcmeClient = Arc<
    dyn Fn(Request<Bytes>) -> BoxFuture<'static, Result<Response<Bytes>, AcmeClientError>>
        + Send
        + Sync,
>;

/// Whether a process orders certificates at the moment, for itself and other nodes.
pub type MayOrder = Arc<dyn Fn() -> bool + Send + Sync>;

/// A certificate that is ordered and renewed at an ACME server.
pub struct Acme {
    /// The host name of the server.
    pub domain: String,
    /// The directory of the ACME server, as an `https:` URL.
    pub directory: String,
    /// An address of the operator for the ACME server, as `mailto:operator@example.com`.
    pub contact: Option<String>,
    /// Where account, certificate and challenges are kept.
    pub store: Arc<dyn TlsStore>,
    /// Sends requests to the ACME server.
    pub client: AcmeClient,
    /// Whether this process orders at the moment. Only one does; every node serves what is stored.
    pub may_order: MayOrder,
    /// The source of time.
    pub clock: Clock,
}

/// Reasons why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("the ACME server refused: {0}")]
    Acme(#[from] AcmeError),
    #[error("the ACME server could not check the domain: {0}")]
    Check(String),
    #[error("the ACME server does not offer the challenge {0}")]
    NoSuchChallenge(&'static str),
    #[error("the ACME server ended the order as {0:?}")]
    Ended(OrderStatus),
    #[error("the ACME server did not finish the order in time")]
    Timeout,
    #[error("the certificate cannot be used: {0}")]
    Certificate(#[from] CertificateError),
    #[error("could not read or write what TLS needs: {0}")]
    Store(TlsStoreError),
    #[error("could not read or write the account: {0}")]
    Account(#[from] serde_json::Error),
}

/// The stored certificate, as it was seen last.
#[derive(Default)]
struct Stored {
    pem: Option<String>,
    /// The reason why it cannot be served.
    fault: Option<String>,
}

impl Stored {
    /// Installs a stored certificate that was not seen before, if it can be served.
    fn see(&mut self, pem: Option<String>, certificates: &Certificates) {
        if self.pem == pem {
            return;
        }
        self.fault = None;
        if let Some(pem) = &pem {
            match Certificate::from_pem(pem.as_bytes(), pem.as_bytes()) {
                Ok(certificate) => certificates.install(certificate),
                Err(error) => {
                    tracing::warn!(%error, "the stored TLS certificate cannot be used; a new one is ordered");
                    self.fault = Some(format!("the stored certificate cannot be used: {error}"));
                }
            }
        }
        self.pem = pem;
    }

    /// Returns whether the certificate that is served would be found again after a restart.
    fn is_usable(&self) -> bool {
        self.pem.is_some() && self.fault.is_none()
    }
}

impl Acme {
    /// Keeps a certificate for as long as it is polled.
    pub async fn keep(self, certificates: Certificates) {
        let mut stored = Stored::default();
        loop {
            if let Err(error) = self.look(&certificates, &mut stored).await {
                tracing::warn!(%error, "could not look after the TLS certificate");
                certificates.set_problem(Some(error.to_string()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Installs the stored certificate if it changed, and does what is due.
    async fn look(
        &self,
        certificates: &Certificates,
        stored: &mut Stored,
    ) -> Result<(), OrderError> {
        stored.see(self.read(TlsItem::Certificate).await?, certificates);
        let record = self.record().await?;
        let problem = record.last_failure.clone().or_else(|| stored.fault.clone());
        certificates.set_problem(problem);
        if !(self.may_order)() {
            return Ok(());
        }
        let certificate = certificates.current().filter(|_| stored.is_usable());
        let present = certificate.as_ref().map(|certificate| PresentCertificate {
            validity: certificate.validity(),
            covers_domain: certificate.covers(&self.domain),
        });
        match record.next(self.now(), present) {
            RenewalStep::WaitUntil(_) => Ok(()),
            RenewalStep::AskRenewalInfo => {
                self.ask_renewal_info(record, certificate.as_deref()).await
            }
            RenewalStep::Order(challenge) => {
                self.attempt(record, challenge, certificate.as_deref())
                    .await
            }
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().unix.as_secs()
    }

    async fn read(&self, item: TlsItem) -> Result<Option<String>, OrderError> {
        self.store.read(item).await.map_err(OrderError::Store)
    }

    async fn write(&self, item: TlsItem, text: Option<String>) -> Result<(), OrderError> {
        self.store
            .write(item, text)
            .await
            .map_err(OrderError::Store)
    }

    /// Returns the record of orders. One that cannot be read is begun anew.
    async fn record(&self) -> Result<OrderRecord, OrderError> {
        let text = self.read(TlsItem::Orders).await?.unwrap_or_default();
        let record: OrderRecord = serde_json::from_str(&text).unwrap_or_default();
        Ok(record.of_directory(&self.directory))
    }

    async fn save(&self, record: &OrderRecord) -> Result<(), OrderError> {
        let text = serde_json::to_string(record)?;
        self.write(TlsItem::Orders, Some(text)).await
    }

    /// Orders a certificate once, and records how it went.
    async fn attempt(
        &self,
        mut record: OrderRecord,
        challenge: ChallengeKind,
        old: Option<&Certificate>,
    ) -> Result<(), OrderError> {
        record.began(self.now());
        self.save(&record).await?;
        tracing::info!(domain = %self.domain, ?challenge, "ordering a TLS certificate");
        let transport = Transport::new(&self.client);
        let ordering = self.order(&transport, challenge, old);
        let ordered = tokio::time::timeout(ORDER_TIMEOUT, ordering)
            .await
            .unwrap_or(Err(OrderError::Timeout));
        self.write(TlsItem::Challenge, None).await?;
        match ordered {
            Ok(pem) => {
                // The certificate first: with the record alone, the next would be ordered much later.
                self.write(TlsItem::Certificate, Some(pem)).await?;
                record.issued(self.now(), challenge);
                tracing::info!(domain = %self.domain, "got a TLS certificate");
            }
            Err(error) => {
                if is_unknown_account(&error) {
                    self.write(TlsItem::Account, None).await?;
                }
                let retry_after = transport.retry_after();
                tracing::warn!(%error, ?challenge, domain = %self.domain, "got no TLS certificate");
                record.failed(self.now(), error.to_string(), retry_after);
            }
        }
        self.save(&record).await
    }

    /// Orders a certificate, and returns its chain and key.
    async fn order(
        &self,
        transport: &Transport,
        challenge: ChallengeKind,
        old: Option<&Certificate>,
    ) -> Result<String, OrderError> {
        let account = self.account(transport).await?;
        let mut order = self.new_order(&account, old).await?;
        self.authorize(&mut order, challenge).await?;
        match order.poll_ready(&POLLS).await {
            Ok(OrderStatus::Ready) => {}
            _ if order.state().status == OrderStatus::Invalid => {
                return Err(check_failure(&mut order).await);
            }
            Ok(status) => return Err(OrderError::Ended(status)),
            Err(AcmeError::Timeout(_)) => return Err(OrderError::Timeout),
            Err(error) => return Err(error.into()),
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&POLLS).await?;
        let pem = format!("{}\n{key}", chain.trim_end());
        // What cannot be served must not replace what is.
        Certificate::from_pem(pem.as_bytes(), pem.as_bytes())?;
        Ok(pem)
    }

    /// Creates an order, which names the certificate that it replaces if the ACME server wants to know.
    async fn new_order(
        &self,
        account: &Account,
        old: Option<&Certificate>,
    ) -> Result<Order, OrderError> {
        let identifiers = [Identifier::Dns(self.domain.clone())];
        let replaced = old
            .filter(|old| old.covers(&self.domain))
            .and_then(Certificate::own)
            .and_then(|own| CertificateIdentifier::try_from(own).ok());
        if let Some(replaced) = replaced {
            let order = NewOrder::new(&identifiers).replaces(replaced);
            match account.new_order(&order).await {
                Ok(order) => return Ok(order),
                // Without renewal information, or for a certificate that it knows nothing about.
                Err(AcmeError::Unsupported(_)) => {}
                Err(error) if is_rate_limit(&error) => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(%error, "ordering without naming the old certificate")
                }
            }
        }
        Ok(account.new_order(&NewOrder::new(&identifiers)).await?)
    }

    /// Answers the challenges of an order that are pending, at all nodes.
    async fn authorize(&self, order: &mut Order, kind: ChallengeKind) -> Result<(), OrderError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let (wanted, name) = match kind {
                ChallengeKind::TlsAlpn => (ChallengeType::TlsAlpn01, "TLS-ALPN-01"),
                ChallengeKind::Http => (ChallengeType::Http01, "HTTP-01"),
            };
            let mut challenge = authorization
                .challenge(wanted)
                .ok_or(OrderError::NoSuchChallenge(name))?;
            let pending = PendingChallenge {
                domain: self.domain.clone(),
                token: challenge.token.clone(),
                key_authorization: challenge.key_authorization().as_str().to_owned(),
            };
            let text = serde_json::to_string(&pending)?;
            self.write(TlsItem::Challenge, Some(text)).await?;
            // Nodes may have looked just before it was stored.
            tokio::time::sleep(super::challenge::MAX_AGE).await;
            challenge.set_ready().await?;
        }
        Ok(())
    }

    /// Returns the account at the ACME server, and creates it at the first time, or if the stored one is damaged.
    async fn account(&self, transport: &Transport) -> Result<Account, OrderError> {
        if let Some(text) = self.read(TlsItem::Account).await? {
            match self.stored_account(transport, &text).await {
                Ok(Some(account)) => return Ok(account),
                Ok(None) => {}
                Err(error) if is_damage(&error) => {
                    tracing::warn!(%error, "the stored ACME account cannot be used; a new one is created");
                }
                Err(error) => return Err(error),
            }
        }
        self.new_account(transport).await
    }

    /// Returns the stored account, if it is one at this ACME server.
    async fn stored_account(
        &self,
        transport: &Transport,
        text: &str,
    ) -> Result<Option<Account>, OrderError> {
        let stored: StoredAccount = serde_json::from_str(text)?;
        if stored.directory != self.directory {
            return Ok(None);
        }
        let builder = Account::builder_with_http(Box::new(transport.clone()));
        Ok(Some(builder.from_credentials(stored.credentials).await?))
    }

    /// Creates an account at the ACME server, and stores it.
    async fn new_account(&self, transport: &Transport) -> Result<Account, OrderError> {
        let builder = Account::builder_with_http(Box::new(transport.clone()));
        let contacts: Vec<&str> = self.contact.iter().map(String::as_str).collect();
        let account = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (account, credentials) = builder
            .create(&account, self.directory.clone(), None)
            .await?;
        let stored = StoredAccount {
            directory: self.directory.clone(),
            credentials,
        };
        let text = serde_json::to_string(&stored)?;
        self.write(TlsItem::Account, Some(text)).await?;
        Ok(account)
    }

    /// Asks the ACME server when it wants the certificate to be renewed, and records the answer.
    async fn ask_renewal_info(
        &self,
        mut record: OrderRecord,
        certificate: Option<&Certificate>,
    ) -> Result<(), OrderError> {
        let mut random = [0; 8];
        // Without random numbers, the time within the window is its beginning.
        let _ = getrandom::fill(&mut random);
        let random = u64::from_le_bytes(random);
        match self.renewal_info(certificate).await {
            Ok((window, again_in)) => {
                record.told(self.now(), Some(window), Some(again_in), random);
            }
            Err(error) => {
                tracing::debug!(%error, "no renewal information; the certificate is renewed by its lifetime");
                record.told(self.now(), None, None, random);
            }
        }
        self.save(&record).await
    }

    async fn renewal_info(
        &self,
        certificate: Option<&Certificate>,
    ) -> Result<(RenewalWindow, Duration), OrderError> {
        let own = certificate
            .and_then(Certificate::own)
            .ok_or(AcmeError::Str("no certificate"))?;
        let id = CertificateIdentifier::try_from(own)
            .map_err(|_| AcmeError::Str("the certificate does not name its authority's key"))?;
        let account = self.account(&Transport::new(&self.client)).await?;
        let (info, again_in) = account.renewal_info(&id).await?;
        let window = RenewalWindow {
            start: u64::try_from(info.suggested_window.start.unix_timestamp()).unwrap_or(0),
            end: u64::try_from(info.suggested_window.end.unix_timestamp()).unwrap_or(0),
        };
        Ok((window, again_in))
    }
}

/// The account as it is stored: the ACME server may be replaced by another one.
#[derive(serde::Serialize, serde::Deserialize)]
struct StoredAccount {
    directory: String,
    credentials: AccountCredentials,
}

fn is_rate_limit(error: &AcmeError) -> bool {
    is_problem(error, ":rateLimited")
        || matches!(error, AcmeError::Api(problem) if problem.status == Some(429))
}

/// Returns whether the ACME server refused because it does not know the account, or no more.
fn is_unknown_account(error: &OrderError) -> bool {
    matches!(error, OrderError::Acme(error) if is_problem(error, ":accountDoesNotExist"))
}

fn is_problem(error: &AcmeError, kind: &str) -> bool {
    let AcmeError::Api(problem) = error else {
        return false;
    };
    problem
        .r#type
        .as_deref()
        .is_some_and(|of_problem| of_problem.ends_with(kind))
}

/// Returns whether what is stored of an account can never be used.
fn is_damage(error: &OrderError) -> bool {
    matches!(
        error,
        OrderError::Account(_) | OrderError::Acme(AcmeError::KeyRejected | AcmeError::Crypto)
    )
}

/// Returns what the ACME server says about the challenge that failed, or else about the order.
async fn check_failure(order: &mut Order) -> OrderError {
    let of_order = order.state().error.clone();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        for challenge in &authorization.challenges {
            if let Some(problem) = &challenge.error {
                return check_error(problem);
            }
        }
    }
    match of_order {
        Some(problem) => check_error(&problem),
        None => OrderError::Ended(OrderStatus::Invalid),
    }
}

fn check_error(problem: &Problem) -> OrderError {
    let detail = problem.detail.clone();
    OrderError::Check(detail.unwrap_or_else(|| problem.to_string()))
}

/// The HTTP client of the library, which remembers how long the ACME server wants to be left alone: the library's errors
/// do not say it.
#[derive(Clone)]
struct Transport {
    client: AcmeClient,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Transport {
    fn new(client: &AcmeClient) -> Self {
        Self {
            client: Arc::clone(client),
            retry_after: Arc::default(),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        *self
            .retry_after
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, response: &Response<Bytes>) {
        if !response.status().is_client_error() && !response.status().is_server_error() {
            return;
        }
        let header = response.headers().get(RETRY_AFTER);
        let wait = header
            .and_then(|value| value.to_str().ok())
            .and_then(retry_after);
        *self
            .retry_after
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = wait;
    }
}

/// Reads a `Retry-After`: seconds, or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text.trim()).ok()?;
    at.duration_since(SystemTime::now()).ok()
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, AcmeError>> + Send>> {
        let transport = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body
                .collect()
                .await
                .map_err(|error| AcmeError::Other(error.into()))?;
            let request = Request::from_parts(head, body.to_bytes());
            let response = (transport.client)(request)
                .await
                .map_err(AcmeError::Other)?;
            transport.record(&response);
            let (parts, body) = response.into_parts();
            Ok(BytesResponse {
                parts,
                body: Box::new(body),
            })
        })
    }
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme")
            .field("domain", &self.domain)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
