//! Results of continuous integration for a commit.

use std::collections::BTreeMap;

use nostr::event::Event;
use nostr::key::PublicKey;

use super::{ThreadScope, line_of};
use crate::event::Version;
use crate::kinds;
use crate::nip34::tags;
use crate::repo::Oid;

/// The results of one commit that are shown.
const MAX_CHECKS: usize = 20;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckOutcome {
    /// It failed.
    Failed,
    /// It says neither.
    Other,
    /// It passed.
    Passed,
}

/// What somebody's machine says about a commit. Any key can publish one, so its signer is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Check {
    pub version: Version,
    pub by: PublicKey,
    /// The signer is a maintainer.
    pub is_by_maintainer: bool,
    pub name: String,
    pub outcome: CheckOutcome,
    /// The words of its result.
    pub words: String,
}

/// Returns the results for a commit of this repository: the newest of each signer and name, those of maintainers first.
///
/// The kind has no fixed tags yet. The name is read from the first of `name`, `workflow` and `d`, the result from the first
/// of `conclusion`, `result` and `status`.
pub fn checks(scope: &ThreadScope, commit: &Oid, events: &[Event]) -> Vec<Check> {
    let mut newest: BTreeMap<(PublicKey, String), Check> = BTreeMap::new();
    for event in events {
        if event.kind != kinds::CI_RESULT || !scope.contains(event) || !is_about(event, commit) {
            continue;
        }
        let name = first_of(event, &["name", "workflow", "d"]);
        let words = first_of(event, &["conclusion", "result", "status"]).unwrap_or_default();
        let check = Check {
            version: Version::of(event),
            by: event.pubkey,
            is_by_maintainer: scope.maintainers().contains(&event.pubkey),
            name: name.unwrap_or_else(|| "check".to_owned()),
            outcome: outcome(&words),
            words,
        };
        let key = (check.by, check.name.clone());
        let known = newest.get(&key);
        if known.is_none_or(|known| check.version > known.version) {
            newest.insert(key, check);
        }
    }
    let mut all: Vec<Check> = newest.into_values().collect();
    all.sort_by(|a, b| {
        let by_signer = b.is_by_maintainer.cmp(&a.is_by_maintainer);
        let by_name = a.name.cmp(&b.name).then_with(|| a.by.cmp(&b.by));
        by_signer.then(a.outcome.cmp(&b.outcome)).then(by_name)
    });
    all.truncate(MAX_CHECKS);
    all
}

fn is_about(event: &Event, commit: &Oid) -> bool {
    tags::first_values(event, "c").any(|value| value.parse() == Ok(*commit))
}

fn first_of(event: &Event, names: &[&str]) -> Option<String> {
    names
        .iter()
        .find_map(|name| tags::first(event, name).and_then(line_of))
}

fn outcome(words: &str) -> CheckOutcome {
    match words.to_ascii_lowercase().as_str() {
        "success" | "succeeded" | "passed" | "pass" | "ok" => CheckOutcome::Passed,
        "failure" | "failed" | "fail" | "error" | "timed_out" => CheckOutcome::Failed,
        _ => CheckOutcome::Other,
    }
}
