//! A relay's NIP-11 document, and the limits that follow from it.

use crate::limits::{RETAINED_BYTES, Rate, history_limit};
use grasp_core::nostr::key::PublicKey;
use grasp_core::sync::RequestBudget;

use super::Config;

/// The part of a relay's NIP-11 document that matters here. The default is a relay without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayFacts {
    /// True if there is a document.
    pub has_document: bool,
    /// `software`, usually the address of its source.
    pub software: Option<String>,
    /// `version` of the software.
    pub version: Option<String>,
    /// `limitation.max_subscriptions`.
    pub max_subscriptions: Option<usize>,
    /// `limitation.max_limit`.
    pub max_limit: Option<usize>,
    /// `limitation.max_message_length`, in bytes.
    pub max_message_length: Option<usize>,
    /// True if it is a GRASP server, which carries repositories and nothing else.
    pub is_grasp: bool,
    /// True if it is a private service (GRASP-08), which a public one does not sync from.
    pub is_private: bool,
    /// `pubkey`: at a private service, the key that it authenticates with.
    pub pubkey: Option<PublicKey>,
}

/// The limits that hold for one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelayProfile {
    /// The pace of requests.
    pub(super) pace: Rate,
    /// Bytes of subscriptions that it may be made to remember.
    pub(super) retained_bytes: usize,
    /// The size of requests.
    pub(super) budget: RequestBudget,
    /// Rows per page.
    pub(super) page: usize,
    /// Ids per request.
    pub(super) ids: usize,
    /// The longest NIP-77 message in bytes, before hex.
    pub(super) neg_frame: u64,
    /// True if each NIP-77 frame may count as a request.
    pub(super) counts_frames: bool,
    /// Bytes of filters above which full sync is used, if ever.
    pub(super) full_sync_from: Option<usize>,
}

/// Factor of values per filter for a relay whose software or longest message is known.
const KNOWN_VALUES_FACTOR: usize = 10;
/// Bytes of subscriptions that known software may be made to remember.
const KNOWN_RETAINED_BYTES: usize = 4_000_000;
/// Ids per request, for a relay that advertises no limit.
const IDS_PER_FETCH: usize = 250;
/// Bytes of one id in a filter: 64 digits, quotes, comma.
const ID_BYTES: usize = 67;
/// Bytes of a filter around its ids, with a margin.
const ID_FILTER_BYTES: usize = 256;
/// The longest NIP-77 message that every known relay accepts.
const MAX_NEG_FRAME: usize = 60_000;
/// The shortest frame limit that the protocol allows.
const MIN_NEG_FRAME: usize = 4_096;

impl RelayProfile {
    pub(super) fn new(facts: &RelayFacts, config: &Config) -> Self {
        let rate = facts.known_rate();
        let message = facts
            .max_message_length
            .filter(|length| *length > 0)
            .unwrap_or(usize::MAX);
        let is_known = rate.is_some() || message < usize::MAX;
        let times = if is_known { KNOWN_VALUES_FACTOR } else { 1 };
        let values = config.values_per_filter.saturating_mul(times);
        let budget = RequestBudget::default().with_values_per_filter(values);
        let budget = budget.lowered_to_message_bytes(message);
        let fit = budget.filter_bytes.saturating_sub(ID_FILTER_BYTES) / ID_BYTES;
        let offered = facts
            .max_limit
            .filter(|limit| *limit > 0)
            .unwrap_or(IDS_PER_FETCH);
        let frame = (message / 2)
            .saturating_sub(256)
            .clamp(MIN_NEG_FRAME, MAX_NEG_FRAME);
        Self {
            pace: rate.unwrap_or(Rate::CAREFUL),
            retained_bytes: rate.map_or(RETAINED_BYTES, |_| KNOWN_RETAINED_BYTES),
            budget,
            page: history_limit(facts.max_limit.filter(|limit| *limit > 0)),
            ids: offered.min(fit).max(1),
            neg_frame: frame as u64,
            counts_frames: rate.is_none(),
            full_sync_from: config.full_sync_above.filter(|_| facts.is_grasp),
        }
    }
}

impl RelayFacts {
    /// Returns the rate of requests that the software is known to allow; unknown software may count every NIP-77 frame.
    fn known_rate(&self) -> Option<Rate> {
        let software = self.software.as_deref().unwrap_or_default();
        match last_part(software).as_str() {
            "strfry" | "nostr-rs-relay" => Some(Rate::UNLIMITED),
            "grasp" | "grasp-relay" => Some(Rate::GENEROUS),
            "ngit-grasp" if self.is_at_least([3, 0, 5]) => Some(Rate::GENEROUS),
            _ => None,
        }
    }

    fn is_at_least(&self, wanted: [u32; 3]) -> bool {
        let text = self.version.as_deref().unwrap_or_default();
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text
            .split(|c: char| !c.is_ascii_digit())
            .map(str::parse::<u32>);
        let mut next = || parts.next().and_then(Result::ok).unwrap_or(0);
        [next(), next(), next()] >= wanted
    }
}

/// Returns the name at the end of an address, without `.git`.
fn last_part(software: &str) -> String {
    let name = software
        .trim_end_matches('/')
        .rsplit(['/', ':'])
        .next()
        .unwrap_or_default();
    name.strip_suffix(".git")
        .unwrap_or(name)
        .to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(software: &str, version: &str) -> RelayFacts {
        RelayFacts {
            software: Some(software.into()),
            version: Some(version.into()),
            ..RelayFacts::default()
        }
    }

    #[test]
    fn only_software_known_by_its_full_name_has_the_high_rate() {
        for (software, version, rate) in [
            (
                "git+https://github.com/hoytech/strfry.git",
                "1.1.1",
                Some(Rate::UNLIMITED),
            ),
            (
                "https://git.sr.ht/~gheartsfield/nostr-rs-relay/",
                "0.10",
                Some(Rate::UNLIMITED),
            ),
            ("grasp-relay", "0.1.0", Some(Rate::GENEROUS)),
            (
                "https://example.com/ngit-grasp",
                "v3.0.10",
                Some(Rate::GENEROUS),
            ),
            ("https://example.com/ngit-grasp", "3.0.4", None),
            ("https://example.com/ngit-grasp", "nonsense", None),
            ("https://example.com/not-strfry", "9", None),
            ("", "", None),
        ] {
            assert_eq!(
                facts(software, version).known_rate(),
                rate,
                "{software} {version}"
            );
        }
    }

    #[test]
    fn what_a_relay_advertises_makes_requests_smaller() {
        let config = Config::new("us.example".parse().unwrap());
        let silent = RelayProfile::new(&RelayFacts::default(), &config);
        assert_eq!(
            (silent.page, silent.ids, silent.neg_frame),
            (500, 250, 60_000)
        );
        let small = RelayFacts {
            max_limit: Some(100),
            max_message_length: Some(20_000),
            ..RelayFacts::default()
        };
        let small = RelayProfile::new(&small, &config);
        assert_eq!((small.page, small.ids, small.neg_frame), (100, 100, 9_744));
        assert_eq!(small.budget.message_bytes, 20_000);
    }

    #[test]
    fn a_filter_has_a_hundred_values_unless_more_are_known_to_be_taken() {
        let mut config = Config::new("us.example".parse().unwrap());
        let values = |config: &Config, facts: &RelayFacts| {
            RelayProfile::new(facts, config).budget.values_per_filter
        };
        let long = RelayFacts {
            max_message_length: Some(131_072),
            ..RelayFacts::default()
        };
        assert_eq!(values(&config, &RelayFacts::default()), 100);
        assert_eq!(values(&config, &facts("unheard-of", "1")), 100);
        assert_eq!(values(&config, &facts("strfry", "1")), 1_000);
        assert_eq!(values(&config, &facts("grasp-relay", "1")), 1_000);
        assert_eq!(values(&config, &long), 1_000);
        config.values_per_filter = 20;
        assert_eq!(values(&config, &RelayFacts::default()), 20);
        assert_eq!(values(&config, &long), 200);
    }

    #[test]
    fn known_software_has_more_subscription_bytes() {
        let config = Config::new("us.example".parse().unwrap());
        let retained = |software| RelayProfile::new(&facts(software, "1"), &config).retained_bytes;
        assert_eq!(retained("unheard-of"), 900_000);
        assert_eq!(retained("strfry"), 4_000_000);
    }

    #[test]
    fn a_fetch_by_ids_never_outgrows_a_filter() {
        let config = Config::new("us.example".parse().unwrap());
        let vast = RelayFacts {
            max_limit: Some(100_000),
            ..RelayFacts::default()
        };
        let profile = RelayProfile::new(&vast, &config);
        assert!(profile.ids > 400 && profile.ids * ID_BYTES < profile.budget.filter_bytes);
    }

    #[test]
    fn absurd_limits_in_a_nip11_document_are_ignored() {
        let config = Config::new("us.example".parse().unwrap());
        let zero = RelayFacts {
            max_limit: Some(0),
            max_message_length: Some(0),
            max_subscriptions: Some(0),
            ..RelayFacts::default()
        };
        assert_eq!(
            RelayProfile::new(&zero, &config),
            RelayProfile::new(&RelayFacts::default(), &config)
        );
    }
}
