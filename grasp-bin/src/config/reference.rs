//! The settings written out: as a file that says what is in force, and as the reference.

use std::fmt::Write as _;

use super::file::quoted;
use super::table::{SECTIONS, Setting};
use super::{Config, Loaded};

/// Everything that is in force, as a settings file, each line with who said so.
pub(crate) fn in_force(loaded: &Loaded) -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let heading = match section.name {
            "" => format!("# {}\n", section.title),
            name => format!("\n[{name}] # {}\n", section.title),
        };
        text.push_str(&heading);
        for setting in section.settings() {
            let name = setting.key.rsplit('.').next().unwrap_or(setting.key);
            let source = loaded.source(setting);
            let line = match written(setting, &loaded.config) {
                Some(value) => format!("{name} = {value}"),
                None => format!("# {name} is not set"),
            };
            let _ = writeln!(text, "{line:<44} # {source}");
        }
    }
    text
}

/// A setting's value as TOML writes it.
fn written(setting: &Setting, config: &Config) -> Option<String> {
    let texts = (setting.show)(config);
    if setting.many {
        let items: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
        return Some(format!("[{}]", items.join(", ")));
    }
    let text = texts.first()?;
    let bare = text.parse::<u64>().is_ok() || text.parse::<bool>().is_ok();
    Some(if bare { text.clone() } else { quoted(text) })
}

/// The reference of all settings, as Markdown.
pub(crate) fn markdown() -> String {
    let defaults = Config::default();
    let mut text = String::from(include_str!("reference/opening.md"));
    for section in SECTIONS {
        let heading = match section.name {
            "" => format!("\n## {}\n\n", section.title),
            name => format!("\n## `[{name}]` {}\n\n", section.title),
        };
        text.push_str(&heading);
        text.push_str("| key | flag and value | default | what it does |\n|---|---|---|---|\n");
        for setting in section.settings() {
            let default = written(setting, &defaults).filter(|value| value != "[]");
            let default = default.map(|value| format!("`{value}`")).unwrap_or_default();
            let (key, flag, doc) = (setting.key, setting.flag(), setting.doc);
            let form = setting.form.replace('|', "\\|");
            let _ = writeln!(text, "| `{key}` | `--{flag} {form}` | {default} | {doc} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_says_what_the_table_says() {
        crate::page::hold_to("reference/configuration.md", &markdown());
    }
}
