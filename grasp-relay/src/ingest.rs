//! The one way in: verify, admit, store or hold or refuse, acknowledge, publish.

use futures_util::future::BoxFuture;
use nostr::event::Event;
use nostr::key::PublicKey;

/// Where an event came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client on a socket of ours, and whom it proved to be (NIP-42).
    Client {
        /// Keys this connection authenticated as.
        authenticated: Vec<PublicKey>,
    },
    /// Another relay that we asked.
    Sync,
}

/// The answer to one EVENT: what goes into the OK message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OkAnswer {
    /// The third element of OK.
    pub accepted: bool,
    /// The fourth element of OK, with its machine-readable prefix.
    pub message: String,
}

/// Takes events into this server, whoever brings them.
pub trait Ingest: Send + Sync + 'static {
    /// Judges and keeps events in order; one answer each, given only once it is durable.
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<OkAnswer>>;
}
