//! The settings file: TOML, flattened to what stands at which line.

use toml::de::{DeTable, DeValue};

/// One thing that a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The full name, as `relay.event_bytes`.
    pub(crate) key: String,
    /// Where the name stands, counted from one.
    pub(crate) line: usize,
    /// What is said.
    pub(crate) said: Said,
}

/// What a file says about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// One value.
    One(String),
    /// Any number of them.
    Many(Vec<String>),
    /// Something that no setting is: a date, a fraction, a list of lists.
    Other,
}

/// Why a text is no TOML.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub(crate) struct NotToml {
    /// Where it stops to be.
    pub(crate) line: usize,
    message: String,
}

/// Everything that a file says, in the order of its names.
pub(crate) fn lines(text: &str) -> Result<Vec<Line>, NotToml> {
    let table = DeTable::parse(text).map_err(|error| NotToml {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        message: error.message().lines().next().unwrap_or("not TOML").to_owned(),
    })?;
    let mut lines = Vec::new();
    collect(text, "", table.get_ref(), &mut lines);
    Ok(lines)
}

fn collect(text: &str, prefix: &str, table: &DeTable<'_>, lines: &mut Vec<Line>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            collect(text, &format!("{key}."), inner, lines);
        } else {
            let line = line_of(text, name.span().start);
            lines.push(Line { key, line, said: said(value.get_ref()) });
        }
    }
}

fn said(value: &DeValue<'_>) -> Said {
    if let DeValue::Array(items) = value {
        let texts: Option<Vec<_>> = items.iter().map(|item| scalar(item.get_ref())).collect();
        return texts.map_or(Said::Other, Said::Many);
    }
    scalar(value).map_or(Said::Other, Said::One)
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let number = i128::from_str_radix(number.as_str(), number.radix()).ok()?;
            Some(number.to_string())
        }
        DeValue::Boolean(switch) => Some(switch.to_string()),
        _ => None,
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1
}

/// A text as TOML writes it.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_told_with_its_line() {
        let text = "listen = \"a\"\n\n[relay]\n# a remark\nfilters = 1_000\nx = [\"a\", 2]\n";
        let told =
            |key: &str| lines(text).unwrap().into_iter().find(|line| line.key == key).unwrap();
        assert_eq!((told("listen").line, told("listen").said), (1, Said::One("a".into())));
        assert_eq!(
            (told("relay.filters").line, told("relay.filters").said),
            (5, Said::One("1000".into()))
        );
        assert_eq!(told("relay.x").said, Said::Many(vec!["a".into(), "2".into()]));
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        assert_eq!(lines("a = 1\nb = \n").unwrap_err().line, 2);
        assert_eq!(lines("a = 1\na = 2\n").unwrap_err().line, 2);
    }

    #[test]
    fn what_is_quoted_is_read_back() {
        for text in ["", "plain", "\"\\\n\t\u{7f}é"] {
            let file = format!("x = {}", quoted(text));
            assert_eq!(lines(&file).unwrap()[0].said, Said::One(text.into()), "{file}");
        }
    }
}
