//! Limits of open connections per client network.

use axum::http::HeaderMap;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use ipnet::IpNet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::shared_pool;

/// The time that a rejected client may take to close.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// A range of addresses, as `10.0.0.0/8` or `::1`.
///
/// ```
/// use grasp_relay::server::AddressRange;
///
/// let range: AddressRange = "10.0.0.0/8".parse().unwrap();
/// assert!(range.contains("10.1.2.3".parse().unwrap()));
/// assert!(!range.contains("11.1.2.3".parse().unwrap()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(IpNet);

/// The error of a text that is no range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address or address/prefix")]
pub struct AddressRangeError;

impl AddressRange {
    /// Returns the range as a network.
    pub const fn network(&self) -> IpNet {
        self.0
    }

    /// Returns whether the range contains an address. IPv4 and its IPv6-mapped form are the same address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.0, address.to_canonical()) {
            (IpNet::V4(range), IpAddr::V4(address)) => range.contains(&address),
            (IpNet::V4(_), IpAddr::V6(_)) => false,
            (IpNet::V6(range), IpAddr::V4(address)) => range.contains(&address.to_ipv6_mapped()),
            (IpNet::V6(range), IpAddr::V6(address)) => range.contains(&address),
        }
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;
    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let range = text
            .parse()
            .or_else(|_| text.parse().map(|address: IpAddr| address.into()));
        range.map(Self).map_err(|_| AddressRangeError)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Limits connections per client network. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    most: usize,
    /// Wider networks have at most half of what is free.
    all: SharedPool,
    proxies: Arc<[AddressRange]>,
}

impl ConnectionLimiter {
    /// Allows one address (IPv4) or /64 (IPv6) `most` of `total` connections.
    pub(super) fn new(most: usize, total: usize, proxies: Vec<AddressRange>) -> Self {
        // A single address has a quarter of all.
        let all = shared_pool(total.max(most.saturating_mul(4)));
        Self {
            most,
            all,
            proxies: proxies.into(),
        }
    }

    /// Returns the place of a TCP connection. A trusted proxy connects for many clients and is not counted itself.
    pub(super) fn admit_peer(&self, peer: IpAddr) -> Option<Holding> {
        self.admit(peer, u64::from(!self.is_trusted(peer)))
    }

    /// Returns the place of the client that a trusted proxy forwards for. Other clients were counted when they
    /// connected.
    pub(super) fn admit_forwarded(&self, peer: IpAddr, headers: &HeaderMap) -> Option<Holding> {
        let client = self
            .is_trusted(peer)
            .then(|| self.forwarded_for(headers))
            .flatten();
        self.admit(client.unwrap_or(peer), u64::from(client.is_some()))
    }

    /// Returns the network that a request is from; behind a trusted proxy, that of its client.
    pub(super) fn network(&self, peer: IpAddr, headers: &HeaderMap) -> ClientNetwork {
        ClientNetwork::of(self.client(peer, headers))
    }

    /// Returns the address that a request is from; behind a trusted proxy, that of its client.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let client = self
            .is_trusted(peer)
            .then(|| self.forwarded_for(headers))
            .flatten();
        client.unwrap_or(peer)
    }

    /// Returns the network of the client that another node of this server forwards a request for.
    pub(super) fn network_at_node(&self, peer: IpAddr, headers: &HeaderMap) -> ClientNetwork {
        let forwarded = headers
            .get("x-forwarded-for")
            .and_then(|value| value.to_str().ok());
        ClientNetwork::of(forwarded.and_then(address_of).unwrap_or(peer))
    }

    /// Returns the last address of `X-Forwarded-For` that is no trusted proxy: those before it may be forged.
    fn forwarded_for(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let hops = headers
            .get_all("x-forwarded-for")
            .iter()
            .filter_map(|value| value.to_str().ok());
        let hops: Vec<_> = hops
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .collect();
        let mut addresses = hops.iter().rev().map_while(|hop| address_of(hop));
        addresses.find(|address| !self.is_trusted(*address))
    }

    pub(super) fn is_trusted(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|range| range.contains(address))
    }

    fn admit(&self, address: IpAddr, connections: u64) -> Option<Holding> {
        let claimant = Claimant::at(ClientNetwork::of(address));
        self.all
            .try_take_within(&claimant, connections, self.most as u64)
            .ok()
    }
}

/// The answer to a connection of a network that has as many connections as it may have.
pub(super) const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    Access-Control-Allow-Origin: *\r\nRetry-After: 30\r\n\
    Content-Type: text/plain\r\nContent-Length: 39\r\nConnection: close\r\n\r\n\
    too many connections from this address\n";

/// The answer to a connection while the server is shutting down.
pub(super) const STOPPING: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Access-Control-Allow-Origin: *\r\nRetry-After: 30\r\n\
    Content-Type: text/plain\r\nContent-Length: 9\r\nConnection: close\r\n\r\n\
    stopping\n";

/// Sends an answer to a rejected connection, which holds its slot meanwhile.
pub(super) async fn reject(
    mut stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
    answer: &'static [u8],
) {
    let goodbye = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        // Closing with unread input would reset the connection and discard the response.
        while stream.read(&mut [0; 1_024]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REJECTION_TIMEOUT, goodbye).await;
}

/// Reads a hop of `X-Forwarded-For`: an address, in brackets or not, with or without a port.
fn address_of(hop: &str) -> Option<IpAddr> {
    let with_port = || hop.parse().ok().map(|address: SocketAddr| address.ip());
    let in_brackets = || {
        hop.strip_prefix('[')?
            .strip_suffix(']')?
            .parse()
            .ok()
            .map(IpAddr::V6)
    };
    hop.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn forwarded(value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).expect("a header");
        [("x-forwarded-for".parse().expect("a name"), value)]
            .into_iter()
            .collect()
    }

    #[test]
    fn ranges_are_read_and_compared_by_bits() {
        let range = |text: &str| text.parse::<AddressRange>();
        assert!(range("::1").expect("one").contains(ip("::1")));
        assert!(
            range("127.0.0.1")
                .expect("one")
                .contains(ip("::ffff:127.0.0.1"))
        );
        assert!(!range("fd00::/8").expect("a range").contains(ip("fe00::1")));
        assert!(range("0.0.0.0/0").expect("all").contains(ip("9.9.9.9")));
        assert!(
            !range("0.0.0.0/0")
                .expect("all of IPv4")
                .contains(ip("2001:db8::1"))
        );
        assert!(range("::/0").expect("all").contains(ip("9.9.9.9")));
        for bad in ["", "x", "1.2.3.4/33", "::/129", "1.2.3.4/", "1.2.3.4/-1"] {
            assert_eq!(range(bad), Err(AddressRangeError), "{bad}");
        }
    }

    #[test]
    fn a_range_is_shown_as_it_could_have_been_written() {
        for text in ["10.0.0.0/8", "127.0.0.1/32", "::1/128", "fd00::/8", "::/0"] {
            assert_eq!(
                text.parse::<AddressRange>().expect("a range").to_string(),
                text
            );
        }
    }

    #[test]
    fn a_slot_is_free_again_when_its_connection_ends() {
        let limiter = ConnectionLimiter::new(2, 100, vec![]);
        let first = limiter.admit_peer(ip("1.2.3.4"));
        let second = limiter.admit_peer(ip("1.2.3.4"));
        assert!(first.is_some() && second.is_some());
        assert!(limiter.admit_peer(ip("1.2.3.4")).is_none());
        assert!(limiter.admit_peer(ip("1.2.3.5")).is_some());
        drop(first);
        assert!(limiter.admit_peer(ip("1.2.3.4")).is_some());
        drop(second);
        assert_eq!(limiter.all.usage().all, 0);
    }

    #[test]
    fn a_64_of_ipv6_is_one_client() {
        let limiter = ConnectionLimiter::new(1, 100, vec![]);
        let _first = limiter.admit_peer(ip("2001:db8::1"));
        assert!(limiter.admit_peer(ip("2001:db8::ffff:2")).is_none());
        assert!(limiter.admit_peer(ip("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn forwarded_addresses_are_read_with_ports_and_brackets() {
        let limiter = ConnectionLimiter::new(1, 100, vec!["10.0.0.0/8".parse().expect("a range")]);
        let proxy = ip("10.0.0.1");
        let network = |value| limiter.network(proxy, &forwarded(value));
        for hop in [
            "1.2.3.4",
            "1.2.3.4:5678",
            "6.6.6.6, 1.2.3.4:1, 10.0.0.2:443",
        ] {
            assert_eq!(network(hop), ClientNetwork::of(ip("1.2.3.4")), "{hop}");
        }
        for hop in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:5678"] {
            assert_eq!(network(hop), ClientNetwork::of(ip("2001:db8::1")), "{hop}");
        }
        for hop in [
            "",
            "nonsense",
            "[1.2.3.4",
            "1.2.3.4:99999",
            "[]:1",
            "1.2.3.4, x",
        ] {
            assert_eq!(network(hop), ClientNetwork::of(proxy), "{hop}");
        }
    }

    #[test]
    fn a_wide_network_leaves_half_of_all_connections() {
        let limiter = ConnectionLimiter::new(10, 100, vec![]);
        let open = |n: u8| limiter.admit_peer(ip(&format!("198.51.100.{n}")));
        let held: Vec<_> = (0..200).filter_map(open).collect();
        assert!(held.len() <= 50, "{}", held.len());
        assert!(limiter.admit_peer(ip("192.0.2.1")).is_some());
        drop(held);
        assert_eq!(limiter.all.usage().all, 0);
    }

    #[test]
    fn forwarded_addresses_count_only_behind_a_trusted_proxy() {
        let limiter = ConnectionLimiter::new(1, 100, vec!["10.0.0.0/8".parse().expect("a range")]);
        let proxy = ip("10.0.0.1");
        let held: Vec<_> = (0..5).map(|_| limiter.admit_peer(proxy)).collect();
        assert!(held.iter().all(Option::is_some));
        let _client = limiter.admit_forwarded(proxy, &forwarded("6.6.6.6, 1.2.3.4, 10.0.0.2"));
        assert!(
            limiter
                .admit_forwarded(proxy, &forwarded("7.7.7.7, 1.2.3.4"))
                .is_none()
        );
        assert!(
            limiter
                .admit_forwarded(proxy, &forwarded("1.2.3.4, 7.7.7.7"))
                .is_some()
        );
        // The header of any other peer is ignored.
        let peer = ip("8.8.8.8");
        assert!(
            limiter
                .admit_forwarded(peer, &forwarded("1.2.3.4"))
                .is_some()
        );
    }
}
