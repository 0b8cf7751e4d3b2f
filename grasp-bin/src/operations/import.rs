//! `grasp import`: moves the data of a single server to the database and the object store that several nodes share.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use grasp_purgatory::git::{NamedFiles, PackStorage};
use grasp_relay::web::format_count;

use super::{REPOSITORIES, StoredData, block_on};
use crate::config::Config;
use crate::server::{DATABASE, node};

/// Copies the data of a stopped server. Packs come first: what the database names is there. The exit code says whether
/// all packs were on disk.
pub(crate) fn run(config: &Config, dir: &Path) -> Result<ExitCode> {
    let settings = &config.settings;
    let packs = settings.packs.as_ref().context(
        "import needs the settings of the nodes: set database, packs, node_address and domain",
    )?;
    let file = dir.join(DATABASE);
    if !file.exists() {
        bail!("there is no {}; name the data directory of a single server", file.display());
    }
    if UnixStream::connect(dir.join("admin.sock")).is_ok() {
        bail!("a server uses {}; stop it first", dir.display());
    }
    let git = settings.git().context("could not find a usable git")?;
    let data = StoredData::open(&file, &dir.join(REPOSITORIES), git)?;
    let storage = PackStorage::open(packs.as_str(), &settings.pack_storage)
        .with_context(|| format!("could not use {packs}"))?;
    let (report, lost) = block_on(async {
        let mut lost = Vec::new();
        for files in &data.files {
            let named = NamedFiles::read(&*data.database, files.endpoint()).await?;
            let stored = files.store_in(&storage, &named).await;
            lost.extend(stored.with_context(|| format!("could not copy packs to {packs}"))?);
        }
        let store = node::connect(settings).await?;
        let report = store.import(&file).await.context("could not import the database")?;
        Ok((report, lost))
    })?;
    let repositories = format_count(report.repositories, "repository", "repositories");
    let events = format_count(report.events, "event", "events");
    let copied = format_count(report.packs, "pack", "packs");
    println!("imported {events}, {repositories} and {copied} from {}", dir.display());
    println!("start the nodes with the domain that the server had");
    for (identifier, packs) in &lost {
        let packs = format_count(packs.len() as u64, "pack", "packs");
        println!(
            "damaged: {identifier}: {packs} were not on disk; the nodes fetch what is missing"
        );
    }
    Ok(if lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
