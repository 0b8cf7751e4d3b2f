//! The announcement that a push publishes: which one is known, and what it says of the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{RepoId, Version, kinds};
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Tag};
use nostr::key::Keys;
use serde_json::Value;

use super::{PushServer, Work, created_after, tag};
use crate::instance::error::{Explain as _, InstanceError, Result};

/// The tag of a private repository's announcement: clients send its events to its relays only.
const PRIVATE: [&str; 2] = ["private", "true"];

/// The parties that may read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Anyone.
    Anyone,
    /// The members of the private services that it is pushed to (GRASP-08).
    Members,
}

/// Returns an announcement that lists these servers and keeps the other tags and the content of the known one. It says that
/// the repository is private if it is pushed to private services and no other servers are listed.
pub fn announce(
    keys: &Keys,
    repo: &RepoId,
    servers: &[PushServer],
    audience: Audience,
    known: Option<&Event>,
) -> Result<Event> {
    let mut clone = values(known, "clone");
    let mut relays = values(known, "relays");
    for server in servers {
        add(&mut clone, server.clone_url(repo));
        add(&mut relays, server.relay()?.to_string());
    }
    let lists_others = clone
        .iter()
        .chain(&relays)
        .any(|url| !servers.iter().any(|one| one.service.is_own_url(url)));
    let becomes_private =
        audience == Audience::Members && !lists_others && !known.is_some_and(says_private);
    if let Some(known) = known.filter(|known| !becomes_private && lists_all(known, servers)) {
        return Ok(known.clone());
    }
    let mut tags = match known {
        Some(event) => kept(event, becomes_private),
        None => vec![
            Tag::identifier(repo.identifier.as_str()),
            tag("name", [repo.identifier.to_string()])?,
        ],
    };
    tags.extend([tag("clone", clone)?, tag("relays", relays)?]);
    if becomes_private {
        tags.push(Tag::parse(PRIVATE)?);
    }
    let content = known.map(|event| event.content.clone()).unwrap_or_default();
    let event = EventBuilder::new(kinds::ANNOUNCEMENT, content).tags(tags);
    Ok(event
        .custom_created_at(created_after(known))
        .finalize(keys)?)
}

/// Returns the values of all tags of a name.
fn values(event: Option<&Event>, name: &str) -> Vec<String> {
    let mut values = Vec::new();
    for tag in event.into_iter().flat_map(|event| event.tags.iter()) {
        if tag.kind() == name {
            values.extend(tag.as_slice().iter().skip(1).cloned());
        }
    }
    values
}

/// Returns the tags of an announcement that the next one keeps.
fn kept(event: &Event, becomes_private: bool) -> Vec<Tag> {
    let is_replaced = |tag: &&Tag| match tag.kind() {
        "clone" | "relays" => true,
        "private" => becomes_private,
        _ => false,
    };
    let tags = event.tags.iter();
    tags.filter(|tag| !is_replaced(tag)).cloned().collect()
}

/// Returns whether an announcement says that its repository is private.
fn says_private(event: &Event) -> bool {
    event.tags.iter().any(|tag| *tag.as_slice() == PRIVATE)
}

fn lists_all(announcement: &Event, servers: &[PushServer]) -> bool {
    let read = Announcement::parse(announcement);
    read.is_ok_and(|read| servers.iter().all(|server| read.lists(&server.service)))
}

fn add(list: &mut Vec<String>, value: String) {
    if !list.contains(&value) {
        list.push(value);
    }
}

/// Returns the announcement to update: the newest of what relays have and what this working copy saw last. Fails if a
/// newer one names fewer maintainers or relays, unless that is accepted.
pub(super) fn choose(
    seen: Option<Event>,
    published: Option<Event>,
    accept_fewer: bool,
) -> Result<Option<Event>> {
    let newest = [&seen, &published]
        .into_iter()
        .flatten()
        .max_by_key(|event| Version::of(event));
    let (Some(newest), Some(seen)) = (newest, &seen) else {
        return Ok(published);
    };
    let missing: Vec<String> = names(seen).difference(&names(newest)).cloned().collect();
    if !missing.is_empty() && !accept_fewer {
        return Err(InstanceError::caller(format!(
            "the announcement of {} no longer names {}, which the one that this working copy saw last does; \
             if that is intended, use --accept-fewer",
            newest.created_at,
            missing.join(", ")
        )));
    }
    Ok(Some(newest.clone()))
}

/// Returns the maintainers and relays of an announcement as texts for messages.
fn names(event: &Event) -> BTreeSet<String> {
    let Ok(read) = Announcement::parse(event) else {
        return BTreeSet::new();
    };
    let maintainers = read
        .maintainer_list
        .listed
        .union(&read.maintainer_list.moderators);
    let maintainers = maintainers.map(|key| format!("maintainer {}", npub(key)));
    maintainers
        .chain(read.relays.iter().map(|relay| format!("relay {relay}")))
        .collect()
}

/// The file with the announcements that a working copy saw last.
pub(super) struct AnnouncementFile {
    file: PathBuf,
}

impl AnnouncementFile {
    /// Finds the file of a working copy; all worktrees of a repository share it.
    pub(super) async fn of(work: &Work) -> Result<Self> {
        Ok(Self {
            file: work
                .git_dir()
                .await?
                .join("grasp")
                .join("announcements.json"),
        })
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
    use std::slice::from_ref;

    use nostr::key::PublicKey;
    use nostr::types::Timestamp;

    use super::*;

    fn repo(keys: &Keys) -> RepoId {
        RepoId::new(keys.public_key(), "hello".parse().unwrap())
    }

    #[test]
    fn an_announcement_lists_every_server_and_keeps_what_it_said_before() {
        let keys = Keys::generate();
        let target = |text: &str| text.parse::<PushServer>().unwrap();
        let first = announce(
            &keys,
            &repo(&keys),
            &[target("a.example.com")],
            Audience::Anyone,
            None,
        )
        .unwrap();
        let again = announce(
            &keys,
            &repo(&keys),
            &[target("127.0.0.1:1"), target("a.example.com")],
            Audience::Anyone,
            Some(&first),
        );
        let read = Announcement::parse(&again.unwrap()).unwrap();
        assert_eq!((read.clone.len(), read.relays.len()), (2, 2));
        assert_eq!(read.name.as_deref(), Some("hello"));
        for server in ["a.example.com", "127.0.0.1:1"] {
            assert!(read.lists(&server.parse().unwrap()), "{server}");
        }
    }

    #[test]
    fn an_announcement_that_says_it_all_is_said_again_as_it_is() {
        let keys = Keys::generate();
        let servers = ["a.example.com".parse::<PushServer>().unwrap()];
        for audience in [Audience::Anyone, Audience::Members] {
            let said = |known| announce(&keys, &repo(&keys), &servers, audience, known).unwrap();
            let old = said(None);
            assert_eq!(said(Some(&old)).id, old.id);
        }
    }

    #[test]
    fn an_announcement_at_private_services_alone_says_so_and_goes_on_saying_so() {
        let keys = Keys::generate();
        let [a, b] =
            ["a.example.com", "b.example.com"].map(|text| text.parse::<PushServer>().unwrap());
        let said = |servers: &[PushServer], audience, known| {
            announce(&keys, &repo(&keys), servers, audience, known).unwrap()
        };
        let private = said(from_ref(&a), Audience::Members, None);
        assert!(says_private(&private));
        let both = said(from_ref(&b), Audience::Members, Some(&private));
        assert!(says_private(&both), "it is kept");
        let public = said(from_ref(&a), Audience::Anyone, None);
        assert!(!says_private(&public));
        let hidden = said(from_ref(&a), Audience::Members, Some(&public));
        assert!(says_private(&hidden), "the server became private");
        let mixed = said(from_ref(&b), Audience::Members, Some(&public));
        assert!(!says_private(&mixed), "anyone may read it elsewhere");
    }

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
        for published in [None, Some(old)] {
            assert_eq!(
                choose(Some(seen.clone()), published, false).unwrap(),
                Some(seen.clone())
            );
        }
    }

    #[test]
    fn a_newer_one_that_names_fewer_is_gone_on_from_only_if_that_is_meant() {
        let keys = Keys::generate();
        let seen = announcement(&keys, 1, &[1, 2], &["wss://a.example", "wss://b.example"]);
        let more = announcement(&keys, 2, &[2, 1], &["wss://a.example", "wss://b.example/"]);
        assert_eq!(
            choose(Some(seen.clone()), Some(more.clone()), false).unwrap(),
            Some(more)
        );
        let fewer = announcement(&keys, 2, &[2], &["wss://a.example"]);
        let refused = choose(Some(seen.clone()), Some(fewer.clone()), false).unwrap_err();
        let missing = format!(
            "no longer names maintainer {}, relay wss://b.example, ",
            npub(&key(1))
        );
        assert!(refused.to_string().contains(&missing), "{refused}");
        assert!(refused.to_string().contains("--accept-fewer"), "{refused}");
        assert_eq!(
            choose(Some(seen), Some(fewer.clone()), true).unwrap(),
            Some(fewer)
        );
    }

    #[test]
    fn without_any_seen_before_the_servers_are_believed() {
        let published = announcement(&Keys::generate(), 1, &[], &[]);
        assert_eq!(
            choose(None, Some(published.clone()), false).unwrap(),
            Some(published)
        );
        assert_eq!(choose(None, None, false).unwrap(), None);
    }

    #[test]
    fn each_repository_of_a_working_copy_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = AnnouncementFile {
            file: dir.path().join("grasp/announcements.json"),
        };
        let keys = [Keys::generate(), Keys::generate()];
        let repos = keys.each_ref().map(|keys| {
            let repo = RepoId::new(keys.public_key(), "hello".parse().unwrap());
            file.write(&repo, &announcement(keys, 1, &[], &[])).unwrap();
            repo
        });
        let newer = announcement(&keys[0], 2, &[], &[]);
        file.write(&repos[0], &newer).unwrap();
        assert_eq!(file.read(&repos[0]), Some(newer.clone()));
        assert!(
            file.read(&repos[1])
                .is_some_and(|event| event.pubkey == repos[1].owner)
        );
        file.write(&repos[1], &newer).unwrap();
        assert_eq!(file.read(&repos[1]), None, "it is of another repository");
    }
}
