//! How git data is hunted for, as it can be said on the command line or in the environment.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use grasp_core::Host;
use grasp_core::limits::PermitConfig;

use crate::settings::{Hunt, Settings};

/// How git data is hunted for. Whatever is not said stays as it is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Git data")]
pub(crate) struct Hunting {
    /// How long an event waits for its git data before it counts as expired, in seconds [default: 1800]
    #[arg(long, env = "GRASP_PURGATORY_EXPIRY", value_name = "SECONDS", value_parser = seconds)]
    purgatory_expiry: Option<Duration>,

    /// When the hunt begins if a user brought the event, for a push usually follows, in seconds [default: 180]
    #[arg(long, env = "GRASP_SYNC_USER_DELAY", value_name = "SECONDS", value_parser = seconds)]
    sync_user_delay: Option<Duration>,

    /// When the hunt begins if another relay brought the event, in seconds [default: 0.5]
    #[arg(long, env = "GRASP_SYNC_DELAY", value_name = "SECONDS", value_parser = seconds)]
    sync_delay: Option<Duration>,

    /// The rest after a hunt that found nothing; each further one doubles it, in seconds [default: 20]
    #[arg(long, env = "GRASP_SYNC_BACKOFF", value_name = "SECONDS", value_parser = seconds)]
    sync_backoff: Option<Duration>,

    /// The longest such rest, in seconds [default: 120]
    #[arg(long, env = "GRASP_SYNC_BACKOFF_CAP", value_name = "SECONDS", value_parser = seconds)]
    sync_backoff_cap: Option<Duration>,

    /// How often every repository is looked after, in seconds [default: 3600]
    #[arg(long, env = "GRASP_SYNC_PULL_INTERVAL", value_name = "SECONDS", value_parser = seconds)]
    sync_pull_interval: Option<Duration>,

    /// Conversations with one git server at once [default: 5]
    #[arg(long, env = "GRASP_SYNC_DOMAIN_CONCURRENT", value_name = "COUNT")]
    sync_domain_concurrent: Option<NonZeroUsize>,

    /// Conversations with one git server within any minute [default: 30]
    #[arg(long, env = "GRASP_SYNC_DOMAIN_RATE_LIMIT", value_name = "COUNT")]
    sync_domain_rate_limit: Option<NonZeroUsize>,

    /// Other limits for one git server, as in `github.com=10,60`; may be given several times.
    #[arg(
        long,
        env = "GRASP_SYNC_DOMAIN_LIMITS",
        value_name = "HOST=AT_ONCE,PER_MINUTE",
        value_delimiter = ' '
    )]
    sync_domain_limits: Vec<HostLimits>,

    /// The largest pack that is fetched, in bytes [default: 2147483648]
    #[arg(long, env = "GRASP_SYNC_MAX_BYTES", value_name = "BYTES")]
    sync_max_bytes: Option<u64>,
}

/// Limits for one git server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostLimits {
    host: Host,
    at_once: NonZeroUsize,
    per_minute: NonZeroUsize,
}

impl FromStr for HostLimits {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "not of the form HOST=AT_ONCE,PER_MINUTE";
        let (host, limits) = text.rsplit_once('=').ok_or(FORM)?;
        let (at_once, per_minute) = limits.split_once(',').ok_or(FORM)?;
        Ok(Self {
            host: host.parse().map_err(|_| "not a host")?,
            at_once: at_once.parse().map_err(|_| FORM)?,
            per_minute: per_minute.parse().map_err(|_| FORM)?,
        })
    }
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a length of time")
}

impl Hunting {
    /// Puts what was said into the settings.
    pub(crate) fn choose(&self, settings: &mut Settings) {
        set(&mut settings.purgatory.wait, self.purgatory_expiry);
        set(&mut settings.purgatory.user_delay, self.sync_user_delay);
        set(&mut settings.purgatory.sync_delay, self.sync_delay);
        let Some(Hunt { hunter, limits }) = &mut settings.hunt else { return };
        set(&mut hunter.backoff.first, self.sync_backoff);
        set(&mut hunter.backoff.cap, self.sync_backoff_cap);
        set(&mut hunter.pull_every, self.sync_pull_interval);
        set(&mut hunter.per_host.at_once, self.sync_domain_concurrent);
        set(&mut hunter.per_host.starts, self.sync_domain_rate_limit);
        set(&mut limits.bytes, self.sync_max_bytes);
        for HostLimits { host, at_once, per_minute } in self.sync_domain_limits.iter().cloned() {
            let limits = PermitConfig { at_once, starts: per_minute, ..hunter.per_host };
            hunter.hosts.insert(host, limits);
        }
    }
}

fn set<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        hunting: Hunting,
    }

    fn chosen(args: &[&str]) -> Settings {
        let line = Line::try_parse_from(["grasp"].iter().chain(args)).unwrap();
        let mut settings = Settings::new("grasp.example".parse().unwrap(), "data");
        line.hunting.choose(&mut settings);
        settings
    }

    #[test]
    fn what_is_not_said_stays_as_it_is() {
        let (settings, untouched) = (chosen(&[]), Settings::new("a.b".parse().unwrap(), ""));
        let (hunt, default) = (settings.hunt.unwrap(), untouched.hunt.unwrap());
        assert_eq!(hunt.hunter.per_host, default.hunter.per_host);
        assert_eq!(settings.purgatory.user_delay, Duration::from_secs(180));
        assert_eq!(settings.purgatory.sync_delay, Duration::from_millis(500));
    }

    #[test]
    fn what_is_said_is_done() {
        let settings = chosen(&[
            "--sync-delay=0.25",
            "--sync-user-delay=60",
            "--purgatory-expiry=600",
            "--sync-domain-concurrent=2",
            "--sync-domain-limits=github.com=10,60",
            "--sync-domain-limits=git.example:8443=1,5",
        ]);
        assert_eq!(settings.purgatory.sync_delay, Duration::from_millis(250));
        assert_eq!(settings.purgatory.user_delay, Duration::from_secs(60));
        assert_eq!(settings.purgatory.wait, Duration::from_secs(600));
        let hunter = settings.hunt.unwrap().hunter;
        assert_eq!(hunter.per_host.at_once.get(), 2);
        let limits: Vec<_> = hunter
            .hosts
            .iter()
            .map(|(host, limits)| (host.as_str(), limits.at_once.get(), limits.starts.get()))
            .collect();
        assert_eq!(limits, [("git.example:8443", 1, 5), ("github.com", 10, 60)]);
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        for (flag, value) in [
            ("--sync-delay", "-1"),
            ("--sync-delay", "soon"),
            ("--sync-domain-concurrent", "0"),
            ("--sync-domain-limits", "github.com"),
            ("--sync-domain-limits", "a b=1,1"),
        ] {
            let error = Line::try_parse_from(["grasp", &format!("{flag}={value}")]).unwrap_err();
            assert!(error.to_string().contains(flag), "{error}");
        }
    }
}
