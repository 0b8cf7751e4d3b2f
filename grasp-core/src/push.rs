//! May this push happen? From the bytes of its command list to a verdict for every ref.
//!
//! ```text
//! bytes ─▶ CommandReader ─▶ PushRequest ─▶ authorise(request, view) ─▶ PushVerdict ─▶ AuthorisedPush
//!          strict, bounded                 would-be = declared            per ref        what may be done
//! ```
//!
//! What is executed are the parsed commands that were judged, never the bytes they came in. A list that is empty, partly
//! understood or outside the allowed namespaces never becomes an [`AuthorisedPush`]: only [`authorise`] makes one, and
//! for contributors' own places [`authorise_contribution`].

mod authorise;
mod command;
mod contributor;
mod options;
mod pktline;
mod report;
mod verdict;

pub use authorise::{Candidate, KnownProposal, MAX_UPLOADS, PushView, authorise};
pub use command::{
    Capabilities, CommandReader, MAX_COMMANDS, Progress, PushCommand, PushParseError, PushRequest,
};
pub use contributor::{Contribution, authorise_contribution};
pub use options::OptionsReader;
pub use pktline::{MAX_PKT_DATA, Pkt, PktError, encode_pkt, read_pkt};
pub use report::{RefReport, encode_error, encode_progress, encode_report};
pub use verdict::{AuthorisedPush, PushVerdict, RefRefusal, RefVerdict};
