//! Connections per client network, and which network a client is in.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

/// How long a client that is rejected may take to leave.
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
pub struct AddressRange {
    bits: u128,
    /// Leading bits that count, of 128.
    prefix: u8,
}

/// Why a text is no range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address or address/prefix")]
pub struct AddressRangeError;

impl AddressRange {
    /// Whether an address lies in the range. IPv4 and its IPv6-mapped form are the same address.
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(bits(address), self.prefix) == masked(self.bits, self.prefix)
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;
    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| AddressRangeError)?;
        let (width, above) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= width),
            None => Some(width),
        };
        Ok(Self { bits: bits(address), prefix: above + prefix.ok_or(AddressRangeError)? })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.bits);
        match (address.to_ipv4_mapped(), self.prefix.checked_sub(96)) {
            (Some(v4), Some(prefix)) => write!(f, "{v4}/{prefix}"),
            _ => write!(f, "{address}/{}", self.prefix),
        }
    }
}

/// Connections by address (IPv4) or /64 (IPv6).
type Counts = Arc<Mutex<HashMap<ClientNetwork, usize>>>;

/// Limits connections per client network.
///
/// All of them share it; nothing waits while it is locked.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    counts: Counts,
    most: usize,
    /// Wider networks have at most half of what is free.
    all: SharedPool,
    proxies: Arc<[AddressRange]>,
}

/// One connection's place in the count, given back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct ConnectionPermit {
    counted: Option<(ClientNetwork, Counts)>,
    _share: Option<Holding>,
}

impl ConnectionLimiter {
    /// Allows one address this many of `total` connections.
    pub(super) fn new(most: usize, total: usize, proxies: Vec<AddressRange>) -> Self {
        // A lone address has a quarter of all.
        let total = total.max(most.saturating_mul(4)) as u64;
        let all = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(total) });
        Self { counts: Arc::default(), most, all, proxies: proxies.into() }
    }

    /// A place for a TCP connection. A trusted proxy speaks for many and is not counted itself.
    pub(super) fn admit_peer(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        if self.is_trusted(peer) { Some(ConnectionPermit::default()) } else { self.admit(peer) }
    }

    /// A place for whoever a trusted proxy opens a websocket for. Others were counted when they connected.
    pub(super) fn admit_forwarded(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Option<ConnectionPermit> {
        let client = self.is_trusted(peer).then(|| self.forwarded_for(headers)).flatten();
        match client {
            Some(client) => self.admit(client),
            None => Some(ConnectionPermit::default()),
        }
    }

    /// Returns the network that a request is from, the one behind a trusted proxy if there is one.
    pub(super) fn network(&self, peer: IpAddr, headers: &HeaderMap) -> ClientNetwork {
        let client = self.is_trusted(peer).then(|| self.forwarded_for(headers)).flatten();
        ClientNetwork::of(client.unwrap_or(peer))
    }

    /// The last address of `X-Forwarded-For` that is no proxy of ours: all before it is only claimed.
    fn forwarded_for(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let hops =
            headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
        let hops: Vec<_> = hops.flat_map(|value| value.split(',')).map(str::trim).collect();
        let mut addresses = hops.iter().rev().map_while(|hop| address_of(hop));
        addresses.find(|address| !self.is_trusted(*address))
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|range| range.contains(address))
    }

    fn admit(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let network = ClientNetwork::of(address);
        let share = self.all.try_take(&Claimant::at(network), 1).ok()?;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(network).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        let counted = Some((network, self.counts.clone()));
        Some(ConnectionPermit { counted, _share: Some(share) })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let Some((key, counts)) = &self.counted else {
            return;
        };
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(key);
            }
        }
    }
}

/// Why a connection is rejected, whatever it is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum RejectionReason {
    /// Its network has as many connections as it may have.
    TooMany,
    /// The server is about to end.
    Stopping,
}

const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\n\
    Access-Control-Allow-Origin: *\r\nRetry-After: 30\r\n\
    Content-Type: text/plain\r\nContent-Length: 39\r\nConnection: close\r\n\r\n\
    too many connections from this address\n";

const STOPPING: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Access-Control-Allow-Origin: *\r\nRetry-After: 30\r\n\
    Content-Type: text/plain\r\nContent-Length: 9\r\nConnection: close\r\n\r\n\
    stopping\n";

/// Tells a connection why it is rejected, and keeps its slot for the moment that this takes.
pub(super) async fn reject(
    mut stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
    why: RejectionReason,
) {
    let answer = match why {
        RejectionReason::TooMany => TOO_MANY,
        RejectionReason::Stopping => STOPPING,
    };
    let goodbye = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        // Closing with unread input would take the answer back.
        while stream.read(&mut [0; 1_024]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REJECTION_TIMEOUT, goodbye).await;
}

/// Reads a hop of `X-Forwarded-For`: an address, in brackets or not, with or without a port.
fn address_of(hop: &str) -> Option<IpAddr> {
    let with_port = || hop.parse().ok().map(|address: SocketAddr| address.ip());
    let in_brackets = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    hop.parse().ok().or_else(with_port).or_else(in_brackets)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

fn masked(bits: u128, prefix: u8) -> u128 {
    let dropped = 128 - u32::from(prefix.min(128));
    u128::MAX.checked_shl(dropped).map_or(0, |mask| bits & mask)
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
        [("x-forwarded-for".parse().expect("a name"), value)].into_iter().collect()
    }

    #[test]
    fn ranges_are_read_and_compared_by_bits() {
        let range = |text: &str| text.parse::<AddressRange>();
        assert!(range("::1").expect("one").contains(ip("::1")));
        assert!(range("127.0.0.1").expect("one").contains(ip("::ffff:127.0.0.1")));
        assert!(!range("fd00::/8").expect("a range").contains(ip("fe00::1")));
        assert!(range("0.0.0.0/0").expect("all").contains(ip("9.9.9.9")));
        assert!(!range("0.0.0.0/0").expect("all of IPv4").contains(ip("2001:db8::1")));
        assert!(range("::/0").expect("all").contains(ip("9.9.9.9")));
        for bad in ["", "x", "1.2.3.4/33", "::/129", "1.2.3.4/", "1.2.3.4/-1"] {
            assert_eq!(range(bad), Err(AddressRangeError), "{bad}");
        }
    }

    #[test]
    fn a_range_is_shown_as_it_could_have_been_written() {
        for text in ["10.0.0.0/8", "127.0.0.1/32", "::1/128", "fd00::/8", "::/0"] {
            assert_eq!(text.parse::<AddressRange>().expect("a range").to_string(), text);
        }
    }

    #[test]
    fn a_place_is_free_again_when_its_connection_ends() {
        let limiter = ConnectionLimiter::new(2, 100, vec![]);
        let first = limiter.admit_peer(ip("1.2.3.4"));
        let second = limiter.admit_peer(ip("1.2.3.4"));
        assert!(first.is_some() && second.is_some());
        assert!(limiter.admit_peer(ip("1.2.3.4")).is_none());
        assert!(limiter.admit_peer(ip("1.2.3.5")).is_some());
        drop(first);
        assert!(limiter.admit_peer(ip("1.2.3.4")).is_some());
        drop(second);
        assert!(limiter.counts.lock().expect("no panic").is_empty());
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
        for hop in ["1.2.3.4", "1.2.3.4:5678", "6.6.6.6, 1.2.3.4:1, 10.0.0.2:443"] {
            assert_eq!(network(hop), ClientNetwork::of(ip("1.2.3.4")), "{hop}");
        }
        for hop in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:5678"] {
            assert_eq!(network(hop), ClientNetwork::of(ip("2001:db8::1")), "{hop}");
        }
        for hop in ["", "nonsense", "[1.2.3.4", "1.2.3.4:99999", "[]:1", "1.2.3.4, x"] {
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
        assert!(limiter.admit_forwarded(proxy, &forwarded("7.7.7.7, 1.2.3.4")).is_none());
        assert!(limiter.admit_forwarded(proxy, &forwarded("1.2.3.4, 7.7.7.7")).is_some());
        // Somebody else may write what they like.
        let stranger = ip("8.8.8.8");
        assert!(limiter.admit_forwarded(stranger, &forwarded("1.2.3.4")).is_some());
    }
}
