//! The contract of an event store, run over every store.

mod deletion;
mod filters;
mod lookup;
mod retention;
mod versions;
mod writing;

use futures_util::future::BoxFuture;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreRules};

use crate::support::memory_store::MemoryStore;

/// One rule, tried on an empty store under [`rules`].
pub(crate) type Rule = for<'s> fn(&'s dyn EventStore) -> BoxFuture<'s, ()>;

pub(crate) const US: &str = "us.example";
pub(crate) const KEPT_VERSIONS: usize = 3;

pub(crate) fn rules() -> StoreRules {
    StoreRules {
        service: Some(US.parse().unwrap()),
        kept_versions: KEPT_VERSIONS,
        ..StoreRules::default()
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work)
}

/// Makes one test of each rule for each store.
macro_rules! contract {
    ($($chapter:ident { $($rule:ident)* })*) => {
        mod sqlite {
            $($(
                #[test]
                fn $rule() {
                    super::on_sqlite(|store| Box::pin(super::$chapter::$rule(store)));
                }
            )*)*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $($(
                #[test]
                fn $rule() {
                    crate::store_postgres::on_postgres(|store| Box::pin(super::$chapter::$rule(store)));
                }
            )*)*
        }

        mod memory {
            $($(
                #[test]
                fn $rule() {
                    let store = super::MemoryStore::new(super::rules());
                    super::block_on(super::$chapter::$rule(&store));
                }
            )*)*
        }
    };
}

fn on_sqlite(rule: Rule) {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        rules: rules(),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("events.db"), options).unwrap();
    block_on(rule(&store));
}

contract! {
    writing {
        a_stored_event_is_found_as_it_was_written
        the_same_event_again_is_a_duplicate
        each_event_of_a_batch_gets_its_own_answer
        ephemeral_events_are_refused
        a_removed_event_may_be_stored_again
        extreme_times_are_stored_and_found
        many_writers_at_once_all_get_their_events_stored
        an_expired_event_is_never_served
        an_expired_event_is_refused
        a_sweep_removes_expired_events
        an_expired_version_gives_way_to_an_older_one
        a_closed_store_returns_an_error
    }
    filters {
        newest_first_and_ties_by_lowest_id
        a_filter_without_conditions_matches_everything
        any_value_of_a_list_and_every_condition
        since_and_until_include_their_second
        the_limit_takes_the_newest
        a_limit_cuts_ties_by_lowest_id
        limit_zero_matches_nothing
        empty_lists_match_nothing
        search_matches_nothing
        no_filter_matches_nothing
        tag_names_are_case_sensitive
        only_the_first_value_of_a_tag_counts
        long_and_empty_tag_values_are_found_exactly
        several_filters_give_each_event_once_in_order
        each_filter_has_its_own_limit
        a_filter_may_have_tens_of_thousands_of_values
        a_large_answer_is_complete_in_several_chunks
        an_event_that_matches_by_several_values_is_given_once
        an_inventory_is_oldest_first
        an_inventory_above_its_limit_is_refused
        an_author_with_many_kinds_is_served_in_order
        references_are_looked_up_by_key
    }
    lookup {
        the_served_versions_at_coordinates_are_found
        expired_versions_at_coordinates_are_not_found
        many_coordinates_are_looked_up_at_once
        authors_who_list_a_key_are_found_newest_first
        no_more_authors_who_list_a_key_are_found_than_asked_for
        a_key_is_listed_under_one_identifier_only
        a_key_is_listed_by_its_role_as_maintainer
        a_newer_announcement_lists_what_it_says
        an_announcement_that_is_gone_lists_nobody
    }
    versions {
        the_newer_version_wins_in_any_order
        in_the_same_second_the_lower_id_wins_in_any_order
        plain_replaceable_events_ignore_the_identifier
        addressable_events_are_distinguished_by_identifier
        a_missing_identifier_is_an_empty_one
        ordinary_kinds_are_never_replaced
        superseded_announcements_and_states_are_kept_but_not_served
        other_superseded_events_are_not_kept
        the_number_of_kept_versions_is_bounded
        a_kept_version_is_stored_again_after_the_winner_is_deleted
        a_delisted_version_is_removed_and_refused
    }
    deletion {
        own_events_are_deleted_by_id_and_refused
        own_versions_are_deleted_up_to_the_request
        a_deletion_may_come_before_its_target
        a_deletion_that_names_another_authors_event_is_refused
        an_unknown_event_of_another_author_is_not_gated
        coordinates_of_other_authors_are_ignored
        deletions_cannot_be_deleted
        requests_to_vanish_cannot_be_deleted
        too_many_targets_are_refused
        kept_versions_are_deleted_too
        an_older_version_may_follow_a_deletion_by_id
        a_vanished_author_is_forgotten_up_to_the_request
        later_events_of_a_vanished_author_are_accepted
        a_vanish_request_to_another_relay_has_no_effect
        a_vanish_request_to_our_address_has_the_effect_of_all_relays
        vanishing_removes_deletion_requests_and_their_gates
        vanishing_removes_kept_versions
        a_refusal_can_be_queried_before_saving
        a_request_reports_the_repositories_that_lost_events
    }
    retention {
        an_unused_deletion_request_is_served_for_its_term_only
        the_targets_of_a_retired_request_stay_refused
        a_forgotten_request_gates_nothing
        the_term_of_a_request_that_was_used_begins_again
        querying_a_refusal_counts_as_use
        a_retired_request_is_still_known
        the_term_begins_with_the_receipt_and_not_the_date_of_the_request
        a_removed_request_still_gates_and_may_come_back
        of_several_equal_requests_one_is_marked_as_used
    }
}
