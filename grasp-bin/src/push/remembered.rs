//! The announcement that a working copy saw last.
//!
//! A server chooses which of the owner's announcements it shows. Whoever signs what it shows may sign an old one anew, and
//! take maintainers and relays away that were added since. So the newest one that a working copy saw is kept beside its
//! git data, and compared with what servers say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{RepoId, Version};
use nostr::event::Event;
use nostr::types::Timestamp;
use serde_json::Value;

use super::Work;

/// A newer announcement names fewer maintainers or relays than the one that this working copy saw last.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the announcement of {at} no longer names {}, as the one does that this working copy saw last; \
     if that is meant, say --accept-fewer",
    .missing.join(", ")
)]
pub(super) struct Fewer {
    at: Timestamp,
    missing: Vec<String>,
}

/// Chooses the announcement to go on from: the newer one of what servers have and what was seen before.
pub(super) fn choose(
    seen: Option<Event>,
    told: Option<Event>,
    accept_fewer: bool,
) -> Result<Option<Event>, Fewer> {
    let newest = [&seen, &told].into_iter().flatten().max_by_key(|event| Version::of(event));
    let (Some(newest), Some(seen)) = (newest, &seen) else { return Ok(told) };
    let missing: Vec<String> = names(seen).difference(&names(newest)).cloned().collect();
    match missing.is_empty() || accept_fewer {
        true => Ok(Some(newest.clone())),
        false => Err(Fewer { at: newest.created_at, missing }),
    }
}

/// The maintainers and relays of an announcement, in words.
fn names(event: &Event) -> BTreeSet<String> {
    let Ok(read) = Announcement::parse(event) else { return BTreeSet::new() };
    let maintainers = read.maintainer_list.listed.union(&read.maintainer_list.moderators);
    let maintainers = maintainers.map(|key| format!("maintainer {}", npub(key)));
    maintainers.chain(read.relays.iter().map(|relay| format!("relay {relay}"))).collect()
}

/// The file that the announcements are kept in.
pub(super) struct Remembered {
    file: PathBuf,
}

impl Remembered {
    /// Finds the file of a working copy; all worktrees of a repository share it.
    pub(super) async fn of(work: &Work) -> Result<Self> {
        Ok(Self { file: work.git_dir().await?.join("grasp").join("announcements.json") })
    }

    /// Returns the announcement of a repository that was seen last.
    pub(super) fn read(&self, repo: &RepoId) -> Option<Event> {
        let event = Event::from_json(self.all().remove(&repo.to_string())?.to_string()).ok()?;
        let is_its = Announcement::parse(&event).is_ok_and(|read| read.repo == *repo);
        (is_its && event.verify().is_ok()).then_some(event)
    }

    /// Keeps an announcement in place of the one before.
    pub(super) fn write(&self, repo: &RepoId, event: &Event) -> Result<()> {
        let mut all = self.all();
        all.insert(repo.to_string(), serde_json::from_str(&event.as_json())?);
        let dir = self.file.parent().context("no directory")?;
        fs::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&serde_json::to_vec(&all)?)?;
        file.persist(&self.file)?;
        Ok(())
    }

    fn all(&self) -> BTreeMap<String, Value> {
        let text = fs::read(&self.file).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::kinds;
    use nostr::event::{EventBuilder, FinalizeEvent as _, Tag};
    use nostr::key::{Keys, PublicKey};

    use super::*;

    fn key(n: u8) -> PublicKey {
        Keys::parse(&format!("{n:064x}")).unwrap().public_key()
    }

    fn announcement(keys: &Keys, at: u64, maintainers: &[u8], relays: &[&str]) -> Event {
        let tag = |name: &str, values: Vec<String>| {
            Tag::parse([name.to_owned()].into_iter().chain(values)).unwrap()
        };
        let maintainers = maintainers.iter().map(|n| key(*n).to_hex()).collect();
        let relays = relays.iter().map(|relay| (*relay).to_owned()).collect();
        EventBuilder::new(kinds::ANNOUNCEMENT, "")
            .tag(Tag::identifier("hello"))
            .tags([tag("maintainers", maintainers), tag("relays", relays)])
            .custom_created_at(Timestamp::from_secs(at))
            .finalize(keys)
            .unwrap()
    }

    #[test]
    fn an_older_announcement_of_a_server_is_not_gone_on_from() {
        let keys = Keys::generate();
        let old = announcement(&keys, 1, &[], &["wss://a.example"]);
        let seen = announcement(&keys, 2, &[1], &["wss://a.example", "wss://b.example"]);
        for told in [None, Some(old)] {
            assert_eq!(choose(Some(seen.clone()), told, false), Ok(Some(seen.clone())));
        }
    }

    #[test]
    fn a_newer_one_that_names_fewer_is_gone_on_from_only_if_that_is_meant() {
        let keys = Keys::generate();
        let seen = announcement(&keys, 1, &[1, 2], &["wss://a.example", "wss://b.example"]);
        let more = announcement(&keys, 2, &[2, 1], &["wss://a.example", "wss://b.example/"]);
        assert_eq!(choose(Some(seen.clone()), Some(more.clone()), false), Ok(Some(more)));
        let fewer = announcement(&keys, 2, &[2], &["wss://a.example"]);
        let refused = choose(Some(seen.clone()), Some(fewer.clone()), false).unwrap_err();
        assert_eq!(
            refused.missing,
            [format!("maintainer {}", npub(&key(1))), "relay wss://b.example".to_owned()]
        );
        assert!(refused.to_string().contains("--accept-fewer"), "{refused}");
        assert_eq!(choose(Some(seen), Some(fewer.clone()), true), Ok(Some(fewer)));
    }

    #[test]
    fn without_any_seen_before_the_servers_are_believed() {
        let told = announcement(&Keys::generate(), 1, &[], &[]);
        assert_eq!(choose(None, Some(told.clone()), false), Ok(Some(told)));
        assert_eq!(choose(None, None, false), Ok(None));
    }

    #[test]
    fn each_repository_of_a_working_copy_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let remembered = Remembered { file: dir.path().join("grasp/announcements.json") };
        let keys = [Keys::generate(), Keys::generate()];
        let repos = keys.each_ref().map(|keys| {
            let repo = RepoId::new(keys.public_key(), "hello".parse().unwrap());
            remembered.write(&repo, &announcement(keys, 1, &[], &[])).unwrap();
            repo
        });
        let newer = announcement(&keys[0], 2, &[], &[]);
        remembered.write(&repos[0], &newer).unwrap();
        assert_eq!(remembered.read(&repos[0]), Some(newer.clone()));
        assert!(remembered.read(&repos[1]).is_some_and(|event| event.pubkey == repos[1].owner));
        remembered.write(&repos[1], &newer).unwrap();
        assert_eq!(remembered.read(&repos[1]), None, "it is of another repository");
    }
}
