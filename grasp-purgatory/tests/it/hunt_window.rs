use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;
use grasp_purgatory::hunt::RateWindow;
use proptest::prelude::*;

/// Returns the largest number of starts in any period of this length.
pub(super) fn max_starts_per(starts: &[Mono], length: Duration) -> usize {
    let within = |from: Mono| move |at: &&Mono| **at >= from && **at < from + length;
    let counts = starts.iter().map(|from| starts.iter().filter(within(*from)).count());
    counts.max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_period_exceeds_the_limit_and_no_start_is_refused_needlessly(
        max in 1..8_usize,
        length in 0..5_000_u64,
        steps in prop::collection::vec(0..2_000_u64, 0..80),
    ) {
        let length = Duration::from_millis(length);
        let mut window = RateWindow::new(NonZeroUsize::new(max).unwrap(), length);
        let mut now = Mono::ZERO;
        let mut starts = Vec::new();
        for step in steps {
            now = now + Duration::from_millis(step);
            let recent = starts.iter().filter(|at| **at + length > now).count();
            match window.admit(now) {
                Admit::Go => {
                    prop_assert!(recent < max);
                    starts.push(now);
                }
                Admit::Wait(until) => {
                    prop_assert!(recent >= max && until > now);
                    prop_assert_eq!(window.check(until), Admit::Go);
                }
            }
        }
        if !length.is_zero() {
            prop_assert!(max_starts_per(&starts, length) <= max);
        }
    }

    #[test]
    fn nothing_starts_during_a_pause(
        pauses in prop::collection::vec((0..50_u64, 0..50_u64), 1..20),
    ) {
        let max = NonZeroUsize::new(100).unwrap();
        let mut window = RateWindow::new(max, Duration::from_secs(1));
        let mut resume = Mono::ZERO;
        let mut now = Mono::ZERO;
        for (step, pause) in pauses {
            now = now + Duration::from_secs(step);
            prop_assert_eq!(window.admit(now) == Admit::Go, now >= resume);
            window.pause_until(now + Duration::from_secs(pause));
            resume = resume.max(now + Duration::from_secs(pause));
        }
    }
}
