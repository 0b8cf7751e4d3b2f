//! What may happen to each ref of a push, and why not.

use std::fmt;

use nostr::event::EventId;

use super::authorise::MAX_UPLOADS;
use super::command::{PushCommand, PushRequest};
use crate::nip34::Declared;
use crate::repo::{Oid, RefName};

/// The judgement on a push, one verdict per command in the order they came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct PushVerdict {
    /// What may happen to each ref.
    pub refs: Vec<(RefName, RefVerdict)>,
    /// The signed state that the branches and tags will realise.
    pub realises: Option<EventId>,
    /// What git may execute; `None` if nothing is left to do.
    pub authorised: Option<AuthorisedPush>,
}

impl PushVerdict {
    /// Everything is refused, for the same reason.
    pub fn refused(request: &PushRequest, why: &RefRefusal) -> Self {
        let commands = request.commands().iter();
        let refs = commands.map(|c| (c.name.clone(), RefVerdict::Refused(why.clone()))).collect();
        Self { refs, realises: None, authorised: None }
    }

    /// Whether every ref may be where the client wants it.
    pub fn is_accepted(&self) -> bool {
        self.refs.iter().all(|(_, verdict)| !verdict.is_refused())
    }
}

/// What may happen to one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefVerdict {
    /// It is there already: report success, execute nothing.
    Satisfied,
    /// Git may move it.
    Execute,
    /// Nobody has signed for it yet: its objects go to staging, hidden until somebody does.
    Stage,
    /// It stays where it is.
    Refused(RefRefusal),
}

impl RefVerdict {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// Commands that were judged and found good. Made by [`authorise`](super::authorise) and
/// [`authorise_contribution`](super::authorise_contribution) alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorisedPush {
    execute: Vec<PushCommand>,
    stage: Vec<PushCommand>,
}

impl AuthorisedPush {
    /// Those of the commands that may happen, by the verdict on each; `None` if there is nothing to do.
    pub(super) fn new(
        commands: &[PushCommand],
        verdicts: &[(RefName, RefVerdict)],
    ) -> Option<Self> {
        let chosen = |wanted: &RefVerdict| -> Vec<_> {
            let pairs = commands.iter().zip(verdicts);
            pairs.filter(|(_, (_, verdict))| verdict == wanted).map(|(c, _)| c.clone()).collect()
        };
        let (execute, stage) = (chosen(&RefVerdict::Execute), chosen(&RefVerdict::Stage));
        let some = !execute.is_empty() || !stage.is_empty();
        some.then_some(Self { execute, stage })
    }

    /// Refs to move in the view, all or none: only together are branches and tags what was signed.
    pub fn execute(&self) -> &[PushCommand] {
        &self.execute
    }

    /// Refs whose objects go to staging.
    pub fn stage(&self) -> &[PushCommand] {
        &self.stage
    }
}

/// Why one ref may not move. Its text is what the person who pushed gets to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefRefusal {
    /// The repository is kept without having been asked to, as a copy of what others serve (GRASP-05).
    Archived,
    /// Not a branch, not a tag, not a pull request.
    Namespace,
    /// `refs/nostr/` with something that is no event id.
    NotAnEventId,
    /// A branch below `pr/`, which is how pull requests are *not* made here.
    PullRequestBranch,
    /// The repository has no maintainers that anybody could name.
    NoMaintainers,
    /// No maintainer has signed a state that is still to be fulfilled.
    NoState,
    /// The closest signed state wants this ref elsewhere.
    Elsewhere {
        /// Where the push would put it.
        would_be: Oid,
        /// Where the state puts it.
        declared: Declared,
    },
    /// The closest signed state has no such ref.
    NotDeclared,
    /// The closest signed state keeps this ref.
    StillDeclared,
    /// This ref is as the state wants it, but others are not.
    OthersDiffer,
    /// The event of that id names another commit.
    WrongTip {
        /// The commit that its event names.
        wanted: Oid,
    },
    /// The event of that id is by somebody else, or for another place.
    ForeignProposal,
    /// A contributor's place takes pull requests alone.
    ProposalsOnly,
    /// Tips of pull requests go with their events, not by pushing.
    PullRequestDelete,
    /// Whether the event is known could not be found out; nobody gets in on that ground.
    Unknowable,
    /// The ref has moved since the client looked.
    Moved,
    /// Another ref of the same state has moved since the client looked.
    OthersMoved,
    /// More uploads for events that nobody has sent yet than one push may bring.
    TooManyUploads,
    /// All or nothing was asked for, and not all could be.
    Atomic,
}

/// What to do about a push that goes ahead of what is signed.
const FIRST: &str = "; a maintainer must sign that first";

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
            Self::NoMaintainers => {
                f.write_str("nobody is confirmed as maintainer of this repository")
            }
            Self::NoState => {
                f.write_str("no state event from a maintainer is waiting for this push")
            }
            Self::Elsewhere { would_be, declared: Declared::Oid(oid) } => {
                write!(
                    f,
                    "would be at {} but the signed state says {}{FIRST}",
                    would_be.short(),
                    oid.short()
                )
            }
            Self::Elsewhere { would_be, declared: Declared::Nonsense } => {
                write!(f, "would be at {} but the signed state names no object", would_be.short())
            }
            Self::NotDeclared => write!(f, "is not in the signed state{FIRST}"),
            Self::StillDeclared => write!(f, "is still in the signed state{FIRST}"),
            Self::OthersDiffer => f.write_str("other refs differ from the signed state"),
            Self::WrongTip { wanted } => write!(f, "its event names commit {}", wanted.short()),
            Self::ForeignProposal => {
                f.write_str("its event is not this contributor's for this very place")
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
