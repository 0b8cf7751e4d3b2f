//! A certificate authority whose certificates are files.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority that signs certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates it, and writes its own certificate to a file.
    pub(super) fn new(file: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(file, issuer.pem()).unwrap();
        Self(issuer)
    }

    /// Writes a new certificate for this name, and its key.
    pub(super) fn certify(&self, name: &str, certificate: &Path, key: &Path) {
        let own_key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let signed = params.signed_by(&own_key, &self.0).unwrap();
        std::fs::write(certificate, signed.pem()).unwrap();
        std::fs::write(key, own_key.serialize_pem()).unwrap();
    }
}
