//! Publishing the repository of a working copy: announces it at servers, signs its state, and pushes it. And calls of
//! administration to a relay, signed by a key.

mod announcement;
mod client;
pub mod management;
mod work;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use grasp_core::nip34::Announcement;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::{Identifier, RelayUrl, RepoId, ServiceIdentity, Version, kinds};
use grasp_sync::Roots;
use grasp_sync::driver::relay_information;
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::Keys;
use nostr::types::Timestamp;
use tokio::time::timeout;

use self::announcement::{AnnouncementFile, choose};
pub use self::announcement::{Audience, announce};
pub(crate) use self::client::Refused;
pub use self::client::RelayClient;
pub use self::work::{RemoteRepo, Work, WorkRefs, git};
use crate::instance::error::{Explain as _, InstanceError, Result};

/// A server to push to.
#[derive(Clone, Debug)]
pub struct PushServer {
    /// Its address.
    pub service: ServiceIdentity,
    /// Connections are encrypted.
    pub secure: bool,
}

impl std::str::FromStr for PushServer {
    type Err = String;
    /// Reads `host[:port][/mount]`, with or without a scheme. Without one, loopback is not encrypted and all else is.
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let service: ServiceIdentity = rest
            .trim_end_matches('/')
            .parse()
            .map_err(|error| format!("{error}"))?;
        let secure = match scheme {
            "http" | "ws" => false,
            "https" | "wss" => true,
            "" => !is_local(&service),
            _ => return Err("expected http, https, ws or wss".into()),
        };
        Ok(Self { service, secure })
    }
}

/// Returns whether a server is on loopback.
pub fn is_local(service: &ServiceIdentity) -> bool {
    let text = service.to_string();
    ["127.", "localhost", "[::1]"]
        .iter()
        .any(|local| text.starts_with(local))
}

impl PushServer {
    /// Returns the URL of its relay.
    pub fn relay(&self) -> Result<RelayUrl> {
        self.service
            .relay_url(self.secure)
            .context("the address of the server is not the address of a relay")
    }

    /// Returns the URL to push a repository to and to clone it from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        self.service.repo_url(repo, self.secure)
    }
}

/// Takes a warning for the user.
pub type Warn = fn(&str);

/// A working copy to push, where to, and the key of its maintainer.
pub struct Push {
    /// The key of the maintainer.
    pub keys: Keys,
    /// The working copy.
    pub work: Work,
    /// The servers.
    pub servers: Vec<PushServer>,
    /// The name of the repository; `None` for that of the directory.
    pub name: Option<Identifier>,
    /// Patterns of the branches and tags; all if there is none.
    pub refs: Vec<String>,
    /// Overwrites branches and tags that the working copy lacks.
    pub force: bool,
    /// Accepts that an announcement names fewer maintainers or relays than the one seen last.
    pub accept_fewer: bool,
    /// Time limit for everything.
    pub timeout: Duration,
    /// Takes warnings.
    pub warn: Warn,
}

/// Limits the relays besides the servers that are asked for a newer announcement.
const MAX_OTHER_RELAYS: usize = 8;
/// Time limit for all of them together.
const OTHER_RELAYS_TIMEOUT: Duration = Duration::from_secs(5);

/// Announces, signs and pushes. Returns the URLs to clone from.
pub async fn push(push: &Push) -> Result<Vec<String>> {
    let pushed = timeout(push.timeout, push_to_all(push)).await;
    pushed.with_context(|| {
        let limit = humantime::format_duration(push.timeout);
        format!("not done after {limit}; --timeout gives the servers more time")
    })?
}

async fn push_to_all(push: &Push) -> Result<Vec<String>> {
    let work = &push.work;
    let name = match &push.name {
        Some(name) => name.clone(),
        None => work
            .name()
            .context("the name of the directory cannot be the name of a repository; set --name")?,
    };
    let repo = RepoId::new(push.keys.public_key(), name);
    let refs = work.refs(&push.refs).await?;
    // Before anything is announced. Only the size of this draft matters.
    let draft = sign(&push.keys, &repo, &refs, None)?;
    for server in &push.servers {
        work::check(server, &draft, &refs).await?;
    }
    let mut remotes = Vec::new();
    for server in &push.servers {
        remotes.push(remote_at(server, &repo, &push.keys).await?);
    }
    for remote in &remotes {
        work.check_history(&refs, remote).await?;
    }
    let mut relays = Vec::new();
    for server in &push.servers {
        let url = server.relay()?;
        let relay = RelayClient::connect(&url).await;
        let relay = relay
            .with_context(|| format!("could not connect to {url} (is a server running there?)"))?;
        relays.push(relay.with_keys(&push.keys));
    }
    let audience = match remotes.iter().all(|remote| remote.member.is_some()) {
        true => Audience::Members,
        false => Audience::Anyone,
    };
    publish_announcement(push, &repo, audience, &mut relays).await?;
    if !push.force {
        check_nothing_is_lost(work, &refs, &remotes).await?;
    }
    let known = newest(&mut relays, &repo, kinds::STATE).await?;
    let state = sign(&push.keys, &repo, &refs, known.as_ref())?;
    for (relay, server) in relays.iter_mut().zip(&push.servers) {
        let published = relay.publish(&state).await;
        published.map_err(|error| work::explain(error, server, &state, &refs))?;
    }
    for remote in &remotes {
        work.push_to(remote, &refs, push.warn)
            .await
            .with_context(|| format!("could not push to {}", remote.url))?;
    }
    Ok(remotes.into_iter().map(|remote| remote.url).collect())
}

/// Returns a repository at a server. Git proves there who the user is only if the server's document says that it is for its
/// members (GRASP-08).
async fn remote_at(server: &PushServer, repo: &RepoId, keys: &Keys) -> Result<RemoteRepo> {
    let everywhere = OutboundPolicy::everywhere();
    let facts = relay_information(&server.relay()?, everywhere, &Roots::default()).await;
    let is_private = facts.is_some_and(|facts| facts.is_private);
    Ok(RemoteRepo {
        url: server.clone_url(repo),
        member: is_private.then(|| keys.clone()),
    })
}

/// Signs the newest announcement that can be found, with all servers added, and publishes it.
async fn publish_announcement(
    push: &Push,
    repo: &RepoId,
    audience: Audience,
    relays: &mut [RelayClient],
) -> Result<()> {
    let file = AnnouncementFile::of(&push.work).await?;
    let seen = file.read(repo);
    let served = newest(relays, repo, kinds::ANNOUNCEMENT).await?;
    let elsewhere = newest_elsewhere(push, repo, seen.iter().chain(&served)).await;
    let published = served.into_iter().chain(elsewhere).max_by_key(Version::of);
    let known = choose(seen, published, push.accept_fewer)?;
    let announcement = announce(&push.keys, repo, &push.servers, audience, known.as_ref())?;
    for relay in relays {
        relay.publish(&announcement).await?;
    }
    // Without the file the next push is as safe as this one was.
    if let Err(error) = file.write(repo, &announcement) {
        (push.warn)(&format!("could not remember the announcement: {error}"));
    }
    Ok(())
}

/// Returns the newest announcement at relays that are named beside the servers. Relays that do not answer are skipped.
async fn newest_elsewhere<'a>(
    push: &Push,
    repo: &RepoId,
    known: impl Iterator<Item = &'a Event>,
) -> Option<Event> {
    let named = known.filter_map(|event| Announcement::parse(event).ok());
    let named: BTreeSet<_> = named.flat_map(|read| read.relays).collect();
    let is_other = |url: &RelayUrl| {
        !push
            .servers
            .iter()
            .any(|one| one.service.is_own_url(url.as_str()))
    };
    let others = named.into_iter().filter(is_other).take(MAX_OTHER_RELAYS);
    let filter = filter_of(repo, kinds::ANNOUNCEMENT);
    let answers = others.map(|url| {
        let filter = &filter;
        async move {
            let asked = async {
                let relay = RelayClient::connect(&url).await?;
                relay.with_keys(&push.keys).newest(filter).await
            };
            timeout(OTHER_RELAYS_TIMEOUT, asked).await.ok()?.ok()?
        }
    });
    join_all(answers)
        .await
        .into_iter()
        .flatten()
        .max_by_key(Version::of)
}

/// Fails if a server has a branch or tag that would be lost if its refs became those of the working copy.
async fn check_nothing_is_lost(work: &Work, refs: &WorkRefs, remotes: &[RemoteRepo]) -> Result<()> {
    for remote in remotes {
        let lost = work.lacks(refs, remote).await?;
        if !lost.is_empty() {
            return Err(InstanceError::caller(format!(
                "{} has refs that this working copy lacks, and would lose them: {}; \
                 fetch and merge them first, or use --force",
                remote.url,
                lost.join(", ")
            )));
        }
    }
    Ok(())
}

/// Returns the newest event of a kind about a repository that any of the servers has.
async fn newest(relays: &mut [RelayClient], repo: &RepoId, kind: Kind) -> Result<Option<Event>> {
    let filter = filter_of(repo, kind);
    let mut newest: Option<Event> = None;
    for relay in relays {
        let found = relay.newest(&filter).await?;
        newest = newest.into_iter().chain(found).max_by_key(Version::of);
    }
    Ok(newest)
}

/// Returns the filter of an owner's events of a kind about a repository.
fn filter_of(repo: &RepoId, kind: Kind) -> Filter {
    Filter::new()
        .kind(kind)
        .author(repo.owner)
        .identifier(repo.identifier.as_str())
}

/// Returns the current time, or the second after an event that is to be replaced: of two events of the same second the
/// lower id wins, not the newer signature.
fn created_after(known: Option<&Event>) -> Timestamp {
    let now = Timestamp::now();
    known.map_or(now, |known| {
        now.max(known.created_at + Duration::from_secs(1))
    })
}

/// Returns the signed state of a repository with these refs.
pub fn sign(keys: &Keys, repo: &RepoId, refs: &WorkRefs, known: Option<&Event>) -> Result<Event> {
    let mut tags = vec![Tag::identifier(repo.identifier.as_str())];
    for (name, oid) in &refs.tips {
        tags.push(tag(name, [oid.clone()])?);
    }
    if let Some(head) = &refs.head {
        tags.push(tag("HEAD", [format!("ref: {head}")])?);
    }
    let event = EventBuilder::new(kinds::STATE, "").tags(tags);
    Ok(event
        .custom_created_at(created_after(known))
        .finalize(keys)?)
}

fn tag(name: &str, values: impl IntoIterator<Item = String>) -> Result<Tag> {
    Ok(Tag::parse(std::iter::once(name.to_owned()).chain(values))?)
}

#[cfg(test)]
mod tests {
    use grasp_core::nip34::State;

    use super::*;

    fn repo(keys: &Keys) -> RepoId {
        RepoId::new(keys.public_key(), "hello".parse().unwrap())
    }

    #[test]
    fn a_server_is_spoken_to_in_the_open_only_on_loopback_or_when_told_to() {
        let secure = |text: &str| text.parse::<PushServer>().unwrap().secure;
        assert!(
            !secure("127.0.0.1:7334") && !secure("localhost") && !secure("http://git.example.com")
        );
        assert!(secure("git.example.com/x") && secure("wss://127.0.0.1"));
        assert!("ftp://x.example".parse::<PushServer>().is_err());
    }

    #[test]
    fn a_state_says_what_the_refs_are() {
        let keys = Keys::generate();
        let oid = "a".repeat(40);
        let tips = [("refs/heads/main".to_owned(), oid.clone())].into();
        let refs = WorkRefs {
            tips,
            head: Some("refs/heads/main".into()),
        };
        let state = State::parse(&sign(&keys, &repo(&keys), &refs, None).unwrap()).unwrap();
        assert_eq!(state.tips().unwrap()[0].to_string(), oid);
        assert_eq!(state.head.unwrap().to_string(), "refs/heads/main");
    }

    #[test]
    fn a_new_state_is_later_than_the_one_it_replaces() {
        let keys = Keys::generate();
        let refs = WorkRefs {
            tips: Default::default(),
            head: None,
        };
        let old = sign(&keys, &repo(&keys), &refs, None).unwrap();
        let new = sign(&keys, &repo(&keys), &refs, Some(&old)).unwrap();
        assert!(new.created_at > old.created_at);
    }
}
