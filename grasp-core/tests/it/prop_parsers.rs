//! Parsers accept any input without panic, and their values round-trip.

use grasp_core::nip34::{Announcement, Proposal, References, State, repo_refs};
use grasp_core::push::{CommandReader, Progress, read_pkt};
use grasp_core::{
    CloneUrl, Host, Identifier, Oid, RefName, RelayUrl, RepoId, ServiceIdentity, parse_coordinate,
};
use proptest::prelude::*;

use crate::events::{event, tags, value};

/// Checks that parsing, writing and parsing again gives the same value.
fn round_trips<T>(text: &str)
where
    T: std::str::FromStr + std::fmt::Display + PartialEq + std::fmt::Debug,
    T::Err: std::fmt::Debug,
{
    if let Ok(parsed) = text.parse::<T>() {
        assert_eq!(parsed.to_string().parse::<T>().unwrap(), parsed);
    }
}

proptest! {
    #[test]
    fn values_never_panic_and_round_trip(text in value()) {
        round_trips::<Identifier>(&text);
        round_trips::<RepoId>(&text);
        round_trips::<Oid>(&text);
        round_trips::<RefName>(&text);
        round_trips::<RelayUrl>(&text);
        round_trips::<CloneUrl>(&text);
        round_trips::<Host>(&text);
        round_trips::<ServiceIdentity>(&text);
        let _ = parse_coordinate(&text);
    }

    #[test]
    fn canonical_texts_are_kept_exactly(text in "(30617:[0-9a-f]{64}:.{1,20}|refs/heads/.{1,20}|.{1,20})") {
        if let Ok(repo) = text.parse::<RepoId>() {
            prop_assert_eq!(repo.to_string(), &*text);
        }
        if let Ok(name) = text.parse::<RefName>() {
            prop_assert_eq!(name.as_str(), &*text);
        }
    }

    #[test]
    fn a_repository_is_served_at_its_path(owner in any::<u8>(), name in ".{1,40}", mount in "(/[a-z]{1,5}){0,2}") {
        let Ok(identifier) = name.parse::<Identifier>() else { return Ok(()) };
        let us: ServiceIdentity = format!("us.example:7334{mount}").parse().unwrap();
        let repo = RepoId::new(crate::events::key(owner), identifier);
        let url: CloneUrl = format!("http://us.example:7334{}", us.repo_path(&repo)).parse().unwrap();
        prop_assert!(us.serves(&url, &repo));
        let other = RepoId::new(repo.owner, format!("{}!", repo.identifier).parse().unwrap());
        prop_assert!(!us.serves(&url, &other));
    }

    #[test]
    fn event_parsers_are_total(kind in prop::sample::select(vec![30617u16, 30618, 1617, 1618, 1619, 1621, 1630, 1633, 1]), tags in tags()) {
        let event = event(kind, 1, 5, 1, &tags);
        let _ = References::of(&event);
        if let Ok(announcement) = Announcement::parse(&event) {
            prop_assert_eq!(announcement.repo.owner, event.pubkey);
        }
        if let Ok(proposal) = Proposal::parse(&event) {
            prop_assert_eq!(&proposal.repos, &repo_refs(&event));
        }
        if let Ok(state) = State::parse(&event) {
            prop_assert!(state.refs.keys().all(RefName::is_branch_or_tag));
        }
    }

    #[test]
    fn packets_and_command_lists_are_total(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_pkt(&bytes);
        let _ = CommandReader::default().feed(&bytes);
    }

    #[test]
    fn a_command_list_parses_the_same_in_any_pieces(
        lines in prop::collection::vec("([0-9a-f]{40} [0-9a-f]{40} refs/heads/[a-c]{1,3}|.{0,10})", 0..5),
        cuts in prop::collection::vec(1usize..40, 0..10),
    ) {
        let mut bytes = Vec::new();
        for line in &lines {
            grasp_core::push::encode_pkt(line.as_bytes(), &mut bytes);
        }
        bytes.extend_from_slice(b"0000PACK");
        let whole = CommandReader::default().feed(&bytes);

        let mut reader = CommandReader::default();
        let mut last = Ok(Progress::More);
        let mut rest = bytes.as_slice();
        let mut cuts = cuts.into_iter();
        while last == Ok(Progress::More) && !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
            last = reader.feed(piece);
            rest = after;
        }
        if let Ok(Progress::Complete { rest: taken, .. }) = &mut last {
            taken.extend_from_slice(rest);
        }
        prop_assert_eq!(last, whole);
    }
}
