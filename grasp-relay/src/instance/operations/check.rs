//! Finds what is missing or damaged on disk, and has it repaired.

mod events;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_core::service::Endpoint;
use grasp_purgatory::git::{Examination, PackFault, RepoStore};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde::Serialize;

use self::events::InvalidEvent;
use super::{DATABASE_REMEDY, StoredData, repository_name};
use crate::instance::admin::{AdminRequest, AdminSocket, request};
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::server::{open_contributors, open_repos, open_store};
use crate::instance::settings::Settings;
use crate::web::format_count;

/// Time that the server is given to fetch what is missing.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two questions to the server whether objects are still missing.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Limits the events that are named, each in a line.
const MAX_EVENTS_NAMED: usize = 100;

/// Limits the packs that are named in one line.
const MAX_PACKS_NAMED: usize = 3;

/// Reads a repository as the operator names it: a coordinate, or `npub/identifier`.
pub fn parse_repository(text: &str) -> Result<RepoId, &'static str> {
    const EXPECTED: &str = "expected 30617:PUBLIC_KEY:IDENTIFIER or NPUB/IDENTIFIER";
    if let Ok(repo) = text.parse() {
        return Ok(repo);
    }
    let text = text.trim_start_matches('/');
    let text = text.strip_prefix("prs/").unwrap_or(text);
    let (owner, identifier) = text.split_once('/').ok_or(EXPECTED)?;
    let owner = PublicKey::parse(owner).map_err(|_| EXPECTED)?;
    let identifier = identifier.strip_suffix(".git").unwrap_or(identifier);
    Ok(RepoId::new(
        owner,
        identifier.parse().map_err(|_| EXPECTED)?,
    ))
}

/// A request to check the data of a server.
#[derive(Clone, Debug, Default)]
pub struct CheckRequest {
    /// The only repository to check; `None` for all.
    pub repository: Option<RepoId>,
    /// Repairs what is damaged.
    pub repair: bool,
    /// Drops events that do not verify.
    pub drop_invalid: bool,
}

/// The findings of a check. Its text names them with remedies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Faults of the database.
    database: Vec<String>,
    /// Number of events that were verified.
    events: u64,
    /// Events that are not what their authors signed.
    invalid_events: Vec<InvalidEvent>,
    /// Those events were dropped.
    dropped: bool,
    repositories: usize,
    packs: usize,
    damaged: Vec<DamagedRow>,
    /// Repositories that a repair has made whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<Vec<String>>,
    /// The repair was done without a server, which would fetch what is missing.
    #[serde(skip)]
    is_server_stopped: bool,
}

/// A repository with missing or damaged objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct DamagedRow {
    repository: String,
    #[serde(skip)]
    repo: RepoId,
    problems: Vec<String>,
}

/// Checks the data of a server, and has it repaired if the request says so. `progress` gets the number of events verified so far.
pub async fn check(
    settings: &Settings,
    request: &CheckRequest,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<CheckReport> {
    match examine_all(settings, request, progress).await {
        Err(error) if error.database_remedy().is_some() => Ok(CheckReport {
            database: vec![error.in_one_line()],
            ..CheckReport::default()
        }),
        report => report,
    }
}

async fn examine_all(
    settings: &Settings,
    request: &CheckRequest,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<CheckReport> {
    let data = StoredData::of_server(settings)?;
    let mut report = CheckReport {
        database: data.database.integrity_check()?,
        ..CheckReport::default()
    };
    if request.repository.is_none() && report.database.is_empty() {
        let verified = events::verify(&data.database, progress).await?;
        report.events = verified.count;
        report.invalid_events = verified.invalid;
    }
    let only = request
        .repository
        .as_ref()
        .map(|repo| BTreeSet::from([repo.clone()]));
    data.examine(only, &mut report).await?;
    let unknown = request
        .repository
        .as_ref()
        .filter(|_| report.repositories == 0);
    if let Some(repo) = unknown {
        return Err(InstanceError::caller(format!(
            "there is no repository {repo} here"
        )));
    }
    if request.drop_invalid && !report.invalid_events.is_empty() {
        events::drop_invalid(settings, &report.invalid_events).await?;
        report.dropped = true;
    }
    // A repair writes to the database, which would make a damaged one worse.
    if !request.repair || report.damaged.is_empty() || !report.database.is_empty() {
        return Ok(report);
    }
    let damaged: BTreeSet<_> = report.damaged.iter().map(|row| row.repo.clone()).collect();
    let is_server_running = repair(settings, &damaged).await?;
    let mut after = CheckReport::default();
    data.examine(Some(damaged), &mut after).await?;
    let still: BTreeSet<_> = after.damaged.iter().map(|row| &row.repository).collect();
    let names = report.damaged.into_iter().map(|row| row.repository);
    let repaired = names.filter(|name| !still.contains(name)).collect();
    report.repaired = Some(repaired);
    report.damaged = after.damaged;
    report.is_server_stopped = !is_server_running;
    Ok(report)
}

impl StoredData {
    /// Examines these repositories, or all.
    async fn examine(
        &self,
        only: Option<BTreeSet<RepoId>>,
        report: &mut CheckReport,
    ) -> Result<()> {
        for files in &self.files {
            let mut repos = files.all().await?;
            if let Some(only) = &only {
                repos.retain(|repo| only.contains(repo));
            }
            for repo in repos {
                let examination = files.examine(&repo).await;
                let examination = examination.with_context(|| format!("could not check {repo}"))?;
                report.repositories += usize::from(examination.is_served);
                report.packs += examination.packs;
                report
                    .damaged
                    .extend(row(files.endpoint(), repo, &examination));
            }
        }
        Ok(())
    }
}

/// Returns a repository with its problems, if it has any.
fn row(endpoint: Endpoint, repo: RepoId, found: &Examination) -> Option<DamagedRow> {
    if found.is_sound() {
        return None;
    }
    let mut problems = Vec::new();
    if found.is_broken {
        problems.push("objects of its history are missing".to_owned());
    }
    problems.extend(pack_problems(found));
    Some(DamagedRow {
        repository: repository_name(endpoint, &repo),
        repo,
        problems,
    })
}

fn pack_problems(found: &Examination) -> Vec<String> {
    let texts = [
        (PackFault::Lost, "missing or truncated"),
        (PackFault::Unindexed, "without its index"),
        (PackFault::Damaged, "damaged"),
    ];
    let problem = |(fault, text): (PackFault, &str)| {
        let of_kind = found.faults.iter().filter(|(_, one)| **one == fault);
        let names: Vec<&str> = of_kind.map(|(name, _)| name.as_str()).collect();
        let (shown, more) = names.split_at(names.len().min(MAX_PACKS_NAMED));
        let more = if more.is_empty() {
            String::new()
        } else {
            format!(" and {} more", more.len())
        };
        (!names.is_empty()).then(|| format!("{text}: {}{more}", shown.join(", ")))
    };
    texts.into_iter().filter_map(problem).collect()
}

impl CheckReport {
    /// Returns whether nothing is missing, damaged or invalid any more.
    pub fn is_sound(&self) -> bool {
        let are_events_sound = self.invalid_events.is_empty() || self.dropped;
        self.database.is_empty() && self.damaged.is_empty() && are_events_sound
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

fn text(report: &CheckReport) -> String {
    let mut text = String::new();
    for fault in &report.database {
        let _ = writeln!(text, "the database is damaged: {fault}");
    }
    if !report.database.is_empty() {
        let _ = writeln!(text, "remedy: {DATABASE_REMEDY}");
    }
    text.push_str(&event_lines(report));
    for name in report.repaired.iter().flatten() {
        let _ = writeln!(text, "repaired: {name}");
    }
    for row in &report.damaged {
        let _ = writeln!(
            text,
            "damaged: {}: {}",
            row.repository,
            row.problems.join("; ")
        );
    }
    let damaged = match report.damaged.len() {
        0 if !report.database.is_empty() => "the database is damaged".to_owned(),
        0 if !report.is_sound() => "there are invalid events".to_owned(),
        0 => "nothing is missing or damaged".to_owned(),
        count => {
            format!(
                "{} damaged",
                format_count(count as u64, "repository is", "repositories are")
            )
        }
    };
    let _ = writeln!(
        text,
        "checked the database, {}, {} and {}: {damaged}",
        format_count(report.events, "event", "events"),
        format_count(report.repositories as u64, "repository", "repositories"),
        format_count(report.packs as u64, "pack", "packs"),
    );
    if let Some(remedy) = repair_remedy(report) {
        let _ = writeln!(text, "{remedy}");
    }
    text
}

/// Names events that do not verify, and what to do about them.
fn event_lines(report: &CheckReport) -> String {
    let mut text = String::new();
    let what = match report.dropped {
        true => "dropped event",
        false => "invalid event",
    };
    for event in report.invalid_events.iter().take(MAX_EVENTS_NAMED) {
        let _ = writeln!(text, "{what}: {}: {}", event.id, event.reason);
    }
    let more = report.invalid_events.len().saturating_sub(MAX_EVENTS_NAMED);
    if more > 0 {
        let more = format_count(more as u64, "more event", "more events");
        let _ = writeln!(text, "{what}: {more}; --json names all");
    }
    if !report.invalid_events.is_empty() {
        let remedy = match report.dropped {
            true => "start the server, which fetches from other relays what they have of them",
            false => {
                "remedy: stop the server, and drop them with `grasp check --drop-invalid`; sync fetches them again \
                 from other relays"
            }
        };
        let _ = writeln!(text, "{remedy}");
    }
    text
}

/// Returns what to do about damaged repositories.
fn repair_remedy(report: &CheckReport) -> Option<&'static str> {
    match (&report.repaired, report.is_server_stopped) {
        _ if report.damaged.is_empty() => None,
        (None, _) => Some(
            "remedy: `grasp check --repair` keeps what is readable, and has the rest fetched from other servers",
        ),
        (Some(_), true) => Some(
            "what is readable was kept; start the server, which fetches the rest from other servers",
        ),
        (Some(_), false) => Some(
            "the server goes on to look for the rest at other servers; a push or `grasp restore` of a backup brings it, too",
        ),
    }
}

/// Repairs these repositories as far as possible, and returns whether a server did.
async fn repair(settings: &Settings, damaged: &BTreeSet<RepoId>) -> Result<bool> {
    let socket = settings.admin_socket();
    if !is_running(&socket)? {
        repair_stopped(settings, damaged).await?;
        return Ok(false);
    }
    let mut missing = BTreeSet::new();
    for repo in damaged {
        if request::<bool>(&socket, AdminRequest::Repair(repo.clone()))? {
            missing.insert(repo.clone());
        }
    }
    let began = Instant::now();
    while !missing.is_empty() && began.elapsed() < FETCH_TIMEOUT {
        tokio::time::sleep(POLL_INTERVAL).await;
        let mut left = BTreeSet::new();
        for repo in missing {
            if request::<bool>(&socket, AdminRequest::LacksObjects(repo.clone()))? {
                left.insert(repo);
            }
        }
        missing = left;
    }
    Ok(true)
}

/// Removes objects that no ref of a repository reaches, by the running server or without one. Returns whether there were some.
pub async fn purge(settings: &Settings, repo: &RepoId) -> Result<bool> {
    let socket = settings.admin_socket();
    match is_running(&socket)? {
        true => request::<bool>(&socket, AdminRequest::Purge(repo.clone())),
        false => purge_stopped(settings, repo).await,
    }
}

async fn purge_stopped(settings: &Settings, repo: &RepoId) -> Result<bool> {
    // No server may start meanwhile.
    let _socket = AdminSocket::bind(&settings.admin_socket())?;
    let store = open_store(settings).await?;
    let repos = open_repos(settings, store.clone(), None).await?;
    let contributors = open_contributors(settings, &repos, None).await?;
    let mut is_purged = false;
    for store in std::iter::once(&repos).chain(&contributors) {
        is_purged |= store.repository(repo).purge(Timestamp::now()).await?;
    }
    store.close().await.context("the database did not close")?;
    Ok(is_purged)
}

/// Returns whether a server listens on its admin socket.
fn is_running(socket: &Path) -> Result<bool> {
    match UnixStream::connect(socket) {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(false),
            _ => Err(error).with_context(|| format!("could not connect to {}", socket.display())),
        },
    }
}

/// Keeps what is readable of damaged packs. What is missing can be fetched only by a server, which knows its domain.
async fn repair_stopped(settings: &Settings, damaged: &BTreeSet<RepoId>) -> Result<()> {
    // No server may start meanwhile.
    let _socket = AdminSocket::bind(&settings.admin_socket())?;
    let store = open_store(settings).await?;
    let repos = open_repos(settings, store.clone(), None).await?;
    let contributors = open_contributors(settings, &repos, None).await?;
    for store in std::iter::once(&repos).chain(&contributors) {
        for repo in damaged {
            salvage(store, repo).await?;
        }
    }
    store.close().await.context("the database did not close")
}

async fn salvage(store: &RepoStore, repo: &RepoId) -> Result<()> {
    let now = Timestamp::now();
    store
        .repository(repo)
        .verify(now + Duration::from_secs(1), now)
        .await?;
    store.repository(repo).inspect(true).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const KEY: &str = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
    const NPUB: &str = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";

    fn examination(broken: bool, faults: &[(&str, PackFault)]) -> Examination {
        let faults = faults
            .iter()
            .map(|(name, fault)| ((*name).to_owned(), *fault));
        let faults: BTreeMap<_, _> = faults.collect();
        Examination {
            is_served: true,
            is_broken: broken,
            packs: 2,
            faults,
        }
    }

    fn found(examination: &Examination) -> Vec<DamagedRow> {
        let repo = format!("30617:{KEY}:x").parse().unwrap();
        row(Endpoint::Repository, repo, examination)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_repository_is_named_by_coordinate_or_path() {
        let expected: RepoId = format!("30617:{KEY}:x").parse().unwrap();
        for text in [
            format!("30617:{KEY}:x"),
            format!("{NPUB}/x"),
            format!("/prs/{NPUB}/x.git"),
        ] {
            assert_eq!(parse_repository(&text), Ok(expected.clone()), "{text}");
        }
        for text in ["x", "npub1/x", "30618:ab:x", ""] {
            assert!(parse_repository(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_damaged_repository_is_one_line_with_what_is_missing() {
        assert!(found(&examination(false, &[])).is_empty());
        let lost = found(&examination(true, &[("pack-1", PackFault::Lost)]));
        let report = CheckReport {
            damaged: lost,
            repositories: 1,
            packs: 2,
            ..CheckReport::default()
        };
        let expected = format!(
            "damaged: {NPUB}/x: objects of its history are missing; missing or truncated: pack-1\n"
        );
        let text = text(&report);
        assert!(text.starts_with(&expected), "{text}");
        assert!(
            text.contains("1 repository and 2 packs: 1 repository is damaged\n"),
            "{text}"
        );
        assert!(text.contains("--repair") && !report.is_sound(), "{text}");
    }

    #[test]
    fn a_damaged_pack_is_a_problem_although_no_history_needs_it() {
        let damaged = found(&examination(false, &[("pack-1", PackFault::Damaged)]));
        assert_eq!(damaged[0].problems, ["damaged: pack-1"]);
    }

    #[test]
    fn a_damaged_database_is_reported_with_the_remedy() {
        let report = CheckReport {
            database: vec!["page 3".into()],
            ..CheckReport::default()
        };
        let text = text(&report);
        assert!(
            text.contains("damaged: page 3\nremedy: stop the server"),
            "{text}"
        );
        assert!(!report.is_sound());
    }

    #[test]
    fn a_repair_tells_what_came_back() {
        let repaired = CheckReport {
            repaired: Some(vec!["a/x".into()]),
            ..CheckReport::default()
        };
        assert!(repaired.is_sound() && text(&repaired).starts_with("repaired: a/x\n"));
    }
}
