//! The judgement on a push to a contributor's own place: pull requests that they sign, and nothing else (GRASP-06).

use std::collections::BTreeMap;

use nostr::event::EventId;

use super::authorise::{Standing, refuse_as_a_whole};
use super::command::{PushCommand, PushRequest};
use super::verdict::{AuthorisedPush, PushVerdict, RefRefusal, RefVerdict};
use crate::repo::{Namespace, Oid, RefName};

/// What is known of the event behind a `refs/nostr/` ref, as seen from one contributor's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contribution {
    /// By this contributor and for this place, naming this commit.
    Ours(Standing, Oid),
    /// By somebody else, or for another place.
    Foreign,
    /// Nobody has sent it yet.
    Unknown,
    /// Looking it up failed.
    Unavailable,
}

/// Judges a push to a contributor's place. Each command stands for itself.
///
/// What waits for its commit is staged like what nobody knows yet: whoever holds the event takes it from there, and
/// serves both together.
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
    refuse_as_a_whole(request, &mut verdicts);
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
    let at = refs.get(&command.name).copied();
    match known.get(&id) {
        Some(Contribution::Ours(_, tip)) if *tip != new => {
            RefVerdict::Refused(RefRefusal::WrongTip { wanted: *tip })
        }
        Some(Contribution::Ours(..)) if at == Some(new) => RefVerdict::Satisfied,
        Some(Contribution::Ours(Standing::Held, _) | Contribution::Unknown) => RefVerdict::Stage,
        Some(Contribution::Ours(..)) if at != command.old => RefVerdict::Refused(RefRefusal::Moved),
        Some(Contribution::Ours(Standing::Stored, _)) => RefVerdict::Execute,
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

    /// The verdict on one command.
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
    fn what_its_contributor_signed_comes_in_and_nothing_else() {
        let name = format!("refs/nostr/{}", id());
        let ours = |standing| Contribution::Ours(standing, oid("a"));
        let refused = RefVerdict::Refused;
        let cases = [
            ("a", ours(Standing::Held), RefVerdict::Stage),
            ("a", ours(Standing::Stored), RefVerdict::Execute),
            ("c", ours(Standing::Held), refused(RefRefusal::WrongTip { wanted: oid("a") })),
            ("c", ours(Standing::Stored), refused(RefRefusal::WrongTip { wanted: oid("a") })),
            ("a", Contribution::Unknown, RefVerdict::Stage),
            ("a", Contribution::Foreign, refused(RefRefusal::ForeignProposal)),
            ("a", Contribution::Unavailable, refused(RefRefusal::Unknowable)),
            ("0", ours(Standing::Stored), refused(RefRefusal::PullRequestDelete)),
        ];
        for (new, known, expected) in cases {
            let old = if new == "0" { "a" } else { "0" };
            assert_eq!(judged(old, new, &name, known), expected, "{new} {known:?}");
        }
    }

    #[test]
    fn no_other_ref_has_a_place_here_and_the_words_do_not_sound_like_a_missing_page() {
        for name in ["refs/heads/main", "refs/tags/v1", "refs/other/x", "refs/nostr/not-an-id"] {
            let RefVerdict::Refused(why) = judged("0", "a", name, Contribution::Unknown) else {
                panic!("{name}");
            };
            let said = why.to_string();
            assert!(!said.contains("not found") && !said.contains("404"), "{said}");
        }
    }
}
