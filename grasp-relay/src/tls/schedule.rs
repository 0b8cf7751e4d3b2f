//! When a certificate is ordered and renewed. Pure: times are arguments, in Unix seconds.
//!
//! The record is stored before each order, so that a restart neither orders again nor forgets how long to wait.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::certificate::Validity;

/// Seconds in a day.
const DAY: u64 = 24 * 60 * 60;

/// Certificates that may be ordered within a day. Public ACME servers refuse more for a week.
const MAX_PER_DAY: usize = 5;

/// The interval between requests for renewal information (ARI), unless the ACME server names another.
const ASK_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// The time between two attempts with different challenges.
const OTHER_CHALLENGE_DELAY: Duration = Duration::from_secs(5);

/// The time after both challenges have failed, which doubles up to the longest: four attempts in the first hour.
const FIRST_BACKOFF: Duration = Duration::from_secs(10 * 60);
const MAX_BACKOFF: Duration = Duration::from_secs(6 * 60 * 60);

/// A way to prove control of the domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChallengeKind {
    /// Within a TLS handshake on port 443.
    #[default]
    TlsAlpn,
    /// With a request to port 80.
    Http,
}

impl ChallengeKind {
    fn other(self) -> Self {
        match self {
            Self::TlsAlpn => Self::Http,
            Self::Http => Self::TlsAlpn,
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalStep {
    /// Order a certificate, with this challenge.
    Order(ChallengeKind),
    /// Ask when to renew the present certificate.
    AskRenewalInfo,
    /// Nothing is due before this time.
    WaitUntil(u64),
}

/// The present certificate, as far as it matters for its renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PresentCertificate {
    pub(super) validity: Validity,
    /// It is for the domain of the server.
    pub(super) covers_domain: bool,
}

/// The time in which an ACME server wants a certificate to be renewed (RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RenewalWindow {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Past attempts, and what the ACME server said about the renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct OrderRecord {
    /// The ACME server that the record is about.
    directory: String,
    /// Failures since the last success.
    failures: u32,
    /// The reason of the last failure.
    pub(super) last_failure: Option<String>,
    /// No attempt begins before this time.
    not_before: u64,
    /// The times of the last certificates.
    issued: Vec<u64>,
    /// The challenge that worked last.
    challenge: ChallengeKind,
    /// The time to renew the present certificate that was chosen within the window of the ACME server.
    renew_at: Option<u64>,
    /// No renewal information is asked for before this time.
    ask_at: u64,
}

impl OrderRecord {
    /// Returns the record for an ACME server: this one, or an empty one if it is about another server.
    pub(super) fn of_directory(self, directory: &str) -> Self {
        if self.directory == directory {
            return self;
        }
        Self {
            directory: directory.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the next step.
    pub(super) fn next(&self, now: u64, present: Option<PresentCertificate>) -> RenewalStep {
        let due = self.due(present);
        if due > now {
            if self.ask_at <= now {
                return RenewalStep::AskRenewalInfo;
            }
            return RenewalStep::WaitUntil(due.min(self.ask_at));
        }
        let allowed = self.not_before.max(self.next_of_day(now));
        if allowed > now {
            return RenewalStep::WaitUntil(allowed);
        }
        RenewalStep::Order(self.next_challenge())
    }

    /// Returns the time at which a new certificate is needed.
    fn due(&self, present: Option<PresentCertificate>) -> u64 {
        // A certificate that this ACME server did not issue may be one for tests.
        let Some(present) = present.filter(|it| it.covers_domain && !self.issued.is_empty()) else {
            return 0;
        };
        let lifetime = present.validity.lifetime().as_secs();
        let by_lifetime = present.validity.not_before + lifetime / 3 * 2;
        // The ACME server may want it earlier or later, but not when there is hardly time for failures.
        let latest = present.validity.not_after.saturating_sub(lifetime / 12);
        self.renew_at.unwrap_or(by_lifetime).min(latest)
    }

    /// Returns the time from which one more certificate may be ordered.
    fn next_of_day(&self, now: u64) -> u64 {
        let recent: Vec<_> = self.issued.iter().filter(|at| now < **at + DAY).collect();
        match recent.len().checked_sub(MAX_PER_DAY) {
            Some(surplus) => recent[surplus] + DAY,
            None => 0,
        }
    }

    fn next_challenge(&self) -> ChallengeKind {
        if self.failures.is_multiple_of(2) {
            self.challenge
        } else {
            self.challenge.other()
        }
    }

    /// Records that an attempt begins, as if it had failed, so that a crash counts as a failure.
    pub(super) fn began(&mut self, now: u64) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + backoff(self.failures).as_secs();
    }

    /// Records the failure of the attempt that began last, and how long the ACME server wants to be left alone.
    pub(super) fn failed(&mut self, now: u64, why: String, retry_after: Option<Duration>) {
        let wait = backoff(self.failures).max(retry_after.unwrap_or_default());
        self.not_before = now + wait.as_secs();
        self.last_failure = Some(why);
    }

    /// Records a new certificate.
    pub(super) fn issued(&mut self, now: u64, challenge: ChallengeKind) {
        self.failures = 0;
        self.last_failure = None;
        self.not_before = 0;
        self.challenge = challenge;
        self.issued.push(now);
        let surplus = self.issued.len().saturating_sub(MAX_PER_DAY);
        self.issued.drain(..surplus);
        self.renew_at = None;
        self.ask_at = now;
    }

    /// Records the answer to a request for renewal information, if there was one; `random` chooses the time within its
    /// window, so that not all servers renew at once.
    pub(super) fn told(
        &mut self,
        now: u64,
        window: Option<RenewalWindow>,
        again_in: Option<Duration>,
        random: u64,
    ) {
        if let Some(window) = window.filter(|window| window.start < window.end) {
            let known = self
                .renew_at
                .filter(|at| (window.start..window.end).contains(at));
            let chosen = window.start + random % (window.end - window.start);
            self.renew_at = Some(known.unwrap_or(chosen));
        }
        let again_in = again_in
            .unwrap_or(ASK_INTERVAL)
            .clamp(Duration::from_secs(60), Duration::from_secs(DAY));
        self.ask_at = now + again_in.as_secs();
    }
}

/// Returns the time to wait after this many failures.
fn backoff(failures: u32) -> Duration {
    if failures % 2 == 1 && failures < 4 {
        return OTHER_CHALLENGE_DELAY;
    }
    let doublings = failures.saturating_sub(1) / 2;
    FIRST_BACKOFF
        .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const DIRECTORY: &str = "https://acme.example/directory";
    const HOUR: u64 = 60 * 60;

    fn record() -> OrderRecord {
        OrderRecord::default().of_directory(DIRECTORY)
    }

    /// A certificate that was issued at this time for 90 days.
    fn present(at: u64) -> Option<PresentCertificate> {
        Some(PresentCertificate {
            validity: Validity {
                not_before: at,
                not_after: at + 90 * DAY,
            },
            covers_domain: true,
        })
    }

    fn with_certificate(at: u64) -> OrderRecord {
        let mut record = record();
        record.began(at);
        record.issued(at, ChallengeKind::TlsAlpn);
        record.told(at, None, None, 0);
        record
    }

    #[test]
    fn without_a_certificate_one_is_ordered_at_once() {
        assert_eq!(
            record().next(NOW, None),
            RenewalStep::Order(ChallengeKind::TlsAlpn)
        );
        let other_domain = present(NOW).map(|present| PresentCertificate {
            covers_domain: false,
            ..present
        });
        let step = with_certificate(NOW).next(NOW, other_domain);
        assert_eq!(step, RenewalStep::Order(ChallengeKind::TlsAlpn));
    }

    #[test]
    fn a_restart_orders_nothing() {
        let text = serde_json::to_string(&with_certificate(NOW)).unwrap();
        let read: OrderRecord = serde_json::from_str(&text).unwrap();
        let step = read.of_directory(DIRECTORY).next(NOW + 1, present(NOW));
        assert!(matches!(step, RenewalStep::WaitUntil(_)), "{step:?}");
    }

    #[test]
    fn another_acme_server_is_asked_at_once() {
        let step = with_certificate(NOW)
            .of_directory("https://other.example/directory")
            .next(NOW + 1, present(NOW));
        assert_eq!(step, RenewalStep::Order(ChallengeKind::TlsAlpn));
    }

    #[test]
    fn renews_at_two_thirds_of_the_lifetime() {
        let mut record = with_certificate(NOW);
        record.ask_at = u64::MAX;
        let due = NOW + 60 * DAY;
        assert_eq!(
            record.next(due - 1, present(NOW)),
            RenewalStep::WaitUntil(due)
        );
        assert!(matches!(
            record.next(due, present(NOW)),
            RenewalStep::Order(_)
        ));
    }

    #[test]
    fn the_acme_server_decides_when_to_renew() {
        let mut record = with_certificate(NOW);
        let asked = NOW + 6 * HOUR;
        assert_eq!(
            record.next(asked, present(NOW)),
            RenewalStep::AskRenewalInfo
        );
        let window = RenewalWindow {
            start: NOW + DAY,
            end: NOW + 2 * DAY,
        };
        record.told(asked, Some(window), None, 7 + 5 * DAY);
        let due = NOW + DAY + 7;
        assert_eq!(record.due(present(NOW)), due);
        record.told(asked + 1, Some(window), None, 99);
        assert_eq!(record.due(present(NOW)), due, "the chosen time stays");
        let past = RenewalWindow { start: 1, end: 2 };
        record.told(asked + 2, Some(past), None, 0);
        assert!(matches!(
            record.next(asked + 2, present(NOW)),
            RenewalStep::Order(_)
        ));
        let far = RenewalWindow {
            start: NOW + 900 * DAY,
            end: NOW + 901 * DAY,
        };
        record.told(asked + 3, Some(far), None, 0);
        assert!(record.due(present(NOW)) < NOW + 90 * DAY);
    }

    #[test]
    fn the_other_challenge_is_tried_soon_and_then_attempts_back_off() {
        let mut record = record();
        let (mut now, mut attempts) = (NOW, Vec::new());
        while now < NOW + 7 * DAY {
            match record.next(now, None) {
                RenewalStep::Order(challenge) => {
                    attempts.push((now, challenge));
                    record.began(now);
                    record.failed(now, "connection refused".into(), None);
                }
                RenewalStep::WaitUntil(at) => now = at.max(now + 1),
                RenewalStep::AskRenewalInfo => panic!("there is nothing to ask about"),
            }
        }
        let kinds: Vec<_> = attempts.iter().take(3).map(|(_, kind)| *kind).collect();
        let expected = [
            ChallengeKind::TlsAlpn,
            ChallengeKind::Http,
            ChallengeKind::TlsAlpn,
        ];
        assert_eq!(kinds, expected);
        assert_eq!(attempts[1].0 - attempts[0].0, 5);
        let within_an_hour = attempts.iter().filter(|(at, _)| *at < NOW + HOUR).count();
        assert!(within_an_hour <= 5, "{within_an_hour}");
        let last = attempts.len() - 1;
        assert_eq!(attempts[last].0 - attempts[last - 1].0, 6 * HOUR);
    }

    #[test]
    fn a_rate_limit_is_waited_for_and_survives_a_restart() {
        let mut record = record();
        record.began(NOW);
        record.failed(NOW, "too many".into(), Some(Duration::from_secs(30 * HOUR)));
        let text = serde_json::to_string(&record).unwrap();
        let read: OrderRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.next(NOW + 1, None),
            RenewalStep::WaitUntil(NOW + 30 * HOUR)
        );
    }

    #[test]
    fn a_crash_during_an_order_counts_as_a_failure() {
        let mut record = record();
        record.began(NOW);
        assert_eq!(record.next(NOW, None), RenewalStep::WaitUntil(NOW + 5));
    }

    #[test]
    fn five_certificates_a_day_are_all() {
        let mut record = record();
        for hour in 0..MAX_PER_DAY as u64 {
            assert!(matches!(
                record.next(NOW + hour * HOUR, None),
                RenewalStep::Order(_)
            ));
            record.began(NOW + hour * HOUR);
            record.issued(NOW + hour * HOUR, ChallengeKind::Http);
        }
        let step = record.next(NOW + 5 * HOUR, None);
        assert_eq!(step, RenewalStep::WaitUntil(NOW + DAY));
        assert_eq!(
            record.next(NOW + DAY, None),
            RenewalStep::Order(ChallengeKind::Http)
        );
    }
}
