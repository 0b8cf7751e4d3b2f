//! Figures of the last hour and the last day, in a ring of minutes and one of quarters of an hour.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Seconds and number of the parts of the last hour.
const MINUTES: (u64, usize) = (60, 60);

/// Seconds and number of the parts of the last day.
const QUARTERS: (u64, usize) = (15 * 60, 96);

/// The keys and titles of the figures, in the order of [`Sample`]. The first two count, the other two are levels.
const FIGURES: [(&str, &str); 4] = [
    ("events", "New events"),
    ("pushes", "Pushes"),
    ("lag", "Events offered by other relays and not here yet"),
    ("hunted", "Names whose git data is fetched"),
];

/// The number of figures that count; the others are levels.
const COUNTERS: usize = 2;

/// A reading of all figures: totals since the start of the process, and levels at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Events that were new, in total.
    pub events: u64,
    /// Pushes that were read, in total.
    pub pushes: u64,
    /// Events that other relays offered and that are not here yet.
    pub lag: u64,
    /// Repository names whose git data is hunted for.
    pub hunted: u64,
}

impl Sample {
    fn values(self) -> [u64; 4] {
        [self.events, self.pushes, self.lag, self.hunted]
    }
}

/// One figure over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// The key of the figure.
    pub key: String,
    /// What it is.
    pub title: String,
    /// A value for each minute of the last hour, the newest last: the growth of a counter, or the highest level. Without a
    /// value for times at which the process did not run.
    pub hour: Vec<Option<u64>>,
    /// The same for each quarter of an hour of the last day.
    pub day: Vec<Option<u64>>,
}

/// The rings of all figures.
#[derive(Clone, Debug)]
pub struct FigureHistory {
    last: Option<Sample>,
    minutes: Ring,
    quarters: Ring,
}

impl Default for FigureHistory {
    fn default() -> Self {
        Self {
            last: None,
            minutes: Ring::new(MINUTES),
            quarters: Ring::new(QUARTERS),
        }
    }
}

impl FigureHistory {
    /// Adds a reading of this time, in Unix seconds. The first one is the base of the counters.
    pub fn record(&mut self, now: u64, sample: Sample) {
        let before = self.last.unwrap_or(sample).values();
        let mut values = sample.values();
        for (value, before) in values.iter_mut().zip(before).take(COUNTERS) {
            *value = value.saturating_sub(before);
        }
        self.last = Some(sample);
        self.minutes.add(now, values);
        self.quarters.add(now, values);
    }

    /// Returns all figures up to this time.
    pub fn series(&self, now: u64) -> Vec<Series> {
        let (minutes, quarters) = (self.minutes.until(now), self.quarters.until(now));
        let mut all = Vec::new();
        for (place, (key, title)) in FIGURES.into_iter().enumerate() {
            let of = |parts: &[Option<[u64; 4]>]| {
                let values = parts.iter().map(|part| part.map(|values| values[place]));
                values.collect()
            };
            all.push(Series {
                key: key.to_owned(),
                title: title.to_owned(),
                hour: of(&minutes),
                day: of(&quarters),
            });
        }
        all
    }
}

/// The values of the last parts of time.
#[derive(Clone, Debug)]
struct Ring {
    seconds: u64,
    count: usize,
    /// The number of the newest part, counted from 1970.
    newest: u64,
    parts: VecDeque<Option<[u64; 4]>>,
}

impl Ring {
    fn new((seconds, count): (u64, usize)) -> Self {
        Self {
            seconds,
            count,
            newest: 0,
            parts: VecDeque::new(),
        }
    }

    fn add(&mut self, now: u64, values: [u64; 4]) {
        let part = now / self.seconds;
        // A clock that was set back continues the newest part.
        let skipped = part.saturating_sub(self.newest);
        if skipped >= self.count as u64 {
            self.parts = VecDeque::from(vec![None; self.count]);
        } else {
            for _ in 0..skipped {
                self.parts.pop_front();
                self.parts.push_back(None);
            }
        }
        self.newest = self.newest.max(part);
        let Some(current) = self.parts.back_mut() else {
            return;
        };
        let known = current.get_or_insert([0; 4]);
        for (place, (known, value)) in known.iter_mut().zip(values).enumerate() {
            *known = if place < COUNTERS {
                known.saturating_add(value)
            } else {
                value.max(*known)
            };
        }
    }

    /// Returns the parts that end with the one of this time.
    fn until(&self, now: u64) -> Vec<Option<[u64; 4]>> {
        let passed = (now / self.seconds).saturating_sub(self.newest);
        let passed = usize::try_from(passed)
            .unwrap_or(self.count)
            .min(self.count);
        let mut parts: Vec<_> = self.parts.iter().skip(passed).copied().collect();
        parts.resize(self.count, None);
        // Before the first reading there are no parts at all.
        if self.parts.is_empty() {
            return vec![None; self.count];
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(events: u64, lag: u64) -> Sample {
        Sample {
            events,
            lag,
            ..Sample::default()
        }
    }

    /// An even minute and quarter.
    const START: u64 = 900 * 2_000_000;

    fn hour(history: &FigureHistory, now: u64, place: usize) -> Vec<Option<u64>> {
        let series = history.series(now);
        let hour = &series[place].hour;
        assert_eq!((hour.len(), series[place].day.len()), (60, 96));
        hour[56..].to_vec()
    }

    #[test]
    fn counters_grow_within_a_minute_and_levels_are_the_highest() {
        let mut history = FigureHistory::default();
        history.record(START, sample(100, 5));
        history.record(START + 20, sample(103, 9));
        history.record(START + 50, sample(104, 1));
        history.record(START + 60, sample(110, 2));
        assert_eq!(
            hour(&history, START + 60, 0),
            [None, None, Some(4), Some(6)]
        );
        assert_eq!(
            hour(&history, START + 60, 2),
            [None, None, Some(9), Some(2)]
        );
        assert_eq!(history.series(START + 60)[0].day[95], Some(10));
    }

    #[test]
    fn gap_has_no_values_and_old_values_leave() {
        let mut history = FigureHistory::default();
        history.record(START, sample(1, 0));
        history.record(START + 120, sample(2, 0));
        assert_eq!(
            hour(&history, START + 120, 0),
            [None, Some(0), None, Some(1)]
        );
        assert_eq!(
            hour(&history, START + 180, 0),
            [Some(0), None, Some(1), None]
        );
        assert_eq!(hour(&history, START + 10_000, 0), [None; 4]);
        history.record(START + 1_000_000, sample(5, 0));
        assert_eq!(
            hour(&history, START + 1_000_000, 0),
            [None, None, None, Some(3)]
        );
    }

    #[test]
    fn clock_that_is_set_back_breaks_nothing() {
        let mut history = FigureHistory::default();
        history.record(START, sample(1, 0));
        history.record(START - 5_000, sample(4, 0));
        history.record(0, sample(4, 0));
        assert_eq!(hour(&history, START, 0), [None, None, None, Some(3)]);
        assert_eq!(hour(&history, 0, 0).len(), 4);
        history.record(u64::MAX, sample(9, u64::MAX));
        assert_eq!(hour(&history, u64::MAX, 2)[3], Some(u64::MAX));
    }

    #[test]
    fn restart_of_a_counter_is_no_growth() {
        let mut history = FigureHistory::default();
        history.record(START, sample(100, 0));
        history.record(START + 1, sample(3, 0));
        history.record(START + 2, sample(5, 0));
        assert_eq!(hour(&history, START + 2, 0)[3], Some(2));
    }

    #[test]
    fn nothing_recorded_is_nothing_known() {
        assert_eq!(hour(&FigureHistory::default(), START, 0), [None; 4]);
    }
}
