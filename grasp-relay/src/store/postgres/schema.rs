//! The schema of the database, its migrations, and its secrets.

use tokio_postgres::{Client, Transaction};

use crate::store::keys::Keys;
use crate::store::{StoreError, failure};

/// The steps from each version, by its index, to the next. Released steps never change.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];

/// The advisory lock under which the schema is migrated and a file imported ("grsp").
pub(super) const LOCK_SQL: &str = "SELECT pg_advisory_xact_lock(1735553904)";

#[derive(Debug, thiserror::Error)]
#[error("the database has tables of another application")]
struct ForeignTables;

#[derive(Debug, thiserror::Error)]
#[error("the database has the encoding {0}; it must have UTF8")]
struct WrongEncoding(String);

#[derive(Debug, thiserror::Error)]
#[error("the database's secret is damaged")]
struct BadSecret;

/// Migrates the database to the newest version that this release knows. Others who do so at the same time wait.
pub(super) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let tx = client.transaction().await.map_err(failure)?;
    tx.batch_execute(LOCK_SQL).await.map_err(failure)?;
    let found = version(&tx).await?;
    let known = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    if found == known {
        return Ok(());
    }
    if found == 0 {
        let create = "CREATE TABLE grasp_schema (version BIGINT NOT NULL);
            INSERT INTO grasp_schema (version) VALUES (0);";
        tx.batch_execute(create).await.map_err(failure)?;
    }
    for step in MIGRATIONS.iter().skip(found as usize) {
        tx.batch_execute(step).await.map_err(failure)?;
    }
    if found == 0 {
        let (mut salt, mut key) = ([0; 64], [0; 32]);
        let random = getrandom::fill(&mut salt).and_then(|()| getrandom::fill(&mut key));
        random.map_err(failure)?;
        for (sql, secret) in [
            ("INSERT INTO secret (salt) VALUES ($1)", &salt[..]),
            ("INSERT INTO node_key (key) VALUES ($1)", &key),
        ] {
            tx.execute(sql, &[&secret]).await.map_err(failure)?;
        }
    }
    let reached = i64::from(known);
    tx.execute("UPDATE grasp_schema SET version = $1", &[&reached]).await.map_err(failure)?;
    tx.commit().await.map_err(failure)
}

/// Returns the version of a database; zero for an empty one.
async fn version(tx: &Transaction<'_>) -> Result<u32, StoreError> {
    let tables = "SELECT count(*), count(*) FILTER (WHERE table_name = 'grasp_schema'),
            current_setting('server_encoding')
        FROM information_schema.tables WHERE table_schema = current_schema()";
    let row = tx.query_one(tables, &[]).await.map_err(failure)?;
    let encoding: String = row.get(2);
    match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
        _ if encoding != "UTF8" => Err(failure(WrongEncoding(encoding))),
        (0, _) => Ok(0),
        (_, 0) => Err(failure(ForeignTables)),
        _ => {
            let version = tx.query_one("SELECT version FROM grasp_schema", &[]).await;
            Ok(u32::try_from(version.map_err(failure)?.get::<_, i64>(0)).unwrap_or(u32::MAX))
        }
    }
}

/// Reads the secret of the database, from which the keys of its indexes are made.
pub(super) async fn load_keys(client: &Client) -> Result<Keys, StoreError> {
    let row = client.query_one("SELECT salt FROM secret", &[]).await.map_err(failure)?;
    let salt: &[u8] = row.get(0);
    Ok(Keys::new(salt.try_into().map_err(|_| failure(BadSecret))?))
}

/// Reads the key by which nodes know each other.
pub(super) async fn load_node_key(client: &Client) -> Result<[u8; 32], StoreError> {
    let row = client.query_one("SELECT key FROM node_key", &[]).await.map_err(failure)?;
    let key: &[u8] = row.get(0);
    key.try_into().map_err(|_| failure(BadSecret))
}
