//! What other databases do wrong, or cannot do, behind a `DatabaseStore`.

/// A rule of the contract that some database does not keep.
pub(crate) struct KnownFault {
    /// The rule, by the name it has in the contract suite.
    pub(crate) rule: &'static str,
    /// What that means for a server.
    pub(crate) effect: &'static str,
    /// Who does not keep it.
    databases: &'static [&'static str],
}

impl KnownFault {
    /// Says whether a database, by the name of its feature, has this fault.
    pub(crate) fn concerns(&self, database: &str) -> bool {
        self.databases == EVERY || self.databases.contains(&database)
    }
}

/// Every database: the trait has no word for it.
const EVERY: &[&str] = &["*"];
const BOTH: &[&str] = &["nostr-sqlite", "nostr-lmdb"];
const SQLITE: &[&str] = &["nostr-sqlite"];

/// Every rule that is not kept by nostr-sqlite 0.45.2, by nostr-lmdb 0.45.3, or by any database of that trait.
///
/// The contract suite fails when a fault is missing here, and also when one is listed that was mended.
pub(crate) const KNOWN_FAULTS: &[KnownFault] = &[
    fault("a_forgotten_request_gates_nothing", EVERY, "deletion requests are kept for ever"),
    fault(
        "an_unused_deletion_request_is_served_for_its_term_only",
        EVERY,
        "deletion requests are served for ever",
    ),
    fault("a_retired_request_is_still_known", EVERY, "deletion requests are served for ever"),
    fault(
        "a_request_that_blocked_something_starts_anew",
        EVERY,
        "deletion requests have no term that could start anew",
    ),
    fault(
        "of_a_fleet_of_equal_requests_one_gets_the_credit",
        EVERY,
        "deletion requests are served for ever",
    ),
    fault(
        "asking_in_advance_counts_as_use",
        EVERY,
        "whether an event was deleted is only known once it is offered",
    ),
    fault(
        "a_refusal_can_be_asked_for_in_advance",
        EVERY,
        "whether an event was deleted, or its author vanished, is only known once it is offered",
    ),
    fault(
        "a_sweep_takes_out_what_has_expired",
        EVERY,
        "expired events take up space for ever, though they are not served",
    ),
    fault(
        "an_expired_version_gives_way_to_an_older_one",
        EVERY,
        "an expired version keeps older ones out",
    ),
    fault(
        "superseded_announcements_and_states_are_kept_but_not_served",
        EVERY,
        "no rollback: superseded versions are gone",
    ),
    fault("only_so_many_versions_are_kept", EVERY, "no rollback: superseded versions are gone"),
    fault(
        "a_kept_version_returns_once_the_winner_is_gone",
        EVERY,
        "no rollback: superseded versions are gone",
    ),
    fault(
        "a_delisted_version_is_gone_and_stays_away",
        EVERY,
        "a repository that its owner took from this server comes back when an older announcement is sent again",
    ),
    fault("kept_versions_are_deleted_too", EVERY, "no rollback: superseded versions are gone"),
    fault(
        "a_deletion_may_come_before_its_target",
        BOTH,
        "a deletion request that comes first deletes nothing",
    ),
    fault(
        "the_targets_of_a_retired_request_stay_refused",
        BOTH,
        "a deletion request that comes first deletes nothing",
    ),
    fault(
        "a_removed_request_still_gates_and_may_come_back",
        BOTH,
        "a deletion request that comes first deletes nothing",
    ),
    fault("deletions_cannot_be_deleted", BOTH, "a deletion request can itself be deleted"),
    fault(
        "somebody_elses_coordinates_are_ignored",
        BOTH,
        "a deletion request that mentions somebody else's repository is refused",
    ),
    fault(
        "own_versions_are_deleted_up_to_the_request",
        BOTH,
        "deletion misses identifiers with a colon, and coordinates without the last colon",
    ),
    fault(
        "a_vanished_author_is_forgotten_up_to_the_request",
        BOTH,
        "who vanished once is refused for ever, further requests to vanish included",
    ),
    fault(
        "a_vanished_authors_later_events_are_welcome",
        BOTH,
        "vanishing also takes what was written later, and refuses it for ever",
    ),
    fault("requests_to_vanish_cannot_be_deleted", BOTH, "who vanished once is refused for ever"),
    fault(
        "vanishing_takes_deletion_requests_and_their_gates",
        BOTH,
        "who vanished once is refused for ever",
    ),
    fault("vanishing_takes_kept_versions", BOTH, "vanishing also takes what was written later"),
    fault(
        "a_missing_identifier_is_an_empty_one",
        BOTH,
        "addressable events without identifier pile up instead of replacing each other",
    ),
    fault("ordinary_kinds_are_never_replaced", BOTH, "kind 41 is taken for a replaceable kind"),
    fault("an_absurd_time_does_no_harm", SQLITE, "events of the very first second are not stored"),
    fault(
        "tens_of_thousands_of_values_are_one_filter",
        SQLITE,
        "filters with very many values fail",
    ),
];

const fn fault(
    rule: &'static str,
    databases: &'static [&'static str],
    effect: &'static str,
) -> KnownFault {
    KnownFault { rule, effect, databases }
}
