//! Authorisation of pushes: from the bytes of the command list to a verdict per ref.
//!
//! ```text
//! bytes ─▶ CommandReader ─▶ PushRequest ─▶ authorise(request, view) ─▶ PushVerdict ─▶ AuthorisedPush
//!          strict, bounded           resulting refs = signed refs        per ref      commands to execute
//! ```
//!
//! Git executes the parsed commands that were judged, never the bytes that they came in. A list that is empty,
//! malformed or outside of the allowed namespaces never becomes an [`AuthorisedPush`]: only [`authorise`] and
//! [`authorise_contribution`] make one.
//!
//! ```
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::sync::Arc;
//! use grasp_core::admission::Presence;
//! use grasp_core::nip34::State;
//! use grasp_core::push::{
//!     AuthorisedPush, Candidate, Capabilities, CommandReader, KnownProposal, MAX_COMMANDS, MAX_LIST_BYTES,
//!     MAX_UPLOADS, Pkt, Progress, PushCommand, PushRequest, PushVerdict, PushView, RefReport, RefVerdict, authorise,
//!     encode_error, encode_pkt, encode_progress, encode_report, read_pkt,
//! };
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! // Alice signs what she is about to push.
//! let alice = Keys::generate();
//! let commit = "a".repeat(40);
//! let state = EventBuilder::new(Kind::RepoState, "")
//!     .tags([Tag::identifier("x"), Tag::parse(["refs/heads/main", &commit])?])
//!     .finalize(&alice)?;
//! let state = Candidate { state: Arc::new(State::parse(&state)?), presence: Presence::Held };
//!
//! // Git sends the list of commands, the first with the capabilities of the client.
//! let zero = "0".repeat(40);
//! let mut bytes = Vec::new();
//! encode_pkt(format!("{zero} {commit} refs/heads/main\0report-status").as_bytes(), &mut bytes);
//! encode_pkt(format!("{zero} {commit} refs/nostr/{}", "b".repeat(64)).as_bytes(), &mut bytes);
//! bytes.extend(b"0000");
//! assert!(matches!(read_pkt(&bytes)?, Some((Pkt::Data(_), _))));
//! let mut reader = CommandReader::default();
//! let Progress::Complete { request, .. } = reader.feed(&bytes)? else { panic!("it is complete") };
//! let request: PushRequest = request;
//! assert!(request.commands().len() <= MAX_COMMANDS && reader.list_bytes() <= MAX_LIST_BYTES);
//!
//! // Her branch realises the state; of the other ref nothing is known yet, so its objects wait for the event.
//! let event = request.commands()[1].name.event().expect("it names an event");
//! let verdict: PushVerdict = authorise(&request, &PushView {
//!     refs: &BTreeMap::new(),
//!     maintainers: &BTreeSet::from([alice.public_key()]),
//!     candidates: &[state],
//!     proposals: &BTreeMap::from([(event, KnownProposal::Unknown)]),
//! });
//! assert!(verdict.is_accepted());
//! let authorised: AuthorisedPush = verdict.authorised.expect("there is something to do");
//! let PushCommand { old, name, .. } = &authorised.execute()[0];
//! assert_eq!((*old, name.as_str()), (None, "refs/heads/main"));
//! assert_eq!(verdict.refs[1].1, RefVerdict::Stage);
//! assert!(authorised.stage().len() <= MAX_UPLOADS);
//!
//! // The client is told the result of each ref, or why there is none.
//! let capabilities: Capabilities = request.capabilities();
//! let report = RefReport { name: name.clone(), refusal: None };
//! let answer = encode_report(&[report], capabilities);
//! assert_eq!(answer, b"000eunpack ok\n0017ok refs/heads/main\n0000");
//! assert!(encode_progress("checking", capabilities).is_empty(), "this client reads no progress");
//! assert_eq!(encode_error("no", capabilities), b"000bERR no\n0000");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod command;
mod packets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use command::{
    Capabilities, CommandReader, MAX_COMMANDS, MAX_LIST_BYTES, Progress, PushCommand, PushRequest,
};
use nostr::event::EventId;
use nostr::key::PublicKey;
pub use packets::{
    Pkt, RefReport, encode_error, encode_pkt, encode_progress, encode_report, read_pkt,
};

use crate::admission::Presence;
use crate::nip34::State;
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
    pub state: Arc<State>,
    pub presence: Presence,
}

/// The event of a `refs/nostr/` ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownProposal {
    /// A pull request for this repository or endpoint, which names this commit.
    Tip(Presence, Oid),
    /// An event that is not a pull request for this repository, or not by this contributor.
    Foreign,
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
    let commands = request.commands().iter();
    let branches_and_tags: Vec<_> = commands.filter(|c| c.name.is_branch_or_tag()).collect();
    let judgement = judge_branches_and_tags(&branches_and_tags, view);
    let verdict = PushVerdict::new(request, |command| judge(command, view, &judgement));
    let mut moved = verdict.authorised.iter().flat_map(AuthorisedPush::execute);
    let moves_branch_or_tag = moved.any(|command| command.name.is_branch_or_tag());
    let realises = match judgement {
        RefsJudgement::Realises(id) if moves_branch_or_tag => Some(id),
        _ => None,
    };
    PushVerdict {
        realises,
        ..verdict
    }
}

/// Judges a push to a contributor's endpoint below `/prs/` (GRASP-06). Each command is judged by itself.
///
/// The commit of a held event is staged like that of an unknown one; purgatory takes it from staging and releases
/// event and commit together.
///
/// ```
/// use std::collections::BTreeMap;
/// use grasp_core::push::{
///     CommandReader, KnownProposal, Progress, RefRefusal, RefVerdict, authorise_contribution,
/// };
///
/// let id = "b".repeat(64);
/// let lines = ["refs/heads/main".to_owned(), format!("refs/nostr/{id}")]
///     .map(|name| format!("{} {} {name}", "0".repeat(40), "a".repeat(40)))
///     .map(|line| format!("{:04x}{line}", line.len() + 4));
/// let bytes = lines.concat() + "0000";
/// let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(bytes.as_bytes()) else { panic!() };
///
/// let known = BTreeMap::from([(id.parse().unwrap(), KnownProposal::Unknown)]);
/// let verdict = authorise_contribution(&request, &BTreeMap::new(), &known);
/// assert_eq!(verdict.refs[0].1, RefVerdict::Refused(RefRefusal::ProposalsOnly));
/// assert_eq!(verdict.refs[1].1, RefVerdict::Stage);
/// ```
pub fn authorise_contribution(
    request: &PushRequest,
    refs: &BTreeMap<RefName, Oid>,
    proposals: &BTreeMap<EventId, KnownProposal>,
) -> PushVerdict {
    PushVerdict::new(request, |command| match command.name.namespace() {
        Namespace::Nostr(id) => judge_proposal(command, refs, proposals.get(&id), true),
        Namespace::NostrIllegal => RefVerdict::Refused(RefRefusal::NotAnEventId),
        _ => RefVerdict::Refused(RefRefusal::ProposalsOnly),
    })
}

/// The judgement on the branches and tags of a push together.
enum RefsJudgement<'a> {
    /// They become exactly those of this state.
    Realises(EventId),
    /// They differ from the newest state.
    Differs { newest: &'a State },
    /// They become those of a state, but a ref has changed since the client read it.
    ChangedMeanwhile,
    /// There is no state to compare with.
    NoCandidate(RefRefusal),
}

fn judge_branches_and_tags<'a>(
    branches_and_tags: &[&PushCommand],
    view: &PushView<'a>,
) -> RefsJudgement<'a> {
    if view.maintainers.is_empty() {
        return RefsJudgement::NoCandidate(RefRefusal::NoMaintainers);
    }
    let candidates = eligible_states(view);
    let resulting_refs = resulting_refs(branches_and_tags, view.refs);
    let matching = candidates
        .iter()
        .filter(|state| state.is_realised_by(&resulting_refs));
    let has_changed = || {
        branches_and_tags
            .iter()
            .any(|command| has_moved(command, view.refs))
    };
    // The newest state is the one that the person who pushes has probably just signed.
    let newest = || candidates.iter().max_by_key(|state| state.version);
    match (matching.max_by_key(|state| state.version), newest()) {
        (Some(_), _) if has_changed() => RefsJudgement::ChangedMeanwhile,
        (Some(state), _) => RefsJudgement::Realises(state.version.id),
        (None, Some(newest)) => RefsJudgement::Differs { newest },
        (None, None) => RefsJudgement::NoCandidate(RefRefusal::NoState),
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
        .map(|candidate| &*candidate.state);
    let held = by_maintainers()
        .filter(|candidate| candidate.presence == Presence::Held)
        .map(|candidate| &*candidate.state)
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

fn judge(command: &PushCommand, view: &PushView<'_>, judgement: &RefsJudgement<'_>) -> RefVerdict {
    match command.name.namespace() {
        Namespace::Nostr(id) => judge_proposal(command, view.refs, view.proposals.get(&id), false),
        Namespace::NostrIllegal => RefVerdict::Refused(RefRefusal::NotAnEventId),
        Namespace::Other => RefVerdict::Refused(RefRefusal::Namespace),
        _ if is_satisfied(command, view.refs) => RefVerdict::Satisfied,
        _ if has_moved(command, view.refs) => RefVerdict::Refused(RefRefusal::Moved),
        Namespace::Branch(_) | Namespace::Tag(_) => judge_branch_or_tag(command, judgement),
    }
}

/// Returns whether a ref has changed since the client read it.
fn has_moved(command: &PushCommand, refs: &BTreeMap<RefName, Oid>) -> bool {
    !is_satisfied(command, refs) && command.old != refs.get(&command.name).copied()
}

/// Returns whether the ref already has the wanted target, for example because the state came from another relay.
fn is_satisfied(command: &PushCommand, refs: &BTreeMap<RefName, Oid>) -> bool {
    command.new == refs.get(&command.name).copied()
}

fn judge_branch_or_tag(command: &PushCommand, judgement: &RefsJudgement<'_>) -> RefVerdict {
    let why = match judgement {
        RefsJudgement::Realises(_) => return RefVerdict::Execute,
        // A state is realised as a whole or not at all.
        RefsJudgement::ChangedMeanwhile => RefRefusal::OthersMoved,
        RefsJudgement::NoCandidate(why) => why.clone(),
        RefsJudgement::Differs { newest } => match (command.new, newest.refs.get(&command.name)) {
            (Some(_), None) => RefRefusal::NotDeclared,
            (None, Some(_)) => RefRefusal::StillDeclared,
            (Some(would_be), Some(None)) => RefRefusal::NoObject { would_be },
            (Some(would_be), Some(Some(declared))) if *declared != would_be => {
                RefRefusal::Elsewhere {
                    would_be,
                    declared: *declared,
                }
            }
            _ => RefRefusal::OthersDiffer,
        },
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

/// Judges a command for the tip of a pull request. At a contributor's endpoint the tip of a held event is staged.
fn judge_proposal(
    command: &PushCommand,
    refs: &BTreeMap<RefName, Oid>,
    known: Option<&KnownProposal>,
    stages_held: bool,
) -> RefVerdict {
    let Some(new) = command.new else {
        return RefVerdict::Refused(RefRefusal::PullRequestDelete);
    };
    match known {
        Some(KnownProposal::Tip(_, tip)) if *tip != new => {
            RefVerdict::Refused(RefRefusal::WrongTip { wanted: *tip })
        }
        Some(KnownProposal::Tip(..)) if is_satisfied(command, refs) => RefVerdict::Satisfied,
        Some(KnownProposal::Tip(Presence::Held, _)) if stages_held => RefVerdict::Stage,
        Some(KnownProposal::Tip(..)) if has_moved(command, refs) => {
            RefVerdict::Refused(RefRefusal::Moved)
        }
        Some(KnownProposal::Tip(..)) => RefVerdict::Execute,
        Some(KnownProposal::Foreign) => RefVerdict::Refused(RefRefusal::ForeignProposal),
        Some(KnownProposal::Unknown) => RefVerdict::Stage,
        Some(KnownProposal::Unavailable) | None => RefVerdict::Refused(RefRefusal::Unknowable),
    }
}

/// The verdict on a push: one per command, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct PushVerdict {
    /// Verdict on each ref.
    pub refs: Vec<(RefName, RefVerdict)>,
    /// The signed state that the branches and tags will realise.
    pub realises: Option<EventId>,
    /// The commands to execute; `None` if there are none.
    pub authorised: Option<AuthorisedPush>,
}

impl PushVerdict {
    /// Judges each command, then the push as a whole: it may not have too many uploads, and an atomic one is refused
    /// with any of its refs.
    fn new(request: &PushRequest, judge: impl Fn(&PushCommand) -> RefVerdict) -> Self {
        let commands = request.commands();
        let mut refs: Vec<_> = commands
            .iter()
            .map(|c| (c.name.clone(), judge(c)))
            .collect();
        let uploads = refs
            .iter_mut()
            .filter(|(_, verdict)| *verdict == RefVerdict::Stage);
        for (_, verdict) in uploads.skip(MAX_UPLOADS) {
            *verdict = RefVerdict::Refused(RefRefusal::TooManyUploads);
        }
        let is_refused = |(_, verdict): &(_, _)| matches!(verdict, RefVerdict::Refused(_));
        if request.capabilities().atomic && refs.iter().any(is_refused) {
            let accepted =
                |verdict: &RefVerdict| matches!(verdict, RefVerdict::Execute | RefVerdict::Stage);
            for (_, verdict) in refs.iter_mut().filter(|(_, verdict)| accepted(verdict)) {
                *verdict = RefVerdict::Refused(RefRefusal::Atomic);
            }
        }
        let authorised = AuthorisedPush::new(commands, &refs);
        Self {
            refs,
            realises: None,
            authorised,
        }
    }

    /// Refuses every ref for the same reason.
    pub fn refused(request: &PushRequest, why: &RefRefusal) -> Self {
        let commands = request.commands().iter();
        let refs = commands
            .map(|c| (c.name.clone(), RefVerdict::Refused(why.clone())))
            .collect();
        Self {
            refs,
            realises: None,
            authorised: None,
        }
    }

    /// Returns whether no ref was refused.
    pub fn is_accepted(&self) -> bool {
        !self
            .refs
            .iter()
            .any(|(_, verdict)| matches!(verdict, RefVerdict::Refused(_)))
    }
}

/// The verdict on one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefVerdict {
    /// The ref has the wanted target already: report success, execute nothing.
    Satisfied,
    /// Git may change the ref.
    Execute,
    /// No event about it was received yet: its objects go to staging and are not served.
    Stage,
    /// The ref stays unchanged.
    Refused(RefRefusal),
}

/// Commands that were judged and accepted. Made by [`authorise`] and
/// [`authorise_contribution`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorisedPush {
    execute: Vec<PushCommand>,
    stage: Vec<PushCommand>,
}

impl AuthorisedPush {
    /// Selects the accepted commands; `None` if there are none.
    fn new(commands: &[PushCommand], verdicts: &[(RefName, RefVerdict)]) -> Option<Self> {
        let commands_with = |wanted: &RefVerdict| -> Vec<_> {
            let pairs = commands.iter().zip(verdicts);
            pairs
                .filter(|(_, (_, verdict))| verdict == wanted)
                .map(|(c, _)| c.clone())
                .collect()
        };
        let execute = commands_with(&RefVerdict::Execute);
        let stage = commands_with(&RefVerdict::Stage);
        let has_commands = !execute.is_empty() || !stage.is_empty();
        has_commands.then_some(Self { execute, stage })
    }

    /// Returns the refs to change in the view, all or none: only together do they realise the signed state.
    pub fn execute(&self) -> &[PushCommand] {
        &self.execute
    }

    /// Returns the refs whose objects go to staging.
    pub fn stage(&self) -> &[PushCommand] {
        &self.stage
    }
}

/// The advice for a push that is ahead of the signed state.
const SIGN_FIRST: &str = "a maintainer must sign that first";

/// The reason for which a ref may not change. `git push` shows its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the texts say it")]
pub enum RefRefusal {
    /// The repository is a copy of one that does not list this service (GRASP-05).
    #[error("this is a read-only copy: push to a server that the repository lists")]
    Archived,
    /// The operator took the repository out of service.
    #[error("this repository is not available on this server")]
    Withheld,
    #[error("only branches, tags and refs/nostr/<event-id> can be pushed")]
    Namespace,
    #[error("refs/nostr/ must be followed by an event id of 64 lower-case hex digits")]
    NotAnEventId,
    /// A branch below `pr/`, which is not how pull requests are made here.
    #[error("push pull requests to refs/nostr/<event-id>")]
    PullRequestBranch,
    #[error("this repository has no confirmed maintainer")]
    NoMaintainers,
    #[error("no state event from a maintainer is waiting for this push")]
    NoState,
    /// The newest signed state has another target for this ref.
    #[error("would be at {would_be:.8} but the signed state says {declared:.8}; {SIGN_FIRST}")]
    Elsewhere { would_be: Oid, declared: Oid },
    /// The newest signed state has a value for this ref that is not an object id.
    #[error("would be at {would_be:.8} but the signed state names no object")]
    NoObject { would_be: Oid },
    #[error("is not in the signed state; {SIGN_FIRST}")]
    NotDeclared,
    #[error("is still in the signed state; {SIGN_FIRST}")]
    StillDeclared,
    /// This ref agrees with the state, but others do not.
    #[error("other refs differ from the signed state; push all of its changes together")]
    OthersDiffer,
    #[error("its event names commit {wanted:.8}")]
    WrongTip { wanted: Oid },
    #[error("its event is not a pull request for this URL, or not by this contributor")]
    ForeignProposal,
    /// A contributor's endpoint accepts pull requests only.
    #[error("only refs/nostr/<event-id> can be pushed here")]
    ProposalsOnly,
    #[error("pull requests are removed by deleting their event")]
    PullRequestDelete,
    #[error("could not look up its event, try again")]
    Unknowable,
    /// The ref has changed since the client read it.
    #[error("has moved meanwhile, fetch first")]
    Moved,
    /// Another ref of the same state has changed since the client read it.
    #[error("other refs have moved meanwhile, fetch first")]
    OthersMoved,
    #[error(
        "one push may have at most {MAX_UPLOADS} uploads for events that this server does not have"
    )]
    TooManyUploads,
    /// Another ref of an atomic push was refused.
    #[error("atomic push failed")]
    Atomic,
}

#[cfg(test)]
mod tests;
