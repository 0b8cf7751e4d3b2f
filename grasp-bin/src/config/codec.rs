//! Values as text: how each kind of setting is written, read and shown again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use grasp_core::limits::PermitConfig;
use grasp_core::service::npub;
use grasp_core::{Host, MaintainerModel};
use nostr::key::PublicKey;
use tracing_subscriber::EnvFilter;

/// What a kind of value looks like.
pub(crate) trait Form {
    /// What to write, for help and reference.
    const FORM: &'static str;
    /// Whether there may be any number of them.
    const MANY: bool = false;
}

/// How a kind of value is written. `V` is what it is inside.
pub(crate) trait Codec<V>: Form {
    /// Reads what was given: one text, or any number if there may be many.
    fn read(texts: &[String]) -> Result<V, String>;
    /// The value as it could have been given.
    fn show(value: &V) -> Vec<String>;
}

/// A number of bytes, with an optional binary unit.
pub(crate) struct Bytes;
/// A number that is at least one.
pub(crate) struct Count;
/// A length of time with its unit.
pub(crate) struct Time;
/// Yes or no.
pub(crate) struct Switch;
/// Anything that has a form of its own.
pub(crate) struct Word;
/// A path.
pub(crate) struct Path;
/// One of a few words.
pub(crate) struct Choice;
/// What the log tells.
pub(crate) struct Directives;
/// Somebody's public key.
pub(crate) struct Key;
/// How maintainers are made.
pub(crate) struct Model;
/// One of these or nothing.
pub(crate) struct Maybe<C>(std::marker::PhantomData<C>);
/// One of these, or the word for none.
pub(crate) struct OrNever<C>(std::marker::PhantomData<C>);
/// That word.
const NEVER: &str = "never";
/// Any number of these.
pub(crate) struct List<C>(std::marker::PhantomData<C>);
/// Budgets of single hosts.
pub(crate) struct HostBudgets;

macro_rules! forms {
    ($($codec:ident $form:literal)*) => {$(
        impl Form for $codec {
            const FORM: &'static str = $form;
        }
    )*};
}
forms! {
    Bytes "BYTES" Count "NUMBER" Time "TIME" Switch "true|false" Word "TEXT" Path "PATH" Choice "WORD" Key "NPUB"
    Model "reciprocal|plain" Directives "FILTER"
}

impl<C: Form> Form for Maybe<C> {
    const FORM: &'static str = C::FORM;
}

impl<C: Form> Form for OrNever<C> {
    const FORM: &'static str = C::FORM;
}

impl<C: Form> Form for List<C> {
    const FORM: &'static str = C::FORM;
    const MANY: bool = true;
}

impl Form for HostBudgets {
    const FORM: &'static str = "HOST:AT_ONCE,PER_MINUTE";
    const MANY: bool = true;
}

/// The only text there is.
fn one(texts: &[String]) -> Result<&str, String> {
    match texts {
        [text] => Ok(text.trim()),
        _ => Err("expected one value".into()),
    }
}

fn shown(value: impl Display) -> Vec<String> {
    vec![value.to_string()]
}

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

fn read_bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" => Some(1),
        unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes),
    };
    let number: Option<u64> = number.trim_end().parse().ok();
    let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected bytes, as in 64KiB".into())
}

fn show_bytes(bytes: u64) -> String {
    let (unit, size) =
        UNITS.into_iter().find(|(_, size)| bytes.is_multiple_of(*size)).unwrap_or(("B", 1));
    if size == 1 { bytes.to_string() } else { format!("{}{unit}", bytes / size) }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Codec<$number> for Bytes {
            fn read(texts: &[String]) -> Result<$number, String> {
                read_bytes(one(texts)?)?.try_into().map_err(|_| "too large for this machine".into())
            }
            fn show(value: &$number) -> Vec<String> {
                shown(show_bytes(*value as u64))
            }
        }

        impl Codec<$number> for Count {
            fn read(texts: &[String]) -> Result<$number, String> {
                let text = one(texts)?;
                let number = text.parse::<NonZeroU64>().ok().and_then(|n| n.get().try_into().ok());
                number.ok_or_else(|| match <$number>::MAX as u64 {
                    u64::MAX => "expected a number from 1 upwards".into(),
                    most => format!("expected a number from 1 to {most}"),
                })
            }
            fn show(value: &$number) -> Vec<String> {
                shown(value)
            }
        }
    )*};
}
numbers!(usize, u32, u64);

impl Codec<NonZeroUsize> for Count {
    fn read(texts: &[String]) -> Result<NonZeroUsize, String> {
        one(texts)?.parse().map_err(|_| "expected a number of at least 1".into())
    }
    fn show(value: &NonZeroUsize) -> Vec<String> {
        shown(value)
    }
}

const SPANS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Codec<Duration> for Time {
    fn read(texts: &[String]) -> Result<Duration, String> {
        let text = one(texts)?;
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = SPANS.iter().find(|(name, _)| *name == &text[number.len()..]);
        let number: Option<u64> = number.trim_end().parse().ok();
        let millis = number.zip(unit).and_then(|(number, (_, span))| number.checked_mul(*span));
        millis
            .map(Duration::from_millis)
            .ok_or_else(|| "expected a time with its unit (ms, s, m, h or d), as in 30s".into())
    }
    fn show(value: &Duration) -> Vec<String> {
        let millis = value.as_millis() as u64;
        let fits = |(_, span): &(&str, u64)| millis >= *span && millis.is_multiple_of(*span);
        let (unit, span) = SPANS.into_iter().find(fits).unwrap_or(("ms", 1));
        shown(format!("{}{unit}", millis / span))
    }
}

impl Codec<bool> for Switch {
    fn read(texts: &[String]) -> Result<bool, String> {
        one(texts)?.parse().map_err(|_| "expected true or false".into())
    }
    fn show(value: &bool) -> Vec<String> {
        shown(value)
    }
}

impl<V: FromStr<Err: Display> + Display> Codec<V> for Word {
    fn read(texts: &[String]) -> Result<V, String> {
        one(texts)?.parse().map_err(|error: V::Err| error.to_string())
    }
    fn show(value: &V) -> Vec<String> {
        shown(value)
    }
}

impl Codec<PathBuf> for Path {
    fn read(texts: &[String]) -> Result<PathBuf, String> {
        match one(texts)? {
            "" => Err("expected a path".into()),
            path => Ok(path.into()),
        }
    }
    fn show(value: &PathBuf) -> Vec<String> {
        shown(value.display())
    }
}

impl<V: ValueEnum> Codec<V> for Choice {
    fn read(texts: &[String]) -> Result<V, String> {
        V::from_str(one(texts)?, false).map_err(|_| {
            let words: Vec<_> = V::value_variants().iter().flat_map(|v| choice(v)).collect();
            format!("expected one of: {}", words.join(", "))
        })
    }
    fn show(value: &V) -> Vec<String> {
        choice(value)
    }
}

fn choice<V: ValueEnum>(value: &V) -> Vec<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned()).into_iter().collect()
}

impl Codec<MaintainerModel> for Model {
    fn read(texts: &[String]) -> Result<MaintainerModel, String> {
        match one(texts)? {
            "reciprocal" => Ok(MaintainerModel::Reciprocal),
            "plain" => Ok(MaintainerModel::Plain),
            _ => Err("expected reciprocal or plain".into()),
        }
    }
    fn show(value: &MaintainerModel) -> Vec<String> {
        shown(match value {
            MaintainerModel::Reciprocal => "reciprocal",
            MaintainerModel::Plain => "plain",
        })
    }
}

impl Codec<String> for Directives {
    fn read(texts: &[String]) -> Result<String, String> {
        let text = one(texts)?;
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(text.to_owned()),
            Err(error) => Err(format!("expected levels, as in info or grasp_relay=debug: {error}")),
        }
    }
    fn show(value: &String) -> Vec<String> {
        shown(value)
    }
}

impl Codec<PublicKey> for Key {
    fn read(texts: &[String]) -> Result<PublicKey, String> {
        PublicKey::parse(one(texts)?).map_err(|_| "expected a public key, as npub or hex".into())
    }
    fn show(value: &PublicKey) -> Vec<String> {
        shown(npub(value))
    }
}

impl<V, C: Codec<V>> Codec<Option<V>> for Maybe<C> {
    fn read(texts: &[String]) -> Result<Option<V>, String> {
        C::read(texts).map(Some)
    }
    fn show(value: &Option<V>) -> Vec<String> {
        value.as_ref().map(C::show).unwrap_or_default()
    }
}

impl<V, C: Codec<V>> Codec<Option<V>> for OrNever<C> {
    fn read(texts: &[String]) -> Result<Option<V>, String> {
        if one(texts)? == NEVER { Ok(None) } else { C::read(texts).map(Some) }
    }
    fn show(value: &Option<V>) -> Vec<String> {
        value.as_ref().map_or_else(|| shown(NEVER), C::show)
    }
}

impl<V, C: Codec<V>> Codec<Vec<V>> for List<C> {
    fn read(texts: &[String]) -> Result<Vec<V>, String> {
        texts.chunks(1).map(C::read).collect()
    }
    fn show(value: &Vec<V>) -> Vec<String> {
        value.iter().flat_map(C::show).collect()
    }
}

impl<V: Ord, C: Codec<V>> Codec<BTreeSet<V>> for List<C> {
    fn read(texts: &[String]) -> Result<BTreeSet<V>, String> {
        texts.chunks(1).map(C::read).collect()
    }
    fn show(value: &BTreeSet<V>) -> Vec<String> {
        value.iter().flat_map(C::show).collect()
    }
}

impl Codec<BTreeMap<Host, PermitConfig>> for HostBudgets {
    fn read(texts: &[String]) -> Result<BTreeMap<Host, PermitConfig>, String> {
        let budget = |text: &String| {
            let text = text.trim();
            let (host, budget) = text.split_once('=').or_else(|| text.rsplit_once(':'))?;
            let (at_once, per_minute) = budget.split_once(['/', ','])?;
            let budget = PermitConfig {
                at_once: at_once.parse().ok()?,
                starts: per_minute.parse().ok()?,
                ..PermitConfig::default()
            };
            Some((host.parse().ok()?, budget))
        };
        let budgets: Option<BTreeMap<_, _>> = texts.iter().map(budget).collect();
        budgets.ok_or_else(|| "expected a host and its limits, as in github.com:10,60".into())
    }
    fn show(value: &BTreeMap<Host, PermitConfig>) -> Vec<String> {
        let line = |(host, budget): (&Host, &PermitConfig)| {
            format!("{}:{},{}", host.as_str(), budget.at_once, budget.starts)
        };
        value.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn bytes_and_times_are_read_with_their_units_and_shown_in_the_largest() {
        let bytes = |text| <Bytes as Codec<u64>>::read(&given(text)).ok();
        assert_eq!(bytes("64KiB"), Some(65_536));
        assert_eq!(bytes("2 GiB"), Some(2 << 30));
        assert_eq!(bytes("17"), Some(17));
        for bad in ["", "KiB", "0", "1KB", "-1", "1.5MiB", "20000000TiB"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
        assert_eq!(show_bytes(3 << 20), "3MiB");
        assert_eq!(show_bytes(1_000), "1000");
        let time = |text| Time::read(&given(text)).ok();
        assert_eq!(time("90s"), Some(Duration::from_secs(90)));
        assert_eq!(time("2d"), Some(Duration::from_secs(172_800)));
        for bad in ["", "5", "s", "5 weeks", "99999999999999999999s"] {
            assert_eq!(time(bad), None, "{bad}");
        }
        assert_eq!(Time::show(&Duration::from_secs(90)), ["90s"]);
        assert_eq!(Time::show(&Duration::from_secs(7_200)), ["2h"]);
        assert_eq!(Time::show(&Duration::ZERO), ["0ms"]);
    }

    #[test]
    fn a_host_may_have_a_budget_of_its_own() {
        for text in ["git.example.com:10,60", "git.example.com=10/60"] {
            let budgets = HostBudgets::read(&given(text)).unwrap();
            let budget = &budgets[&"git.example.com".parse::<Host>().unwrap()];
            assert_eq!((budget.at_once.get(), budget.starts.get()), (10, 60));
            assert_eq!(HostBudgets::show(&budgets), ["git.example.com:10,60"]);
        }
        let with_port = HostBudgets::read(&given("git.example.com:8080:10,60")).unwrap();
        assert_eq!(HostBudgets::show(&with_port), ["git.example.com:8080:10,60"]);
        for bad in ["git.example.com", "git.example.com=10", "git.example.com=0/5", "=1/1"] {
            assert!(HostBudgets::read(&given(bad)).is_err(), "{bad}");
        }
    }
}
