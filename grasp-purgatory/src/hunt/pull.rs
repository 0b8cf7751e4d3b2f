//! The hourly turn of everything that is looked after.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use grasp_core::{Identifier, Mono, Now};

/// Every identifier has its place in the hour, given by its name: the same in every hour and after every start, and
/// all of them spread evenly.
#[derive(Debug)]
pub(super) struct Pull {
    /// The length of an hour, in seconds of the calendar.
    every: u64,
    /// Identifiers by their second of the hour.
    places: BTreeMap<u64, BTreeSet<Identifier>>,
    /// The second of the calendar up to which turns were given.
    done: u64,
    /// When the identifiers are counted again.
    count: Mono,
}

impl Pull {
    /// Begins now: turns that were due before are those of the next hour.
    pub(super) fn new(every: Duration, now: Now) -> Self {
        Self {
            every: every.as_secs().max(1),
            places: BTreeMap::new(),
            done: now.unix.as_secs(),
            count: now.mono,
        }
    }

    /// Whether it is time to count the identifiers; from then on it is not for another hour.
    pub(super) fn must_count(&mut self, now: Mono) -> bool {
        let is_due = self.count <= now;
        if is_due {
            self.count = now + Duration::from_secs(self.every);
        }
        is_due
    }

    /// Looks after these from now on.
    pub(super) fn counted(&mut self, identifiers: BTreeSet<Identifier>) {
        self.places.clear();
        for identifier in identifiers {
            let place = place(&identifier, self.every);
            self.places.entry(place).or_default().insert(identifier);
        }
    }

    /// Those whose turn has come since the last time of asking, each once.
    ///
    /// A calendar that is set forward gives everybody one turn; set back, it gives nobody one until it has caught up.
    pub(super) fn due(&mut self, now: Now) -> Vec<Identifier> {
        let unix = now.unix.as_secs();
        let passed = unix.saturating_sub(self.done).min(self.every);
        self.done = self.done.max(unix);
        if passed == 0 {
            return Vec::new();
        }
        let first = (unix - passed + 1) % self.every;
        let last = first + passed - 1;
        let this_hour = self.places.range(first..=last);
        let next_hour = self.places.range(..(last + 1).saturating_sub(self.every));
        this_hour.chain(next_hour).flat_map(|(_, identifiers)| identifiers).cloned().collect()
    }

    /// When to ask again.
    pub(super) fn next_deadline(&self, now: Now) -> Mono {
        let passed = now.unix.as_secs() % self.every;
        let this_hour = self.places.range(passed + 1..).next().map(|(place, _)| *place);
        let next_hour = self.places.keys().next().map(|place| place + self.every);
        let turn = this_hour.or(next_hour).map(|place| Duration::from_secs(place - passed));
        turn.map_or(self.count, |wait| self.count.min(now.mono + wait))
    }
}

fn place(identifier: &Identifier, every: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    identifier.as_str().hash(&mut hasher);
    hasher.finish() % every
}

#[cfg(test)]
mod tests {
    use nostr::types::Timestamp;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(unix: u64) -> Now {
        Now::new(Mono::from_secs(unix), Timestamp::from_secs(unix))
    }

    fn names(count: usize) -> BTreeSet<Identifier> {
        (0..count).map(|n| n.to_string().parse().unwrap()).collect()
    }

    #[test]
    fn turns_are_spread_over_the_hour() {
        let mut pull = Pull::new(HOUR, at(0));
        pull.counted(names(6_000));
        let per_minute: Vec<_> = (1..=60).map(|minute| pull.due(at(minute * 60)).len()).collect();
        assert_eq!(per_minute.iter().sum::<usize>(), 6_000);
        assert!(per_minute.iter().all(|count| (50..=160).contains(count)), "{per_minute:?}");
    }

    #[test]
    fn a_restart_does_not_move_anybodys_turn() {
        let turn = |started: u64| {
            let mut pull = Pull::new(HOUR, at(started));
            pull.counted(names(1));
            (started + 1..).find(|second| !pull.due(at(*second)).is_empty()).unwrap()
        };
        assert_eq!(turn(7_200), turn(7_190 - 3_600) + 3_600);
    }

    #[test]
    fn identifiers_are_counted_at_the_start_and_every_hour() {
        let mut pull = Pull::new(HOUR, at(50));
        assert!(pull.must_count(Mono::from_secs(50)));
        assert!(!pull.must_count(Mono::from_secs(3_649)));
        assert_eq!(pull.next_deadline(at(60)), Mono::from_secs(3_650));
        assert!(pull.must_count(Mono::from_secs(3_650)));
    }

    proptest! {
        #[test]
        fn everybody_has_one_turn_in_every_hour_however_often_one_asks(
            pauses in vec(0..5_000_u64, 1..60),
        ) {
            let mut pull = Pull::new(HOUR, at(1_000));
            pull.counted(names(20));
            let (mut now, mut given): (u64, BTreeMap<Identifier, u64>) = (1_000, BTreeMap::new());
            let mut hours = 0;
            for pause in pauses {
                now += pause;
                hours += u64::from(pause >= 3_600);
                for identifier in pull.due(at(now)) {
                    *given.entry(identifier).or_default() += 1;
                }
            }
            // Who sleeps for longer than an hour makes up for one turn, not for all.
            let least = ((now - 1_000) / 3_600).saturating_sub(hours);
            for identifier in names(20) {
                let turns = given.get(&identifier).copied().unwrap_or_default();
                prop_assert!((least..=least + hours + 1).contains(&turns), "{turns} {least}");
            }
        }

        #[test]
        fn a_deadline_is_kept_by_asking_then(start in 0..9_999_u64) {
            let mut pull = Pull::new(HOUR, at(start));
            pull.counted(names(5));
            pull.must_count(Mono::from_secs(start));
            let deadline = pull.next_deadline(at(start)).since_start().as_secs();
            prop_assert!(deadline > start && deadline <= start + 3_600);
            prop_assert!(pull.due(at(deadline - 1)).is_empty());
            prop_assert!(!pull.due(at(deadline)).is_empty());
        }
    }
}
