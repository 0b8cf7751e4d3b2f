//! Sync for a relay on `nostr-sqlite`: what is needed besides the relay itself.
//!
//! `cargo run --features nostr-database --example nostr_sqlite -- events.db relay.example.com wss://other.example.com`
//! fills that database with the repositories which list `relay.example.com`, and keeps it complete until Ctrl-C.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use grasp_sync::core::{RelayUrl, ServiceIdentity};
use grasp_sync::database::DatabaseRelay;
use grasp_sync::driver::RecordFile;
use grasp_sync::{Settings, Syncer};
use nostr_sqlite::store::NostrSqlite;

/// Opens the database and keeps it complete. Give the relay that serves clients the [`DatabaseRelay`] as its database.
pub(crate) async fn start(
    database: &Path,
    own: ServiceIdentity,
    from: Vec<RelayUrl>,
) -> Result<(DatabaseRelay<NostrSqlite>, Syncer), Box<dyn Error>> {
    let records = RecordFile::new(database.with_extension("relays"));
    let database = NostrSqlite::builder().in_file(database).build().await?;
    let relay = DatabaseRelay::new(database, own.clone());
    let settings = Settings::new(own)
        .with_bootstrap(from)
        .with_records(records);
    let syncer = Syncer::start(Arc::new(relay.clone()), settings).await?;
    Ok((relay, syncer))
}

#[tokio::main]
#[allow(dead_code, reason = "a test calls `start` itself")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let database = args.next().ok_or("which database?")?;
    let own = args.next().ok_or("under which name?")?.parse()?;
    let from = args.map(|url| url.parse()).collect::<Result<_, _>>()?;
    let (_relay, syncer) = start(Path::new(&database), own, from).await?;
    let status = syncer.until_complete().await;
    println!("complete: {}", status.is_complete());
    tokio::signal::ctrl_c().await?;
    syncer.stop().await;
    Ok(())
}
