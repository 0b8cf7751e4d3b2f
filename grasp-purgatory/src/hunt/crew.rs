//! How many conversations go on in all, and whose is next.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;

use grasp_core::{CloneUrl, Identifier};

use super::throttle::Pass;

/// Hands for so many conversations. Who finds none free waits; identifiers take turns.
///
/// A server that may be asked is not yet asked: its pass waits here for a hand, so that the clock of a conversation
/// starts when the conversation does.
#[derive(Debug)]
pub(super) struct Crew {
    most: NonZeroUsize,
    busy: usize,
    /// Each identifier that waits, once, in the order in which they come up.
    round: VecDeque<Identifier>,
    waiting: BTreeMap<Identifier, VecDeque<(CloneUrl, Pass)>>,
}

impl Crew {
    /// All hands are free.
    pub(super) fn new(most: NonZeroUsize) -> Self {
        Self { most, busy: 0, round: VecDeque::new(), waiting: BTreeMap::new() }
    }

    /// Waits for a free hand to visit an address with.
    pub(super) fn enlist(&mut self, url: CloneUrl, pass: Pass) {
        let identifier = pass.identifier().clone();
        let line = self.waiting.entry(identifier.clone()).or_default();
        if line.is_empty() {
            self.round.push_back(identifier);
        }
        line.push_back((url, pass));
    }

    /// The same for a visit that has begun: it goes on before others begin.
    pub(super) fn enlist_again(&mut self, url: CloneUrl, pass: Pass) {
        let identifier = pass.identifier().clone();
        self.round.retain(|other| *other != identifier);
        self.round.push_front(identifier.clone());
        self.waiting.entry(identifier).or_default().push_front((url, pass));
    }

    /// Whose turn it is, if a hand is free; it is busy until [`back`](Self::back).
    #[must_use = "a hand that is not used stays busy"]
    pub(super) fn next(&mut self) -> Option<(CloneUrl, Pass)> {
        if self.busy >= self.most.get() {
            return None;
        }
        let identifier = self.round.pop_front()?;
        let line = self.waiting.get_mut(&identifier)?;
        let next = line.pop_front()?;
        if line.is_empty() {
            self.waiting.remove(&identifier);
        } else {
            self.round.push_back(identifier);
        }
        self.busy += 1;
        Some(next)
    }

    /// A hand is free again.
    pub(super) fn back(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// An identifier waits for nothing any more; its passes are to be released.
    #[must_use = "a pass that is not released stays taken"]
    pub(super) fn withdraw(&mut self, identifier: &Identifier) -> Vec<Pass> {
        let Some(line) = self.waiting.remove(identifier) else { return Vec::new() };
        self.round.retain(|other| other != identifier);
        line.into_iter().map(|(_, pass)| pass).collect()
    }

    /// How many identifiers wait.
    pub(super) fn waiting(&self) -> usize {
        self.round.len()
    }

    /// How many hands are busy.
    pub(super) fn busy(&self) -> usize {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::Mono;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::HuntConfig;
    use super::super::throttle::Throttle;
    use super::*;

    fn pass(name: &str, n: usize) -> (CloneUrl, Pass) {
        let url: CloneUrl = format!("https://h{n}.example.com/x.git").parse().unwrap();
        let mut throttle = Throttle::new(&HuntConfig::default());
        let pass = throttle.admit(Mono::ZERO, &url.host(), &name.parse().unwrap());
        (url, pass.expect("nobody was asked yet"))
    }

    fn crew(most: usize) -> Crew {
        Crew::new(NonZeroUsize::new(most).unwrap())
    }

    #[test]
    fn identifiers_take_turns_however_much_one_of_them_wants() {
        let mut crew = crew(9);
        for (n, name) in ["a", "a", "a", "b", "c"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            crew.enlist(url, pass);
        }
        let next = std::iter::from_fn(|| crew.next());
        let order: Vec<_> = next.map(|(_, pass)| pass.identifier().to_string()).collect();
        assert_eq!(order, ["a", "b", "c", "a", "a"]);
    }

    #[test]
    fn a_visit_that_has_begun_goes_on_before_others_begin() {
        let mut crew = crew(9);
        for (n, name) in ["a", "b", "b"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            crew.enlist(url, pass);
        }
        let (url, pass) = pass("b", 7);
        crew.enlist_again(url.clone(), pass);
        assert_eq!(crew.next().unwrap().0, url);
        let next = std::iter::from_fn(|| crew.next());
        let order: Vec<_> = next.map(|(_, pass)| pass.identifier().to_string()).collect();
        assert_eq!(order, ["a", "b", "b"]);
    }

    #[test]
    fn whoever_gives_up_gets_its_passes_back_and_no_turn() {
        let mut crew = crew(9);
        for (n, name) in ["a", "b", "a"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            crew.enlist(url, pass);
        }
        assert_eq!(crew.withdraw(&"a".parse().unwrap()).len(), 2);
        assert_eq!(crew.next().unwrap().1.identifier().as_str(), "b");
        assert!(crew.next().is_none());
    }

    proptest! {
        #[test]
        fn never_more_hands_than_there_are_and_nobody_waits_for_ever(
            acts in vec((0..4u8, 0..3u8), 0..80),
            most in 1..4usize,
        ) {
            let mut crew = crew(most);
            let (mut busy, mut enlisted, mut served) = (0_usize, 0_usize, 0_usize);
            for (n, (name, act)) in acts.into_iter().enumerate() {
                match act {
                    0 => {
                        let (url, pass) = pass(&name.to_string(), n);
                        crew.enlist(url, pass);
                        enlisted += 1;
                    }
                    1 if busy > 0 => {
                        crew.back();
                        busy -= 1;
                    }
                    _ => {
                        let begun = usize::from(crew.next().is_some());
                        (busy, served) = (busy + begun, served + begun);
                    }
                }
                prop_assert!(busy <= most && crew.busy() == busy);
            }
            (0..busy).for_each(|_| crew.back());
            while crew.next().is_some() {
                served += 1;
                crew.back();
            }
            prop_assert_eq!(served, enlisted);
            prop_assert_eq!(crew.waiting(), 0);
        }
    }
}
