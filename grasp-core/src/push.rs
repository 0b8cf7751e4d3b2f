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

mod authorise;
mod command;
mod packets;

pub use authorise::{
    AuthorisedPush, Candidate, KnownProposal, MAX_UPLOADS, PushVerdict, PushView, RefRefusal,
    RefVerdict, authorise, authorise_contribution,
};
pub use command::{Capabilities, CommandReader, MAX_COMMANDS, Progress, PushCommand, PushRequest};
pub use packets::{
    Pkt, RefReport, encode_error, encode_pkt, encode_progress, encode_report, read_pkt,
};
