//! A certificate with its chain and its key.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// A certificate with its chain and its key, ready to be served.
#[derive(Debug)]
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    config: ServerConfig,
    names: Vec<String>,
    validity: Validity,
}

/// The time for which a certificate is valid, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its beginning.
    pub not_before: u64,
    /// Its end.
    pub not_after: u64,
}

impl Validity {
    /// Returns the whole time.
    pub fn lifetime(self) -> Duration {
        Duration::from_secs(self.not_after.saturating_sub(self.not_before))
    }

    /// Returns the time that is left.
    pub fn left(self, now: u64) -> Duration {
        Duration::from_secs(self.not_after.saturating_sub(now))
    }
}

/// Reasons why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text of the chain is no PEM with certificates.
    #[error("there is no certificate in it; one in PEM begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// The text of the key is no PEM with a key.
    #[error("there is no private key in it that can be read; PEM with PKCS#8, PKCS#1 or SEC1 can")]
    NoKey,
    /// A certificate is not encoded as X.509.
    #[error("a certificate in it cannot be read")]
    Unreadable,
    /// The key is not that of the certificate, or of an unknown type.
    #[error("the key cannot be used with the certificate: {0}")]
    Mismatch(rustls::Error),
}

impl Certificate {
    /// Reads a chain, whose first certificate is that of the server, and its key. Both texts are PEM, and may be the same.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|_| CertificateError::Unreadable)?;
        let Some(own) = chain.first() else {
            return Err(CertificateError::NoCertificate);
        };
        let (_, parsed) = parse_x509_certificate(own).map_err(|_| CertificateError::Unreadable)?;
        let validity = Validity {
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
        };
        let alternatives = parsed.subject_alternative_name().ok().flatten();
        let mut names = Vec::new();
        if let Some(alternatives) = alternatives {
            for name in &alternatives.value.general_names {
                match name {
                    GeneralName::DNSName(name) => names.push(name.to_ascii_lowercase()),
                    GeneralName::IPAddress(bytes) => names.extend(address(bytes)),
                    _ => {}
                }
            }
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::NoKey)?;
        let config = server_config(chain.clone(), key).map_err(CertificateError::Mismatch)?;
        Ok(Self {
            chain,
            config,
            names,
            validity,
        })
    }

    /// Returns the time for which it is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Returns whether it is for this host name, which may be an address.
    pub fn covers(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_ascii_lowercase();
        let parent = host.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|name| {
            let wildcard = name.strip_prefix("*.");
            *name == host || (wildcard.is_some() && wildcard == parent)
        })
    }

    /// Returns the certificate of the server itself.
    pub(super) fn own(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// Returns the configuration of handshakes with it.
    pub(super) fn server_config(&self) -> ServerConfig {
        self.config.clone()
    }
}

/// Returns the configuration of handshakes with a certificate: TLS 1.2 and 1.3 without ciphers that are known to be weak.
pub(super) fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    // The strongest cipher that both have, whichever the client would like most.
    config.ignore_client_order = true;
    Ok(config)
}

/// Returns the text of an address as certificates have it.
fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).to_string());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(bytes).to_string())
}

fn seconds(timestamp: i64) -> u64 {
    u64::try_from(timestamp).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn names_are_compared_without_case_and_with_one_label_of_a_wildcard() {
        let (chain, key) = made(&["Git.Example.com", "*.example.org"]);
        let certificate = Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        for name in ["git.example.com", "GIT.example.com", "a.example.org"] {
            assert!(certificate.covers(name), "{name}");
        }
        for name in [
            "example.com",
            "example.org",
            "a.b.example.org",
            "x.git.example.com",
        ] {
            assert!(!certificate.covers(name), "{name}");
        }
    }

    #[test]
    fn addresses_are_names_too() {
        let (chain, key) = made(&["192.0.2.1", "2001:db8::1"]);
        let certificate = Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        for name in ["192.0.2.1", "[2001:db8::1]"] {
            assert!(certificate.covers(name), "{name}");
        }
        assert!(!certificate.covers("192.0.2.2"));
    }

    #[test]
    fn a_certificate_needs_its_own_key() {
        let (chain, key) = made(&["git.example.com"]);
        let (_, other) = made(&["git.example.com"]);
        let read = |chain: &str, key: &str| {
            Certificate::from_pem(chain.as_bytes(), key.as_bytes()).map(drop)
        };
        read(&chain, &key).unwrap();
        let both = format!("{chain}{key}");
        read(&both, &both).unwrap();
        assert!(matches!(
            read(&chain, &other),
            Err(CertificateError::Mismatch(_))
        ));
        assert!(matches!(
            read("", &key),
            Err(CertificateError::NoCertificate)
        ));
        assert!(matches!(read(&chain, ""), Err(CertificateError::NoKey)));
    }
}
