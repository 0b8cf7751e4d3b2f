//! Whole instances for tests: real sockets on loopback, real stores on disk.

mod git_server;
mod http;
mod instance;
mod maker;
mod workdir;

pub use git_server::{Asked, GitServer, Manner};
pub use http::{HttpAnswer, http};
pub use instance::Instance;
pub use maker::Maker;
pub use workdir::{GitOutput, Workdir};
