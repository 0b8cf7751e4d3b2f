//! Values of settings as text: sizes, times, keys, limits of hosts.

use std::fmt::{self, Display};
use std::num::{NonZeroU64, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::ValueEnum;
use grasp_core::service::npub;
use grasp_core::{Host, MaintainerModel};
use grasp_purgatory::hunt::HostLimits;
use nostr::key::PublicKey;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::EnvFilter;

/// A value that is written as text, in files as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: FromStr<Err: Display>> FromStr for Text<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.trim().parse().map(Self).map_err(|error: T::Err| error.to_string())
    }
}

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// A number of bytes above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteCount(pub(crate) u64);

impl FromStr for ByteCount {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size: Option<ByteSize> = text.parse().ok();
        let size = size.map(|size| size.as_u64()).filter(|bytes| *bytes > 0);
        size.map(Self).ok_or("expected bytes, as in 64KiB")
    }
}

impl Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let unit = units.into_iter().find(|(_, bytes): &(_, u64)| self.0.is_multiple_of(*bytes));
        match unit {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

impl FromStr for Time {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let explain = |error| format!("expected a time with its unit, as in 30s or 2h: {error}");
        humantime::parse_duration(text).map(Self).map_err(explain)
    }
}

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// A public key, read as npub or hex and written as npub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Npub(pub(crate) PublicKey);

impl FromStr for Npub {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        PublicKey::parse(text).map(Self).map_err(|_| "expected a public key, as npub or hex")
    }
}

impl Display for Npub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&npub(&self.0))
    }
}

/// Directives of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(crate) String);

impl FromStr for LogFilter {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let explain = |error| format!("expected levels, as in info or grasp_relay=debug: {error}");
        EnvFilter::try_new(text).map(|_| Self(text.to_owned())).map_err(explain)
    }
}

impl Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Limits for conversations with one host, as in `github.com:10,60`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostLimit {
    pub(crate) host: Host,
    pub(crate) limit: HostLimits,
}

impl FromStr for HostLimit {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (host, limit) = text.rsplit_once(':')?;
            let (at_once, starts) = limit.split_once(',')?;
            let (at_once, starts) = (at_once.trim().parse().ok()?, starts.trim().parse().ok()?);
            let limit = HostLimits { at_once, starts, ..HostLimits::default() };
            Some(Self { host: host.parse().ok()?, limit })
        };
        read()
            .ok_or("expected a host, conversations at once and per minute, as in github.com:10,60")
    }
}

impl Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{},{}", self.host.as_str(), self.limit.at_once, self.limit.starts)
    }
}

/// The maintainer model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Model {
    /// Whoever is listed and lists back.
    Reciprocal,
    /// Whoever is listed.
    Plain,
}

/// A setting's form in files and flags, and the value inside the configuration.
pub(crate) trait Convert<V>: Sized {
    /// Returns a value as a setting.
    fn from_value(value: &V) -> Self;
    /// Returns the value of a setting.
    fn into_value(self) -> V;
}

macro_rules! convert {
    ($($form:ty => $value:ty, |$from:ident| $to_form:expr, |$into:ident| $to_value:expr;)*) => {$(
        impl Convert<$value> for $form {
            fn from_value($from: &$value) -> Self {
                $to_form
            }
            fn into_value(self) -> $value {
                let $into = self;
                $to_value
            }
        }
    )*};
}

convert! {
    Text<ByteCount> => u64, |bytes| Text(ByteCount(*bytes)), |size| size.0.0;
    Text<ByteCount> => usize, |bytes| Text(ByteCount(*bytes as u64)), |size| usize::try_from(size.0.0).unwrap_or(usize::MAX);
    Text<Time> => Duration, |time| Text(Time(*time)), |time| time.0.0;
    Text<Npub> => PublicKey, |key| Text(Npub(*key)), |key| key.0.0;
    Text<LogFilter> => String, |filter| Text(LogFilter(filter.clone())), |filter| filter.0.0;
    NonZeroU64 => usize, |count| NonZeroU64::new(*count as u64).unwrap_or(NonZeroU64::MIN),
        |count| usize::try_from(count.get()).unwrap_or(usize::MAX);
    NonZeroU64 => NonZeroUsize, |count| NonZeroU64::new(count.get() as u64).unwrap_or(NonZeroU64::MIN),
        |count| NonZeroUsize::try_from(count).unwrap_or(NonZeroUsize::MAX);
    Text<HostLimit> => (Host, HostLimits),
        |entry| Text(HostLimit { host: entry.0.clone(), limit: entry.1 }), |entry| (entry.0.host, entry.0.limit);
    Model => MaintainerModel,
        |model| match model { MaintainerModel::Reciprocal => Model::Reciprocal, MaintainerModel::Plain => Model::Plain },
        |model| match model { Model::Reciprocal => MaintainerModel::Reciprocal, Model::Plain => MaintainerModel::Plain };
}

impl<T: Clone> Convert<T> for Text<T> {
    fn from_value(value: &T) -> Self {
        Self(value.clone())
    }
    fn into_value(self) -> T {
        self.0
    }
}

impl<T: Clone> Convert<T> for T {
    fn from_value(value: &T) -> Self {
        value.clone()
    }
    fn into_value(self) -> T {
        self
    }
}

/// A setting that always has a value.
pub(crate) mod one {
    use super::Convert;

    pub(crate) fn show<F: Convert<V>, V>(setting: &mut Option<F>, value: &mut V) {
        *setting = Some(F::from_value(value));
    }

    pub(crate) fn apply<F: Convert<V>, V>(setting: &mut Option<F>, value: &mut V) {
        if let Some(given) = setting.take() {
            *value = given.into_value();
        }
    }
}

/// A setting that may have no value.
pub(crate) mod optional {
    use super::Convert;

    pub(crate) fn show<F: Convert<V>, V>(setting: &mut Option<F>, value: &mut Option<V>) {
        *setting = value.as_ref().map(F::from_value);
    }

    pub(crate) fn apply<F: Convert<V>, V>(setting: &mut Option<F>, value: &mut Option<V>) {
        if let Some(given) = setting.take() {
            *value = Some(given.into_value());
        }
    }
}

/// A setting with any number of values.
pub(crate) mod list {
    use super::Convert;

    pub(crate) fn show<F, V, C>(setting: &mut Option<Vec<F>>, value: &mut C)
    where
        F: Convert<V>,
        C: Clone + IntoIterator<Item = V>,
    {
        *setting = Some(value.clone().into_iter().map(|one| F::from_value(&one)).collect());
    }

    pub(crate) fn apply<F: Convert<V>, V, C: FromIterator<V>>(
        setting: &mut Option<Vec<F>>,
        value: &mut C,
    ) {
        if let Some(given) = setting.take() {
            *value = given.into_iter().map(F::into_value).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_with_their_units_and_shown_exactly() {
        let size = |text: &str| text.parse::<ByteCount>().map(|size| size.0).ok();
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("2 GiB"), Some(2 << 30));
        assert_eq!(size("17"), Some(17));
        for bad in ["", "KiB", "0", "-1", "a lot"] {
            assert_eq!(size(bad), None, "{bad}");
        }
        for bytes in [3 << 20, 1_000, 1_234_567] {
            assert_eq!(size(&ByteCount(bytes).to_string()), Some(bytes));
        }
        let time = |text: &str| text.parse::<Time>().map(|time| time.0).ok();
        assert_eq!(time("90s"), Some(Duration::from_secs(90)));
        assert_eq!(time("2d"), Some(Duration::from_secs(172_800)));
        for bad in ["", "5", "s", "5 parsecs"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_host_may_have_limits_of_its_own() {
        for text in ["git.example.com:10,60", "git.example.com:8080:10,60"] {
            assert_eq!(text.parse::<HostLimit>().unwrap().to_string(), text);
        }
        for bad in ["git.example.com", "git.example.com:10", "git.example.com:0,5", ":1,1"] {
            assert!(bad.parse::<HostLimit>().is_err(), "{bad}");
        }
    }
}
