//! Authorisation of pushes to a hosted repository: the resulting refs must equal a signed state.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;
use nostr::key::PublicKey;

use super::command::{PushCommand, PushRequest};
use super::verdict::{AuthorisedPush, PushVerdict, RefRefusal, RefVerdict};
use crate::admission::Presence;
use crate::nip34::{DeclaredTarget, State};
use crate::repo::{Namespace, Oid, RefName};

/// Maximum number of refs in one push whose events have not been received yet. Each is unpacked and stored separately
/// for an unknown author, so the number is small.
pub const MAX_UPLOADS: usize = 32;

/// The facts about a repository that a push to it is judged by.
#[derive(Clone, Debug)]
pub struct PushView<'a> {
    /// All refs of the view, read under its lock.
    pub refs: &'a BTreeMap<RefName, Oid>,
    /// The confirmed maintainers of the repository.
    pub maintainers: &'a BTreeSet<PublicKey>,
    /// The states with its identifier, by any author.
    pub candidates: &'a [Candidate],
    /// The event of each `refs/nostr/` command.
    pub proposals: &'a BTreeMap<EventId, KnownProposal>,
}

/// A signed state that a push might realise.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Candidate {
    pub state: State,
    pub presence: Presence,
}

/// The event of a `refs/nostr/` ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownProposal {
    /// A stored or held event that names this commit.
    Tip(Oid),
    /// An event that has not been received yet.
    Unknown,
    /// The lookup failed.
    Unavailable,
}

/// Judges a push against the signed states and pull requests.
///
/// Branches and tags are accepted together, if and only if the resulting refs are exactly those of one candidate.
/// Each `refs/nostr/` command is judged by itself.
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
    let branches_and_tags: Vec<_> = commands.iter().filter(|c| c.name.is_branch_or_tag()).collect();
    let judgement = judge_branches_and_tags(&branches_and_tags, view);
    let mut refs: Vec<_> = commands
        .iter()
        .map(|command| (command.name.clone(), judge(command, view, &judgement)))
        .collect();
    refuse_by_whole_push(request, &mut refs);
    let authorised = AuthorisedPush::new(commands, &refs);
    let mut moved = authorised.iter().flat_map(AuthorisedPush::execute);
    let moves_branch_or_tag = moved.any(|command| command.name.is_branch_or_tag());
    let realises = match judgement {
        Judgement::Realises(id) if moves_branch_or_tag => Some(id),
        _ => None,
    };
    PushVerdict { refs, realises, authorised }
}

/// The judgement on the branches and tags of a push together.
enum Judgement {
    /// They become exactly those of this state.
    Realises(EventId),
    /// They differ from the newest state.
    Differs { newest: State },
    /// They become those of a state, but a ref has changed since the client read it.
    ChangedMeanwhile,
    /// There is no state to compare with.
    NoCandidate(RefRefusal),
}

fn judge_branches_and_tags(branches_and_tags: &[&PushCommand], view: &PushView<'_>) -> Judgement {
    if view.maintainers.is_empty() {
        return Judgement::NoCandidate(RefRefusal::NoMaintainers);
    }
    let candidates = eligible_states(view);
    let resulting_refs = resulting_refs(branches_and_tags, view.refs);
    let matching = candidates.iter().filter(|state| state.is_realised_by(&resulting_refs));
    if let Some(state) = matching.max_by_key(|state| state.version) {
        let has_changed = branches_and_tags.iter().any(|command| has_moved(command, view));
        return if has_changed {
            Judgement::ChangedMeanwhile
        } else {
            Judgement::Realises(state.version.id)
        };
    }
    // The newest state is the one that the person who pushes has probably just signed.
    match candidates.into_iter().max_by_key(|state| state.version) {
        Some(state) => Judgement::Differs { newest: state.clone() },
        None => Judgement::NoCandidate(RefRefusal::NoState),
    }
}

/// Returns the newest stored state of the confirmed maintainers, and their held states that are newer.
///
/// A held state that is older could be realised only by undoing the served one.
fn eligible_states<'a>(view: &PushView<'a>) -> Vec<&'a State> {
    let by_maintainers = || {
        let all = view.candidates.iter();
        all.filter(|candidate| view.maintainers.contains(&candidate.state.repo.owner))
    };
    let winner = by_maintainers()
        .filter(|candidate| candidate.presence == Presence::Stored)
        .max_by_key(|candidate| candidate.state.version)
        .map(|candidate| &candidate.state);
    let held = by_maintainers()
        .filter(|candidate| candidate.presence == Presence::Held)
        .map(|candidate| &candidate.state)
        .filter(|state| winner.is_none_or(|winner| state.version > winner.version));
    held.chain(winner).collect()
}

/// Returns the branches and tags after the push.
fn resulting_refs(
    commands: &[&PushCommand],
    refs: &BTreeMap<RefName, Oid>,
) -> BTreeMap<RefName, Oid> {
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

/// Returns whether a ref has changed since the client read it.
fn has_moved(command: &PushCommand, view: &PushView<'_>) -> bool {
    !is_satisfied(command, view) && command.old != view.refs.get(&command.name).copied()
}

/// Returns whether the ref already has the wanted target, for example because the state came from another relay.
fn is_satisfied(command: &PushCommand, view: &PushView<'_>) -> bool {
    command.new == view.refs.get(&command.name).copied()
}

fn judge_branch_or_tag(command: &PushCommand, judgement: &Judgement) -> RefVerdict {
    let newest = match judgement {
        Judgement::Realises(_) => return RefVerdict::Execute,
        // A state is realised as a whole or not at all.
        Judgement::ChangedMeanwhile => return RefVerdict::Refused(RefRefusal::OthersMoved),
        Judgement::NoCandidate(why) => {
            return RefVerdict::Refused(pull_request_hint(command, why.clone()));
        }
        Judgement::Differs { newest } => newest,
    };
    let why = match (command.new, newest.refs.get(&command.name)) {
        (Some(_), None) => RefRefusal::NotDeclared,
        (None, Some(_)) => RefRefusal::StillDeclared,
        (Some(would_be), Some(declared)) if *declared != DeclaredTarget::Oid(would_be) => {
            RefRefusal::Elsewhere { would_be, declared: *declared }
        }
        _ => RefRefusal::OthersDiffer,
    };
    RefVerdict::Refused(pull_request_hint(command, why))
}

/// Replaces the reason for a pull request that was pushed as a branch by one that says where it belongs.
fn pull_request_hint(command: &PushCommand, why: RefRefusal) -> RefRefusal {
    let is_pull_request =
        matches!(command.name.namespace(), Namespace::Branch(name) if name.starts_with("pr/"));
    match why {
        RefRefusal::NotDeclared | RefRefusal::NoState if is_pull_request => {
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

/// Refuses refs for reasons that concern the whole push: too many uploads, or a refused ref of an atomic push.
pub(super) fn refuse_by_whole_push(request: &PushRequest, refs: &mut [(RefName, RefVerdict)]) {
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
