//! Attributes events that another relay lacks to repositories.
//!
//! A comparison finds the ids that a relay lacks; only the local relay knows what they are about. It is asked which
//! of them carry one of the compared values, and the values are halved until those of a single repository are left.

use std::collections::BTreeSet;

use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::sync::{RepoSyncNeeds, SyncIndex, SyncLevel};
use grasp_core::{RelayUrl, RepoId};

use super::filter::Layer;
use super::io::{InventoryId, Output};
use super::relay::{EngineState, InventoryRequest};

pub(super) const MAX_IDS: usize = 1_000;
/// Concurrent questions. Beyond it, lacking events are attributed to no repository.
const MAX_OPEN: usize = 64;
const MAX_VALUES: usize = 500;

/// A question to the local relay: which of these events carry one of these values.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) relay: RelayUrl,
    tag: SingleLetterTag,
    /// Sorted by repository.
    values: Vec<(RepoId, String)>,
    ids: BTreeSet<EventId>,
    /// True if what is found was not counted against the relay yet.
    pub(super) is_uncounted: bool,
}

/// The result of an answer.
#[derive(Debug)]
pub(super) enum Attribution {
    /// The relay lacks these events of a repository.
    Of(RepoId, BTreeSet<EventId>),
    /// Further questions, if any.
    Ask(Vec<Question>),
}

impl Question {
    fn filter(&self) -> Filter {
        let values = self.values.iter().map(|(_, value)| value);
        Filter::new()
            .ids(self.ids.iter().copied())
            .custom_tags(self.tag, values)
    }

    /// Evaluates the events that the local relay found.
    pub(super) fn answered(self, found: BTreeSet<EventId>) -> Attribution {
        let Some((first, _)) = self.values.first().filter(|_| !found.is_empty()) else {
            return Attribution::Ask(Vec::new());
        };
        if self.values.last().is_some_and(|(last, _)| last == first) {
            return Attribution::Of(first.clone(), found);
        }
        let middle = self
            .values
            .get(self.values.len() / 2)
            .map_or(first, |(repo, _)| repo);
        // The values of a repository stay together, and neither half is empty.
        let cut = self.values.partition_point(|(repo, _)| repo < middle);
        let cut = match cut {
            0 => self.values.partition_point(|(repo, _)| repo <= middle),
            cut => cut,
        };
        let mut values = self.values;
        let rest = values.split_off(cut);
        let relay = self.relay;
        let tag = self.tag;
        let is_uncounted = self.is_uncounted;
        let half = |values| {
            let relay = relay.clone();
            let ids = found.clone();
            Self {
                relay,
                tag,
                values,
                ids,
                is_uncounted,
            }
        };
        Attribution::Ask(vec![half(values), half(rest)])
    }
}

/// Returns the questions that follow from a comparison with a relay.
pub(super) fn questions(
    index: &SyncIndex,
    relay: &RelayUrl,
    layer: Layer,
    filter: &Filter,
    ids: BTreeSet<EventId>,
) -> Vec<Question> {
    let repo_of = |value: &String| match layer {
        Layer::Roots => index
            .repos_of(&EventId::from_hex(value).ok()?.into())
            .next()
            .cloned(),
        _ => value.parse().ok(),
    };
    let with_repos = |values: &BTreeSet<String>| {
        values
            .iter()
            .filter_map(|value| Some((repo_of(value)?, value.clone())))
            .collect()
    };
    let by_tag: Vec<(SingleLetterTag, Vec<(RepoId, String)>)> = match layer {
        Layer::Announcements => Vec::new(),
        Layer::All => full_sync_values(index, relay).into(),
        Layer::Repos | Layer::Roots => filter
            .generic_tags
            .iter()
            .map(|(tag, values)| (*tag, with_repos(values)))
            .collect(),
    };
    let mut questions = Vec::new();
    for (tag, mut values) in by_tag {
        values.sort();
        questions.extend(values.chunks(MAX_VALUES).map(|values| {
            let relay = relay.clone();
            let values = values.to_vec();
            let ids = ids.clone();
            Question {
                relay,
                tag,
                values,
                ids,
                is_uncounted: layer == Layer::All,
            }
        }));
    }
    questions
}

/// Returns the values that a relay should have in a full comparison: repositories that list it, and their roots.
fn full_sync_values(
    index: &SyncIndex,
    relay: &RelayUrl,
) -> [(SingleLetterTag, Vec<(RepoId, String)>); 3] {
    let is_listed =
        |needs: &RepoSyncNeeds| needs.level == SyncLevel::Full && needs.relays.contains(relay);
    let mut repos = Vec::new();
    let mut roots = Vec::new();
    for (repo, needs) in index.repos().iter().filter(|(_, needs)| is_listed(needs)) {
        repos.push((repo.clone(), repo.to_string()));
        roots.extend(
            needs
                .root_events
                .iter()
                .map(|root| (repo.clone(), root.event().to_hex())),
        );
    }
    [
        (SingleLetterTag::LOWERCASE_A, repos),
        (SingleLetterTag::LOWERCASE_E, roots.clone()),
        (SingleLetterTag::UPPERCASE_E, roots),
    ]
}

/// Asks the local relay, up to the limit of concurrent questions.
pub(super) fn ask(shared: &mut EngineState, out: &mut Vec<Output>, questions: Vec<Question>) {
    let is_open = |asker: &&InventoryRequest| matches!(asker, InventoryRequest::Missing(_));
    let open = shared.inventories.values().filter(is_open).count();
    for question in questions.into_iter().take(MAX_OPEN.saturating_sub(open)) {
        let request = shared.ids.next(InventoryId);
        let filter = Box::new(question.filter());
        shared
            .inventories
            .insert(request, InventoryRequest::Missing(Box::new(question)));
        out.push(Output::FetchInventory { request, filter });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo(n: usize) -> RepoId {
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        format!("30617:{owner}:r{n:03}").parse().unwrap()
    }

    /// Attributes events to repositories by halving; returns the events of each, and the number of queries.
    fn attributed(question: Question, owner: &[(EventId, usize)]) -> (Vec<(RepoId, usize)>, usize) {
        let (mut open, mut done, mut asked) = (vec![question], Vec::new(), 0);
        while let Some(question) = open.pop() {
            asked += 1;
            let is_in = |repo: &RepoId| question.values.iter().any(|(one, _)| one == repo);
            let found = owner
                .iter()
                .filter(|(id, n)| question.ids.contains(id) && is_in(&repo(*n)));
            let found = found.map(|(id, _)| *id).collect();
            match question.answered(found) {
                Attribution::Of(repo, found) => done.push((repo, found.len())),
                Attribution::Ask(more) => open.extend(more),
            }
        }
        done.sort();
        (done, asked)
    }

    #[test]
    fn lacking_events_are_attributed_to_repositories() {
        let ids: Vec<_> = (0..9).map(|n| EventId::from_byte_array([n; 32])).collect();
        let owner: Vec<_> = ids
            .iter()
            .copied()
            .zip([3, 3, 3, 77, 77, 42, 42, 42, 42])
            .collect();
        let question = |values: Vec<(RepoId, String)>| Question {
            relay: "wss://a.example".parse().unwrap(),
            tag: SingleLetterTag::LOWERCASE_A,
            values,
            ids: ids.iter().copied().collect(),
            is_uncounted: false,
        };
        let values = (0..100).map(|n| (repo(n), repo(n).to_string())).collect();
        let (done, asked) = attributed(question(values), &owner);
        assert_eq!(done, [(repo(3), 3), (repo(42), 4), (repo(77), 2)]);
        assert!(asked < 50, "{asked}");
        // Many values of one repository, and a few of another, before and after it.
        for (few, many) in [(3, 42), (77, 42)] {
            let mut values: Vec<_> = (0..50).map(|n| (repo(many), n.to_string())).collect();
            values.push((repo(few), "x".to_owned()));
            values.sort();
            let (done, _) = attributed(question(values), &owner);
            assert_eq!(done.len(), 2, "{done:?}");
        }
    }
}
