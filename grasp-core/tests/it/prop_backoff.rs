use std::time::Duration;

use grasp_core::limits::{Admit, Backoff, BackoffPolicy, Health};
use grasp_core::{Mono, Now};
use nostr::types::Timestamp;
use proptest::prelude::*;

fn policies() -> impl Strategy<Value = BackoffPolicy> {
    (1..100_u64, 1..50_u64, 1..5_000_u64, 0..50_u64).prop_map(|(first, factor, dead, settle)| {
        BackoffPolicy {
            first: Duration::from_secs(first),
            cap: Duration::from_secs(first * factor),
            dead_after: Duration::from_secs(dead),
            dead_retry: Duration::from_secs(first * factor * 2),
            settle: Duration::from_secs(settle),
        }
    })
}

/// Fails several times, each at the first allowed time plus a delay.
fn fail_on(backoff: &mut Backoff, delays: &[u64]) -> (Mono, Vec<Duration>) {
    let mut now = Mono::from_secs(7);
    let mut pauses = Vec::new();
    for delay in delays {
        now = backoff.retry_at().unwrap_or(now) + Duration::from_millis(*delay);
        backoff.failed(now);
        pauses.push(backoff.retry_at().unwrap() - now);
    }
    (now, pauses)
}

proptest! {
    #![proptest_config(crate::config(256))]

    #[test]
    fn pauses_grow_until_success_within_their_bounds(
        policy in policies(),
        delays in prop::collection::vec(0..5_000_u64, 1..40),
    ) {
        let mut backoff = Backoff::new(policy);
        let (now, pauses) = fail_on(&mut backoff, &delays);
        prop_assert!(pauses.is_sorted(), "{pauses:?}");
        prop_assert_eq!(pauses[0], policy.first);
        for pause in pauses {
            let is_step = (policy.first..=policy.cap).contains(&pause);
            prop_assert!(is_step || pause == policy.dead_retry);
        }

        backoff.connected(now);
        let settled = now + policy.settle;
        prop_assert_eq!(backoff.health(settled), Health::Healthy);
        backoff.failed(settled);
        prop_assert_eq!(backoff.retry_at(), Some(settled + policy.first));
    }

    #[test]
    fn a_peer_is_dead_at_the_first_failure_after_dead_after(
        policy in policies(),
        delays in prop::collection::vec(0..5_000_u64, 1..40),
    ) {
        let mut backoff = Backoff::new(policy);
        let start = Mono::from_secs(7) + Duration::from_millis(delays[0]);
        let (now, _) = fail_on(&mut backoff, &delays);
        let is_dead = backoff.health(now) == Health::Dead;
        prop_assert_eq!(is_dead, now - start >= policy.dead_after);
    }

    #[test]
    fn a_connection_shortens_no_pause(
        policy in policies(),
        delays in prop::collection::vec(0..5_000_u64, 1..12),
    ) {
        let mut backoff = Backoff::new(policy);
        let (_, pauses) = fail_on(&mut backoff, &delays);
        let retry_at = backoff.retry_at().unwrap();
        let before = retry_at - Duration::from_nanos(1);
        prop_assert_eq!(backoff.admit(before), Admit::Wait(retry_at));
        prop_assert_eq!(backoff.admit(retry_at), Admit::Go);

        backoff.connected(retry_at);
        backoff.failed(retry_at);
        let next = backoff.retry_at().unwrap() - retry_at;
        if policy.settle.is_zero() {
            prop_assert_eq!(next, policy.first);
        } else {
            // The long pause of a dead peer ends with the connection; the step of the doubling stays.
            let step = pauses.into_iter().rfind(|pause| *pause <= policy.cap).unwrap();
            prop_assert!(next >= step);
        }
    }

    #[test]
    fn a_restart_changes_only_the_rounding(
        policy in policies(),
        delays in prop::collection::vec(0..5_000_u64, 1..40),
        waited in 0..1_000_u64,
    ) {
        let mut backoff = Backoff::new(policy);
        let (now, _) = fail_on(&mut backoff, &delays);
        let stopped = Now::new(now, Timestamp::from_secs(1_000_000))
            .after(Duration::from_millis(waited));
        let snapshot = backoff.snapshot(stopped).unwrap();

        let started = Now::new(Mono::ZERO, stopped.unix);
        let restored = Backoff::restore(policy, started, &snapshot);
        let left = backoff.retry_at().unwrap() - stopped.mono;
        let left_after = restored.retry_at().unwrap() - Mono::ZERO;
        prop_assert!(left <= left_after);
        prop_assert!(left_after < left + Duration::from_secs(1));
        prop_assert_eq!(restored.health(Mono::ZERO), backoff.health(stopped.mono));
        prop_assert_eq!(restored.snapshot(started), Some(snapshot));
    }
}
