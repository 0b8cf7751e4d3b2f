//! Opening the databases that come as features.

use std::path::Path;

use nostr::types::RelayUrl;

use super::{DatabaseStore, failure};
use crate::store::StoreError;
use crate::store::rules::Rules;

/// Opens a `nostr-sqlite` file. It knows our address with `wss` only.
#[cfg(feature = "nostr-sqlite")]
pub async fn open_nostr_sqlite(
    path: &Path,
    rules: &Rules,
) -> Result<DatabaseStore<nostr_sqlite::store::NostrSqlite>, StoreError> {
    let mut builder = nostr_sqlite::store::NostrSqlite::builder().in_file(path);
    if let Some(us) = relay_url(rules) {
        builder = builder.relay_url(us);
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}

/// Opens a `nostr-lmdb` directory. It knows our address with `wss` only.
#[cfg(feature = "nostr-lmdb")]
pub async fn open_nostr_lmdb(
    dir: &Path,
    rules: &Rules,
) -> Result<DatabaseStore<nostr_lmdb::NostrLmdb>, StoreError> {
    let mut builder = nostr_lmdb::NostrLmdb::builder(dir);
    if let Some(us) = relay_url(rules) {
        builder = builder.relay_url(us);
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}

/// Our address, as the databases spell it.
fn relay_url(rules: &Rules) -> Option<RelayUrl> {
    let ours = rules.service.as_ref()?.relay_url(true).ok()?;
    RelayUrl::parse(ours.as_str()).ok()
}
