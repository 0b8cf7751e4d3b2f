//! The memory of long-running commands with the allocator of glibc.
//!
//! It gives threads arenas of their own, eight for each processor, and what was freed in one of them is of use to no other.
//! With two arenas servers with 67,000 events need a tenth to a quarter less memory, and no more processor time.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The number of arenas, as glibc reads it before a program starts.
const VARIABLE: &str = "MALLOC_ARENA_MAX";

/// Other settings of glibc, among them one for the arenas.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Bounds the arenas unless the user has set something: the program starts itself again, as the same process. Its git
/// processes inherit the bound.
pub(crate) fn bound() {
    let is_set = [VARIABLE, TUNABLES]
        .iter()
        .any(|name| env::var_os(name).is_some());
    if is_set || !cfg!(target_env = "gnu") {
        return;
    }
    let Ok(program) = env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    let mut arguments = env::args_os();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // It returns only if it fails. Then the program goes on as it is, which costs memory and nothing else.
    let _ = command.args(arguments).env(VARIABLE, "2").exec();
}
