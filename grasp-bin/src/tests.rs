//! The reference pages below `docs/` are generated from the definitions of settings, metrics and commands.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory as _};
use grasp_relay::instance::metrics::{self, HUNT};
use grasp_relay::management::rules::Method;
use grasp_relay::metrics::{Metric, table};

use crate::cli::Cli;
use crate::config::{Config, SECTIONS, Setting, settings};

/// Variable that makes the tests write the pages instead of comparing them.
const REWRITE_VAR: &str = "REWRITE_REFERENCE";

/// Asserts that a page of the documentation is the generated one; names the first line that differs.
fn assert_page(page: &str, generated: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(page);
    if std::env::var_os(REWRITE_VAR).is_some() {
        std::fs::write(&path, generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    if let Some(difference) = difference(&written, generated) {
        panic!("docs/{page}{difference}\nRun this test with {REWRITE_VAR}=1 to write the page.");
    }
}

/// Returns the first line in which a page differs from the generated one.
fn difference(written: &str, generated: &str) -> Option<String> {
    if written == generated {
        return None;
    }
    let (mut lines, mut expected) = (written.lines(), generated.lines());
    for number in 1.. {
        let (found, wanted) = (lines.next(), expected.next());
        if found != wanted || found.is_none() {
            let shown = |line: Option<&str>| match line {
                Some(line) => line.chars().take(200).collect(),
                None => String::from("(the end)"),
            };
            return Some(format!(
                ":{number} is\n  {}\nand should be\n  {}",
                shown(found),
                shown(wanted)
            ));
        }
    }
    None
}

#[test]
fn each_reference_page_is_up_to_date() {
    assert_page("reference/configuration.md", &settings_page());
    assert_page("reference/metrics.md", &metrics_page());
    assert_page("reference/cli.md", &commands_page());
    assert_page("reference/management.md", &management_page());
}

#[test]
fn only_the_first_difference_is_reported() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let first = difference("a\nb\nc\n", "a\nx\ny\n").unwrap();
    assert_eq!(first, ":2 is\n  b\nand should be\n  x");
    assert!(difference("a\n", "a\nb\n").unwrap().contains("(the end)"));
    assert!(difference("a\n", "a").is_some());
}

fn settings_page() -> String {
    let mut text = String::from(include_str!("config/reference/opening.md"));
    for (section, title) in SECTIONS {
        let _ = match section {
            "" => write!(text, "\n## {title}\n\n"),
            name => write!(text, "\n## `[{name}]` {title}\n\n"),
        };
        text.push_str("| key | flag and value | default | meaning |\n|---|---|---|---|\n");
        let settings = settings()
            .iter()
            .filter(|setting| setting.section() == section);
        settings.for_each(|setting| text.push_str(&setting_row(setting)));
    }
    text
}

fn setting_row(setting: &Setting) -> String {
    let default = setting
        .value(&Config::default())
        .filter(|value| value != "[]");
    let default = default
        .map(|value| format!("`{value}`"))
        .unwrap_or_default();
    let (key, flag, help) = (setting.key, setting.flag(), setting.help);
    let form = setting.value_names.join("\\|");
    format!("| `{key}` | `--{flag} {form}` | {default} | {help} |\n")
}

fn metrics_page() -> String {
    let mut text = String::from(include_str!("metrics/opening.md"));
    for (title, metrics) in [
        ("The server", table::ALL),
        ("Events from other relays", &metrics::sync()),
        ("Git data from other servers", HUNT),
    ] {
        let _ = write!(text, "\n## {title}\n\n");
        text.push_str("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for Metric {
            name,
            kind,
            help,
            labels,
        } in metrics
        {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, labels) = (kind.name(), labels.join(", "));
            let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
        }
    }
    text
}

fn management_page() -> String {
    let mut text = String::from(include_str!("server/management_opening.md"));
    for (title, is_change) in [("Reads", false), ("Changes", true)] {
        let _ = write!(text, "\n## {title}\n\n");
        text.push_str("| method | from | parameters | result | effect |\n|---|---|---|---|---|\n");
        for method in Method::ALL {
            let info = method.info();
            if info.is_change == is_change {
                let (name, rank, help) = (info.name, info.rank, info.help);
                let (params, result) = (info.params, info.result);
                let _ = writeln!(
                    text,
                    "| `{name}` | {rank} | `{params}` | `{result}` | {help} |"
                );
            }
        }
    }
    text
}

fn commands_page() -> String {
    let mut text = String::from(include_str!("cli/opening.md"));
    let mut command = Cli::command();
    command.build();
    for subcommand in command
        .get_subcommands()
        .filter(|one| one.get_name() != "help")
    {
        describe(&mut text, "grasp", subcommand);
    }
    text
}

fn describe(text: &mut String, parent: &str, command: &clap::Command) {
    let name = format!("{parent} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let inner: Vec<_> = command
        .get_subcommands()
        .filter(|one| one.get_name() != "help")
        .collect();
    if !inner.is_empty() {
        let shared: Vec<_> = command
            .get_arguments()
            .filter(|arg| arg.is_global_set())
            .map(flag_row)
            .collect();
        if !shared.is_empty() {
            let _ = write!(
                text,
                "\n## `{name}`\n\n{about}. Its commands share these flags:\n"
            );
            let _ = write!(text, "\n| flag | meaning |\n|---|---|\n{}", shared.concat());
        }
        for command in inner {
            describe(text, &name, command);
        }
        return;
    }
    let _ = write!(text, "\n## `{name}`\n\n{about}.\n");
    let own: Vec<_> = command
        .get_arguments()
        .filter(|arg| !is_setting(arg) && !arg.is_global_set())
        .collect();
    if command.get_arguments().any(is_setting) {
        text.push_str("\nTakes every [setting](configuration.md) as a flag.\n");
    }
    let rows: Vec<_> = own
        .into_iter()
        .filter(|arg| arg.get_id() != "help")
        .map(flag_row)
        .collect();
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

fn flag_row(arg: &Arg) -> String {
    let takes_value = arg
        .get_num_args()
        .is_some_and(|number| number.takes_values());
    let value = arg.get_value_names().filter(|_| takes_value);
    let value = value
        .and_then(|names| names.first())
        .map(ToString::to_string);
    let flag = match (arg.get_long(), value) {
        (Some(long), Some(value)) => format!("--{long} {value}"),
        (Some(long), None) => format!("--{long}"),
        (None, value) => value.unwrap_or_default(),
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let default = if takes_value && !default.is_empty() {
        format!(" (default: `{}`)", default.join(","))
    } else {
        String::new()
    };
    format!("| `{flag}` | {help}{default} |\n")
}
