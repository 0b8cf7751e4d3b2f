//! Sync for a relay on `nostr-sqlite`: what is needed besides the relay itself.
//!
//! `cargo run --features nostr-database --example nostr_sqlite -- events.db relay.example.com wss://other.example.com`
//! fills that database with the repositories which list `relay.example.com`, and keeps it complete until Ctrl-C. With `--trial`
//! before the database it takes all repositories of the other relay, which may be on this machine.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use grasp_sync::core::outbound::OutboundPolicy;
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
    is_trial: bool,
) -> Result<(DatabaseRelay<NostrSqlite>, Syncer), Box<dyn Error>> {
    let records = RecordFile::new(database.with_extension("relays"));
    let database = NostrSqlite::builder().in_file(database).build().await?;
    let mut relay = DatabaseRelay::new(database, own.clone());
    let mut settings = Settings::new(own)
        .with_bootstrap(from)
        .with_records(records);
    if is_trial {
        relay = relay.following_unlisted();
        settings = settings.follow_unlisted();
        settings = settings.with_outbound(OutboundPolicy::everywhere());
    }
    let syncer = Syncer::start(Arc::new(relay.clone()), settings).await?;
    Ok((relay, syncer))
}

#[tokio::main]
#[allow(dead_code, reason = "a test calls `start` itself")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let is_trial = args.next_if_eq("--trial").is_some();
    let database = args.next().ok_or("which database?")?;
    let own = args.next().ok_or("under which name?")?.parse()?;
    let from = args.map(|url| url.parse()).collect::<Result<_, _>>()?;
    let (_relay, syncer) = start(Path::new(&database), own, from, is_trial).await?;
    let status = syncer.until_complete().await;
    let new: u64 = status
        .relays
        .values()
        .map(|relay| relay.counts.stored())
        .sum();
    println!("complete: {}, {new} new events", status.is_complete());
    tokio::signal::ctrl_c().await?;
    syncer.stop().await;
    Ok(())
}
