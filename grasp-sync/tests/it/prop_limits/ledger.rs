use grasp_sync::limits::{RETAINED_BYTES, Slot, SlotClass, SlotLedger};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(SlotClass, usize),
    Free(Index),
    RefuseByCount(Index),
    RefuseByBytes(Index, Option<u64>),
}

fn classes() -> impl Strategy<Value = SlotClass> {
    prop::sample::select(vec![
        SlotClass::Live,
        SlotClass::Live,
        SlotClass::Fetch,
        SlotClass::Reconcile,
    ])
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (classes(), 0..120_000_usize).prop_map(|(class, bytes)| Step::Take(class, bytes)),
        6 => any::<Index>().prop_map(Step::Free),
        1 => any::<Index>().prop_map(Step::RefuseByCount),
        1 => (any::<Index>(), prop::option::of(0..2_000_000_u64))
            .prop_map(|(index, stated)| Step::RefuseByBytes(index, stated)),
    ];
    prop::collection::vec(step, 0..150)
}

/// The ledger with a list of its open slots.
struct Model {
    ledger: SlotLedger,
    slots: Vec<(SlotClass, Slot)>,
}

impl Model {
    fn live(&self) -> usize {
        self.slots
            .iter()
            .filter(|(class, _)| *class == SlotClass::Live)
            .count()
    }

    fn draw(&mut self, index: Index) -> Option<Slot> {
        (!self.slots.is_empty()).then(|| self.slots.remove(index.index(self.slots.len())).1)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Take(class, bytes) => self.take(class, bytes),
            Step::Free(index) => {
                let slot = self.draw(index);
                slot.into_iter().for_each(|slot| self.ledger.free(slot));
            }
            Step::RefuseByCount(index) => {
                if let Some(slot) = self.draw(index) {
                    self.ledger.refused_by_count(slot);
                }
            }
            Step::RefuseByBytes(index, stated) => {
                let before = self.ledger.byte_ceiling();
                if let Some(slot) = self.draw(index) {
                    self.ledger.refused_by_bytes(slot, stated);
                }
                assert!(self.ledger.byte_ceiling() <= before);
            }
        }
    }

    fn take(&mut self, class: SlotClass, bytes: usize) {
        let Some(slot) = self.ledger.take(class, bytes) else {
            return;
        };
        self.slots.push((class, slot));
        assert!(self.ledger.retained_bytes() <= self.ledger.byte_ceiling());
        assert!(self.ledger.in_use_by(class) <= self.ledger.class_limit(class));
        if class == SlotClass::Live {
            assert!(self.ledger.total() - self.live() >= 3);
        }
    }

    fn check(&self) {
        assert!((1..=200).contains(&self.ledger.total()));
        assert!(self.ledger.in_use() <= self.ledger.total());
        assert_eq!(self.ledger.in_use(), self.slots.len());
    }
}

proptest! {
    #![proptest_config(super::config(512))]

    #[test]
    fn the_limits_hold_and_each_slot_is_freed_once(
        advertised in prop::option::of(0..300_usize),
        steps in steps(),
    ) {
        let mut model = Model {
            ledger: SlotLedger::new(RETAINED_BYTES, advertised),
            slots: Vec::new(),
        };
        for step in steps {
            model.step(step);
            model.check();
        }
    }

    #[test]
    fn history_gets_a_slot_once_its_own_requests_have_ended(
        advertised in prop::option::of(1..300_usize),
        steps in steps(),
    ) {
        let mut model = Model {
            ledger: SlotLedger::new(RETAINED_BYTES, advertised),
            slots: Vec::new(),
        };
        let harmless = |step: &Step| matches!(step, Step::Take(..) | Step::Free(_));
        for step in steps.into_iter().filter(harmless) {
            model.step(step);
        }
        let (live, other): (Vec<_>, Vec<_>) = model
            .slots
            .drain(..)
            .partition(|(class, _)| *class == SlotClass::Live);
        for (_, slot) in other {
            model.ledger.free(slot);
        }
        let fetch = model.ledger.take(SlotClass::Fetch, 96 * 1024);
        prop_assert!(fetch.is_some(), "{} live, {fetch:?}", live.len());
    }
}
