//! The settings written out: as a file of what is in force, and as the reference.

use std::fmt::Write as _;

use super::setting::Setting;
use super::{Config, Loaded, SECTIONS, settings};

/// Returns everything that is in force as a settings file, each line with its source.
pub(crate) fn in_force(loaded: &Loaded) -> String {
    let mut text = String::new();
    for (section, title) in SECTIONS {
        let _ = match section {
            "" => writeln!(text, "# {title}"),
            name => writeln!(text, "\n[{name}] # {title}"),
        };
        for setting in settings().iter().filter(|setting| setting.section() == section) {
            let line = match setting.value(&loaded.config) {
                Some(value) => format!("{} = {value}", setting.name()),
                None => format!("# {} is not set", setting.name()),
            };
            let _ = writeln!(text, "{line:<44} # {}", loaded.source(setting.key));
        }
    }
    text
}

/// Returns the reference of all settings, as Markdown.
pub(crate) fn markdown() -> String {
    let mut text = String::from(include_str!("reference/opening.md"));
    for (section, title) in SECTIONS {
        let _ = match section {
            "" => write!(text, "\n## {title}\n\n"),
            name => write!(text, "\n## `[{name}]` {title}\n\n"),
        };
        text.push_str("| key | flag and value | default | meaning |\n|---|---|---|---|\n");
        let settings = settings().iter().filter(|setting| setting.section() == section);
        settings.for_each(|setting| text.push_str(&row(setting)));
    }
    text
}

fn row(setting: &Setting) -> String {
    let default = setting.value(&Config::default()).filter(|value| value != "[]");
    let default = default.map(|value| format!("`{value}`")).unwrap_or_default();
    let (key, flag, help) = (setting.key, setting.flag(), setting.help);
    let form = setting.value_names.join("\\|");
    format!("| `{key}` | `--{flag} {form}` | {default} | {help} |\n")
}
