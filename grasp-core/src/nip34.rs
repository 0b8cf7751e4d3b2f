//! NIP-34 events as values. Every parser is total: it returns a value or an error for any event.

mod announcement;
mod maintainer_list;
mod proposal;
mod references;
mod state;
mod tags;

pub use announcement::{Announcement, AnnouncementError};
pub use maintainer_list::{MaintainerList, Role, RoleRecord, Tenure};
pub use proposal::{Proposal, ProposalError};
pub use references::{References, repo_refs};
pub use state::{DeclaredTarget, State, StateError};
