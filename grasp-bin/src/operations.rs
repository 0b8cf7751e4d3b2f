//! Prints what work on the stored data of a server has done, and what checks have found.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use grasp_core::RepoId;
use grasp_core::service::Endpoint;
use grasp_relay::instance::Settings;
use grasp_relay::instance::doctor::{self, Finding};
use grasp_relay::instance::operations::{self, CheckRequest, LostPacks, StoredCounts};
use grasp_relay::web::format_count;

use crate::block_on;
use crate::config::Config;

/// Runs all checks and prints their results. The exit code says whether none has failed.
pub(crate) fn doctor(config: &Config, offline: bool) -> Result<ExitCode> {
    let deployment = config.deployment();
    let findings = block_on(async { Ok(doctor::check(&deployment, !offline).await) })?;
    Ok(crate::exit_code(print_findings(&findings)))
}

/// Prints findings, and returns whether none is a failure.
pub(crate) fn print_findings(findings: &[Finding]) -> bool {
    let mut failed = 0;
    for finding in findings {
        println!("{finding}");
        failed += usize::from(finding.is_failed());
    }
    match failed {
        0 => println!("\nno check failed"),
        failed => println!("\n{failed} of {} checks failed", findings.len()),
    }
    failed == 0
}

/// Checks the data of a server, and prints the findings. The exit code says whether they are sound.
pub(crate) fn check(settings: &Settings, request: &CheckRequest, json: bool) -> Result<ExitCode> {
    let shows_progress = !json && std::io::stderr().is_terminal();
    let progress = |events: u64| {
        if shows_progress {
            eprint!("\rverified {events} events");
            let _ = std::io::stderr().flush();
        }
    };
    let report = block_on(async { Ok(operations::check(settings, request, &progress).await?) })?;
    if shows_progress {
        eprintln!();
    }
    match json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{report}"),
    }
    Ok(crate::exit_code(report.is_sound()))
}

/// Removes objects that no ref of a repository reaches.
pub(crate) fn purge(settings: &Settings, repo: &RepoId) -> Result<()> {
    let is_purged = block_on(async { Ok(operations::purge(settings, repo).await?) })?;
    let name = operations::repository_name(Endpoint::Repository, repo);
    match is_purged {
        true => println!("removed what no branch, tag or pull request of {name} needs"),
        false => println!("{name} has nothing that no branch, tag or pull request needs"),
    }
    Ok(())
}

/// Copies the data of a server into a new directory. The exit code says whether everything was there to be copied.
pub(crate) fn back_up(settings: &Settings, dir: &Path) -> Result<ExitCode> {
    let backed_up = block_on(async { Ok(operations::back_up(settings, dir).await?) })?;
    println!(
        "backed up {} to {}",
        in_words(backed_up.counts),
        dir.display()
    );
    print_lost(
        &backed_up.lost,
        "could not be copied; `grasp check --repair` fetches what is missing",
    );
    Ok(crate::exit_code(backed_up.lost.is_empty()))
}

/// Checks a backup, and installs it as the data of a server.
pub(crate) fn restore(settings: &Settings, dir: &Path, accept_damage: bool) -> Result<()> {
    let restored = operations::restore(settings, dir, accept_damage);
    let restored = block_on(async { Ok(restored.await?) })?;
    for fault in &restored.faults {
        println!("damaged: {fault}");
    }
    let data = settings.data_dir.display();
    println!("restored {} to {data}", in_words(restored.counts));
    println!("start the server with the domain that it had");
    Ok(())
}

/// Copies the data of a stopped server to several nodes. The exit code says whether all packs were on disk.
pub(crate) fn import(settings: &Settings, dir: &Path) -> Result<ExitCode> {
    let imported = block_on(async { Ok(operations::import(settings, dir).await?) })?;
    println!(
        "imported {}, {} and {} from {}",
        format_count(imported.events, "event", "events"),
        format_count(imported.repositories, "repository", "repositories"),
        format_count(imported.packs, "pack", "packs"),
        dir.display()
    );
    println!("start the nodes with the domain that the server had");
    print_lost(
        &imported.lost,
        "were not on disk; the nodes fetch what is missing",
    );
    Ok(crate::exit_code(imported.lost.is_empty()))
}

fn in_words(counts: StoredCounts) -> String {
    let repositories = format_count(counts.repositories, "repository", "repositories");
    let packs = format_count(counts.packs, "pack", "packs");
    format!("the database, {repositories} and {packs}")
}

fn print_lost(lost: &LostPacks, what: &str) {
    for (repo, packs) in lost {
        let packs = format_count(packs.len() as u64, "pack", "packs");
        println!("damaged: {repo}: {packs} {what}");
    }
}
