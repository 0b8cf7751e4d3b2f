//! Whole instances for tests: real sockets on loopback, real stores on disk.

mod instance;
mod maker;
mod workdir;

pub use instance::Instance;
pub use maker::Maker;
pub use workdir::{GitOutput, Workdir};
