//! Verdicts on the refs of a push, with reasons.

use std::fmt;

use nostr::event::EventId;

use super::authorise::MAX_UPLOADS;
use super::command::{PushCommand, PushRequest};
use crate::nip34::DeclaredTarget;
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
        self.refs.iter().all(|(_, verdict)| !verdict.is_refused())
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

impl RefVerdict {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
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

/// The reason for which a ref may not change. `git push` shows its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefRefusal {
    /// The repository is a copy of one that does not list this service (GRASP-05).
    Archived,
    /// Neither a branch, nor a tag, nor a pull request.
    Namespace,
    /// `refs/nostr/` followed by anything but an event id.
    NotAnEventId,
    /// A branch below `pr/`, which is not how pull requests are made here.
    PullRequestBranch,
    /// The repository has no confirmed maintainer.
    NoMaintainers,
    /// No state of a maintainer is waiting to be realised.
    NoState,
    /// The newest signed state has another target for this ref.
    Elsewhere {
        /// The target that the push would set.
        would_be: Oid,
        /// The target in the state.
        declared: DeclaredTarget,
    },
    /// The newest signed state does not have this ref.
    NotDeclared,
    /// The newest signed state still has this ref.
    StillDeclared,
    /// This ref agrees with the state, but others do not.
    OthersDiffer,
    /// The event with that id names another commit.
    WrongTip {
        /// The commit in the event.
        wanted: Oid,
    },
    /// The event with that id is by another author, or for another endpoint.
    ForeignProposal,
    /// A contributor's endpoint accepts pull requests only.
    ProposalsOnly,
    /// The tip of a pull request is removed by deleting its event, not by pushing.
    PullRequestDelete,
    /// The lookup of the event failed, so the push is refused.
    Unknowable,
    /// The ref has changed since the client read it.
    Moved,
    /// Another ref of the same state has changed since the client read it.
    OthersMoved,
    /// More than [`MAX_UPLOADS`] refs for events that have not been received yet.
    TooManyUploads,
    /// Another ref of an atomic push was refused.
    Atomic,
}

/// The advice for a push that is ahead of the signed state.
const SIGN_FIRST: &str = "; a maintainer must sign that first";

impl fmt::Display for RefRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archived => {
                f.write_str("this is a read-only copy: push to a server that the repository lists")
            }
            Self::Namespace => {
                f.write_str("only branches, tags and refs/nostr/<event-id> can be pushed")
            }
            Self::NotAnEventId => f.write_str(
                "refs/nostr/ must be followed by an event id of 64 lower-case hex digits",
            ),
            Self::PullRequestBranch => f.write_str("push pull requests to refs/nostr/<event-id>"),
            Self::NoMaintainers => f.write_str("this repository has no confirmed maintainer"),
            Self::NoState => {
                f.write_str("no state event from a maintainer is waiting for this push")
            }
            Self::Elsewhere { would_be, declared: DeclaredTarget::Oid(oid) } => {
                write!(
                    f,
                    "would be at {} but the signed state says {}{SIGN_FIRST}",
                    would_be.short(),
                    oid.short()
                )
            }
            Self::Elsewhere { would_be, declared: DeclaredTarget::Invalid } => {
                write!(f, "would be at {} but the signed state names no object", would_be.short())
            }
            Self::NotDeclared => write!(f, "is not in the signed state{SIGN_FIRST}"),
            Self::StillDeclared => write!(f, "is still in the signed state{SIGN_FIRST}"),
            Self::OthersDiffer => f.write_str("other refs differ from the signed state"),
            Self::WrongTip { wanted } => write!(f, "its event names commit {}", wanted.short()),
            Self::ForeignProposal => {
                f.write_str("its event is not by this contributor, or not for this URL")
            }
            Self::ProposalsOnly => f.write_str("only refs/nostr/<event-id> can be pushed here"),
            Self::PullRequestDelete => {
                f.write_str("pull requests are removed by deleting their event")
            }
            Self::Unknowable => f.write_str("could not look up its event, try again"),
            Self::Moved => f.write_str("has moved meanwhile, fetch first"),
            Self::OthersMoved => f.write_str("other refs have moved meanwhile, fetch first"),
            Self::TooManyUploads => {
                write!(
                    f,
                    "one push may bring {MAX_UPLOADS} uploads for events that are not here yet"
                )
            }
            Self::Atomic => f.write_str("atomic push failed"),
        }
    }
}
