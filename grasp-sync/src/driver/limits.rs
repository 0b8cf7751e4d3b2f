//! Limits of connections to other relays.

use std::time::Duration;

/// Limits of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message that is read, in bytes; a longer one ends the connection. Default: 2 MiB.
    ///
    /// Events are far smaller; messages of set reconciliation may reach one megabyte.
    pub message_bytes: usize,
    /// Time for making a connection, from the name to the websocket. Default: 20 seconds.
    pub handshake_timeout: Duration,
    /// Silence after which a ping is sent. Default: 45 seconds.
    pub ping_after: Duration,
    /// Silence after which the connection is lost; no message may take longer to arrive. Default: 2 minutes.
    pub idle_timeout: Duration,
    /// Time for which the relay may not read what it is sent. Default: 30 seconds.
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 2 * 1024 * 1024,
            handshake_timeout: Duration::from_secs(20),
            ping_after: Duration::from_secs(45),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
        }
    }
}
