//! A private service (GRASP-08): its settings, its members as they change, and how it is let in by other ones.

mod peers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nip34::Announcement;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::private::{EffectiveMembers, PublicOrigin, RelayDocument};
use grasp_core::{RelayUrl, kinds};
use grasp_sync::Roots;
use grasp_sync::driver;
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use self::peers::{authorization, authorize};
use crate::Clock;
use crate::git_http::GitHost;
use crate::instance::error::{Explain as _, InstanceError, MustAct, Result};
use crate::instance::files;
use crate::instance::settings::Settings;
use crate::policy::LivePolicy;
use crate::private::{MemberList, Private};
use crate::store::{self, EventStore, Inventory, StoreError};

/// The interval at which the announcements and the file with members are read. Each change is in force within five
/// seconds.
const READ_INTERVAL: Duration = Duration::from_secs(3);

/// Announcements that are read; a private service with more is none of a team.
const MAX_ANNOUNCEMENTS: usize = 100_000;

/// The settings of a private service.
#[derive(Clone, Debug, Default)]
pub struct PrivateSettings {
    /// Only members read and write.
    pub enabled: bool,
    /// The members, other private services not counted.
    pub members: BTreeSet<PublicKey>,
    /// A file with further members, which may change while the server runs.
    pub members_file: Option<PathBuf>,
    /// The scheme, host and port that clients reach git at; `None` for those of the service with TLS, and without it on
    /// loopback.
    pub origin: Option<PublicOrigin>,
}

impl PrivateSettings {
    /// Returns a setting that cannot be used as it is, and why.
    pub(crate) fn contradiction(
        &self,
        settings: &Settings,
    ) -> Option<(&'static str, &'static str)> {
        let has_members = !self.members.is_empty() || self.members_file.is_some();
        let rules = [
            (
                !self.enabled || has_members,
                "private",
                "nobody could use it: set members or members_file",
            ),
            (
                self.enabled || self.members.is_empty(),
                "members",
                "only a private service has members: set private",
            ),
            (
                self.enabled || self.members_file.is_none(),
                "members_file",
                "only a private service has members: set private",
            ),
            (
                self.enabled || self.origin.is_none(),
                "public_origin",
                "it is for a private service: set private",
            ),
            (
                !self.enabled || !settings.policy.contributor_proposals,
                "contributor_proposals",
                "anybody may push to /prs/, which a private service does not allow",
            ),
        ];
        let broken = rules.into_iter().find(|(holds, ..)| !holds);
        broken.map(|(_, key, reason)| (key, reason))
    }
}

/// Reads the members of a file: a key in each line, `npub` or hex; empty lines and those with `#` in front mean nothing.
fn read_members(file: &Path) -> Result<BTreeSet<PublicKey>> {
    let text = std::fs::read_to_string(file).or_ask(MustAct::Operator, || {
        format!("could not read {}", file.display())
    })?;
    let mut members = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Ok(key) = PublicKey::parse(line) else {
            return Err(InstanceError::operator(format!(
                "{}:{number}: expected a public key, as npub or hex",
                file.display()
            )));
        };
        members.insert(key);
    }
    Ok(members)
}

/// The members of a private service. Ends the work with the last of its clones.
#[derive(Clone)]
pub(crate) struct PrivateService {
    pub(crate) private: Private,
    _following: Arc<JoinSet<()>>,
}

impl PrivateService {
    /// Reads the configured members, and starts to follow the others; `None` for a public service.
    pub(crate) fn start(settings: &Settings, host: &GitHost) -> Result<Option<Self>> {
        if let Some((key, reason)) = settings.private.contradiction(settings) {
            return Err(InstanceError::operator(format!("{key}: {reason}")));
        }
        if !settings.private.enabled {
            return Ok(None);
        }
        let mut follower = MemberFollower::new(
            settings,
            host.store.clone(),
            host.clock.clone(),
            host.policy.clone(),
        )?;
        follower.read_file()?;
        if follower.effective.members().is_empty() {
            return Err(InstanceError::operator(
                "private: there is no member in members and members_file",
            ));
        }
        let list = MemberList::new(follower.members());
        let origin = settings.private.origin.clone();
        let service = &settings.policy.service;
        let private = Private {
            members: list.members(),
            origin: origin.unwrap_or_else(|| PublicOrigin::of(service, settings.git.secure)),
        };
        let mut following = JoinSet::new();
        following.spawn(follower.run(list));
        Ok(Some(Self {
            private,
            _following: Arc::new(following),
        }))
    }
}

/// Follows the announcements, the documents of the relays that they name, and the file with members.
struct MemberFollower {
    settings: Arc<Settings>,
    store: Arc<dyn EventStore>,
    clock: Clock,
    policy: LivePolicy,
    roots: Roots,
    effective: EffectiveMembers,
    /// The announcements that the relays were read from.
    announcements: BTreeSet<EventId>,
}

impl MemberFollower {
    fn new(
        settings: &Settings,
        store: Arc<dyn EventStore>,
        clock: Clock,
        policy: LivePolicy,
    ) -> Result<Self> {
        Ok(Self {
            settings: Arc::new(settings.clone()),
            store,
            clock,
            policy,
            roots: files::roots_for_relays(settings)?,
            effective: EffectiveMembers::new(settings.private.members.clone()),
            announcements: BTreeSet::new(),
        })
    }

    /// Returns the members; a banned key is none.
    fn members(&self) -> BTreeSet<PublicKey> {
        let policy = self.policy.now();
        let mut members = self.effective.members();
        members.retain(|key| !policy.bans.authors.contains(key));
        members
    }

    fn read_file(&mut self) -> Result<()> {
        let PrivateSettings {
            members,
            members_file,
            ..
        } = &self.settings.private;
        let mut configured = members.clone();
        if let Some(file) = members_file {
            configured.extend(read_members(file)?);
        }
        self.effective.configured(configured);
        Ok(())
    }

    async fn run(mut self, list: MemberList) {
        let mut reads: JoinSet<(RelayUrl, RelayDocument)> = JoinSet::new();
        let mut interval = tokio::time::interval(READ_INTERVAL);
        let mut policy = self.policy.clone();
        let mut has_bad_file = false;
        loop {
            tokio::select! {
                _ = interval.tick() => {
                    // A file that cannot be read changes nothing: it may be half written.
                    let read = self.read_file();
                    if let (Err(error), false) = (&read, has_bad_file) {
                        let error = error.in_one_line();
                        tracing::error!(error, "the members stay as they are");
                    }
                    has_bad_file = read.is_err();
                    if let Err(error) = self.read_announcements().await {
                        tracing::warn!(%error, "could not read the announcements for their relays");
                    }
                }
                Some(Ok((relay, document))) = reads.join_next() => {
                    let now = self.clock.now().mono;
                    self.effective.read(now, &relay, document);
                }
                () = sleep(self.until_next_read()) => {}
                _ = policy.next() => {}
            }
            for relay in self.effective.to_read(self.clock.now().mono) {
                reads.spawn(read_document(
                    relay,
                    self.settings.outbound,
                    self.roots.clone(),
                ));
            }
            if list.replace(self.members()) {
                let count = list.members().current().len();
                tracing::info!(count, "the members changed");
            }
        }
    }

    fn until_next_read(&self) -> Duration {
        let now = self.clock.now().mono;
        let deadline = self.effective.next_deadline();
        deadline.map_or(READ_INTERVAL, |at| (at - now).min(READ_INTERVAL))
    }

    /// Takes the relays of the served announcements, if these changed.
    async fn read_announcements(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let filter = Filter::new().kind(kinds::ANNOUNCEMENT);
        let store = &*self.store;
        let inventory = store
            .inventory(filter.clone(), now.unix, MAX_ANNOUNCEMENTS)
            .await?;
        let Inventory::Complete(rows) = inventory else {
            tracing::error!("too many announcements to follow their relays");
            return Ok(());
        };
        let ids: BTreeSet<_> = rows.into_iter().map(|(_, id)| id).collect();
        if ids == self.announcements {
            return Ok(());
        }
        let service = &self.settings.policy.service;
        let policy = self.policy.now();
        let mut relays = BTreeSet::new();
        for event in store::events(store, filter, now.unix).await? {
            let Ok(announcement) = Announcement::parse(&event) else {
                continue;
            };
            if policy.hosts(&announcement) {
                relays.extend(announcement.relays);
            }
        }
        relays.retain(|relay| !service.is_own_url(relay.as_str()));
        self.effective.named(now.mono, relays);
        self.announcements = ids;
        Ok(())
    }
}

/// Reads a relay's NIP-11 document under the policy for untrusted addresses.
async fn read_document(
    relay: RelayUrl,
    outbound: OutboundPolicy,
    roots: Roots,
) -> (RelayUrl, RelayDocument) {
    let facts = driver::relay_information(&relay, outbound, &roots).await;
    let document = match facts {
        None => RelayDocument::Unreadable,
        Some(facts) => match facts.pubkey.filter(|_| facts.is_private) {
            Some(key) => RelayDocument::Private(key),
            None => RelayDocument::Other,
        },
    };
    (relay, document)
}

#[cfg(test)]
mod tests {
    use nostr::key::Keys;
    use tokio::time::{Duration, Instant};

    use super::*;

    /// The time in which a change of the members must be in force.
    const IN_FORCE: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn each_change_of_the_file_is_in_force_within_five_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members");
        let mut settings = Settings::new("127.0.0.1:7334".parse().unwrap(), dir.path());
        settings.private.members_file = Some(file.clone());
        let store = crate::instance::open_store(&settings).await.unwrap();
        let policy = settings.policy.clone().into();
        let mut follower = MemberFollower::new(&settings, store, Clock::system(), policy).unwrap();
        let mut member = Keys::generate().public_key();
        std::fs::write(&file, member.to_hex()).unwrap();
        follower.read_file().unwrap();
        let list = MemberList::new(follower.members());
        let members = list.members();
        let mut following = JoinSet::new();
        following.spawn(follower.run(list));
        for _ in 0..3 {
            let next = Keys::generate().public_key();
            let changed_at = Instant::now();
            std::fs::write(&file, next.to_hex()).unwrap();
            members.clone().until_removed(member).await;
            assert!(
                changed_at.elapsed() <= IN_FORCE,
                "{:?}",
                changed_at.elapsed()
            );
            assert!(members.contains(&next));
            member = next;
        }
    }

    #[test]
    fn members_are_read_from_a_file_and_a_bad_key_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members");
        let hex = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";
        std::fs::write(&file, format!("# alice\n\n{hex}\n  {npub}\n")).unwrap();
        assert_eq!(read_members(&file).unwrap().len(), 1, "both are one key");
        std::fs::write(&file, format!("{hex}\nnpub1x\n")).unwrap();
        let error = read_members(&file).unwrap_err().to_string();
        assert!(
            error.contains("members:2: expected a public key"),
            "{error}"
        );
        assert!(read_members(&dir.path().join("none")).is_err());
    }
}
