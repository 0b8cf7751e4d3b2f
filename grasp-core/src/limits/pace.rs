//! How fast one relay may be asked, and how that changes when it complains.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Admit, Rate, TokenBucket};
use crate::Mono;

/// The pace of background requests to one relay.
///
/// The default suits software of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceConfig {
    /// Requests that may start in one go after a quiet time. Default: 60.
    pub burst: NonZeroU32,
    /// Requests that may start in the long run. Default: 2 a second.
    pub rate: Rate,
    /// The pause after the first refusal; each further one doubles it. Default: 65 seconds.
    ///
    /// Relays count per minute; the five seconds are slack for clocks and queues.
    pub first_pause: Duration,
    /// The longest pause. Default: 1 hour.
    pub longest_pause: Duration,
    /// Least distance between starts after the first refusal; each further one doubles it.
    /// Default: 600 milliseconds.
    pub first_gap: Duration,
    /// The widest distance. Default: 10 seconds.
    pub widest_gap: Duration,
    /// Time without refusal, counted from the end of the pause, after which all is forgiven.
    /// Default: 5 minutes.
    pub quiet: Duration,
}

impl PaceConfig {
    /// For software that has no limiter, or is known to allow some 1,200 starts a minute.
    pub const GENEROUS: Self = Self {
        rate: Rate::per_second(NonZeroU32::new(15).expect("fifteen is not zero")),
        ..Self::CAREFUL
    };

    /// For software of which nothing is known; some of it allows 120 starts a minute.
    pub const CAREFUL: Self = Self {
        burst: NonZeroU32::new(60).expect("sixty is not zero"),
        rate: Rate::per_second(NonZeroU32::new(2).expect("two is not zero")),
        first_pause: Duration::from_secs(65),
        longest_pause: Duration::from_secs(60 * 60),
        first_gap: Duration::from_millis(600),
        widest_gap: Duration::from_secs(10),
        quiet: Duration::from_secs(5 * 60),
    };
}

impl Default for PaceConfig {
    fn default() -> Self {
        Self::CAREFUL
    }
}

/// Admits background requests to one relay, one at a time.
///
/// Before any complaint the [`TokenBucket`] alone decides. A rate refusal pauses all starts; after
/// the pause they keep a distance, until the relay has been content for a while. Refusals that come
/// in during a pause change nothing: they answer what was sent before, and one episode is one pause.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::limits::{Admit, Pace, PaceConfig};
///
/// let mut pace = Pace::new(PaceConfig::default());
/// let now = Mono::from_secs(10);
/// assert_eq!(pace.admit(now), Admit::Go);
///
/// pace.refused(now);
/// let resume = now + Duration::from_secs(65);
/// assert_eq!(pace.admit(now), Admit::Wait(resume));
/// assert_eq!(pace.admit(resume), Admit::Go);
/// assert_eq!(pace.admit(resume), Admit::Wait(resume + Duration::from_millis(600)));
/// ```
#[derive(Clone, Debug)]
pub struct Pace {
    config: PaceConfig,
    bucket: TokenBucket,
    last_start: Option<Mono>,
    paused_until: Mono,
    complaint: Option<Complaint>,
}

/// What a relay's refusals have led to.
#[derive(Clone, Copy, Debug)]
struct Complaint {
    pause: Duration,
    gap: Duration,
    /// The end of the pause that the latest refusal led to.
    until: Mono,
}

impl Pace {
    /// A relay that has refused nothing yet.
    pub const fn new(config: PaceConfig) -> Self {
        Self {
            config,
            bucket: TokenBucket::new(config.burst, config.rate),
            last_start: None,
            paused_until: Mono::ZERO,
            complaint: None,
        }
    }

    /// Asks for one start, and counts it when the answer is [`Admit::Go`].
    pub fn admit(&mut self, now: Mono) -> Admit {
        self.forgive(now);
        match Admit::from(self.reopens_at(), now) {
            Admit::Go => {
                self.last_start = Some(now);
                self.bucket.admit(now)
            }
            wait @ Admit::Wait(_) => wait,
        }
    }

    /// The relay refused something for its rate.
    pub fn refused(&mut self, now: Mono) {
        self.forgive(now);
        let (pause, gap) = match self.complaint {
            Some(complaint) if now < complaint.until => return,
            Some(Complaint { pause, gap, .. }) => (
                pause.saturating_mul(2).min(self.config.longest_pause),
                gap.saturating_mul(2).min(self.config.widest_gap),
            ),
            None => (self.config.first_pause, self.config.first_gap),
        };
        let until = now + pause;
        self.complaint = Some(Complaint { pause, gap, until });
        self.pause_until(until);
    }

    /// Lets nothing start before `until`. Of two pauses the later counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.paused_until = self.paused_until.max(until);
    }

    /// The earliest point at which the next start may happen; past if it may now.
    pub fn reopens_at(&self) -> Mono {
        let spaced = match (self.complaint, self.last_start) {
            (Some(complaint), Some(last)) => last + complaint.gap,
            _ => Mono::ZERO,
        };
        self.bucket.reopens_at().max(spaced).max(self.paused_until)
    }

    /// Is the relay being left alone at the moment?
    pub fn is_paused(&self, now: Mono) -> bool {
        now < self.paused_until
    }

    fn forgive(&mut self, now: Mono) {
        let quiet = self.config.quiet;
        self.complaint = self.complaint.filter(|complaint| now < complaint.until + quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn wait_of(pace: &mut Pace, now: Mono) -> Duration {
        match pace.admit(now) {
            Admit::Go => Duration::ZERO,
            Admit::Wait(until) => until - now,
        }
    }

    #[test]
    fn unknown_software_gets_sixty_at_once_and_then_two_a_second() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        assert!((0..60).all(|_| pace.admit(Mono::ZERO) == Admit::Go));
        assert_eq!(pace.admit(Mono::ZERO), Admit::Wait(Mono::from_millis(500)));
    }

    #[test]
    fn generous_software_gets_fifteen_a_second() {
        let mut pace = Pace::new(PaceConfig::GENEROUS);
        assert!((0..60).all(|_| pace.admit(Mono::ZERO) == Admit::Go));
        let second = (1..=1_000).filter(|ms| pace.admit(Mono::from_millis(*ms)) == Admit::Go);
        assert_eq!(second.count(), 15);
    }

    #[test]
    fn a_refusal_pauses_and_its_echoes_do_not_extend_the_pause() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        pace.refused(Mono::ZERO);
        for second in 1..65 {
            pace.refused(Mono::from_secs(second));
        }
        assert!(pace.is_paused(Mono::from_secs(64)));
        assert_eq!(pace.admit(Mono::from_secs(65)), Admit::Go);
    }

    #[test]
    fn pauses_double_to_an_hour() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        let mut at = Mono::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pace.refused(at);
            pauses.push(wait_of(&mut pace, at).as_secs());
            at = pace.reopens_at();
        }
        assert_eq!(pauses, [65, 130, 260, 520, 1040, 2080, 3600, 3600]);
    }

    #[test]
    fn gaps_double_from_600_milliseconds_to_ten_seconds() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        let mut at = Mono::ZERO;
        let mut gaps = Vec::new();
        for _ in 0..7 {
            pace.refused(at);
            at = pace.reopens_at();
            assert_eq!(pace.admit(at), Admit::Go);
            gaps.push(wait_of(&mut pace, at).as_millis());
        }
        assert_eq!(gaps, [600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000]);
    }

    #[test]
    fn five_quiet_minutes_after_the_pause_forgive_everything() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        pace.refused(Mono::ZERO);
        pace.refused(Mono::from_secs(65));
        let resumed = Mono::from_secs(65 + 130);

        let forgiven = resumed + 5 * MINUTE;
        let mut asked = pace.clone();
        assert!((0..60).all(|_| asked.admit(forgiven) == Admit::Go));

        let mut refused = pace.clone();
        refused.refused(forgiven);
        assert_eq!(wait_of(&mut refused, forgiven).as_secs(), 65);

        let too_early = resumed + 4 * MINUTE;
        pace.refused(too_early);
        assert_eq!(wait_of(&mut pace, too_early).as_secs(), 260);
    }

    #[test]
    fn an_explicit_pause_is_no_complaint() {
        let mut pace = Pace::new(PaceConfig::CAREFUL);
        pace.pause_until(Mono::from_secs(9));
        assert_eq!(pace.admit(Mono::ZERO), Admit::Wait(Mono::from_secs(9)));
        assert_eq!(pace.admit(Mono::from_secs(9)), Admit::Go);
        assert_eq!(pace.admit(Mono::from_secs(9)), Admit::Go);
    }
}
