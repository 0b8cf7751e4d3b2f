use std::collections::BTreeSet;

use grasp_sync::limits::{Ending, Next, PageRequest, Pager, PagerConfig};
use nostr::event::EventId;
use nostr::types::Timestamp;
use proptest::prelude::*;

type Row = (Timestamp, EventId);

/// A relay that orders by time and honours `until`, but is unusual otherwise.
#[derive(Clone, Debug)]
struct ModelRelay {
    rows: Vec<ModelRow>,
    /// Lengths at which it cuts its pages, in a cycle.
    cuts: Vec<usize>,
    /// Rows of the same second come in another order each time.
    shuffles: bool,
    /// Answers that fail, in a cycle.
    failures: Vec<bool>,
    asked: usize,
}

#[derive(Clone, Copy, Debug)]
struct ModelRow {
    row: Row,
    /// Counted for the page length and then not sent: expired, deleted or not permitted.
    hidden: bool,
}

impl ModelRelay {
    /// Returns the answer to one request; `None` if it fails.
    fn answer(&mut self, request: PageRequest) -> Option<Vec<Row>> {
        let turn = self.asked;
        self.asked += 1;
        if *cycled(&self.failures, turn).unwrap_or(&false) {
            return None;
        }
        let mut rows: Vec<ModelRow> = self.rows.clone();
        rows.retain(|row| request.until.is_none_or(|until| row.row.0 <= until));
        rows.sort_by_key(|row| {
            (
                std::cmp::Reverse(row.row.0),
                self.tie_order(turn, row.row.1),
            )
        });

        let cut = cycled(&self.cuts, turn).unwrap().min(&request.limit);
        // It reads past its cut if the page would be empty otherwise.
        let first_shown = rows.iter().position(|row| !row.hidden).unwrap_or(0);
        rows.truncate((*cut).max(first_shown + 1));
        rows.retain(|row| !row.hidden);
        Some(rows.into_iter().map(|row| row.row).collect())
    }

    fn tie_order(&self, turn: usize, id: EventId) -> usize {
        let id = usize::from(id.as_bytes()[0]);
        if self.shuffles {
            id.wrapping_mul(2 * turn + 1) % 251
        } else {
            id
        }
    }

    fn shown(&self) -> BTreeSet<Row> {
        let shown = self.rows.iter().filter(|row| !row.hidden);
        shown.map(|row| row.row).collect()
    }
}

fn cycled<T>(items: &[T], turn: usize) -> Option<&T> {
    items.get(turn.checked_rem(items.len())?)
}

/// At most 60 events in so few seconds that many share one.
fn rows(seconds: u64, hidden: f64) -> impl Strategy<Value = Vec<ModelRow>> {
    let row = (0..seconds, prop::bool::weighted(hidden));
    prop::collection::vec(row, 0..60).prop_map(|rows| {
        let numbered = rows.into_iter().zip(0_u8..);
        let row = |((at, hidden), id)| ModelRow {
            row: (Timestamp::from_secs(at), EventId::from_byte_array([id; 32])),
            hidden,
        };
        numbered.map(row).collect()
    })
}

/// Never cuts below `smallest`, and may cut each page differently.
fn relays(seconds: u64, smallest: usize, hidden: f64) -> impl Strategy<Value = ModelRelay> {
    let cuts = prop::collection::vec(smallest..smallest + 12, 1..6);
    let failures = prop_oneof![
        Just(vec![]),
        prop::collection::vec(any::<bool>(), 1..5).prop_map(|mut failures| {
            failures.push(false);
            failures
        })
    ];
    (rows(seconds, hidden), cuts, any::<bool>(), failures).prop_map(
        |(rows, cuts, shuffles, failures)| ModelRelay {
            rows,
            cuts,
            shuffles,
            failures,
            asked: 0,
        },
    )
}

struct Outcome {
    ending: Ending,
    delivered: BTreeSet<Row>,
    gaps: BTreeSet<Timestamp>,
}

impl Outcome {
    /// Returns the rows that were neither delivered nor lie in a gap.
    fn lost(&self, relay: &ModelRelay) -> Vec<Row> {
        let mut shown = relay.shown();
        shown.retain(|row| !self.delivered.contains(row) && !self.gaps.contains(&row.0));
        shown.into_iter().collect()
    }
}

fn run(config: PagerConfig, relay: &mut ModelRelay) -> Outcome {
    let mut pager = Pager::new(config);
    let mut delivered = BTreeSet::new();
    let mut next = pager.next();
    while let Next::Ask(request) = next {
        next = match relay.answer(request) {
            Some(page) => {
                delivered.extend(page.iter().copied());
                pager.page_ended(page)
            }
            None => pager.page_failed(),
        };
    }
    let Next::Done(ending) = next else {
        unreachable!("the loop ends with an ending")
    };
    Outcome {
        ending,
        delivered,
        gaps: pager.gaps().iter().copied().collect(),
    }
}

fn config(smallest_page: usize) -> PagerConfig {
    let mut config = PagerConfig::default();
    config.smallest_page = smallest_page;
    config
}

proptest! {
    #![proptest_config(super::config(1_024))]

    #[test]
    fn ties_and_changing_page_lengths_lose_nothing(
        (smallest, relay) in (1..6_usize).prop_flat_map(|smallest| {
            (Just(smallest), relays(8, smallest, 0.0))
        }),
    ) {
        let mut relay = relay;
        let outcome = run(config(smallest), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.lost(&relay), vec![]);
    }

    #[test]
    fn rows_dropped_after_the_cut_lose_nothing(mut relay in relays(8, 1, 0.6)) {
        let outcome = run(config(1), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.lost(&relay), vec![]);
    }

    #[test]
    fn a_history_without_ties_has_no_gap(
        mut relay in relays(1, 1, 0.6),
    ) {
        for (row, second) in relay.rows.iter_mut().zip(0..) {
            row.row.0 = Timestamp::from_secs(second * 3);
        }
        let outcome = run(PagerConfig::default(), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.delivered, relay.shown());
    }

    #[test]
    fn there_is_no_gap_if_every_second_fits_into_a_page(mut relay in relays(8, 61, 0.0)) {
        relay.cuts.truncate(1);
        let outcome = run(config(61), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.gaps, BTreeSet::new());
        prop_assert_eq!(outcome.delivered, relay.shown());
    }

    #[test]
    fn requests_few_pages(mut relay in relays(8, 1, 0.3)) {
        relay.failures.clear();
        let _ = run(config(1), &mut relay);
        prop_assert!(relay.asked <= 2 * relay.rows.len() + 1, "{} pages", relay.asked);
    }

    #[test]
    fn any_answers_end_and_until_never_rises(
        answers in prop::collection::vec(
            prop::option::of(prop::collection::vec((0..20_u64, 0..9_u8), 0..12)),
            1..30,
        ),
        max_pages in 1..200_u32,
        max_ties in 0..5_usize,
        since in prop::option::of(0..20_u64),
    ) {
        let mut config = PagerConfig::default();
        config.max_pages = max_pages;
        config.max_ties = max_ties;
        config.since = since.map(Timestamp::from_secs);
        let mut pager = Pager::new(config);
        let mut pages = 0;
        let mut lowest = None;
        while let Next::Ask(request) = pager.next() {
            let is_lower = lowest.is_none_or(|lowest| request.until.is_some_and(|at| at <= lowest));
            prop_assert!(is_lower, "asked {:?} after {:?}", request.until, lowest);
            lowest = request.until;
            let _ = match cycled(&answers, pages).unwrap() {
                Some(rows) => pager.page_ended(rows.iter().map(|(at, id)| {
                    (Timestamp::from_secs(*at), EventId::from_byte_array([*id; 32]))
                })),
                None => pager.page_failed(),
            };
            pages += 1;
            prop_assert!(pages <= max_pages as usize);
        }
        prop_assert!(pager.gaps().is_sorted_by(|newer, older| newer > older));
    }
}
