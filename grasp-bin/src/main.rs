//! The `grasp` command.

use std::process::ExitCode;

/// The allocator of musl has one lock for all threads and returns little to the system.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    grasp_bin::run()
}
