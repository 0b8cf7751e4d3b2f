//! What the hunt tells people: `info` what was achieved, `warn` who failed us, `debug` everything on the way.

use super::{HuntConfig, HuntReport};

/// Says that the hunt begins, and how much each server will be asked for.
pub(super) fn begin(config: &HuntConfig) {
    let (at_once, per_minute) = (config.per_host.at_once, config.per_host.starts);
    let (grasp, grasp_per_minute) = (config.per_grasp_host.at_once, config.per_grasp_host.starts);
    tracing::info!(
        at_once,
        per_minute,
        grasp_at_once = grasp,
        grasp_per_minute,
        "hunting for git data that events wait for"
    );
}

/// Says what is worth saying. Words of strangers are bounded and without control characters.
pub(super) fn tell(report: &HuntReport) {
    match report {
        HuntReport::Queued { identifier, after } => {
            tracing::debug!(%identifier, ?after, "git data will be hunted for");
        }
        HuntReport::Started { identifier, attempt } => {
            tracing::debug!(%identifier, attempt, "hunting for git data");
        }
        HuntReport::Complete { identifier } => {
            tracing::info!(%identifier, "all git data that was wanted is here");
        }
        HuntReport::Needless { identifier } => {
            tracing::debug!(%identifier, "no git data is wanted");
        }
        HuntReport::WaitingForHosts { identifier } => {
            tracing::debug!(%identifier, "git servers are busy; waiting for a turn");
        }
        HuntReport::Classified { host, class } => {
            tracing::debug!(%host, ?class, "found out what a git server is");
        }
        HuntReport::Incomplete { identifier, attempts, next } => {
            tracing::debug!(%identifier, attempts, ?next, "git data is still wanted");
        }
        HuntReport::Fetched { identifier, url, oids } => {
            tracing::debug!(%identifier, %url, oids, "fetched git data");
        }
        HuntReport::Failed { identifier, url, error } => {
            tracing::warn!(%identifier, %url, %error, "a git server gave less than it was asked for");
        }
        HuntReport::Paused { host, length } => {
            tracing::info!(%host, ?length, "a git server asks for less and is left alone");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use grasp_core::limits::PeerText;
    use grasp_core::{CloneUrl, Identifier};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::hunt::FetchError;

    /// Keeps every line with its level.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, "{}={value:?} ", field.name()).unwrap();
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    fn said(say: impl FnOnce()) -> (Level, String) {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), say);
        let mut lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    #[test]
    fn each_report_has_its_level_and_names_what_it_is_about() {
        let identifier: Identifier = "grasp".parse().unwrap();
        let url: CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        let (one, host) = (identifier.clone(), url.host());
        let (minute, error) = (Duration::from_secs(60), FetchError::Stalled);
        let cases = [
            (
                Level::DEBUG,
                HuntReport::Queued { identifier: one.clone(), after: Some(minute) },
                "after=Some(60s)",
            ),
            (
                Level::DEBUG,
                HuntReport::Started { identifier: one.clone(), attempt: 2 },
                "attempt=2",
            ),
            (Level::INFO, HuntReport::Complete { identifier: one.clone() }, "is here"),
            (Level::DEBUG, HuntReport::Needless { identifier: one.clone() }, "no git data"),
            (
                Level::DEBUG,
                HuntReport::Incomplete { identifier: one.clone(), attempts: 2, next: Some(minute) },
                "attempts=2 next=Some(60s)",
            ),
            (
                Level::DEBUG,
                HuntReport::Fetched { identifier: one.clone(), url: url.clone(), oids: 3 },
                "url=https://git.example.com/x.git oids=3",
            ),
            (
                Level::WARN,
                HuntReport::Failed { identifier: one, url, error },
                "url=https://git.example.com/x.git error=stopped sending",
            ),
        ];
        for (level, report, part) in cases {
            let (said_at, line) = said(|| tell(&report));
            assert_eq!(said_at, level, "{line}");
            assert!(line.contains("identifier=grasp") && line.contains(part), "{line}");
        }
        let (level, line) = said(|| tell(&HuntReport::Paused { host, length: minute }));
        assert!(level == Level::INFO && line.contains("host=git.example.com"), "{line}");
        let (level, line) = said(|| begin(&HuntConfig::default()));
        assert!(
            level == Level::INFO && line.contains("at_once=5 per_minute=30 grasp_at_once=8"),
            "{line}"
        );
    }

    #[test]
    fn a_strangers_words_make_no_lines_of_their_own() {
        let error = FetchError::Refused(PeerText::new("no\nERROR forged \u{1b}[31m line"));
        let url = "https://git.example.com/x.git".parse().unwrap();
        let identifier = "x".parse().unwrap();
        let (_, line) = said(|| tell(&HuntReport::Failed { identifier, url, error }));
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    }
}
