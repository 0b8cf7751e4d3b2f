//! Parses and judges events with any tags; no input may panic.
//!
//! An input is text: the kind on the first line, then a tag per line, its values divided by tabs.

use grasp_core::admission::{Facts, Needs};
use grasp_core::deletion::{DeletionRequest, vanishes_from};
use grasp_core::nip34::{Announcement, Proposal, References, State};
use grasp_core::nostr::event::{Event, EventId, Kind, Signature, Tag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let kind = lines
        .next()
        .and_then(|line| line.parse().ok())
        .unwrap_or(30617);
    let event = Event::new(
        EventId::from_byte_array([1; 32]),
        PublicKey::from_byte_array([1; 32]),
        Timestamp::from_secs(5),
        Kind::from_u16(kind),
        lines.filter_map(|line| Tag::parse(line.split('\t')).ok()),
        "",
        Signature::from_byte_array([0; 64]),
    );
    let _ = (Needs::of(&event), References::of(&event), Facts::default());
    let _ = (
        DeletionRequest::parse(&event),
        vanishes_from(&event, None),
        Proposal::parse(&event),
    );
    if let Ok(announcement) = Announcement::parse(&event) {
        assert_eq!(announcement.repo.to_string().parse(), Ok(announcement.repo));
    }
    if let Ok(state) = State::parse(&event) {
        assert!(state.refs.keys().all(|name| name.is_branch_or_tag()));
    }
}
