//! The judgement on a push: would-be equals declared, or it does not happen.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;
use nostr::key::PublicKey;

use super::command::{PushCommand, PushRequest};
use super::verdict::{AuthorisedPush, PushVerdict, RefRefusal, RefVerdict};
use crate::nip34::{Declared, State};
use crate::repo::{Namespace, Oid, RefName};

/// Uploads for events that nobody has sent yet that one push may bring. Each is taken apart and kept by itself, for
/// whoever asks, so that many of them would be much work for little.
pub const MAX_UPLOADS: usize = 32;

/// What must be known of a repository before a push to it can be judged.
#[derive(Clone, Debug)]
pub struct PushView<'a> {
    /// All refs of the view that is pushed to, read under its lock.
    pub refs: &'a BTreeMap<RefName, Oid>,
    /// The confirmed maintainers of the selected repository.
    pub maintainers: &'a BTreeSet<PublicKey>,
    /// The states with its identifier, whoever signed them.
    pub candidates: &'a [Candidate],
    /// What is known of each event that a `refs/nostr/` command names.
    pub proposals: &'a BTreeMap<EventId, KnownProposal>,
}

/// A signed state that a push might realise.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The state.
    pub state: State,
    /// Whether it is served.
    pub standing: Standing,
}

/// Whether an event is served or waits for its git data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Stored and served.
    Stored,
    /// Acknowledged, and waiting in purgatory.
    Held,
}

/// What is known of the event behind a `refs/nostr/` ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownProposal {
    /// Stored or held, naming this commit.
    Tip(Oid),
    /// Nobody has sent it yet.
    Unknown,
    /// Looking it up failed.
    Unavailable,
}

/// Judges a push against the signed states and pull requests.
///
/// Branches and tags are accepted together, exactly when the refs that would result are the refs that one
/// candidate declares. Each `refs/nostr/` command is judged for itself.
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
/// use grasp_core::push::{CommandReader, Progress, PushView, RefRefusal, RefVerdict, authorise};
///
/// let line = format!("{} {} refs/heads/main", "0".repeat(40), "a".repeat(40));
/// let bytes = format!("{:04x}{line}0000", line.len() + 4);
/// let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(bytes.as_bytes()) else { panic!() };
///
/// let alice = nostr::key::PublicKey::from_byte_array([1; 32]);
/// let verdict = authorise(&request, &PushView {
///     refs: &BTreeMap::new(),
///     maintainers: &BTreeSet::from([alice]),
///     candidates: &[],
///     proposals: &BTreeMap::new(),
/// });
/// assert_eq!(verdict.refs[0].1, RefVerdict::Refused(RefRefusal::NoState));
/// assert!(verdict.authorised.is_none());
/// ```
pub fn authorise(request: &PushRequest, view: &PushView<'_>) -> PushVerdict {
    let commands = request.commands();
    let ruled: Vec<_> = commands.iter().filter(|c| c.name.is_branch_or_tag()).collect();
    let judgement = judge_ruled(&ruled, view);
    let mut refs: Vec<_> = commands
        .iter()
        .map(|command| (command.name.clone(), judge(command, view, &judgement)))
        .collect();
    refuse_as_a_whole(request, &mut refs);
    let authorised = AuthorisedPush::new(commands, &refs);
    let mut moved = authorised.iter().flat_map(AuthorisedPush::execute);
    let moves_ruled = moved.any(|command| command.name.is_branch_or_tag());
    let realises = match judgement {
        Judgement::Realises(id) if moves_ruled => Some(id),
        _ => None,
    };
    PushVerdict { refs, realises, authorised }
}

/// What the branches and tags of a push amount to.
enum Judgement {
    /// Exactly what this state declares.
    Realises(EventId),
    /// Not what the closest state declares.
    Differs { closest: State },
    /// What some state declares, but a ref has moved since the client looked.
    Raced,
    /// No state to compare with.
    Nothing(RefRefusal),
}

fn judge_ruled(ruled: &[&PushCommand], view: &PushView<'_>) -> Judgement {
    if view.maintainers.is_empty() {
        return Judgement::Nothing(RefRefusal::NoMaintainers);
    }
    let candidates = eligible(view);
    let would_be = would_be(ruled, view.refs);
    let matching = candidates.iter().filter(|state| state.is_realised_by(&would_be));
    if let Some(state) = matching.max_by_key(|state| state.version) {
        let raced = ruled.iter().any(|command| has_moved(command, view));
        return if raced { Judgement::Raced } else { Judgement::Realises(state.version.id) };
    }
    // People want to hear how their push differs from what they have just signed.
    match candidates.into_iter().max_by_key(|state| state.version) {
        Some(state) => Judgement::Differs { closest: state.clone() },
        None => Judgement::Nothing(RefRefusal::NoState),
    }
}

/// The stored winner of the confirmed maintainers, and whatever they hold that would win over it.
///
/// A held state that loses to the one served could be realised only by taking the served one back.
fn eligible<'a>(view: &PushView<'a>) -> Vec<&'a State> {
    let by_maintainers = || {
        let all = view.candidates.iter();
        all.filter(|candidate| view.maintainers.contains(&candidate.state.repo.owner))
    };
    let winner = by_maintainers()
        .filter(|candidate| candidate.standing == Standing::Stored)
        .max_by_key(|candidate| candidate.state.version)
        .map(|candidate| &candidate.state);
    let held = by_maintainers()
        .filter(|candidate| candidate.standing == Standing::Held)
        .map(|candidate| &candidate.state)
        .filter(|state| winner.is_none_or(|winner| state.version > winner.version));
    held.chain(winner).collect()
}

/// The branches and tags that would result.
fn would_be(commands: &[&PushCommand], refs: &BTreeMap<RefName, Oid>) -> BTreeMap<RefName, Oid> {
    let mut result: BTreeMap<_, _> = refs
        .iter()
        .filter(|(name, _)| name.is_branch_or_tag())
        .map(|(n, o)| (n.clone(), *o))
        .collect();
    for command in commands {
        match command.new {
            Some(oid) => result.insert(command.name.clone(), oid),
            None => result.remove(&command.name),
        };
    }
    result
}

fn judge(command: &PushCommand, view: &PushView<'_>, judgement: &Judgement) -> RefVerdict {
    match command.name.namespace() {
        Namespace::Nostr(event) => judge_proposal(command, view, event),
        Namespace::NostrIllegal => RefVerdict::Refused(RefRefusal::NotAnEventId),
        Namespace::Other => RefVerdict::Refused(RefRefusal::Namespace),
        Namespace::Branch(_) | Namespace::Tag(_) if is_satisfied(command, view) => {
            RefVerdict::Satisfied
        }
        Namespace::Branch(_) | Namespace::Tag(_) if has_moved(command, view) => {
            RefVerdict::Refused(RefRefusal::Moved)
        }
        Namespace::Branch(_) | Namespace::Tag(_) => judge_branch_or_tag(command, judgement),
    }
}

/// Whether a ref that is to be moved is no longer where the client saw it.
fn has_moved(command: &PushCommand, view: &PushView<'_>) -> bool {
    !is_satisfied(command, view) && command.old != view.refs.get(&command.name).copied()
}

/// Whether the ref is where the client wants it, as happens when the state arrived by another way meanwhile.
fn is_satisfied(command: &PushCommand, view: &PushView<'_>) -> bool {
    command.new == view.refs.get(&command.name).copied()
}

fn judge_branch_or_tag(command: &PushCommand, judgement: &Judgement) -> RefVerdict {
    let closest = match judgement {
        Judgement::Realises(_) => return RefVerdict::Execute,
        // A state is realised whole or not at all.
        Judgement::Raced => return RefVerdict::Refused(RefRefusal::OthersMoved),
        Judgement::Nothing(why) => return RefVerdict::Refused(hint(command, why.clone())),
        Judgement::Differs { closest } => closest,
    };
    let why = match (command.new, closest.refs.get(&command.name)) {
        (Some(_), None) => RefRefusal::NotDeclared,
        (None, Some(_)) => RefRefusal::StillDeclared,
        (Some(would_be), Some(declared)) if *declared != Declared::Oid(would_be) => {
            RefRefusal::Elsewhere { would_be, declared: *declared }
        }
        _ => RefRefusal::OthersDiffer,
    };
    RefVerdict::Refused(hint(command, why))
}

/// Tells people who push a pull request as a branch where it belongs.
fn hint(command: &PushCommand, why: RefRefusal) -> RefRefusal {
    let is_request =
        matches!(command.name.namespace(), Namespace::Branch(name) if name.starts_with("pr/"));
    match why {
        RefRefusal::NotDeclared | RefRefusal::NoState if is_request => {
            RefRefusal::PullRequestBranch
        }
        other => other,
    }
}

fn judge_proposal(command: &PushCommand, view: &PushView<'_>, event: EventId) -> RefVerdict {
    let Some(new) = command.new else {
        return RefVerdict::Refused(RefRefusal::PullRequestDelete);
    };
    match view.proposals.get(&event) {
        Some(KnownProposal::Tip(tip)) if *tip != new => {
            RefVerdict::Refused(RefRefusal::WrongTip { wanted: *tip })
        }
        Some(KnownProposal::Tip(_)) if is_satisfied(command, view) => RefVerdict::Satisfied,
        Some(KnownProposal::Tip(_)) if has_moved(command, view) => {
            RefVerdict::Refused(RefRefusal::Moved)
        }
        Some(KnownProposal::Tip(_)) => RefVerdict::Execute,
        Some(KnownProposal::Unknown) => RefVerdict::Stage,
        Some(KnownProposal::Unavailable) | None => RefVerdict::Refused(RefRefusal::Unknowable),
    }
}

/// Refuses what one command alone could not be refused for: too many uploads, and everything if not all of an atomic
/// push may happen.
pub(super) fn refuse_as_a_whole(request: &PushRequest, refs: &mut [(RefName, RefVerdict)]) {
    let uploads = refs.iter_mut().filter(|(_, verdict)| *verdict == RefVerdict::Stage);
    for (_, verdict) in uploads.skip(MAX_UPLOADS) {
        *verdict = RefVerdict::Refused(RefRefusal::TooManyUploads);
    }
    if request.capabilities().atomic {
        refuse_all_if_any(refs);
    }
}

fn refuse_all_if_any(refs: &mut [(RefName, RefVerdict)]) {
    if !refs.iter().any(|(_, verdict)| matches!(verdict, RefVerdict::Refused(_))) {
        return;
    }
    for (_, verdict) in refs {
        if matches!(verdict, RefVerdict::Execute | RefVerdict::Stage) {
            *verdict = RefVerdict::Refused(RefRefusal::Atomic);
        }
    }
}

#[cfg(test)]
mod tests;
