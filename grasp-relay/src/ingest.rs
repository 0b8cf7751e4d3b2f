//! Ingest, the only way into the store: verify, look up, judge, store or hold or refuse, then acknowledge and publish.
//!
//! ```text
//! events ─▶ verify ─▶ look up the facts of admission ─▶ judge ─┬▶ store (one transaction) ─▶ hub
//!        blocking threads     one read per round               ├▶ hold (GitBackend)
//!                                                              └▶ refuse
//! ```
//!
//! A batch is judged in rounds. Events that were refused because something is missing are judged again when a round
//! stored anything, so the order inside a batch does not matter.

mod limits;
mod maintainers;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
pub use grasp_core::admission::{Answer, Origin, Outcome};
use grasp_core::admission::{
    Facts, FanOut, Hold, KnownAnnouncement, MaintainedRepo, Needs, Policy, Presence, Rejection,
    Verdict, judge,
};
use grasp_core::deletion::coordinate;
use grasp_core::nip34::{Announcement, References};
use grasp_core::{Identifier, RepoId, Verified, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

pub use self::limits::Budgets;
pub(crate) use self::limits::SharedMeter;
pub use self::maintainers::ListedMaintainers;
pub use self::verify::Turn;
pub(crate) use self::verify::verify_then;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::nostr::Hub;
use crate::policy::LivePolicy;
use crate::private::Members;
use crate::store::{EventStore, Present, SaveReport, StoreError};

/// Events that are handed to [`GitBackend::hold`] at the same time.
const MAX_CONCURRENT_HOLDS: usize = 16;

/// Judges and stores events of clients and of sync.
pub trait Ingest: Send + Sync + 'static {
    /// Judges and stores events in order. Returns one outcome each, once what it promises is durable.
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Outcome>>;

    /// Verifies events, then judges and stores them.
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<Outcome>> {
        self.ingest_in_turn(events, origin, Turn::default())
    }

    /// Verifies events, waits for their turn, then judges and stores them.
    fn ingest_in_turn(
        &self,
        events: Vec<Event>,
        origin: Origin,
        turn: Turn,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(verify_then(events, turn, |genuine| {
            self.ingest_verified(genuine, origin)
        }))
    }
}

/// Returns the bytes of an event's content and tags in memory.
pub(crate) fn weight(event: &Event) -> usize {
    let mut bytes = event.content.len();
    for tag in event.tags.iter() {
        for text in tag.as_slice() {
            bytes += text.len() + size_of::<String>();
        }
    }
    bytes
}

/// The ingest of this server.
pub struct Pipeline {
    /// The store of served events.
    pub store: Arc<dyn EventStore>,
    /// Holds events until their git data is here.
    pub git: Arc<dyn GitBackend>,
    /// Publishes accepted events to subscriptions.
    pub hub: Hub,
    /// The settings of admission.
    pub policy: LivePolicy,
    /// Counts events by author, root and repository.
    pub fan_out: Mutex<FanOut>,
    /// Limits the work that clients cause.
    pub budgets: Budgets,
    /// The clock of the server.
    pub clock: Clock,
    /// Counts events by source and outcome.
    pub metrics: Metrics,
    /// The members, if the service is private (GRASP-08).
    pub members: Option<Members>,
    /// The listed maintainers of stored announcements.
    pub maintainers: ListedMaintainers,
}

impl Ingest for Pipeline {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            self.metrics
                .counted(&origin, self.judge_all(events, &origin))
                .await
        })
    }

    /// Verifies inside of what is counted, so that forged events are counted too.
    fn ingest_in_turn(
        &self,
        events: Vec<Event>,
        origin: Origin,
        turn: Turn,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let judged = verify_then(events, turn, |genuine| self.judge_all(genuine, &origin));
            self.metrics.counted(&origin, judged).await
        })
    }
}

/// An event of a batch, with what is known about it.
struct Pending {
    /// Index of its outcome.
    position: usize,
    event: Verified<Arc<Event>>,
    /// The lookups that it is judged by.
    needs: Needs,
    /// Their results in this round.
    facts: Facts,
    /// The verdict of this round; until it is judged, that the server failed.
    verdict: Verdict,
}

impl Pending {
    fn new(position: usize, event: Verified<Arc<Event>>) -> Self {
        Self {
            position,
            needs: Needs::of(&event),
            event,
            facts: Facts::default(),
            verdict: Rejection::Internal.into(),
        }
    }

    /// Returns whether ingest stores and publishes the event.
    fn is_stored(&self) -> bool {
        matches!(
            self.verdict,
            Verdict::Store { .. } | Verdict::Delist { keep: true }
        )
    }

    /// Returns whether the event is saved, though it may not stay.
    fn is_saved(&self) -> bool {
        self.is_stored() || self.verdict == Verdict::Obey
    }

    /// Returns whether the event takes its repository out of service.
    fn is_delisting(&self) -> bool {
        matches!(self.verdict, Verdict::Delist { .. })
    }
}

/// Splits off the events that can be judged together: at most one announcement or state per identifier, since each may
/// change the facts that the next one is judged by.
fn next_round(pending: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let mut names: BTreeSet<Identifier> = BTreeSet::new();
    pending
        .into_iter()
        .partition(|pending| match &pending.needs.repo {
            Some(repo) => names.insert(repo.identifier.clone()),
            None => true,
        })
}

impl Pipeline {
    /// Judges and stores events in rounds. Returns one outcome per event, in order.
    async fn judge_all(&self, events: Vec<Verified<Arc<Event>>>, origin: &Origin) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::from(Rejection::Internal); events.len()];
        let mut pending = Vec::with_capacity(events.len());
        for (position, event) in events.into_iter().enumerate() {
            pending.push(Pending::new(position, event));
        }
        while !pending.is_empty() {
            let (round, mut later) = next_round(pending);
            let mut progress = false;
            let mut refused = Vec::new();
            for mut judged in self.judge_and_store(round, origin).await {
                let verdict = std::mem::replace(&mut judged.verdict, Rejection::Internal.into());
                let outcome = verdict.outcome();
                progress |= outcome == Outcome::Stored;
                let is_reversible = matches!(
                    &outcome, Outcome::Refused { reason, .. } if reason.is_reversible()
                );
                if let Some(place) = outcomes.get_mut(judged.position) {
                    *place = outcome;
                }
                if is_reversible {
                    refused.push(judged);
                }
            }
            if progress {
                later.append(&mut refused);
            }
            pending = later;
        }
        outcomes
    }

    /// Judges a round and stores or holds its events. Returns them with their verdicts.
    async fn judge_and_store(&self, round: Vec<Pending>, origin: &Origin) -> Vec<Pending> {
        // Every round looks everything up again, so every round is paid for.
        let mut paid = Vec::with_capacity(round.len());
        let mut unpaid = Vec::new();
        for mut pending in round {
            if self.pay_lookups(&pending, origin).await {
                paid.push(pending);
            } else {
                pending.verdict = Rejection::Busy.into();
                unpaid.push(pending);
            }
        }
        if let Err(error) = self.try_round(&mut paid, origin).await {
            tracing::error!(%error, cause = ?error.source(), "events could not be judged or stored");
            for pending in &mut paid {
                pending.verdict = Rejection::Internal.into();
            }
        }
        paid.append(&mut unpaid);
        paid
    }

    async fn try_round(&self, round: &mut [Pending], origin: &Origin) -> Result<(), StoreError> {
        let now = self.clock.now().unix;
        let has_authority = round
            .iter()
            .all(|one| self.is_known_authority(&one.event.pubkey));
        let Ok(slot) = self.budgets.round_slot(origin, has_authority).await else {
            for pending in round {
                pending.verdict = Rejection::Busy.into();
            }
            return Ok(());
        };
        look_up(&*self.store, &*self.git, round, now).await?;
        self.know_maintainers(round).await?;
        drop(slot);
        let policy = self.policy.now();
        for pending in &mut *round {
            let event = pending.event.as_ref();
            let author = &event.pubkey;
            let members = self.members.as_ref();
            pending.facts.is_member = members.is_some_and(|members| members.contains(author));
            pending.verdict = judge(&policy, now, origin, event, &pending.facts);
            self.check_limits(pending, origin).await?;
        }
        // No event of a round changes the facts of another, so they may be held concurrently.
        let mut holds = Vec::new();
        for pending in &mut *round {
            holds.push(self.hold(pending, origin, now));
        }
        let holds = stream::iter(holds).buffer_unordered(MAX_CONCURRENT_HOLDS);
        holds.try_collect::<()>().await?;
        let SaveReport {
            affected, removed, ..
        } = self.save(round, now).await?;
        self.refuse_banned_since(round, &policy).await?;
        self.take_out_of_service(round, now).await?;
        self.publish(round).await;
        self.hub.publish_removed(removed).await;
        self.git.affected(affected).await;
        self.note_authorities(round).await;
        Ok(())
    }

    /// Holds an event that is to wait for its git data, unless the store would refuse it.
    async fn hold(
        &self,
        pending: &mut Pending,
        origin: &Origin,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Verdict::Hold(hold) = &pending.verdict else {
            return Ok(());
        };
        let event = Arc::clone(&pending.event);
        pending.verdict = match self.store.refusal(Arc::clone(&event), now).await? {
            Some(refusal) => refusal.into(),
            None => self.git.hold(event, hold.clone(), origin.clone()).await?,
        };
        Ok(())
    }

    /// Stores the accepted events in one transaction, and corrects verdicts by what the store answers.
    async fn save(&self, round: &mut [Pending], now: Timestamp) -> Result<SaveReport, StoreError> {
        let mut chosen = Vec::new();
        for pending in round {
            if pending.is_saved() {
                chosen.push(pending);
            }
        }
        if chosen.is_empty() {
            return Ok(SaveReport::default());
        }
        let events = chosen.iter().map(|pending| Arc::clone(&pending.event));
        let report = self.store.save_events(events.collect(), now).await?;
        let mut obeyed = Vec::new();
        for (pending, saved) in chosen.into_iter().zip(&report.saved) {
            if *saved != Outcome::Stored {
                pending.verdict = Verdict::Done(saved.clone());
            } else if pending.verdict == Verdict::Obey {
                obeyed.push(pending.event.id);
            }
        }
        if !obeyed.is_empty() {
            // What they delete stays deleted.
            self.store.remove(obeyed).await?;
        }
        Ok(report)
    }

    /// Removes what was stored by a policy that bans it by now: a commit may take longer than the enforcer of the policy waits
    /// before it looks at the stored events once more.
    async fn refuse_banned_since(
        &self,
        round: &mut [Pending],
        judged_by: &Arc<Policy>,
    ) -> Result<(), StoreError> {
        let policy = self.policy.now();
        if Arc::ptr_eq(&policy, judged_by) {
            return Ok(());
        }
        let mut banned = Vec::new();
        for pending in round {
            if pending.is_stored() && policy.hides(&pending.event).is_some() {
                pending.verdict = Rejection::Banned.into();
                banned.push(pending.event.id);
            }
        }
        if !banned.is_empty() {
            self.store.remove(banned).await?;
        }
        Ok(())
    }

    /// Takes repositories out of service whose owner no longer lists this server. An older announcement that is sent
    /// again must not bring the repository back, nor the maintainers that it named.
    async fn take_out_of_service(
        &self,
        round: &[Pending],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for pending in round.iter().filter(|pending| pending.is_delisting()) {
            if let Some(at) = coordinate(&pending.event) {
                let version = Version::of(&pending.event);
                self.store.delist(at, version, now).await?;
            }
        }
        // Reported once all are delisted, since the backend reads the store at once.
        for pending in round.iter().filter(|pending| pending.is_delisting()) {
            self.delist(&pending.event).await;
        }
        Ok(())
    }

    async fn delist(&self, event: &Event) {
        if let Ok(announcement) = Announcement::parse(event) {
            self.git
                .delisted(announcement.repo, announcement.version)
                .await;
        }
    }

    /// Publishes stored and ephemeral events, once everything is durable.
    async fn publish(&self, round: &[Pending]) {
        for pending in round {
            let event = &pending.event;
            if pending.is_saved() {
                self.git.stored(Arc::clone(event)).await;
            }
            if pending.is_stored() {
                self.hub.publish_stored(Arc::clone(event)).await;
            } else if pending.verdict == Verdict::Broadcast {
                self.hub.publish_ephemeral(Arc::clone(event)).await;
            }
        }
    }
}

/// Facts of admission that the git backend knows about an event.
#[derive(Clone, Debug, Default)]
pub struct GitFacts {
    /// The event is held already.
    pub is_held: bool,
    /// Announcements of its repository that are here, stored and held.
    pub announcements: Vec<KnownAnnouncement>,
    /// Another author's announcement of the same identifier lists its author.
    pub is_listed: bool,
    /// Hosted repositories of the same identifier that the author of a state maintains.
    pub maintained: Vec<MaintainedRepo>,
    /// Its author has as many repositories as this server hosts for one author.
    pub is_repository_quota_reached: bool,
    /// A limit of purgatory is reached for it.
    pub is_over_quota: bool,
}

/// Holds events until their git data is here.
pub trait GitBackend: Send + Sync + 'static {
    /// Returns the facts about an event, and about the repository that it announces or whose state it is.
    fn facts(
        &self,
        event: Arc<Event>,
        repo: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>>;

    /// Holds an event until its git data is here; resolves once that is durable. The outcome is [`Outcome::Held`] unless
    /// the event turned out to be superseded, over quota or released meanwhile; [`Verdict::Store`] means that it does not
    /// wait for git data.
    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>>;

    /// Returns whether a key maintains a repository, by the announcements that are here.
    fn is_maintainer(
        &self,
        _repo: RepoId,
        _key: PublicKey,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Called after an event was stored.
    fn stored(&self, _event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Called after events were taken out of service, with their repositories.
    fn affected(&self, _repos: BTreeSet<RepoId>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Called after an owner has stopped listing this server in the announcement of a repository.
    fn delisted(&self, _repo: RepoId, _by: Version) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The backend of a relay that hosts no git: no event is held for data that can never come. It knows no maintainers, so
/// states are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelayOnly;

impl GitBackend for RelayOnly {
    fn facts(
        &self,
        _: Arc<Event>,
        _: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(std::future::ready(Ok(GitFacts::default())))
    }

    fn hold(
        &self,
        _: Arc<Event>,
        _: Hold,
        _: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        Box::pin(std::future::ready(Ok(Verdict::Store { is_related: false })))
    }
}

/// Looks up the facts about each event of a round.
async fn look_up(
    store: &dyn EventStore,
    git: &dyn GitBackend,
    round: &mut [Pending],
    now: Timestamp,
) -> Result<(), StoreError> {
    // Purgatory first: an event that is released meanwhile is in the store when that is read.
    for pending in &mut *round {
        let repo = pending.needs.repo.clone();
        let found = git.facts(Arc::clone(&pending.event), repo).await?;
        pending.facts = Facts {
            known: found.is_held.then_some(Presence::Held),
            announcements: found.announcements,
            is_listed: found.is_listed,
            maintained: found.maintained,
            is_repository_quota_reached: found.is_repository_quota_reached,
            is_over_quota: found.is_over_quota,
            ..Facts::default()
        };
    }
    let present = store.present(named(round), now).await?;
    let delisted = delisted(store, round).await?;
    let mut queries = Vec::with_capacity(round.len() * QUERIES_PER_EVENT);
    for pending in &mut *round {
        let event = &pending.event;
        let facts = &mut pending.facts;
        if present.ids.contains(&event.id) {
            facts.known = Some(Presence::Stored);
        }
        if let Some(at) = coordinate(event) {
            facts.latest = present.versions.get(&at).max(delisted.get(&at)).copied();
        }
        facts.named = present_of(&pending.needs.references, &present);
        facts.is_related = facts.named != References::default();
        queries.push(naming(pending));
        queries.push(participation(event));
    }
    let answers = store.exists(queries, now).await?;
    for (pending, answers) in round
        .iter_mut()
        .zip(answers.chunks_exact(QUERIES_PER_EVENT))
    {
        pending.facts.is_related |= answers[0];
        pending.facts.is_author_known = answers[1];
    }
    Ok(())
}

/// Returns the versions by which repositories that a round announces were delisted before.
async fn delisted(
    store: &dyn EventStore,
    round: &[Pending],
) -> Result<BTreeMap<Coordinate, Version>, StoreError> {
    let events = round.iter().map(|pending| &pending.event);
    let announced = events.filter(|event| event.kind == kinds::ANNOUNCEMENT);
    let announced: Vec<_> = announced.filter_map(|event| coordinate(event)).collect();
    if announced.is_empty() {
        Ok(BTreeMap::new())
    } else {
        store.delisted(announced).await
    }
}

/// Returns the events of a round, and all that they name.
fn named(round: &[Pending]) -> References {
    let mut named = References::default();
    for Pending { event, needs, .. } in round {
        let References { ids, coordinates } = &needs.references;
        named.ids.extend(ids);
        named.ids.insert(event.id);
        named.coordinates.extend(coordinates.iter().cloned());
        named.coordinates.extend(coordinate(event));
    }
    named
}

/// Returns the references to stored events.
fn present_of(named: &References, present: &Present) -> References {
    let mut named = named.clone();
    named.ids.retain(|id| present.ids.contains(id));
    named
        .coordinates
        .retain(|at| present.versions.contains_key(at));
    named
}

/// Number of queries about one event, which follow each other.
const QUERIES_PER_EVENT: usize = 2;

/// Returns the query for stored events that name an event, if it names no stored one itself. A query without filters
/// matches nothing.
fn naming(pending: &Pending) -> Vec<Filter> {
    if !pending.needs.named_by_others || pending.facts.is_related {
        return Vec::new();
    }
    let mut naming = naming_by_id([pending.event.id]);
    if let Some(at) = coordinate(&pending.event) {
        naming.extend(naming_by_coordinate(at));
    }
    naming
}

/// Returns the query for events by which the author of an event takes part, if that decides about the event.
fn participation(event: &Event) -> Vec<Filter> {
    let is_asked = kinds::PROFILE_KINDS.contains(&event.kind)
        || kinds::UNCONDITIONAL_KINDS.contains(&event.kind);
    if !is_asked {
        return Vec::new();
    }
    let filter = Filter::new().author(event.pubkey);
    vec![filter.kinds(kinds::PARTICIPATION_KINDS)]
}

/// Returns filters for events that name one of these by its id.
pub(crate) fn naming_by_id(ids: impl IntoIterator<Item = EventId>) -> Vec<Filter> {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_hex()).collect();
    [
        SingleLetterTag::LOWERCASE_E,
        SingleLetterTag::UPPERCASE_E,
        SingleLetterTag::LOWERCASE_Q,
    ]
    .map(|name| Filter::new().custom_tags(name, ids.clone()))
    .into()
}

/// Returns filters for events that name a coordinate. Replaceable ones are written with and without the last colon.
pub(crate) fn naming_by_coordinate(coordinate: Coordinate) -> Vec<Filter> {
    let full = format!(
        "{}:{}:{}",
        coordinate.kind.as_u16(),
        coordinate.public_key,
        coordinate.identifier
    );
    let mut spellings = vec![full];
    if kinds::is_replaceable(coordinate.kind) {
        spellings.push(format!(
            "{}:{}",
            coordinate.kind.as_u16(),
            coordinate.public_key
        ));
    }
    [
        SingleLetterTag::LOWERCASE_A,
        SingleLetterTag::UPPERCASE_A,
        SingleLetterTag::LOWERCASE_Q,
    ]
    .into_iter()
    .map(|name| Filter::new().custom_tags(name, spellings.clone()))
    .collect()
}
