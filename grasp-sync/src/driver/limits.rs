//! What one relay may do to us.

use std::time::Duration;

/// Bounds on connections to other relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message that is read; a longer one ends the connection. Default: 2 MiB.
    ///
    /// Events are far smaller; answers in set reconciliation may reach one megabyte.
    pub message_bytes: usize,
    /// How long a connection may take to be made, from the name to the websocket. Default: 20 seconds.
    pub handshake_timeout: Duration,
    /// Silence after which a relay is asked whether it is still there. Default: 45 seconds.
    pub ping_after: Duration,
    /// Silence after which it is taken for lost; no message may take longer to arrive. Default: 2 minutes.
    pub idle_timeout: Duration,
    /// How long the relay may not read what it is sent. Default: 30 seconds.
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
