//! Whole instances for tests: real sockets on loopback, real stores on disk.

mod instance;
mod maker;

pub use instance::Instance;
pub use maker::Maker;
