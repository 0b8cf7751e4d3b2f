//! The reference of all commands.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;
use crate::config::settings;

/// Returns the reference of all commands, as Markdown.
pub(crate) fn markdown() -> String {
    let mut text = String::from(include_str!("opening.md"));
    let mut command = Cli::command();
    command.build();
    for subcommand in command.get_subcommands().filter(|one| one.get_name() != "help") {
        describe(&mut text, "grasp", subcommand);
    }
    text
}

fn describe(text: &mut String, parent: &str, command: &Command) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let inner: Vec<_> = command.get_subcommands().filter(|one| one.get_name() != "help").collect();
    if !inner.is_empty() {
        for command in inner {
            describe(text, &name, command);
        }
        return;
    }
    let _ = write!(text, "\n## `{name}`\n\n{about}.\n");
    let own: Vec<_> = command.get_arguments().filter(|arg| !is_setting(arg)).collect();
    if own.len() < command.get_arguments().count() {
        text.push_str("\nTakes every [setting](configuration.md) as a flag.\n");
    }
    let rows: Vec<_> = own.into_iter().filter(|arg| arg.get_id() != "help").map(row).collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n| flag | meaning |\n|---|---|\n{}", rows.concat());
    }
}

/// Returns whether a flag is one of the settings, which have a reference of their own.
fn is_setting(arg: &Arg) -> bool {
    // Commands that query a running server have flags of the same names.
    let settings = settings().iter().any(|one| arg.get_id() == one.key) || arg.get_id() == "config";
    settings && arg.get_help_heading().is_some()
}

fn row(arg: &Arg) -> String {
    let long = arg.get_long().unwrap_or_default();
    let takes_value = arg.get_num_args().is_some_and(|number| number.takes_values());
    let value = arg.get_value_names().filter(|_| takes_value);
    let value = value.and_then(|names| names.first()).map(|name| format!(" {name}"));
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = if takes_value && !default.is_empty() {
        format!(" (default: `{}`)", default.join(","))
    } else {
        String::new()
    };
    format!("| `--{long}{}` | {help}{default} |\n", value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_up_to_date() {
        crate::page::hold_to("reference/cli.md", &markdown());
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
