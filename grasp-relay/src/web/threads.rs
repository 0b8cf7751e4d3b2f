//! Issues, patches and pull requests of a repository: how they are read from the store, and what their pages show.
//!
//! Only served events are read, so nothing that waits for its git data is shown. What an event means is decided by
//! [`grasp_core::threads`].

mod patch;
mod read;
mod show;

use grasp_core::{RepoId, kinds};
use nostr::event::EventId;
use nostr::nips::nip01::Coordinate;
use nostr::nips::nip19::{FromBech32 as _, Nip19, Nip19Event, ToBech32 as _};

pub(crate) use self::patch::MailPatch;
pub(crate) use self::read::{Counts, ThreadList, ThreadReader};
pub(crate) use self::show::{ListQuery, ThreadPage, anchor, list, thread};

/// The kinds of threads that one list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThreadKind {
    Issues,
    /// Patches and pull requests.
    Pulls,
}

impl ThreadKind {
    /// Returns the name of the list in paths.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Issues => "issues",
            Self::Pulls => "pulls",
        }
    }

    /// Returns the title of the list.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Issues => "Issues",
            Self::Pulls => "Patches and pull requests",
        }
    }
}

/// Returns the repository that a text such as `naddr1…` names by its announcement or state.
pub(crate) fn parse_repository(text: &str) -> Option<RepoId> {
    let text = text.strip_prefix("nostr:").unwrap_or(text);
    let Nip19::Coordinate(named) = Nip19::from_bech32(text).ok()? else {
        return None;
    };
    repository_at(&named.coordinate)
}

/// Returns the repository that is announced, or whose state is, at a coordinate.
pub(crate) fn repository_at(coordinate: &Coordinate) -> Option<RepoId> {
    let is_repository = [kinds::ANNOUNCEMENT, kinds::STATE].contains(&coordinate.kind);
    let identifier = is_repository.then(|| coordinate.identifier.parse().ok())??;
    Some(RepoId::new(coordinate.public_key, identifier))
}

/// Returns the event that a text such as `nevent1…`, `note1…` or 64 hex digits names.
pub(crate) fn parse_event(text: &str) -> Option<EventId> {
    let text = text.strip_prefix("nostr:").unwrap_or(text);
    if text.len() == 64 {
        return EventId::from_hex(text).ok();
    }
    match Nip19::from_bech32(text).ok()? {
        Nip19::EventId(id) => Some(id),
        Nip19::Event(event) => Some(event.event_id),
        _ => None,
    }
}

/// Returns the name of an event for people and clients: `nevent1…`.
pub(crate) fn nevent(id: &EventId) -> String {
    let name = Nip19Event::new(*id).to_bech32();
    name.unwrap_or_else(|_| id.to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_named_by_announcement_and_state() {
        let owner = nostr::key::PublicKey::from_byte_array([7; 32]);
        let name = |kind| {
            let coordinate = Coordinate::new(kind, owner).identifier("my repo");
            coordinate.to_bech32().unwrap()
        };
        let repo = RepoId::new(owner, "my repo".parse().unwrap());
        for kind in [kinds::ANNOUNCEMENT, kinds::STATE] {
            assert_eq!(parse_repository(&name(kind)), Some(repo.clone()));
            assert_eq!(
                parse_repository(&format!("nostr:{}", name(kind))),
                Some(repo.clone())
            );
        }
        for text in [&name(kinds::SOFTWARE), "naddr1x", ""] {
            assert_eq!(parse_repository(text), None, "{text}");
        }
    }

    #[test]
    fn events_are_named_in_all_forms() {
        let id = EventId::from_slice(&[7; 32]).unwrap();
        let note = id.to_bech32().unwrap();
        for text in [
            nevent(&id),
            note,
            id.to_hex(),
            format!("nostr:{}", nevent(&id)),
        ] {
            assert_eq!(parse_event(&text), Some(id), "{text}");
        }
        for text in ["", "nevent1", "x", &"z".repeat(64), "npub1qqqq", "../x"] {
            assert_eq!(parse_event(text), None, "{text}");
        }
    }
}
