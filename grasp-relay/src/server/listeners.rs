//! The listeners of a server, and what is spoken at each of them.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "tls")]
use crate::tls::Certificates;

/// The listeners of a server. All of them share its limits of connections.
#[derive(Debug)]
pub struct Listeners {
    plain: TcpListener,
    #[cfg(feature = "tls")]
    tls: Option<TlsListeners>,
}

/// The listeners of a server that does TLS by itself.
#[cfg(feature = "tls")]
#[derive(Debug)]
pub struct TlsListeners {
    /// The listener whose connections use TLS.
    pub https: TcpListener,
    /// The listener that redirects to TLS and answers HTTP-01 challenges.
    pub http: Option<TcpListener>,
    /// The certificate that is served.
    pub certificates: Certificates,
}

/// The protocol that a listener begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    /// HTTP, with all routes of the server.
    Plain,
    /// TLS, with the same routes.
    #[cfg(feature = "tls")]
    Tls,
    /// HTTP that redirects to TLS.
    #[cfg(feature = "tls")]
    Redirect,
}

impl Entrance {
    /// Returns whether a client can read an answer that is sent before anything is received.
    pub(super) fn reads_plain_http(self) -> bool {
        match self {
            Self::Plain => true,
            #[cfg(feature = "tls")]
            Self::Redirect => true,
            #[cfg(feature = "tls")]
            Self::Tls => false,
        }
    }
}

/// A connection as it was accepted.
pub(super) struct AcceptedConnection {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) entrance: Entrance,
}

impl From<TcpListener> for Listeners {
    fn from(plain: TcpListener) -> Self {
        Self {
            plain,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl Listeners {
    /// Adds the listeners of TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: TlsListeners) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the certificate of the listener with TLS.
    #[cfg(feature = "tls")]
    pub(super) fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|tls| &tls.certificates)
    }

    /// Accepts a connection at any of the listeners.
    #[cfg(feature = "tls")]
    pub(super) async fn accept(&self) -> io::Result<AcceptedConnection> {
        let Some(tls) = &self.tls else {
            return accept(&self.plain, Entrance::Plain).await;
        };
        tokio::select! {
            accepted = accept(&self.plain, Entrance::Plain) => accepted,
            accepted = accept(&tls.https, Entrance::Tls) => accepted,
            accepted = accept_redirected(tls.http.as_ref()) => accepted,
        }
    }

    /// Accepts a connection.
    #[cfg(not(feature = "tls"))]
    pub(super) async fn accept(&self) -> io::Result<AcceptedConnection> {
        accept(&self.plain, Entrance::Plain).await
    }
}

async fn accept(listener: &TcpListener, entrance: Entrance) -> io::Result<AcceptedConnection> {
    let (stream, address) = listener.accept().await?;
    Ok(AcceptedConnection {
        stream,
        address,
        entrance,
    })
}

#[cfg(feature = "tls")]
async fn accept_redirected(listener: Option<&TcpListener>) -> io::Result<AcceptedConnection> {
    match listener {
        Some(listener) => accept(listener, Entrance::Redirect).await,
        None => std::future::pending().await,
    }
}
