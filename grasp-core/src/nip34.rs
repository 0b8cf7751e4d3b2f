//! NIP-34 events as values. Every parser is total: it returns a value or an error for any event.

mod announcement;
mod proposal;
mod references;
mod roster;
mod state;
mod tags;

pub use announcement::{Announcement, AnnouncementError};
pub use proposal::{Proposal, ProposalError};
pub use references::{References, repo_refs};
pub use roster::{Role, RoleRecord, Roster, Tenure};
pub use state::{Declared, State, StateError};
