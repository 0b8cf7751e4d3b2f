//! `grasp completions` and `grasp man`, from the definition of the command line.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;

/// Prints the completions of a shell.
pub(crate) fn print_completions(shell: Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "grasp", &mut text);
    print(&text)
}

/// Prints the manual page of the command, or writes those of all commands to a directory.
pub(crate) fn write_pages(dir: Option<&Path>) -> Result<()> {
    if let Some(dir) = dir {
        return clap_mangen::generate_to(Cli::command(), dir)
            .with_context(|| format!("could not write to {}", dir.display()));
    }
    let mut page = Vec::new();
    Man::new(Cli::command()).render(&mut page)?;
    print(&page)
}

/// Prints a text. A closed output, such as that of a pager, is no error.
fn print(text: &[u8]) -> Result<()> {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
