//! The names that people gave themselves (kind 0). Anybody may choose any name, so pages show them beside keys.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use crate::store::{self, EventStore, Inventory, StoreError};

/// Bytes of a profile that are read.
const MAX_PROFILE_BYTES: usize = 16 * 1024;

/// The characters of a name.
const MAX_CHARS: usize = 40;

/// The names of some people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<PublicKey, String>);

impl Names {
    /// Reads the names of these keys.
    pub(crate) async fn read(
        store: &dyn EventStore,
        now: Timestamp,
        keys: BTreeSet<PublicKey>,
    ) -> Result<Self, StoreError> {
        let count = keys.len();
        let mut names = Self::default();
        if count == 0 {
            return Ok(names);
        }
        for profile in store::events(store, profiles(keys).limit(count), now).await? {
            if let Some(name) = name_of(&profile) {
                names.0.insert(profile.pubkey, name);
            }
        }
        Ok(names)
    }

    /// Returns the events that [`read`](Self::read) follows from.
    pub(crate) async fn sources(
        store: &dyn EventStore,
        now: Timestamp,
        keys: BTreeSet<PublicKey>,
    ) -> Result<Vec<EventId>, StoreError> {
        let count = keys.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        // One by key.
        let listed = store.inventory(profiles(keys), now, count).await?;
        Ok(match listed {
            Inventory::Complete(listed) => listed.into_iter().map(|(_, id)| id).collect(),
            Inventory::TooMany => Vec::new(),
        })
    }

    /// Returns the name of a key, if it gave itself one.
    pub(crate) fn get(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

fn profiles(keys: BTreeSet<PublicKey>) -> Filter {
    Filter::new().kind(Kind::Metadata).authors(keys)
}

/// Returns the name in a profile.
fn name_of(profile: &Event) -> Option<String> {
    if profile.content.len() > MAX_PROFILE_BYTES {
        return None;
    }
    let fields: serde_json::Value = serde_json::from_str(&profile.content).ok()?;
    let names = ["display_name", "name"].into_iter();
    let mut names = names.filter_map(|field| fields.get(field)?.as_str());
    let name = names.find(|name| !name.trim().is_empty())?;
    let shown = name.trim().chars().filter(|c| !c.is_control());
    Some(shown.take(MAX_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent as _};
    use nostr::key::Keys;

    use super::*;

    fn name(content: &str) -> Option<String> {
        let profile = EventBuilder::new(Kind::Metadata, content);
        name_of(&profile.finalize(&Keys::generate()).unwrap())
    }

    #[test]
    fn names_are_those_of_profiles() {
        let both = r#"{"name":"al","display_name":" A\u0007l "}"#;
        assert_eq!(name(both), Some("Al".into()));
        for one in [
            r#"{"name":"al","display_name":""}"#,
            r#"{"name":"al","display_name":1}"#,
        ] {
            assert_eq!(name(one), Some("al".into()), "{one}");
        }
        for none in ["", "[]", "{}", r#"{"name":1}"#, r#"{"name":"  "}"#] {
            assert_eq!(name(none), None, "{none}");
        }
        let long = |length| format!("{{\"name\":\"{}\"}}", "x".repeat(length));
        assert_eq!(name(&long(99)).map(|name| name.len()), Some(MAX_CHARS));
        assert_eq!(name(&long(MAX_PROFILE_BYTES)), None);
    }
}
