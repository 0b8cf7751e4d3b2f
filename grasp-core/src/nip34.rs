//! NIP-34 events as values. Every parser is total: it returns a value or an error for any event.

mod announcement;
mod maintainer_list;
mod proposal;
mod references;
mod state;
mod tags;

pub use announcement::Announcement;
pub use maintainer_list::MaintainerList;
pub use proposal::Proposal;
pub use references::{References, repo_refs};
pub use state::State;
