//! Challenges of an ACME server: it connects to the domain, and expects an answer that only its account can give.

use std::sync::Arc;
use std::time::Duration;

use bitcoin_hashes::sha256;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::storage::{TlsItem, TlsStore};

/// The protocol that an ACME server chooses in the handshake of TLS-ALPN-01.
pub(super) const ACME_TLS: &[u8] = b"acme-tls/1";

/// The time for which challenges that were read count: anybody may ask for one.
pub(super) const MAX_AGE: Duration = Duration::from_millis(500);

/// A challenge that an ACME server may put to any node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingChallenge {
    pub(super) domain: String,
    pub(super) token: String,
    /// The answer to HTTP-01; its hash is that to TLS-ALPN-01.
    pub(super) key_authorization: String,
}

/// Reasons why a challenge cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChallengeError {
    #[error("could not make the certificate of a challenge")]
    Certificate(#[from] rcgen::Error),
    #[error("could not use the certificate of a challenge")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

impl PendingChallenge {
    /// Returns the configuration of the handshake that answers TLS-ALPN-01 (RFC 8737).
    pub(super) fn server_config(&self) -> Result<ServerConfig, ChallengeError> {
        let digest = sha256::Hash::hash(self.key_authorization.as_bytes());
        let mut params = CertificateParams::new([self.domain.clone()])?;
        params.custom_extensions =
            vec![CustomExtension::new_acme_identifier(digest.as_byte_array())];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = ring::default_provider();
        let key = provider.key_provider.load_private_key(key)?;
        // Its critical extension is one that ordinary checks of a certificate refuse.
        let certified = CertifiedKey::new(vec![certificate.der().clone()], key);
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        Ok(config)
    }
}

/// Reads pending challenges from the store that all nodes share.
pub(super) struct ChallengeReader {
    store: Arc<dyn TlsStore>,
    last: Mutex<Option<ReadChallenge>>,
}

struct ReadChallenge {
    at: Instant,
    pending: Option<PendingChallenge>,
}

impl ChallengeReader {
    pub(super) fn new(store: Arc<dyn TlsStore>) -> Self {
        Self {
            store,
            last: Mutex::new(None),
        }
    }

    /// Returns the challenge of a domain.
    pub(super) async fn of_domain(&self, domain: &str) -> Option<PendingChallenge> {
        let pending = self.pending().await?;
        pending
            .domain
            .eq_ignore_ascii_case(domain)
            .then_some(pending)
    }

    /// Returns the answer to the HTTP-01 challenge with a token.
    pub(super) async fn answer(&self, token: &str) -> Option<String> {
        let pending = self.pending().await?;
        (pending.token == token).then_some(pending.key_authorization)
    }

    async fn pending(&self) -> Option<PendingChallenge> {
        let mut last = self.last.lock().await;
        if let Some(last) = &*last {
            if last.at.elapsed() < MAX_AGE {
                return last.pending.clone();
            }
        }
        let text = match self.store.read(TlsItem::Challenge).await {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(%error, "could not read the challenge of the ACME server");
                None
            }
        };
        let pending: Option<PendingChallenge> =
            text.and_then(|text| serde_json::from_str(&text).ok());
        *last = Some(ReadChallenge {
            at: Instant::now(),
            pending: pending.clone(),
        });
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_of_a_challenge_can_be_shown() {
        let pending = PendingChallenge {
            domain: "git.example.com".into(),
            token: "token".into(),
            key_authorization: "token.thumbprint".into(),
        };
        let config = pending.server_config().unwrap();
        assert_eq!(config.alpn_protocols, [ACME_TLS]);
    }
}
