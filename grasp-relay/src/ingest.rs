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
use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

pub use self::limits::Budgets;
pub(crate) use self::limits::SharedMeter;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::nostr::Hub;
use crate::store::{EventStore, Present, SaveReport, StoreError};

/// Events that are verified by one thread at once: some milliseconds of work.
const VERIFY_BATCH: usize = 64;

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
        Box::pin(verify_then(events, |genuine| {
            self.ingest_verified(genuine, origin)
        }))
    }
}

/// Verifies events and has the genuine ones judged; the others are refused.
pub(crate) async fn verify_then<F: Future<Output = Vec<Outcome>>>(
    events: Vec<Event>,
    judge: impl FnOnce(Vec<Verified<Arc<Event>>>) -> F,
) -> Vec<Outcome> {
    let checked = verify_all(events).await;
    let genuine: Vec<bool> = checked.iter().map(Option::is_some).collect();
    let mut outcomes = judge(checked.into_iter().flatten().collect())
        .await
        .into_iter();
    let outcome = |genuine| match genuine {
        true => outcomes.next().unwrap_or(Rejection::Internal.into()),
        false => Rejection::Forged.into(),
    };
    genuine.into_iter().map(outcome).collect()
}

/// Verifies ids and signatures on blocking threads; `None` for a forged event.
async fn verify_all(events: Vec<Event>) -> Vec<Option<Verified<Arc<Event>>>> {
    let mut checks = Vec::new();
    let mut events = events.into_iter();
    while events.len() > 0 {
        let share: Vec<Event> = events.by_ref().take(VERIFY_BATCH).collect();
        let count = share.len();
        let check = |event| Verified::check(event).ok().map(Verified::share);
        let check = move || share.into_iter().map(check).collect();
        checks.push((tokio::task::spawn_blocking(check), count));
    }
    let mut checked = Vec::new();
    for (check, count) in checks {
        checked.extend(check.await.unwrap_or_else(|_| vec![None; count]));
    }
    checked
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
    pub policy: Policy,
    /// Counts events by author, root and repository.
    pub fan_out: Mutex<FanOut>,
    /// Limits the work that clients cause.
    pub budgets: Budgets,
    /// The clock of the server.
    pub clock: Clock,
    /// Counts events by source and outcome.
    pub metrics: Metrics,
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
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let judged = verify_then(events, |genuine| self.judge_all(genuine, &origin));
            self.metrics.counted(&origin, judged).await
        })
    }
}

/// An event of a batch that has no final verdict yet.
#[derive(Clone)]
struct Pending {
    /// Index of its verdict.
    position: usize,
    event: Verified<Arc<Event>>,
}

/// Splits off the events that can be judged together: at most one announcement or state per identifier, since each may
/// change the facts that the next one is judged by.
fn next_round(pending: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let mut names: BTreeSet<Identifier> = BTreeSet::new();
    pending
        .into_iter()
        .partition(|pending| match Needs::of(&pending.event).repo {
            Some(repo) => names.insert(repo.identifier),
            None => true,
        })
}

impl Pipeline {
    /// Judges and stores events in rounds. Returns one outcome per event, in order.
    async fn judge_all(&self, events: Vec<Verified<Arc<Event>>>, origin: &Origin) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::from(Rejection::Internal); events.len()];
        let mut pending: Vec<Pending> = events
            .into_iter()
            .enumerate()
            .map(|(position, event)| Pending { position, event })
            .collect();
        while !pending.is_empty() {
            let (round, mut later) = next_round(pending);
            let judged = self.judge_and_store(&round, origin).await;
            let progress = judged.contains(&Outcome::Stored);
            for (pending, outcome) in round.into_iter().zip(judged) {
                let is_reversible = matches!(
                    &outcome, Outcome::Refused { reason, .. } if reason.is_reversible()
                );
                if let Some(place) = outcomes.get_mut(pending.position) {
                    *place = outcome;
                }
                if progress && is_reversible {
                    later.push(pending);
                }
            }
            pending = later;
        }
        outcomes
    }

    /// Judges a round and stores or holds its events. Returns one outcome per event, in order.
    async fn judge_and_store(&self, round: &[Pending], origin: &Origin) -> Vec<Outcome> {
        // Every round looks everything up again, so every round is paid for.
        let mut paid = Vec::with_capacity(round.len());
        for pending in round {
            paid.push(self.pay_lookups(&pending.event, origin).await);
        }
        let round: Vec<Pending> = round
            .iter()
            .zip(&paid)
            .filter(|(_, paid)| **paid)
            .map(|(event, _)| event.clone())
            .collect();
        let mut judged = match self.try_round(&round, origin).await {
            Ok(outcomes) => outcomes.into_iter(),
            Err(error) => {
                tracing::error!(%error, cause = ?error.source(), "events could not be judged or stored");
                Vec::new().into_iter()
            }
        };
        let outcome = |paid: bool| match paid {
            true => judged.next().unwrap_or(Rejection::Internal.into()),
            false => Rejection::Busy.into(),
        };
        paid.into_iter().map(outcome).collect()
    }

    async fn try_round(
        &self,
        round: &[Pending],
        origin: &Origin,
    ) -> Result<Vec<Outcome>, StoreError> {
        let now = self.clock.now().unix;
        let has_authority = round
            .iter()
            .all(|one| self.is_known_authority(&one.event.pubkey));
        let Ok(slot) = self.budgets.round_slot(origin, has_authority).await else {
            return Ok(vec![Rejection::Busy.into(); round.len()]);
        };
        let facts = facts(&*self.store, &*self.git, round, now).await?;
        drop(slot);
        let mut judged = Vec::with_capacity(round.len());
        for (pending, facts) in round.iter().zip(&facts) {
            let verdict = judge(&self.policy, now, origin, pending.event.as_ref(), facts);
            judged.push((
                pending,
                self.check_limits(&pending.event, facts, origin, verdict)
                    .await?,
            ));
        }
        // No event of a round changes the facts of another, so they may be held concurrently.
        let kept = judged.into_iter().map(|(pending, verdict)| async move {
            match verdict {
                Verdict::Hold(hold) => self.hold(pending, hold, origin, now).await,
                other => Ok(other),
            }
        });
        let kept: Vec<_> = kept.collect();
        let kept = stream::iter(kept).buffered(MAX_CONCURRENT_HOLDS);
        let mut verdicts: Vec<Verdict> = kept.try_collect().await?;
        let affected = self.save(round, &mut verdicts, now).await?;
        self.take_out_of_service(round, &verdicts, now).await?;
        self.publish(round, &verdicts).await;
        self.git.affected(affected).await;
        let outcomes: Vec<_> = verdicts.into_iter().map(Verdict::outcome).collect();
        self.note_authorities(round, &outcomes).await;
        Ok(outcomes)
    }

    /// Holds an event until its git data is here, unless the store would refuse it.
    async fn hold(
        &self,
        pending: &Pending,
        hold: Hold,
        origin: &Origin,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let event = Arc::clone(&pending.event);
        if let Some(refusal) = self.store.refusal(Arc::clone(&event), now).await? {
            return Ok(refusal.into());
        }
        self.git.hold(event, hold, origin.clone()).await
    }

    /// Stores the accepted events in one transaction, and corrects verdicts by what the store answers. Returns the
    /// repositories of which that took events out of service.
    async fn save(
        &self,
        round: &[Pending],
        verdicts: &mut [Verdict],
        now: Timestamp,
    ) -> Result<BTreeSet<RepoId>, StoreError> {
        let mut chosen: Vec<(&Pending, &mut Verdict)> = round
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| is_stored(verdict))
            .collect();
        if chosen.is_empty() {
            return Ok(BTreeSet::new());
        }
        let events = chosen
            .iter()
            .map(|(pending, _)| Arc::clone(&pending.event))
            .collect();
        let SaveReport { saved, affected } = self.store.save_events(events, now).await?;
        for ((_, verdict), saved) in chosen.iter_mut().zip(saved) {
            if saved != Outcome::Stored {
                **verdict = Verdict::Done(saved);
            }
        }
        Ok(affected)
    }

    /// Takes repositories out of service whose owner no longer lists this server. An older announcement that is sent
    /// again must not bring the repository back, nor the maintainers that it named.
    async fn take_out_of_service(
        &self,
        round: &[Pending],
        verdicts: &[Verdict],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let delisting = |verdict: &Verdict| matches!(verdict, Verdict::Delist { .. });
        for (pending, verdict) in round.iter().zip(verdicts) {
            if let Some(at) = coordinate(&pending.event).filter(|_| delisting(verdict)) {
                self.store
                    .delist(at, Version::of(&pending.event), now)
                    .await?;
            }
        }
        // Reported once all are delisted, since the backend reads the store at once.
        for (pending, verdict) in round.iter().zip(verdicts) {
            if delisting(verdict) {
                self.delist(&pending.event).await;
            }
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
    async fn publish(&self, round: &[Pending], verdicts: &[Verdict]) {
        for (pending, verdict) in round.iter().zip(verdicts) {
            let event = &pending.event;
            if is_stored(verdict) {
                self.git.stored(Arc::clone(event)).await;
                self.hub.publish_stored(Arc::clone(event)).await;
            } else if *verdict == Verdict::Broadcast {
                self.hub.publish_ephemeral(Arc::clone(event)).await;
            }
        }
    }
}

/// Returns whether a verdict says that ingest stores and publishes the event.
fn is_stored(verdict: &Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Store { .. } | Verdict::Delist { keep: true }
    )
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
    /// Returns the facts about an event.
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>>;

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
    fn facts(&self, _: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
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

/// Returns the facts about each event of a round.
async fn facts(
    store: &dyn EventStore,
    git: &dyn GitBackend,
    round: &[Pending],
    now: Timestamp,
) -> Result<Vec<Facts>, StoreError> {
    // Purgatory first: an event that is released meanwhile is in the store when that is read.
    let mut held = Vec::with_capacity(round.len());
    for pending in round {
        held.push(git.facts(Arc::clone(&pending.event)).await?);
    }
    let present = store.present(named(round), now).await?;
    let delisted = delisted(store, round).await?;
    let queries = round
        .iter()
        .flat_map(|pending| queries(&pending.event, &present))
        .collect();
    let answers = store.exists(queries, now).await?;
    let mut facts = Vec::with_capacity(round.len());
    let answers = answers.chunks_exact(QUERIES_PER_EVENT);
    for ((pending, git), answers) in round.iter().zip(held).zip(answers) {
        let event = &pending.event;
        let needs = Needs::of(event);
        let named = retain_present(needs.references, &present);
        facts.push(Facts {
            known: presence(present.ids.contains(&event.id), git.is_held),
            latest: coordinate(event)
                .and_then(|at| present.versions.get(&at).max(delisted.get(&at)).copied()),
            announcements: git.announcements,
            is_listed: git.is_listed,
            maintained: git.maintained,
            is_related: named != References::default() || answers[0],
            named,
            is_author_known: answers[1],
            is_repository_quota_reached: git.is_repository_quota_reached,
            is_over_quota: git.is_over_quota,
        });
    }
    Ok(facts)
}

fn presence(is_stored: bool, is_held: bool) -> Option<Presence> {
    match (is_stored, is_held) {
        (true, _) => Some(Presence::Stored),
        (false, true) => Some(Presence::Held),
        (false, false) => None,
    }
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
    for Pending { event, .. } in round {
        let References { ids, coordinates } = Needs::of(event).references;
        named.ids.extend(ids.into_iter().chain([event.id]));
        named
            .coordinates
            .extend(coordinates.into_iter().chain(coordinate(event)));
    }
    named
}

/// Retains the references to stored events.
fn retain_present(mut named: References, present: &Present) -> References {
    named.ids.retain(|id| present.ids.contains(id));
    named
        .coordinates
        .retain(|at| present.versions.contains_key(at));
    named
}

const QUERIES_PER_EVENT: usize = 2;

/// Returns two queries about an event: for stored events that name it, if it names no stored one itself; and for
/// participation of its author. A query without filters matches nothing.
fn queries(event: &Event, present: &Present) -> [Vec<Filter>; QUERIES_PER_EVENT] {
    let needs = Needs::of(event);
    let mut naming = Vec::new();
    let names_nothing = retain_present(needs.references, present) == References::default();
    if needs.named_by_others && names_nothing {
        naming = naming_by_id(event);
        naming.extend(coordinate(event).into_iter().flat_map(naming_by_coordinate));
    }
    let mut author = Vec::new();
    let is_asked = [&kinds::PROFILE_KINDS[..], &kinds::UNCONDITIONAL_KINDS].concat();
    if is_asked.contains(&event.kind) {
        author.push(
            Filter::new()
                .author(event.pubkey)
                .kinds(kinds::PARTICIPATION_KINDS),
        );
    }
    [naming, author]
}

/// Returns filters for events that name an event by its id.
fn naming_by_id(event: &Event) -> Vec<Filter> {
    let id = event.id.to_hex();
    [
        SingleLetterTag::LOWERCASE_E,
        SingleLetterTag::UPPERCASE_E,
        SingleLetterTag::LOWERCASE_Q,
    ]
    .map(|name| Filter::new().custom_tag(name, id.clone()))
    .into()
}

/// Returns filters for events that name a coordinate. Replaceable ones are written with and without the last colon.
fn naming_by_coordinate(coordinate: Coordinate) -> Vec<Filter> {
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
