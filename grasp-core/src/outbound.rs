//! Addresses that the server may connect to. Events name addresses, and anyone can publish an event.
//!
//! A name is judged before it is resolved, and every address it resolves to before one is dialled; the dialler
//! connects to the judged address and follows no redirect. Addresses in the operator's settings are exempt; the same
//! address in an event is not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Host;

/// The source of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provenance {
    /// The operator, by configuration.
    Operator,
    /// An event, or the answer of another server.
    Event,
}

/// The reason for which an address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// `localhost`, a name without a dot, or one of a domain that is not on the internet.
    #[error("the name is not one of the public internet")]
    Name,
    /// A name with a label that is empty, begins or ends with `-`, or has other characters than letters, digits, `-`
    /// and `_`.
    #[error("the name is not a valid host name")]
    Label,
    /// An address that is not routed globally: loopback, private, link-local and the like.
    #[error("the address is not one of the public internet")]
    Address,
    /// An address that no host has: unspecified, multicast, broadcast, or a local translation prefix.
    #[error("the address belongs to no host")]
    NoHost,
}

/// Decides which addresses the server connects to.
///
/// ```
/// use grasp_core::outbound::{Forbidden, OutboundPolicy, Provenance};
///
/// let policy = OutboundPolicy::default();
/// let wrapped = "::ffff:10.0.0.1".parse().unwrap();
/// assert_eq!(policy.judge_address(Provenance::Event, wrapped), Err(Forbidden::Address));
/// assert_eq!(policy.judge_address(Provenance::Operator, wrapped), Ok(()));
/// assert_eq!(policy.judge_host(Provenance::Event, &"relay.example.com".parse().unwrap()), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboundPolicy {
    /// Allows private addresses in events, for test networks. Default: no.
    pub allow_private: bool,
}

/// Domains that the public internet does not resolve, or that mean something else there.
const SPECIAL_DOMAINS: [&str; 9] = [
    "localhost",
    "local",
    "internal",
    "test",
    "example",
    "invalid",
    "onion",
    "alt",
    "arpa",
];

impl OutboundPolicy {
    /// Returns the policy that allows private addresses in events too, for test networks and for tools whose user names the
    /// addresses.
    pub const fn everywhere() -> Self {
        Self {
            allow_private: true,
        }
    }

    /// Judges a name before it is resolved; a literal address as that address.
    ///
    /// A name in an event must consist of ordinary labels: curl reads a name that begins with `-` or contains other
    /// characters differently in a URL and in the list of addresses it is told to use, and would look it up itself.
    pub fn judge_host(&self, from: Provenance, host: &Host) -> Result<(), Forbidden> {
        if let Ok(address) = host.name().parse() {
            return self.judge_address(from, address);
        }
        if from == Provenance::Event && !host.name().split('.').all(is_ordinary_label) {
            return Err(Forbidden::Label);
        }
        if self.allows_private(from) || is_public_name(host.name()) {
            Ok(())
        } else {
            Err(Forbidden::Name)
        }
    }

    /// Judges an address that is about to be dialled.
    pub fn judge_address(&self, from: Provenance, address: IpAddr) -> Result<(), Forbidden> {
        match reach(address) {
            NetworkReach::Global => Ok(()),
            NetworkReach::Private if self.allows_private(from) => Ok(()),
            NetworkReach::Private => Err(Forbidden::Address),
            NetworkReach::NoHost => Err(Forbidden::NoHost),
        }
    }

    fn allows_private(self, from: Provenance) -> bool {
        self.allow_private || from == Provenance::Operator
    }
}

fn is_ordinary_label(label: &str) -> bool {
    let is_ordinary = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !label.is_empty()
        && label.chars().all(is_ordinary)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn is_public_name(name: &str) -> bool {
    match name.rsplit_once('.') {
        Some((_, domain)) => !SPECIAL_DOMAINS.contains(&domain),
        None => false,
    }
}

/// The part of the internet that reaches an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkReach {
    Global,
    Private,
    NoHost,
}

fn reach(address: IpAddr) -> NetworkReach {
    match address {
        IpAddr::V4(v4) => reach_v4(v4),
        IpAddr::V6(v6) => reach_v6(v6),
    }
}

fn reach_v4(address: Ipv4Addr) -> NetworkReach {
    let private = match address.octets() {
        [0, 0, 0, 0] | [224..=239, ..] | [255, 255, 255, 255] => return NetworkReach::NoHost,
        [0 | 10 | 127, ..] | [240..=255, ..] => true,
        // Shared by carriers for their customers.
        [100, b, ..] => b & 0xc0 == 64,
        [169, 254, ..] | [192, 168, ..] => true,
        [172, b, ..] => b & 0xf0 == 16,
        // Protocols, documentation, and relays of a transition that is over.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        // Benchmarks.
        [198, 18 | 19, ..] => true,
        _ => false,
    };
    if private {
        NetworkReach::Private
    } else {
        NetworkReach::Global
    }
}

fn reach_v6(address: Ipv6Addr) -> NetworkReach {
    let [a, b, c, d, e, f, g, h] = address.segments();
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => reach_v4(embedded(g, h)),
        // A local translation prefix leads to addresses that are unknown here.
        [0x64, 0xff9b, 1, ..] | [0xff00..=0xffff, ..] => NetworkReach::NoHost,
        [0, 0, 0, 0, 0, 0] if (g, h) == (0, 0) => NetworkReach::NoHost,
        [0x2002, high, low, ..] => reach_v4(embedded(high, low)),
        // Protocols (tunnels among them) and documentation.
        [0x2001, ..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, ..=0xfff, ..] => {
            NetworkReach::Private
        }
        [0x2000..=0x3fff, ..] => NetworkReach::Global,
        _ => NetworkReach::Private,
    }
}

/// The older address inside a newer one.
fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(from: Provenance, allow_private: bool, host: &str) -> Result<(), Forbidden> {
        OutboundPolicy { allow_private }.judge_host(from, &host.parse().unwrap())
    }

    fn in_event(host: &str) -> Result<(), Forbidden> {
        judge(Provenance::Event, false, host)
    }

    const PRIVATE: [&str; 31] = [
        "127.0.0.1:7334",
        "0.1.2.3",
        "10.1.2.3",
        "100.64.0.1",
        "100.127.255.255",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.7",
        "240.0.0.1",
        "0x7f.1",
        "2130706433",
        "[::1]:80",
        "[::7f00:1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::10.0.0.1]",
        "[2002:7f00:1::]",
        "[2001::1]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[fc00::1]",
        "[fe80::1]",
        "[100::1]",
        "[5f00::1]",
    ];

    #[test]
    fn private_addresses_in_events_are_refused_in_every_notation() {
        for host in PRIVATE {
            assert_eq!(in_event(host), Err(Forbidden::Address), "{host}");
        }
    }

    #[test]
    fn private_addresses_are_allowed_from_the_operator_and_by_setting() {
        for host in PRIVATE {
            assert_eq!(judge(Provenance::Operator, false, host), Ok(()), "{host}");
            assert_eq!(judge(Provenance::Event, true, host), Ok(()), "{host}");
        }
    }

    #[test]
    fn public_hosts_are_allowed() {
        for host in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "[2606:4700::1111]:443",
            "[64:ff9b::1.1.1.1]",
            "[2002:101:101::1]",
            "[::ffff:1.1.1.1]",
            "relay.damus.io",
            "r.example.com:8443",
            "localhost.example.com",
            "xn--msli-0ra.de",
        ] {
            assert_eq!(in_event(host), Ok(()), "{host}");
        }
    }

    #[test]
    fn names_outside_the_public_internet_are_not_resolved_for_events() {
        for host in [
            "localhost:3334",
            "LOCALHOST.",
            "a.localhost",
            "printer",
            "nas.local",
            "metadata.google.internal",
            "x.test",
            "x.example",
            "hidden.onion",
            "1.0.0.127.in-addr.arpa",
        ] {
            assert_eq!(in_event(host), Err(Forbidden::Name), "{host}");
            assert_eq!(judge(Provenance::Operator, false, host), Ok(()), "{host}");
        }
    }

    #[test]
    fn names_that_git_could_look_up_itself_are_refused_in_events() {
        for host in [
            "-a.example.com",
            "a-.example.com",
            "a.-b.com",
            "a.b-.com:8443",
            "a*.example.com",
            "a+b.example.com",
            "a,b.example.com",
            "a~b.example.com",
            "a!b.com",
            "a..example.com",
        ] {
            for allow_private in [true, false] {
                let judged = judge(Provenance::Event, allow_private, host);
                assert_eq!(judged, Err(Forbidden::Label), "{host}");
            }
        }
        for host in [
            "a-b.example.com",
            "_a.example.com",
            "a_b.example.com",
            "xn--bcher-kva.com",
        ] {
            assert_eq!(in_event(host), Ok(()), "{host}");
        }
    }

    #[test]
    fn addresses_of_no_host_are_always_refused() {
        for host in [
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "[::]",
            "[ff02::1]",
            "[64:ff9b:1::1]",
        ] {
            for (from, allow) in [(Provenance::Operator, true), (Provenance::Event, false)] {
                assert_eq!(judge(from, allow, host), Err(Forbidden::NoHost), "{host}");
            }
        }
    }
}
