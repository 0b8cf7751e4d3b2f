//! The filters of the three layers: announcements, events about repositories, events about their roots.

use std::collections::BTreeSet;

use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::budget::RequestBudget;
use super::chunk::split;
use super::items::{RelaySyncNeeds, SyncLevel};
use super::root::RootId;
use grasp_core::{Identifier, RepoId, kinds};

/// Tags by which an event names a repository.
const REPO_TAGS: [SingleLetterTag; 3] =
    [SingleLetterTag::LOWERCASE_A, SingleLetterTag::UPPERCASE_A, SingleLetterTag::LOWERCASE_Q];

/// Tags by which an event names another event.
const ROOT_TAGS: [SingleLetterTag; 3] =
    [SingleLetterTag::LOWERCASE_E, SingleLetterTag::UPPERCASE_E, SingleLetterTag::LOWERCASE_Q];

/// Builds the filter of layer 1: all announcements, states and lists of GRASP servers. Requested once per connection.
pub fn build_announcement_filter(since: Option<Timestamp>) -> Filter {
    with_since(Filter::new().kinds([kinds::GRASP_LIST, kinds::ANNOUNCEMENT, kinds::STATE]), since)
}

/// Builds the filters of layer 2: events that tag one of these repositories.
pub fn tagged_one_of_our_repo_event_filters<'a>(
    repos: impl IntoIterator<Item = &'a RepoId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = repos.into_iter().map(RepoId::to_string);
    split(&with_since(Filter::new(), since), &REPO_TAGS, values, budget)
}

/// Builds the filters of layer 3: events that tag one of these roots.
pub fn tagged_one_of_our_root_event_filters<'a>(
    roots: impl IntoIterator<Item = &'a RootId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = roots.into_iter().map(|root| root.event().to_hex());
    split(&with_since(Filter::new(), since), &ROOT_TAGS, values, budget)
}

/// Builds the filters for states of these repositories by any author: all that a held repository needs.
pub fn build_state_filters<'a>(
    repos: impl IntoIterator<Item = &'a RepoId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    // Repositories of several owners may share an identifier.
    let identifiers: BTreeSet<&Identifier> =
        repos.into_iter().map(|repo| &repo.identifier).collect();
    let values = identifiers.into_iter().map(Identifier::to_string);
    let base = with_since(Filter::new().kind(kinds::STATE), since);
    split(&base, &[SingleLetterTag::LOWERCASE_D], values, budget)
}

/// Builds the filters of layers 2 and 3 for these items, and of states for those at [`SyncLevel::StateOnly`]. All other
/// states come with layer 1.
///
/// ```
/// use grasp_core::RepoId;
/// use grasp_sync::index::{RelaySyncNeeds, RequestBudget, SyncLevel, build_layer2_and_layer3_filters};
/// use nostr::event::EventId;
/// use nostr::types::Timestamp;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let items = RelaySyncNeeds {
///     repos: [(repo, SyncLevel::Full)].into(),
///     root_events: [EventId::from_byte_array([7; 32]).into()].into(),
///     ..RelaySyncNeeds::default()
/// };
/// let filters = build_layer2_and_layer3_filters(&items, Some(Timestamp::from_secs(9)), &RequestBudget::default());
/// assert_eq!(filters.len(), 6, "a, A, q for the repository; e, E, q for its root");
/// assert_eq!(filters[0].as_json(), format!(r##"{{"since":9,"#a":["30617:{owner}:grasp"]}}"##));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build_layer2_and_layer3_filters(
    items: &RelaySyncNeeds,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let full = items.repos_at(SyncLevel::Full);
    let mut filters = tagged_one_of_our_repo_event_filters(full, since, budget);
    let held = items.repos_at(SyncLevel::StateOnly);
    filters.extend(build_state_filters(held, since, budget));
    let (replies, roots): (Vec<_>, Vec<_>) = items.root_events.iter().partition(|id| id.is_reply());
    filters.extend(tagged_one_of_our_root_event_filters(roots, since, budget));
    filters.extend(build_reply_filters(replies, since, budget));
    filters.extend(build_coordinate_filters(&items.coordinates, since, budget));
    filters
}

/// Builds the filters for events that refer to one of these coordinates.
fn build_coordinate_filters<'a>(
    members: impl IntoIterator<Item = &'a Coordinate>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = members.into_iter().map(Coordinate::to_string);
    split(&with_since(Filter::new(), since), &[SingleLetterTag::LOWERCASE_A], values, budget)
}

/// Builds the filters for events that answer one of these replies.
fn build_reply_filters<'a>(
    replies: impl IntoIterator<Item = &'a RootId>,
    since: Option<Timestamp>,
    budget: &RequestBudget,
) -> Vec<Filter> {
    let values = replies.into_iter().map(|reply| reply.event().to_hex());
    split(&with_since(Filter::new(), since), &[SingleLetterTag::LOWERCASE_E], values, budget)
}

/// Returns the filter for new events only.
#[must_use]
pub fn live(filter: Filter) -> Filter {
    filter.limit(0)
}

fn with_since(filter: Filter, since: Option<Timestamp>) -> Filter {
    Filter { since, ..filter }
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::*;

    fn repo(n: u8, identifier: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([n; 32]), identifier.parse().unwrap())
    }

    fn json(filters: &[Filter]) -> Vec<String> {
        filters.iter().map(Filter::as_json).collect()
    }

    #[test]
    fn layer_1_is_one_filter() {
        assert_eq!(build_announcement_filter(None).as_json(), r#"{"kinds":[10317,30617,30618]}"#);
        let since = build_announcement_filter(Some(Timestamp::from_secs(5)));
        assert_eq!(live(since).as_json(), r#"{"kinds":[10317,30617,30618],"since":5,"limit":0}"#);
    }

    #[test]
    fn a_repository_is_requested_by_three_tags() {
        let repo = repo(1, "a \"b\"");
        let filters =
            tagged_one_of_our_repo_event_filters([&repo], None, &RequestBudget::default());
        let value = serde_json::to_string(&repo.to_string()).unwrap();
        let wanted = ["#a", "#A", "#q"].map(|tag| format!(r#"{{"{tag}":[{value}]}}"#));
        assert_eq!(json(&filters), wanted);
    }

    #[test]
    fn a_root_is_requested_by_three_tags() {
        let root = EventId::from_byte_array([0xab; 32]).into();
        let filters =
            tagged_one_of_our_root_event_filters([&root], None, &RequestBudget::default());
        let wanted =
            ["#e", "#E", "#q"].map(|tag| format!(r#"{{"{tag}":["{}"]}}"#, "ab".repeat(32)));
        assert_eq!(json(&filters), wanted);
    }

    #[test]
    fn held_repositories_with_one_identifier_are_one_value() {
        let items = RelaySyncNeeds {
            repos: [(repo(1, "x"), SyncLevel::StateOnly), (repo(2, "x"), SyncLevel::StateOnly)]
                .into(),
            ..RelaySyncNeeds::default()
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &RequestBudget::default());
        assert_eq!(json(&filters), [r##"{"kinds":[30618],"#d":["x"]}"##]);
    }

    #[test]
    fn members_are_requested_by_coordinate() {
        let public_key = PublicKey::from_byte_array([1; 32]);
        let (kind, identifier) = (kinds::SOFTWARE, "app".to_owned());
        let items = RelaySyncNeeds {
            coordinates: [Coordinate { kind, public_key, identifier }].into(),
            ..RelaySyncNeeds::default()
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &RequestBudget::default());
        let wanted = format!(r##"{{"#a":["32267:{public_key}:app"]}}"##);
        assert_eq!(json(&filters), [wanted]);
    }

    #[test]
    fn no_items_give_no_filter() {
        let none = RelaySyncNeeds::default();
        assert!(build_layer2_and_layer3_filters(&none, None, &RequestBudget::default()).is_empty());
    }
}
