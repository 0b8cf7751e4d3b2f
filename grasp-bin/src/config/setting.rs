//! One setting, and the forms that values have in files, variables and flags.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction};
use grasp_core::Host;
use grasp_core::service::npub;
use grasp_purgatory::hunt::HostLimits;
use nostr::key::PublicKey;
use toml::Value;
use toml::de::DeValue;
use tracing_subscriber::EnvFilter;
use url::Url;

use super::Config;

/// A setting: a key of the file, a variable, a flag, and a row of the reference.
pub(crate) struct Setting {
    /// The key in the file, as `relay.event_bytes`.
    pub(crate) key: &'static str,
    /// The meaning, in words.
    pub(crate) help: &'static str,
    /// The placeholder of the value, or all values if there are few.
    pub(crate) value_names: Vec<&'static str>,
    pub(super) kind: ValueType,
    pub(super) is_list: bool,
    /// Shown by `-h`.
    pub(super) is_common: bool,
    pub(super) set: Box<Set>,
    pub(super) get: Box<Get>,
}

pub(super) type Set = dyn Fn(&mut Config, &[String]) -> Result<(), String> + Send + Sync;
pub(super) type Get = dyn Fn(&mut Config) -> Option<Vec<String>> + Send + Sync;

/// The type of a value in TOML.
#[derive(Clone, Copy)]
pub(super) enum ValueType {
    String,
    Integer,
    Boolean,
}

impl Setting {
    fn new<T: 'static>(
        key: &'static str,
        form: ValueForm<T>,
        is_list: bool,
        put: impl Fn(&mut Config, Vec<T>) + Send + Sync + 'static,
        take: impl Fn(&mut Config) -> Option<Vec<T>> + Send + Sync + 'static,
    ) -> Self {
        let ValueForm {
            value_names,
            kind,
            read,
            show,
        } = form;
        let set = move |config: &mut Config, given: &[String]| {
            let values = given
                .iter()
                .map(|text| read(text.trim()))
                .collect::<Result<_, _>>()?;
            put(config, values);
            Ok(())
        };
        let get = move |config: &mut Config| {
            take(config).map(|values| values.iter().map(&show).collect())
        };
        let set = Box::new(set);
        let get = Box::new(get);
        Self {
            key,
            help: "",
            value_names,
            kind,
            is_list,
            is_common: false,
            set,
            get,
        }
    }

    /// Returns the section of the file, which is empty for keys without one.
    pub(crate) fn section(&self) -> &'static str {
        self.key.split_once('.').map_or("", |(section, _)| section)
    }

    /// Returns the key within its section.
    pub(crate) fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the flag without its dashes. That of the mode of a section is the name of the section.
    pub(crate) fn flag(&self) -> String {
        let name = self.key.strip_suffix(".mode").unwrap_or(self.key);
        name.replace(['.', '_'], "-")
    }

    /// Returns the environment variable.
    pub(crate) fn variable(&self) -> String {
        format!(
            "{}{}",
            super::PREFIX,
            self.key.replace('.', "_").to_ascii_uppercase()
        )
    }

    /// Sets the value in a configuration, as text: one, or any number for a list.
    pub(super) fn set(&self, config: &mut Config, given: &[String]) -> Result<(), String> {
        match given.len() {
            1 => (self.set)(config, given),
            _ if self.is_list => (self.set)(config, given),
            _ => Err("expected one value".into()),
        }
    }

    /// Returns the value as it is written in a file; `None` if there is none.
    pub(crate) fn value(&self, config: &Config) -> Option<String> {
        let written = |text: String| match self.kind {
            ValueType::String => Value::String(text).to_string(),
            ValueType::Integer | ValueType::Boolean => text,
        };
        let mut values: Vec<String> = (self.get)(&mut config.clone())?
            .into_iter()
            .map(written)
            .collect();
        if self.is_list {
            Some(format!("[{}]", values.join(", ")))
        } else {
            values.pop()
        }
    }

    /// Returns the texts of a value in a file, which must have the type of the setting.
    pub(super) fn texts(&self, value: &DeValue<'_>) -> Result<Vec<String>, String> {
        let invalid = |value: &DeValue<'_>, kind: &str| {
            Err(format!(
                "invalid type: {}, expected {kind}",
                value.type_str()
            ))
        };
        let text = |value: &DeValue<'_>| match (value, self.kind) {
            (DeValue::String(text), ValueType::String) => Ok(text.to_string()),
            (DeValue::Integer(number), ValueType::Integer) => {
                let number = i64::from_str_radix(number.as_str(), number.radix());
                number
                    .map(|number| number.to_string())
                    .map_err(|error| error.to_string())
            }
            (DeValue::Boolean(is_on), ValueType::Boolean) => Ok(is_on.to_string()),
            (other, ValueType::String) => invalid(other, "a string"),
            (other, ValueType::Integer) => invalid(other, "an integer"),
            (other, ValueType::Boolean) => invalid(other, "true or false"),
        };
        match value {
            DeValue::Array(values) if self.is_list => {
                values.iter().map(|value| text(value.get_ref())).collect()
            }
            value if self.is_list => invalid(value, "an array").map(|text| vec![text]),
            value => Ok(vec![text(value)?]),
        }
    }

    /// Returns the texts of a variable; those of a list have commas between them, or spaces where a text has a comma.
    pub(super) fn split(&self, text: &str) -> Vec<String> {
        let has_comma = self.value_names.iter().any(|name| name.contains(','));
        let texts = text.split(if has_comma { ' ' } else { ',' });
        let texts = texts.map(str::trim).filter(|value| !value.is_empty());
        if self.is_list {
            texts.map(str::to_owned).collect()
        } else {
            vec![text.to_owned()]
        }
    }

    /// Returns the setting as a flag.
    pub(super) fn arg(&'static self, heading: &'static str) -> Arg {
        let arg = Arg::new(self.key)
            .long(self.flag())
            .help(self.help)
            .help_heading(heading)
            .hide_short_help(!self.is_common)
            .action(if self.is_list {
                ArgAction::Append
            } else {
                ArgAction::Set
            });
        let choices = PossibleValuesParser::new(&self.value_names);
        match self.kind {
            ValueType::Boolean => {
                let arg = arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true");
                return arg.value_name("BOOL").value_parser(choices);
            }
            _ if self.value_names.len() > 1 => {
                return arg
                    .value_name(self.name().to_ascii_uppercase())
                    .value_parser(choices);
            }
            _ => {}
        }
        let check = |text: &str| {
            let given = text.to_owned();
            self.set(&mut Config::default(), std::slice::from_ref(&given))
                .map(|()| given)
        };
        arg.value_name(self.value_names.concat())
            .value_parser(check)
    }
}

/// A setting that always has a value.
pub(super) fn one<T: Clone + 'static>(
    key: &'static str,
    form: ValueForm<T>,
    field: fn(&mut Config) -> &mut T,
) -> Setting {
    let put = move |config: &mut Config, values: Vec<T>| {
        if let Some(value) = values.into_iter().next() {
            *field(config) = value;
        }
    };
    Setting::new(key, form, false, put, move |config| {
        Some(vec![field(config).clone()])
    })
}

/// A setting that may have no value.
pub(super) fn optional<T: Clone + 'static>(
    key: &'static str,
    form: ValueForm<T>,
    field: fn(&mut Config) -> &mut Option<T>,
) -> Setting {
    let put = move |config: &mut Config, values: Vec<T>| *field(config) = values.into_iter().next();
    Setting::new(key, form, false, put, move |config| {
        field(config).clone().map(|one| vec![one])
    })
}

/// A setting with any number of values.
pub(super) fn list<T: 'static, C: Clone + IntoIterator<Item = T> + FromIterator<T> + 'static>(
    key: &'static str,
    form: ValueForm<T>,
    field: fn(&mut Config) -> &mut C,
) -> Setting {
    let put =
        move |config: &mut Config, values: Vec<T>| *field(config) = values.into_iter().collect();
    let take = move |config: &mut Config| Some(field(config).clone().into_iter().collect());
    Setting::new(key, form, true, put, take)
}

/// A setting with any number of values, if it is set.
pub(super) fn optional_list<T: Clone + 'static>(
    key: &'static str,
    form: ValueForm<T>,
    field: fn(&mut Config) -> &mut Option<Vec<T>>,
) -> Setting {
    let put = move |config: &mut Config, values: Vec<T>| *field(config) = Some(values);
    Setting::new(key, form, true, put, move |config| field(config).clone())
}

type Read<T> = dyn Fn(&str) -> Result<T, String> + Send + Sync;

/// The form of a value, and its conversion from and to text.
pub(super) struct ValueForm<T> {
    value_names: Vec<&'static str>,
    kind: ValueType,
    read: Box<Read<T>>,
    show: Box<dyn Fn(&T) -> String + Send + Sync>,
}

impl<T> ValueForm<T> {
    fn new(
        value_name: &'static str,
        read: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static,
        show: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        let read = Box::new(read);
        let show = Box::new(show);
        Self {
            value_names: vec![value_name],
            kind: ValueType::String,
            read,
            show,
        }
    }
}

/// A value with a text form of its own.
pub(super) fn text<T: FromStr<Err: Display> + Display + 'static>(
    value_name: &'static str,
) -> ValueForm<T> {
    let read = |text: &str| text.parse().map_err(|error: T::Err| error.to_string());
    ValueForm::new(value_name, read, T::to_string)
}

/// A URL that a rule allows.
fn url(expected: &'static str, is_allowed: fn(&Url) -> bool) -> ValueForm<Url> {
    let read = move |text: &str| {
        text.parse()
            .ok()
            .filter(is_allowed)
            .ok_or_else(|| expected.to_owned())
    };
    ValueForm::new("URL", read, |url: &Url| {
        url.as_str().trim_end_matches('/').to_owned()
    })
}

/// The address of an object store. Its credentials come from the environment.
pub(super) fn object_store() -> ValueForm<Url> {
    url(
        "expected s3://BUCKET[/PREFIX] or file:///DIR",
        |url| match url.scheme() {
            "s3" => url.has_host() && url.username().is_empty() && url.password().is_none(),
            "file" => url.path().len() > 1,
            _ => false,
        },
    )
}

/// The address of a node, without a path.
pub(super) fn node_address() -> ValueForm<Url> {
    url("expected http://HOST[:PORT]", |url| {
        let is_plain = url.username().is_empty() && url.query().is_none();
        url.scheme() == "http" && url.has_host() && url.path() == "/" && is_plain
    })
}

/// The directory of an ACME server, which speaks HTTPS.
pub(super) fn acme_directory() -> ValueForm<Url> {
    url("expected an https: URL", |url| {
        url.scheme() == "https" && url.has_host() && url.username().is_empty()
    })
}

pub(super) fn path(value_name: &'static str) -> ValueForm<PathBuf> {
    ValueForm::new(
        value_name,
        |text| Ok(text.into()),
        |path: &PathBuf| path.display().to_string(),
    )
}

/// A switch, which needs no value as a flag.
pub(super) fn switch() -> ValueForm<bool> {
    ValueForm {
        kind: ValueType::Boolean,
        value_names: vec!["true", "false"],
        ..text("BOOL")
    }
}

/// A number above zero.
pub(super) fn count<T: From<NonZeroUsize> + Display + 'static>() -> ValueForm<T> {
    let read = |text: &str| match text.parse::<NonZeroUsize>() {
        Ok(count) => Ok(count.into()),
        Err(error) => Err(error.to_string()),
    };
    ValueForm {
        kind: ValueType::Integer,
        ..ValueForm::new("NUMBER", read, T::to_string)
    }
}

/// A number of bytes above zero, shown exactly.
pub(super) fn bytes<T: Copy + TryFrom<u64> + TryInto<u64>>() -> ValueForm<T> {
    let read = |text: &str| {
        let size: Option<ByteSize> = text.parse().ok();
        let bytes = size.map(|size| size.as_u64()).filter(|bytes| *bytes > 0);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or("expected bytes, as in 64KiB".into())
    };
    let show = |bytes: &T| {
        let bytes: u64 = (*bytes).try_into().unwrap_or(u64::MAX);
        let units = [
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        let unit = units
            .into_iter()
            .find(|(_, unit): &(_, u64)| bytes.is_multiple_of(*unit));
        let (unit, length) = unit.unwrap_or(("B", 1));
        format!("{}{unit}", bytes / length)
    };
    ValueForm::new("BYTES", read, show)
}

pub(super) fn time() -> ValueForm<Duration> {
    let read = |text: &str| {
        let explain = |error| format!("expected a time with its unit, as in 30s or 2h: {error}");
        humantime::parse_duration(text).map_err(explain)
    };
    ValueForm::new("TIME", read, |time| {
        humantime::format_duration(*time).to_string()
    })
}

/// A public key, read as npub or hex and written as npub.
pub(super) fn key() -> ValueForm<PublicKey> {
    let read = |text: &str| {
        PublicKey::parse(text).map_err(|_| "expected a public key, as npub or hex".to_owned())
    };
    ValueForm::new("NPUB", read, npub)
}

/// Directives of the log.
pub(super) fn log_filter() -> ValueForm<String> {
    let read = |text: &str| {
        let explain = |error| format!("expected levels, as in info or grasp_relay=debug: {error}");
        EnvFilter::try_new(text)
            .map(|_| text.to_owned())
            .map_err(explain)
    };
    ValueForm::new("FILTER", read, String::clone)
}

/// Limits for requests to a host, as in `10,60`.
pub(super) fn limits() -> ValueForm<HostLimits> {
    let expected = "expected requests at once and per minute, as in 10,60";
    let read = move |text: &str| read_limits(text).ok_or_else(|| expected.to_owned());
    ValueForm::new("AT_ONCE,PER_MINUTE", read, show_limits)
}

/// Limits for requests to one host, as in `github.com:10,60`.
pub(super) fn host_limit() -> ValueForm<(Host, HostLimits)> {
    let read = |text: &str| {
        let (host, limits) = text.rsplit_once(':')?;
        Some((host.parse::<Host>().ok()?, read_limits(limits)?))
    };
    let expected = "expected a host, requests at once and per minute, as in github.com:10,60";
    let read = move |text: &str| read(text).ok_or_else(|| expected.to_owned());
    ValueForm::new("HOST:AT_ONCE,PER_MINUTE", read, |(host, limits)| {
        format!("{}:{}", host.as_str(), show_limits(limits))
    })
}

fn read_limits(text: &str) -> Option<HostLimits> {
    let (at_once, starts) = text.split_once(',')?;
    let at_once = at_once.trim().parse().ok()?;
    let starts = starts.trim().parse().ok()?;
    Some(HostLimits {
        at_once,
        starts,
        ..HostLimits::default()
    })
}

fn show_limits(limits: &HostLimits) -> String {
    format!("{},{}", limits.at_once, limits.starts)
}

/// One of a few values, by name.
pub(super) fn choice<T: Copy + PartialEq + Send + Sync + 'static>(
    choices: Vec<(&'static str, T)>,
) -> ValueForm<T> {
    let value_names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    let expected = format!("`{}`", value_names.join("` or `"));
    let named = choices.clone();
    let read = move |text: &str| {
        let choice = choices
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, value)| *value);
        choice.ok_or_else(|| format!("unknown variant `{text}`, expected {expected}"))
    };
    let show = move |value: &T| {
        let choice = named.iter().find(|(_, one)| one == value);
        choice.map_or_else(String::new, |(name, _)| (*name).to_owned())
    };
    ValueForm {
        value_names,
        ..ValueForm::new("", read, show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_with_their_units_and_shown_exactly() {
        let bytes = bytes::<u64>();
        let size = |text: &str| (bytes.read)(text).ok();
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("2 GiB"), Some(2 << 30));
        assert_eq!(size("17"), Some(17));
        for bad in ["", "KiB", "0", "-1", "a lot"] {
            assert_eq!(size(bad), None, "{bad}");
        }
        for number in [3 << 20, 1_000, 1_234_567] {
            assert_eq!(size(&(bytes.show)(&number)), Some(number));
        }
        let time = |text: &str| (time().read)(text).ok();
        assert_eq!(time("90s"), Some(Duration::from_secs(90)));
        assert_eq!(time("2d"), Some(Duration::from_secs(172_800)));
        for bad in ["", "5", "s", "5 parsecs"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn packs_are_in_a_bucket_or_a_directory_and_never_come_with_credentials() {
        let ValueForm { read, show, .. } = object_store();
        for good in [
            "s3://bucket",
            "s3://bucket/some/prefix",
            "file:///srv/packs",
        ] {
            assert_eq!(show(&read(good).unwrap()), good);
        }
        for bad in [
            "",
            "bucket",
            "s3://",
            "s3://key:secret@bucket",
            "file://",
            "http://bucket",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_has_an_address_without_a_path() {
        let ValueForm { read, .. } = node_address();
        assert!(read("http://node1:7334/").is_ok() && read("http://node1:7334").is_ok());
        for bad in [
            "node1:7334",
            "https://node1",
            "http://node1/x",
            "http://u@node1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_of_hosts_are_two_numbers_above_zero() {
        let ValueForm { read, show, .. } = limits();
        assert_eq!(show(&read("8, 600").unwrap()), "8,600");
        for bad in ["", "8", "0,5", "5,0", "1,2,3"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_may_have_limits_of_its_own() {
        let ValueForm { read, show, .. } = host_limit();
        for text in ["git.example.com:10,60", "git.example.com:8080:10,60"] {
            assert_eq!(show(&read(text).unwrap()), text);
        }
        for bad in [
            "git.example.com",
            "git.example.com:10",
            "git.example.com:0,5",
            ":1,1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
