//! Authorisation of pushes to a contributor's endpoint below `/prs/` (GRASP-06).

use std::collections::BTreeMap;

use nostr::event::EventId;

use super::authorise::refuse_by_whole_push;
use super::command::{PushCommand, PushRequest};
use super::verdict::{AuthorisedPush, PushVerdict, RefRefusal, RefVerdict};
use crate::admission::Presence;
use crate::repo::{Namespace, Oid, RefName};

/// The event of a `refs/nostr/` ref, as seen from one contributor's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contribution {
    /// An event by this contributor for this endpoint, naming this commit.
    Ours(Presence, Oid),
    /// An event by another author, or for another endpoint.
    Foreign,
    /// An event that has not been received yet.
    Unknown,
    /// The lookup failed.
    Unavailable,
}

/// Judges a push to a contributor's endpoint. Each command is judged by itself.
///
/// The commit of a held event is staged like that of an unknown one; purgatory takes it from staging and releases
/// event and commit together.
///
/// ```
/// use std::collections::BTreeMap;
/// use grasp_core::push::{
///     CommandReader, Contribution, Progress, RefRefusal, RefVerdict, authorise_contribution,
/// };
///
/// let id = "b".repeat(64);
/// let lines = ["refs/heads/main".to_owned(), format!("refs/nostr/{id}")]
///     .map(|name| format!("{} {} {name}", "0".repeat(40), "a".repeat(40)))
///     .map(|line| format!("{:04x}{line}", line.len() + 4));
/// let bytes = lines.concat() + "0000";
/// let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(bytes.as_bytes()) else { panic!() };
///
/// let known = BTreeMap::from([(id.parse().unwrap(), Contribution::Unknown)]);
/// let verdict = authorise_contribution(&request, &BTreeMap::new(), &known);
/// assert_eq!(verdict.refs[0].1, RefVerdict::Refused(RefRefusal::ProposalsOnly));
/// assert_eq!(verdict.refs[1].1, RefVerdict::Stage);
/// ```
pub fn authorise_contribution(
    request: &PushRequest,
    refs: &BTreeMap<RefName, Oid>,
    known: &BTreeMap<EventId, Contribution>,
) -> PushVerdict {
    let commands = request.commands();
    let mut verdicts: Vec<_> = commands
        .iter()
        .map(|command| (command.name.clone(), judge(command, refs, known)))
        .collect();
    refuse_by_whole_push(request, &mut verdicts);
    let authorised = AuthorisedPush::new(commands, &verdicts);
    PushVerdict { refs: verdicts, realises: None, authorised }
}

fn judge(
    command: &PushCommand,
    refs: &BTreeMap<RefName, Oid>,
    known: &BTreeMap<EventId, Contribution>,
) -> RefVerdict {
    let id = match command.name.namespace() {
        Namespace::Nostr(id) => id,
        Namespace::NostrIllegal => return RefVerdict::Refused(RefRefusal::NotAnEventId),
        _ => return RefVerdict::Refused(RefRefusal::ProposalsOnly),
    };
    let Some(new) = command.new else {
        return RefVerdict::Refused(RefRefusal::PullRequestDelete);
    };
    let current = refs.get(&command.name).copied();
    match known.get(&id) {
        Some(Contribution::Ours(_, tip)) if *tip != new => {
            RefVerdict::Refused(RefRefusal::WrongTip { wanted: *tip })
        }
        Some(Contribution::Ours(..)) if current == Some(new) => RefVerdict::Satisfied,
        Some(Contribution::Ours(Presence::Held, _) | Contribution::Unknown) => RefVerdict::Stage,
        Some(Contribution::Ours(..)) if current != command.old => {
            RefVerdict::Refused(RefRefusal::Moved)
        }
        Some(Contribution::Ours(Presence::Stored, _)) => RefVerdict::Execute,
        Some(Contribution::Foreign) => RefVerdict::Refused(RefRefusal::ForeignProposal),
        Some(Contribution::Unavailable) | None => RefVerdict::Refused(RefRefusal::Unknowable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{CommandReader, Progress};

    fn oid(digit: &str) -> Oid {
        digit.repeat(40).parse().unwrap()
    }

    fn id() -> EventId {
        "b".repeat(64).parse().unwrap()
    }

    /// Returns the verdict on one command.
    fn judged(old: &str, new: &str, name: &str, known: Contribution) -> RefVerdict {
        let line = format!("{} {} {name}", old.repeat(40), new.repeat(40));
        let bytes = format!("{:04x}{line}0000", line.len() + 4);
        let Ok(Progress::Complete { request, .. }) =
            CommandReader::default().feed(bytes.as_bytes())
        else {
            panic!("{line}");
        };
        let known = BTreeMap::from([(id(), known)]);
        let verdict = authorise_contribution(&request, &BTreeMap::new(), &known);
        verdict.refs[0].1.clone()
    }

    #[test]
    fn accepts_only_commits_that_the_contributor_signed() {
        let name = format!("refs/nostr/{}", id());
        let ours = |presence| Contribution::Ours(presence, oid("a"));
        let refused = RefVerdict::Refused;
        let cases = [
            ("a", ours(Presence::Held), RefVerdict::Stage),
            ("a", ours(Presence::Stored), RefVerdict::Execute),
            ("c", ours(Presence::Held), refused(RefRefusal::WrongTip { wanted: oid("a") })),
            ("c", ours(Presence::Stored), refused(RefRefusal::WrongTip { wanted: oid("a") })),
            ("a", Contribution::Unknown, RefVerdict::Stage),
            ("a", Contribution::Foreign, refused(RefRefusal::ForeignProposal)),
            ("a", Contribution::Unavailable, refused(RefRefusal::Unknowable)),
            ("0", ours(Presence::Stored), refused(RefRefusal::PullRequestDelete)),
        ];
        for (new, known, expected) in cases {
            let old = if new == "0" { "a" } else { "0" };
            assert_eq!(judged(old, new, &name, known), expected, "{new} {known:?}");
        }
    }

    #[test]
    fn refuses_other_refs_without_sounding_like_a_missing_repository() {
        for name in ["refs/heads/main", "refs/tags/v1", "refs/other/x", "refs/nostr/not-an-id"] {
            let RefVerdict::Refused(why) = judged("0", "a", name, Contribution::Unknown) else {
                panic!("{name}");
            };
            let said = why.to_string();
            assert!(!said.contains("not found") && !said.contains("404"), "{said}");
        }
    }
}
