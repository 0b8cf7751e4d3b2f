//! Verdicts on the refs of a push, with reasons.

use nostr::event::EventId;

use super::authorise::MAX_UPLOADS;
use super::command::{PushCommand, PushRequest};
use crate::repo::{Oid, RefName};

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
    /// Refuses every ref for the same reason.
    pub fn refused(request: &PushRequest, why: &RefRefusal) -> Self {
        let commands = request.commands().iter();
        let refs = commands.map(|c| (c.name.clone(), RefVerdict::Refused(why.clone()))).collect();
        Self { refs, realises: None, authorised: None }
    }

    /// Returns whether no ref was refused.
    pub fn is_accepted(&self) -> bool {
        !self.refs.iter().any(|(_, verdict)| matches!(verdict, RefVerdict::Refused(_)))
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

/// Commands that were judged and accepted. Made by [`authorise`](super::authorise) and
/// [`authorise_contribution`](super::authorise_contribution) only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorisedPush {
    execute: Vec<PushCommand>,
    stage: Vec<PushCommand>,
}

impl AuthorisedPush {
    /// Selects the accepted commands; `None` if there are none.
    pub(super) fn new(
        commands: &[PushCommand],
        verdicts: &[(RefName, RefVerdict)],
    ) -> Option<Self> {
        let commands_with = |wanted: &RefVerdict| -> Vec<_> {
            let pairs = commands.iter().zip(verdicts);
            pairs.filter(|(_, (_, verdict))| verdict == wanted).map(|(c, _)| c.clone()).collect()
        };
        let (execute, stage) =
            (commands_with(&RefVerdict::Execute), commands_with(&RefVerdict::Stage));
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
    #[error("other refs differ from the signed state")]
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
    #[error("one push may bring {MAX_UPLOADS} uploads for events that are not here yet")]
    TooManyUploads,
    /// Another ref of an atomic push was refused.
    #[error("atomic push failed")]
    Atomic,
}
