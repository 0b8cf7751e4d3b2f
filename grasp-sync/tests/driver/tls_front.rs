//! A TLS proxy in front of a server, with valid or invalid certificates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct Certificate(CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns the authority's own certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for this name that is valid until that year.
    pub(crate) fn certify(&self, name: &str, until: i32) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Certificate(certificate.der().clone(), key)
    }
}

/// A TLS proxy in front of a server.
pub(crate) struct Front {
    port: u16,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Front {
    pub(crate) async fn start(server: SocketAddr, shown: Certificate) -> Self {
        let Certificate(certificate, key) = shown;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(forward(tls.clone(), stream, server));
            }
        });
        Self {
            port,
            connections,
            accepting,
        }
    }

    /// Returns its address, by a name that certificates can be issued for.
    pub(crate) fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Returns the number of TCP connections made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn forward(tls: TlsAcceptor, client: TcpStream, server: SocketAddr) {
    let Ok(mut client) = tls.accept(client).await else {
        return;
    };
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
