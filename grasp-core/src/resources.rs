//! Accounting for everything that input from outside can consume.
//!
//! Each resource (git processes, bytes being unpacked, reader time, connections …) is one [`Pool`] with a total. Its
//! consumer is a [`Claimant`]: a client network, an author, or the server itself. Three rules hold for every pool:
//!
//! 1. **Shares.** No client network holds more than half of what would be free without it, at every width: an IPv4 /24
//!    half of the pool, each /32 in it half of what the /24 may have; IPv6 /48, /56 and /64 likewise. So a newcomer
//!    always finds something free, however much one network asks for. An author holds at most a fixed amount.
//! 2. **Reserve.** Claimants without authority never consume the reserve. Claimants with authority (confirmed
//!    maintainers of served repositories, the operator, the server itself) may, and have accounts of their own, so that
//!    strangers in the same network take nothing away from them.
//! 3. **Return.** What was taken is given back: a [`Grant`] to its pool, what a [`Meter`] counted after its period.
//!
//! [`QueuedPool`] adds a fair queue for claimants that can wait. Deadlines and the end of a client belong to drivers: they
//! give back what was granted.

mod pool;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

pub use self::pool::{Bounds, Claimant, Grant, Meter, Pool, QueuedPool, Shortage, Usage};

/// Bits in front of an IPv4 address in its IPv6-mapped form.
const MAPPED: u8 = 96;

/// Widths of IPv4 networks, widest first, in the IPv6-mapped form.
const V4_WIDTHS: &[u8] = &[MAPPED + 24, MAPPED + 32];

/// Widths of IPv6 networks, widest first. Providers hand out /64, /56 or /48 to one customer.
const V6_WIDTHS: &[u8] = &[48, 56, 64];

/// One network: the leading bits that its addresses share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    bits: u128,
    length: u8,
}

impl Prefix {
    /// The account of all networks that are not accounted for one by one.
    const UNLISTED: Self = Self { bits: 0, length: 0 };

    fn of(bits: u128, length: u8) -> Self {
        let dropped = 128 - u32::from(length);
        Self { bits: u128::MAX.checked_shl(dropped).map_or(0, |mask| bits & mask), length }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.bits);
        match (address.to_ipv4_mapped(), self.length.checked_sub(MAPPED)) {
            (Some(v4), Some(length)) => write!(f, "{v4}/{length}"),
            _ => write!(f, "{address}/{}", self.length),
        }
    }
}

/// The networks that a client's address belongs to: IPv4 /32 and /24; IPv6 /64, /56 and /48.
///
/// ```
/// use grasp_core::resources::ClientNetwork;
///
/// let network = |text: &str| ClientNetwork::of(text.parse().unwrap());
/// assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
/// assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
/// assert_eq!(network("192.0.2.7"), network("::ffff:192.0.2.7"));
/// assert_eq!(network("192.0.2.7").to_string(), "192.0.2.7/32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork {
    bits: u128,
}

impl ClientNetwork {
    /// Returns the network of an address. An IPv4 address and its IPv6-mapped form are the same.
    pub fn of(address: IpAddr) -> Self {
        let bits = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            IpAddr::V6(v6) => v6.into(),
        };
        let narrowest = *widths(bits).last().unwrap_or(&128);
        Self { bits: Prefix::of(bits, narrowest).bits }
    }

    /// Returns the first address of the network.
    pub fn address(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.bits)).to_canonical()
    }

    /// Returns the networks from the widest to the narrowest.
    pub fn prefixes(self) -> impl Iterator<Item = Prefix> {
        widths(self.bits).iter().map(move |length| Prefix::of(self.bits, *length))
    }

    /// Returns the narrowest network.
    pub fn narrowest(self) -> Prefix {
        self.prefixes().last().unwrap_or(Prefix::UNLISTED)
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.narrowest().fmt(f)
    }
}

fn widths(bits: u128) -> &'static [u8] {
    if Ipv6Addr::from(bits).to_ipv4_mapped().is_some() { V4_WIDTHS } else { V6_WIDTHS }
}
