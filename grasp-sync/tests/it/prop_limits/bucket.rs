use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;
use grasp_sync::limits::{Pace, Rate, TokenBucket};
use proptest::prelude::*;

fn rates() -> impl Strategy<Value = Rate> {
    let every = 1..3_000_000_000_u64;
    (1..20_u32, every).prop_map(|(burst, every)| Rate {
        burst,
        every: Duration::from_nanos(every),
    })
}

/// Checks that no period between two starts holds more than `burst + length / every`.
fn assert_within(starts: &[Mono], rate: Rate) {
    for (i, from) in starts.iter().enumerate() {
        for (j, to) in starts.iter().enumerate().skip(i) {
            let over = (j - i + 1).saturating_sub(rate.burst as usize) as u128;
            let length = *to - *from;
            let is_earned = over * rate.every.as_nanos() <= length.as_nanos();
            assert!(is_earned, "{} starts in {length:?}", j - i + 1);
        }
    }
}

proptest! {
    #![proptest_config(super::config(256))]

    #[test]
    fn no_period_holds_more_than_burst_and_rate_allow(
        rate in rates(),
        steps in prop::collection::vec((0..400_000_000_u64, 1..8_u32), 0..60),
    ) {
        let mut bucket = TokenBucket::new(rate);
        let mut now = Mono::ZERO;
        let mut starts = Vec::new();
        for (step, asks) in steps {
            now = now + Duration::from_nanos(step);
            let granted = (0..asks).filter(|_| bucket.admit(now) == Admit::Go).count();
            starts.extend(std::iter::repeat_n(now, granted));
        }
        assert_within(&starts, rate);
    }

    #[test]
    fn admits_at_the_announced_time_and_not_before(
        rate in rates(),
        count in 1..200_usize,
    ) {
        let mut bucket = TokenBucket::new(rate);
        let mut now = Mono::ZERO;
        let mut starts = Vec::new();
        while starts.len() < count {
            match bucket.admit(now) {
                Admit::Go => starts.push(now),
                Admit::Wait(until) => {
                    let early = until - Duration::from_nanos(1);
                    prop_assert_eq!(bucket.admit(early), Admit::Wait(until));
                    now = until;
                }
            }
        }
        assert_within(&starts, rate);
        // The last start is as early as the rate allows.
        let earned = count.saturating_sub(rate.burst as usize) as u128 * rate.every.as_nanos();
        prop_assert_eq!((now - Mono::ZERO).as_nanos(), earned);
    }

    #[test]
    fn requests_pause_and_then_keep_their_distance(
        steps in prop::collection::vec((0..90_000_u64, any::<bool>()), 0..120),
    ) {
        let rate = Rate::CAREFUL;
        let mut pace = Pace::new(rate);
        let mut now = Mono::ZERO;
        let mut starts: Vec<Mono> = Vec::new();
        let mut resume = Mono::ZERO;
        for (step, refused) in steps {
            now = now + Duration::from_millis(step);
            if refused {
                pace.refused(now);
                prop_assert!(pace.is_paused(now));
                prop_assert!(pace.reopens_at() <= now.max(resume) + Duration::from_secs(60 * 60));
                resume = pace.reopens_at();
            }
            if pace.admit(now) == Admit::Go {
                prop_assert!(now >= resume);
                let strict = resume > Mono::ZERO && now < resume + Duration::from_secs(5 * 60);
                let spaced = starts.last().is_none_or(|last| now - *last >= Duration::from_millis(600));
                prop_assert!(!strict || spaced);
                starts.push(now);
            }
        }
        assert_within(&starts, rate);
    }
}
