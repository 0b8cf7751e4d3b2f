//! Trusted certificate authorities.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The trusted certificate authorities: the public ones, which are compiled in, and those that the operator adds. No
/// store of the system is used.
///
/// ```
/// # fn load() -> Result<(), Box<dyn std::error::Error>> {
/// use grasp_sync::{Roots, Settings};
///
/// let mut settings = Settings::new("us.example".parse()?);
/// settings.roots = Roots::default().with(&std::fs::read("/etc/grasp/our-authority.pem")?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Roots(Arc<RootCertStore>);

/// The reason why a text adds no certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRoots {
    /// It is no PEM, or none with certificates.
    #[error("there is no certificate in it; one in PEM begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// One of the certificates cannot be read; counted from 1.
    #[error("certificate {number} in it cannot be read: {why}")]
    Unreadable {
        /// The position of the certificate.
        number: usize,
        /// The parser's message.
        why: String,
    },
}

impl Default for Roots {
    fn default() -> Self {
        Self(Arc::new(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }))
    }
}

impl Roots {
    /// Adds all certificates of a PEM file. A certificate that cannot be read is an error, since its absence would be
    /// noticed much later.
    pub fn with(mut self, pem: &[u8]) -> Result<Self, BadRoots> {
        let store = Arc::make_mut(&mut self.0);
        let mut number = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            number += 1;
            let unreadable = |why: String| BadRoots::Unreadable { number, why };
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            store.add(certificate).map_err(|error| unreadable(error.to_string()))?;
        }
        if number == 0 { Err(BadRoots::NoCertificate) } else { Ok(self) }
    }

    /// Returns a connector that accepts only certificates issued by one of the roots.
    pub fn connector(&self) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for every version of TLS")
            .with_root_certificates(Arc::clone(&self.0))
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_pem_without_certificates() {
        let with = |pem: &str| Roots::default().with(pem.as_bytes()).err();
        assert_eq!(with(""), Some(BadRoots::NoCertificate));
        assert_eq!(with("a key, perhaps"), Some(BadRoots::NoCertificate));
        let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
        assert!(matches!(with(nonsense), Some(BadRoots::Unreadable { number: 1, .. })));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(with(broken), Some(BadRoots::Unreadable { number: 1, .. })));
    }
}
