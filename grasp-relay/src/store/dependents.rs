//! Repositories that are announced no longer, and hiding the events that depended on them, in steps that are transactions of
//! their own. Which events depend on nothing else is found outside of them.

use std::collections::BTreeMap;

use grasp_core::RepoId;
use grasp_core::policy::HiddenCause;
use nostr::event::EventId;

use super::engine::{Query, ReadRow, StoreEngine};
use super::hiding::{Hiding as _, Term, coordinates_of};
use super::policy::HideStep;
use super::rules::Rows as _;
use super::{MAX_TASK_ROWS, StoreError};
use crate::store::changes::Wanted;

/// Returns the repositories that were announced and are not any more, with the ids of their last announcements.
pub(super) async fn unannounced(
    engine: &impl StoreEngine,
) -> Result<BTreeMap<RepoId, EventId>, StoreError> {
    let sql = "SELECT owner, identifier, event FROM unannounced";
    let read: ReadRow<_> = |row| {
        let repo = RepoId::new(row.public_key(0)?, row.parse(1)?);
        Ok((repo, row.event_id(2)?))
    };
    let found = engine.rows(Query::new(sql, Vec::new(), read)).await?;
    Ok(found.into_iter().collect())
}

/// Hides events because a repository is not announced, as many as one transaction may; reports whether all are hidden.
/// None are if it is announced by now.
pub(super) async fn hide_step<E: StoreEngine>(
    engine: &E,
    repo: RepoId,
    events: Vec<EventId>,
    term: Term,
) -> Result<HideStep, StoreError> {
    let [announcement, _] = coordinates_of(&repo);
    let wanted = engine.want(|keys, wanted| {
        wanted.coordinate(keys, &announcement);
        wanted.remove(&events);
    });
    let hide = move |tables: &E::Tables<'_>| {
        let key = tables.keys().coordinate(&announcement);
        if tables.head(&key)?.is_some() {
            return Ok(HideStep {
                is_done: true,
                ..HideStep::default()
            });
        }
        let mut due = Vec::new();
        for id in &events {
            due.extend(tables.served(id)?.map(|served| served.seq));
        }
        tables.hide_served(&due, &HiddenCause::Unannounced(repo), term)
    };
    engine.write(MAX_TASK_ROWS, wanted, hide).await
}

/// Forgets a repository that is not announced, unless events are hidden because of that.
pub(super) async fn forget<E: StoreEngine>(engine: &E, repo: RepoId) -> Result<(), StoreError> {
    let forget = move |tables: &E::Tables<'_>| tables.forget_unannounced(&repo);
    engine.write(1, Wanted::default(), forget).await
}
