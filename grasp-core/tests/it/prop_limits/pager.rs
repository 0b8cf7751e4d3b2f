use std::collections::BTreeSet;

use grasp_core::limits::{Ending, Next, PageRequest, Pager, PagerConfig};
use nostr::event::EventId;
use nostr::types::Timestamp;
use proptest::prelude::*;

type Row = (Timestamp, EventId);

/// A relay that orders by time and honours `until`, and is otherwise as odd as they come.
#[derive(Clone, Debug)]
struct ModelRelay {
    rows: Vec<ModelRow>,
    /// Where it cuts its pages, one after the other and over again.
    cuts: Vec<usize>,
    /// Whether equal seconds come in another order each time.
    shuffles: bool,
    /// Which of its answers break off, over and over again.
    failures: Vec<bool>,
    asked: usize,
}

#[derive(Clone, Copy, Debug)]
struct ModelRow {
    row: Row,
    /// Counted when the page is cut, and then not sent: expired, deleted or not for us.
    hidden: bool,
}

impl ModelRelay {
    /// The answer to one request; nothing if it broke off.
    fn answer(&mut self, request: PageRequest) -> Option<Vec<Row>> {
        let turn = self.asked;
        self.asked += 1;
        if *cycled(&self.failures, turn).unwrap_or(&false) {
            return None;
        }
        let mut rows: Vec<ModelRow> = self.rows.clone();
        rows.retain(|row| request.until.is_none_or(|until| row.row.0 <= until));
        rows.sort_by_key(|row| (std::cmp::Reverse(row.row.0), self.tie_order(turn, row.row.1)));

        let cut = cycled(&self.cuts, turn).unwrap().min(&request.limit);
        // It reads on past its cut if there would be nothing at all to show.
        let first_shown = rows.iter().position(|row| !row.hidden).unwrap_or(0);
        rows.truncate((*cut).max(first_shown + 1));
        rows.retain(|row| !row.hidden);
        Some(rows.into_iter().map(|row| row.row).collect())
    }

    fn tie_order(&self, turn: usize, id: EventId) -> usize {
        let id = usize::from(id.as_bytes()[0]);
        if self.shuffles { id.wrapping_mul(2 * turn + 1) % 251 } else { id }
    }

    fn shown(&self) -> BTreeSet<Row> {
        let shown = self.rows.iter().filter(|row| !row.hidden);
        shown.map(|row| row.row).collect()
    }
}

fn cycled<T>(items: &[T], turn: usize) -> Option<&T> {
    items.get(turn.checked_rem(items.len())?)
}

/// Up to 60 events, spread over so few seconds that many share one.
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

/// Never cuts below `smallest`, may change its mind from page to page.
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
        |(rows, cuts, shuffles, failures)| ModelRelay { rows, cuts, shuffles, failures, asked: 0 },
    )
}

struct Outcome {
    ending: Ending,
    delivered: BTreeSet<Row>,
    gaps: BTreeSet<Timestamp>,
}

impl Outcome {
    /// Neither delivered nor known to be missing.
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
    let Next::Done(ending) = next else { unreachable!("the loop ends with an ending") };
    Outcome { ending, delivered, gaps: pager.gaps().iter().map(|gap| gap.at).collect() }
}

fn config(smallest_page: usize) -> PagerConfig {
    PagerConfig { smallest_page, ..PagerConfig::default() }
}

proptest! {
    #![proptest_config(crate::config(1_024))]

    #[test]
    fn nothing_is_lost_to_ties_caps_and_changing_pages(
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
    fn nothing_is_lost_to_rows_dropped_after_the_cut(mut relay in relays(8, 1, 0.6)) {
        let outcome = run(config(1), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.lost(&relay), vec![]);
    }

    #[test]
    fn a_history_without_ties_needs_no_gap_whatever_is_dropped(
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
    fn no_gap_is_claimed_where_every_second_fits_into_a_page(mut relay in relays(8, 61, 0.0)) {
        relay.cuts.truncate(1);
        let outcome = run(config(61), &mut relay);
        prop_assert_eq!(outcome.ending, Ending::Exhausted);
        prop_assert_eq!(outcome.gaps, BTreeSet::new());
        prop_assert_eq!(outcome.delivered, relay.shown());
    }

    #[test]
    fn few_pages_are_asked_for(mut relay in relays(8, 1, 0.3)) {
        relay.failures.clear();
        let _ = run(config(1), &mut relay);
        prop_assert!(relay.asked <= 2 * relay.rows.len() + 1, "{} pages", relay.asked);
    }

    #[test]
    fn any_nonsense_ends_and_never_goes_back_up(
        answers in prop::collection::vec(
            prop::option::of(prop::collection::vec((0..20_u64, 0..9_u8), 0..12)),
            1..30,
        ),
        max_pages in 1..200_u32,
        max_ties in 0..5_usize,
        since in prop::option::of(0..20_u64),
    ) {
        let mut pager = Pager::new(PagerConfig {
            max_pages,
            max_ties,
            since: since.map(Timestamp::from_secs),
            ..PagerConfig::default()
        });
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
        prop_assert!(pager.gaps().is_sorted_by(|newer, older| newer.at > older.at));
    }
}
