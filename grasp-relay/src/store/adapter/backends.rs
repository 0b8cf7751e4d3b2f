//! Opening the databases that come as features.

use std::path::Path;

use super::{DatabaseStore, failure};
use crate::store::StoreError;
use crate::store::rules::Rules;

/// Opens a `nostr-sqlite` file. It knows one address of ours, the first; see also
/// [`KNOWN_FAULTS`](super::KNOWN_FAULTS).
#[cfg(feature = "nostr-sqlite")]
pub async fn open_nostr_sqlite(
    path: &Path,
    rules: &Rules,
) -> Result<DatabaseStore<nostr_sqlite::store::NostrSqlite>, StoreError> {
    let mut builder = nostr_sqlite::store::NostrSqlite::builder().in_file(path);
    if let Some(us) = rules.vanish_relays.first() {
        builder = builder.relay_url(us.clone());
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}

/// Opens a `nostr-lmdb` directory. It knows one address of ours, the first; see also
/// [`KNOWN_FAULTS`](super::KNOWN_FAULTS).
#[cfg(feature = "nostr-lmdb")]
pub async fn open_nostr_lmdb(
    dir: &Path,
    rules: &Rules,
) -> Result<DatabaseStore<nostr_lmdb::NostrLmdb>, StoreError> {
    let mut builder = nostr_lmdb::NostrLmdb::builder(dir);
    if let Some(us) = rules.vanish_relays.first() {
        builder = builder.relay_url(us.clone());
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}
