//! The relay information document (NIP-11, GRASP-01).

use std::time::Duration;

use nostr::key::PublicKey;
use serde::Serialize;

use super::codec::MAX_SUB_ID_CHARS;
use super::limits::Limits;

/// The operator's description of the relay. [`RelayInfo::document`] adds the limits from [`Limits`].
///
/// ```
/// use grasp_relay::nostr::{Limits, RelayInfo};
///
/// let info = RelayInfo { name: "grasp.example".into(), ..RelayInfo::default() };
/// let card = info.document(&Limits::default());
/// assert!(card.contains(r#""supported_grasps":["GRASP-01"]"#));
/// assert!(card.contains(r#""max_limit":5000"#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RelayInfo {
    /// The display name.
    pub name: String,
    /// The description, a few sentences.
    pub description: String,
    /// The operator's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pubkey: Option<PublicKey>,
    /// The key that the service itself signs with.
    #[serde(rename = "self", skip_serializing_if = "Option::is_none")]
    pub service_key: Option<PublicKey>,
    /// Another way to contact the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// The address of an icon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon: Option<String>,
    /// The name of the software.
    pub software: String,
    /// The version of the software.
    pub version: String,
    /// The NIPs that are supported.
    pub supported_nips: Vec<u16>,
    /// The GRASP documents that are supported, as `GRASP-01`.
    pub supported_grasps: Vec<String>,
    /// The criteria by which repositories are accepted, as text; never empty.
    pub repo_acceptance_criteria: String,
    /// The curation of events beyond spam control, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curation: Option<String>,
    /// The time by which an event may be ahead of the clock.
    #[serde(skip)]
    pub created_at_ahead: Duration,
}

impl Default for RelayInfo {
    fn default() -> Self {
        Self {
            name: "grasp".into(),
            description: "A nostr relay and git host for repositories announced here.".into(),
            pubkey: None,
            service_key: None,
            contact: None,
            icon: None,
            software: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            supported_nips: vec![1, 9, 11, 34, 40, 42, 45, 62, 67, 70, 77],
            supported_grasps: vec!["GRASP-01".into()],
            repo_acceptance_criteria: "None".into(),
            curation: None,
            created_at_ahead: Duration::from_secs(900),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    info: &'a RelayInfo,
    limitation: serde_json::Value,
}

impl RelayInfo {
    /// Returns the document as JSON.
    pub fn document(&self, limits: &Limits) -> String {
        let limitation = serde_json::json!({
            "max_message_length": limits.message_bytes,
            "max_subscriptions": limits.subscriptions,
            "max_subid_length": MAX_SUB_ID_CHARS,
            "max_limit": limits.max_limit,
            "default_limit": limits.default_limit.min(limits.max_limit),
            "auth_required": false,
            "payment_required": false,
            // Only events that belong to an accepted repository are accepted.
            "restricted_writes": true,
            "created_at_upper_limit": self.created_at_ahead.as_secs(),
        });
        let document = Document { info: self, limitation };
        serde_json::to_string(&document).expect("strings and numbers always have a JSON form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curation_is_absent_unless_there_is_some() {
        let plain = RelayInfo::default();
        assert!(!plain.document(&Limits::default()).contains("curation"));
        let curated = RelayInfo { curation: Some("no forks".into()), ..plain };
        let document = curated.document(&Limits::default());
        assert!(document.contains(r#""curation":"no forks""#));
    }

    #[test]
    fn what_is_said_with_eose_is_advertised() {
        let document = RelayInfo::default().document(&Limits::default());
        let card: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        let supported = card["supported_nips"].as_array().expect("a list");
        assert!(supported.contains(&67.into()), "{supported:?}");
    }

    #[test]
    fn keys_stand_as_hex_under_their_names() {
        let key = PublicKey::from_byte_array([0xab; 32]);
        let info = RelayInfo { pubkey: Some(key), service_key: Some(key), ..RelayInfo::default() };
        let card: serde_json::Value =
            serde_json::from_str(&info.document(&Limits::default())).expect("JSON");
        assert_eq!(card["pubkey"], "ab".repeat(32));
        assert_eq!(card["self"], "ab".repeat(32));
    }
}
