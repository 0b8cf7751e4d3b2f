//! The `grasp` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    grasp_bin::run()
}
