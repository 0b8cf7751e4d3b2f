//! Questions that are answered by yes or no, many at once and in turns.

use std::collections::VecDeque;

use nostr::filter::Filter;
use nostr::types::Timestamp;

use super::budget::{Budget, SEEK};
use super::ledger::Ledger;
use super::search::{Search, Turn};

/// Finds out, for each of several questions, whether anything matches.
pub(super) struct Inquiry {
    /// For each question the filters that were not tried yet. The first that matches is answer enough.
    questions: Vec<VecDeque<Filter>>,
    /// What was found out; the next question is the one that is being looked into.
    answers: Vec<bool>,
    search: Option<Search>,
    now: Timestamp,
}

impl Inquiry {
    pub(super) fn new(questions: Vec<Vec<Filter>>, now: Timestamp) -> Self {
        let questions = questions.into_iter().map(VecDeque::from).collect();
        Self { questions, answers: Vec::new(), search: None, now }
    }

    /// Answers questions until all are answered, or the turn is over.
    pub(super) fn turn(&mut self, ledger: &Ledger<'_>) -> rusqlite::Result<Turn> {
        let mut budget = Budget::of_turn();
        while let Some(filters) = self.questions.get_mut(self.answers.len()) {
            if budget.is_spent() {
                return Ok(Turn::Paused);
            }
            budget.spend(SEEK);
            let search = match (self.search.take(), filters.pop_front()) {
                (Some(search), next) => {
                    next.into_iter().for_each(|next| filters.push_front(next));
                    Some(search)
                }
                (None, next) => next.map(|filter| Search::new(vec![filter.limit(1)], self.now)),
            };
            let Some(mut search) = search else {
                self.answers.push(false);
                continue;
            };
            let mut found = Vec::new();
            let turn = search.turn(ledger, 1, &mut found, &mut budget)?;
            if !found.is_empty() {
                self.answers.push(true);
            } else if turn == Turn::Paused {
                self.search = Some(search);
            }
        }
        Ok(Turn::Finished)
    }

    pub(super) fn into_answers(self) -> Vec<bool> {
        self.answers
    }
}
