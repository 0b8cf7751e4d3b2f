//! The tables of refs, packs and purgatory, within a transaction that the caller commits.

use grasp_core::service::Endpoint;
use grasp_purgatory::database::Generation;
use nostr::event::Event;
use nostr::key::PublicKey;
use rusqlite::types::Value;
use rusqlite::{params, params_from_iter};

use super::tables::SqliteTables;
use crate::store::changes::{Changes, FamilyKey, GitRows, refs_change};
use crate::store::git::views_of;
use crate::store::{StoreError, repository_names};

impl GitRows for SqliteTables<'_> {
    fn generation(
        &self,
        key: FamilyKey<'_>,
        owner: &PublicKey,
    ) -> Result<Option<Generation>, StoreError> {
        self.find(
            "SELECT generation FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
            params![key.0, key.1, owner.as_bytes()],
            |row| Ok(Generation(row.get::<_, i64>(0)?.unsigned_abs())),
        )
    }

    fn next_generation(&self, _: FamilyKey<'_>, _: &PublicKey) -> Result<i64, StoreError> {
        self.only("UPDATE generations SET last = last + 1 RETURNING last", [])
    }

    fn change(&self, sql: &'static str, values: Vec<Value>) -> Result<(), StoreError> {
        self.execute(sql, params_from_iter(values))?;
        Ok(())
    }
}

impl SqliteTables<'_> {
    /// Removes the refs that an event signed for, which is being removed.
    pub(super) fn remove_refs(&self, event: &Event) -> Result<(), StoreError> {
        for name in repository_names(event) {
            for endpoint in [Endpoint::Repository, Endpoint::PullRequests] {
                let views = self.rows(views_of(endpoint, &name))?;
                self.change_family(&refs_change(event, endpoint, &name, views))?;
            }
        }
        Ok(())
    }
}
