//! Holds events until their git data is here: a state machine without input, output or clock.
//!
//! ```text
//!   Held ──▶ journal ──▶ Survey ──▶ Surveyed ──▶ Release ──▶ Released ──▶ Publish
//!             + answer     ▲          │ not complete: waits        refs, HEAD, events
//!   Changed ───────────────┤          ▼
//!   (push, fetch, store)   │    waiting ──▶ expired ──▶ forgotten
//!   Started, retry ────────┘              (still released if the data appears)
//! ```
//!
//! Every change at a repository leads to a survey, and every survey to the same judgement: the wanted state of store and
//! git, compared with the present one. One release per repository runs at a time.

mod held;
mod io;
mod judge;
mod query;
mod release;
mod shares;
mod staging;
mod tasks;
mod wanted;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Hold, Origin, Policy, Presence};
use grasp_core::deletion::DeletionRequest;
use grasp_core::resources::ClientNetwork;
use grasp_core::{Identifier, Mono, Now, Oid, RepoId, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

pub use self::held::Phase;
pub use self::io::{
    Bound, Config, HoldOutcome, Input, Output, Outputs, ProposalRef, Record, RefsTarget, Stage,
    StateTarget, Survey, SurveyedLead, SurveyedView, WakeCause,
};
pub use self::query::{Counts, HeldFor, Want, select_addresses};
pub use self::staging::PushTarget;
pub use self::tasks::CleanupTask;

use self::held::{Content, HeldEvent, HeldEvents};
use self::release::Releases;
use self::staging::{StagedUploads, Staging};
use self::tasks::CleanupTasks;
use self::wanted::WantedEvents;

/// Least time between two sweeps for expired events: those of busy repositories stay overdue for a while.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two renewals of an event: each is a write.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

/// The events that wait for git data, and the work that must be done until they are served.
///
/// ```
/// use std::sync::Arc;
/// use grasp_core::admission::{Hold, Origin, Policy};
/// use grasp_core::{Mono, Now};
/// use grasp_purgatory::{Config, HoldOutcome, Input, Output, Purgatory};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
/// use nostr::{key::Keys, types::Timestamp};
///
/// let policy = Policy::new("grasp.example".parse().unwrap());
/// let now = Now::new(Mono::ZERO, Timestamp::from_secs(1_800_000_000));
/// let mut purgatory = Purgatory::restore(Config::default(), policy, [], now);
///
/// let event = EventBuilder::new(Kind::GitRepoAnnouncement, "")
///     .tag(Tag::identifier("grasp"))
///     .finalize(&Keys::generate())
///     .unwrap();
/// let held = Input::Held {
///     event: Arc::new(event.clone()),
///     hold: Hold::Announcement,
///     origin: Origin::anonymous(),
/// };
/// let outputs = purgatory.handle(now, held);
/// assert!(!outputs.records.is_empty(), "to be written before the effects");
/// let is_held = |o: &Output| matches!(o, Output::Answer { outcome: HoldOutcome::Held, .. });
/// assert!(outputs.effects.iter().any(is_held));
/// assert!(purgatory.holds(&event.id));
/// ```
#[derive(Debug)]
pub struct Purgatory {
    config: Config,
    policy: Arc<Policy>,
    held: HeldEvents,
    staging: Staging,
    tasks: CleanupTasks,
    releases: Releases,
    wanted: WantedEvents,
    last_sweep: Mono,
    /// The last reading of the clocks, which maps calendar deadlines to the monotonic clock.
    now: Now,
}

/// State.
impl Purgatory {
    /// Restores purgatory from the records of an earlier run; without any it is empty.
    ///
    /// Deadlines are calendar times, so the time between the runs counts.
    pub fn restore(
        config: Config,
        policy: impl Into<Arc<Policy>>,
        records: impl IntoIterator<Item = Record>,
        now: Now,
    ) -> Self {
        let mut held = HeldEvents::new(&config);
        let mut staging = Staging::new(&config);
        let mut tasks = CleanupTasks::default();
        for record in records {
            held.apply(&record);
            staging.apply(&record);
            tasks.apply(&record);
        }
        held.account_all();
        staging.account_all();
        Self {
            config,
            policy: policy.into(),
            held,
            staging,
            tasks,
            releases: Releases::default(),
            wanted: WantedEvents::default(),
            last_sweep: now.mono,
            now,
        }
    }

    /// Handles one input and returns the outputs to perform.
    #[must_use = "outputs that are not performed were promised nevertheless"]
    pub fn handle(&mut self, now: Now, input: Input) -> Outputs {
        self.now = now;
        let mut outputs = Outputs::default();
        let out = &mut outputs;
        match input {
            Input::Started => self.start(out),
            Input::Held {
                event,
                hold,
                origin,
            } => self.hold(out, event, &hold, &origin),
            Input::Changed { repo } => self.releases.request(out, &repo),
            Input::Surveyed { repo, survey } => self.surveyed(out, &repo, &survey),
            Input::Settle {
                repo,
                caller,
                events,
            } => self.releases.settle(out, &repo, caller, events),
            Input::SurveyFailed { repo } => self.stage_failed(out, &repo, Stage::Survey),
            Input::Released { repo, refused } => self.released(out, &repo, &refused),
            Input::ReleaseFailed { repo } => self.stage_failed(out, &repo, Stage::Release),
            Input::PushAuthorised { repo, events } => self.push_authorised(out, &repo, &events),
            Input::PushStaged {
                id,
                tip,
                target,
                bytes,
                network,
            } => {
                self.push_staged(out, id, tip, (target.clone(), bytes), network);
                let is_kept = self.keeps_upload(&id, &tip);
                out.push(Output::Staged {
                    id,
                    tip,
                    target,
                    is_kept,
                });
            }
            Input::FetchStarted { repo } => self.releases.fetch_started(&repo),
            Input::FetchEnded { repo } => self.releases.fetch_ended(out, &repo),
            Input::HuntWaiting { repo } => self.hunt_waiting(out, &repo),
            Input::HuntAnswered { repo } => self.hunt_answered(&repo),
            Input::HuntEnded { repo } => self.hunt_ended(out, &repo),
            Input::Damaged { repo } => {
                out.push(Output::Hunt {
                    repo,
                    after: Some(Duration::ZERO),
                });
            }
            Input::Deleted { request } => self.deleted(out, &request),
            Input::Vanished { author, until } => self.vanished(out, author, until),
            Input::Policy(policy) => self.policy = policy,
            Input::Delisted { repo, by } => self.delisted(out, &repo, by),
            Input::TaskDone(task) => self.tasks.done(out, task),
            Input::TaskFailed(_) => {
                self.tasks.retry_at = Some(now.mono + self.config.retry_after);
            }
            Input::Tick => self.tick(out),
        }
        outputs
    }

    /// Returns the time of the next [`Input::Tick`]. To be asked again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let ends = self
            .next_end()
            .map(|end| self.mono(end).max(self.last_sweep + SWEEP_INTERVAL));
        let expiration = self.releases.next_expiration().map(|end| self.mono(end));
        let times = [
            self.releases.next_retry(),
            self.tasks.retry_at,
            ends,
            expiration,
        ];
        times.into_iter().flatten().min()
    }

    /// Surveys every held event after a start, before any of it can expire: events that were complete at the time of
    /// a crash are released, however long ago that was.
    fn start(&mut self, out: &mut Outputs) {
        self.tasks.run_all(out);
        let repos: Vec<_> = self.held.repos().cloned().collect();
        for repo in repos {
            self.releases.request(out, &repo);
            out.push(Output::Wake {
                repo,
                cause: WakeCause::Announcement,
            });
        }
    }

    /// Maps a calendar time to the monotonic clock. Never early: the present second of the calendar began earlier.
    fn mono(&self, end: Timestamp) -> Mono {
        let left = end.as_secs().saturating_sub(self.now.unix.as_secs());
        self.now.mono + Duration::from_secs(left)
    }

    fn hold_until(&self) -> Timestamp {
        self.now.unix + self.config.hold_for
    }

    /// Returns the repositories at which git may have data of an event.
    fn repos_of(&self, id: &EventId) -> BTreeSet<RepoId> {
        let mut repos = self.held.get(id).map(HeldEvent::repos).unwrap_or_default();
        repos.extend(
            self.staging
                .of(id)
                .into_iter()
                .flat_map(StagedUploads::repos)
                .cloned(),
        );
        repos
    }

    fn hold(&mut self, out: &mut Outputs, event: Arc<Event>, hold: &Hold, origin: &Origin) {
        let id = event.id;
        // Repeated offers of other relays do not end an event's expiry.
        let stays = |held: &HeldEvent| {
            // The record of an event that is being released may be gone already.
            held.is_waiting() || origin.is_sync() || self.releases.is_releasing(&id)
        };
        let outcome = match HeldEvent::new(event, Phase::Waiting, self.now.unix, self.hold_until())
        {
            Some(_) if self.held.get(&id).is_some_and(stays) => HoldOutcome::Held,
            Some(new) => self.admit(out, &new, hold, origin),
            None => HoldOutcome::Unreadable,
        };
        out.push(Output::Answer { id, outcome });
        if outcome == HoldOutcome::Held && !origin.is_sync() {
            let held = self.held.get(&id);
            let concerned = held.map(|held| held.concerned.clone()).unwrap_or_default();
            self.releases.decide(out, id, &concerned);
        }
    }

    fn admit(
        &mut self,
        out: &mut Outputs,
        new: &HeldEvent,
        hold: &Hold,
        origin: &Origin,
    ) -> HoldOutcome {
        let presence = self.presence_behind(hold);
        let displaced = match self.held.check(&self.config, new, presence) {
            Ok(displaced) => displaced,
            Err(outcome) => return outcome,
        };
        let (evicted, has_room) = self
            .held
            .reserve(new, new.claimant(presence, origin), displaced);
        evicted
            .into_iter()
            .for_each(|id| self.drop_with_view(out, id, false));
        if !has_room {
            return HoldOutcome::Full;
        }
        let had_view = new
            .announcement()
            .is_some_and(|a| self.held.has_view(&a.repo));
        if let Some(id) = displaced {
            self.held.remove(out, id);
            self.releases.decided(out, id, HoldOutcome::Superseded);
        }
        self.held.hold(out, &new.event, new.since, new.until);
        // A survey that finds it wanting starts a hunt, also if it was hunted for before.
        self.wanted.forget(&new.id());
        match &new.content {
            Content::Announcement(_) if had_view => {}
            Content::Announcement(announcement) => {
                let repo = announcement.repo.clone();
                self.tasks.add(out, CleanupTask::CreateView { repo });
            }
            Content::State(_) => self.renew_announcements(out, hold),
            Content::Proposal(proposal) => self.keep_only(out, new.id(), proposal.tip),
        }
        // Data of events from other relays is at other servers too; a user is about to push.
        let delay = (!origin.is_sync()).then_some(self.config.user_delay);
        self.held.set_hunt_delay(new.id(), delay);
        let mut concerned = new.repos();
        if let Hold::State(repos) = hold {
            concerned.extend(repos.iter().cloned());
        }
        let uploads = self.staging.of(&new.id()).into_iter();
        concerned.extend(uploads.flat_map(StagedUploads::repos).cloned());
        for repo in &concerned {
            self.releases.request(out, repo);
        }
        self.held.set_concerned(new.id(), concerned);
        let cause = match new.content {
            Content::Announcement(_) => WakeCause::Announcement,
            Content::State(_) | Content::Proposal(_) => WakeCause::Content,
        };
        // The repositories of a state were read with it.
        if new.state().is_none() {
            for repo in new.repos() {
                out.push(Output::Wake { repo, cause });
            }
        }
        HoldOutcome::Held
    }

    /// Returns `Stored` for a state of a served repository: one whose announcement is not held.
    fn presence_behind(&self, hold: &Hold) -> Presence {
        match hold {
            Hold::State(repos) if repos.iter().any(|r| self.held.announcement(r).is_none()) => {
                Presence::Stored
            }
            _ => Presence::Held,
        }
    }

    /// Renews the announcements of a new state's repositories: they are in use.
    fn renew_announcements(&mut self, out: &mut Outputs, hold: &Hold) {
        if let Hold::State(repos) = hold {
            repos
                .iter()
                .for_each(|repo| self.renew_announcement(out, repo));
        }
    }

    fn renew_announcement(&mut self, out: &mut Outputs, repo: &RepoId) {
        let Some(held) = self.held.announcement(repo) else {
            return;
        };
        let id = held.id();
        let was_expired = !held.is_waiting();
        self.renew(out, id);
        if was_expired {
            self.tasks
                .add(out, CleanupTask::CreateView { repo: repo.clone() });
        }
    }

    /// Makes an event wait for its full time again, or for the longer one that it has.
    fn renew(&mut self, out: &mut Outputs, id: EventId) {
        let waiting = self.held.get(&id).filter(|held| held.is_waiting());
        let until = waiting.map_or(self.hold_until(), |held| held.until.max(self.hold_until()));
        let is_renewed = waiting.is_some_and(|held| held.until + RENEWAL_INTERVAL >= until);
        for repo in waiting
            .map(|_| self.wanted.hunters(&id))
            .unwrap_or_default()
        {
            self.releases.take_first_answer(&repo);
        }
        if !is_renewed {
            self.held.set_phase(out, id, Phase::Waiting, until);
        }
    }

    /// Drops the uploads and refs of a pull request that are not the tip that its author signed.
    fn keep_only(&mut self, out: &mut Outputs, id: EventId, tip: Oid) {
        let proposal = self.held.get(&id).and_then(HeldEvent::proposal);
        let staged = proposal.zip(self.staging.of(&id));
        let fits =
            staged.is_some_and(|(p, staged)| staged.targets_of(&self.policy, p).next().is_some());
        let repos = self.repos_of(&id);
        self.staging.remove(out, id, fits.then_some(tip));
        self.tasks
            .clear_proposal(out, id, BTreeSet::from([tip]), repos);
    }

    /// Notes what a repository hunts for, and starts the hunt if that is more than before.
    fn want(&mut self, out: &mut Outputs, repo: &RepoId, mut wanted: judge::HuntedEvents) {
        // One fetch is enough for a pull request that names several repositories.
        let held = &self.held;
        let hunts = &self.wanted;
        wanted.held.retain(|id| {
            let is_proposal = held.get(id).is_some_and(|held| held.proposal().is_some());
            !is_proposal || !hunts.is_hunted_elsewhere(repo, id)
        });
        let mut delays = Vec::new();
        for id in &wanted.held {
            let Some(held) = self.held.get(id).filter(|held| held.is_waiting()) else {
                continue;
            };
            if !self.wanted.is_hunted(repo, id) {
                delays.push(held.hunt_delay);
            }
        }
        let is_behind = wanted.served.is_some() && self.wanted.served(repo).is_none();
        self.wanted.set(repo, wanted);
        if is_behind {
            delays.push(None);
        }
        // The shortest; none is shorter than any.
        if let Some(after) = delays.into_iter().min() {
            out.push(Output::Hunt {
                repo: repo.clone(),
                after,
            });
        }
    }

    /// Gives the events of a push time to be pushed.
    fn push_authorised(&mut self, out: &mut Outputs, repo: &RepoId, events: &BTreeSet<EventId>) {
        self.renew_announcement(out, repo);
        for id in events {
            if self.held.get(id).is_some() {
                self.renew(out, *id);
            }
        }
    }

    fn push_staged(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        tip: Oid,
        (target, bytes): (PushTarget, u64),
        network: Option<ClientNetwork>,
    ) {
        let is_spared = |other: &EventId| self.held.get(other).is_some();
        let upload = (id, &tip, &target);
        let (evicted, has_room) =
            self.staging
                .reserve(&self.config, upload, bytes, network, is_spared);
        evicted
            .into_iter()
            .for_each(|id| self.drop_uploads(out, id));
        if !has_room {
            // Uploads to other repositories have directories of their own.
            let keep = self.staging.tips_at(&id, target.repo());
            let repos = BTreeSet::from([target.repo().clone()]);
            return self.tasks.clear_proposal(out, id, keep, repos);
        }
        self.tasks
            .drop_conflicting(out, &CleanupTask::key_of_proposal(&id));
        let until = self.now.unix + self.config.stage_for;
        self.staging.stage(out, id, tip, (target, bytes), until);
        // The event may have been received while the push was under way.
        let Some(held) = self.held.get(&id) else {
            return;
        };
        let Some(wanted) = held.proposal().map(|proposal| proposal.tip) else {
            return;
        };
        let repos = held.repos();
        self.keep_only(out, id, wanted);
        for repo in repos {
            self.releases.request(out, &repo);
        }
    }

    fn drop_uploads(&mut self, out: &mut Outputs, id: EventId) {
        let repos = self.repos_of(&id);
        self.staging.remove(out, id, None);
        self.tasks.clear_proposal(out, id, BTreeSet::new(), repos);
    }

    fn deleted(&mut self, out: &mut Outputs, request: &Event) {
        let Ok(DeletionRequest { ids, coordinates }) = DeletionRequest::parse(request) else {
            return;
        };
        let by_id = ids.iter().filter_map(|id| self.held.get(id));
        let by_coordinate = coordinates
            .iter()
            .flat_map(|coordinate| self.versions(coordinate));
        let targets: BTreeSet<EventId> = by_id
            .chain(by_coordinate.filter(|held| held.event.created_at <= request.created_at))
            .filter(|held| held.author() == request.pubkey)
            .map(HeldEvent::id)
            .collect();
        self.withdraw(out, targets);
    }

    fn vanished(&mut self, out: &mut Outputs, author: PublicKey, until: Timestamp) {
        let is_covered =
            |held: &&HeldEvent| held.author() == author && held.event.created_at <= until;
        let targets: Vec<_> = self
            .held
            .iter()
            .filter(is_covered)
            .map(HeldEvent::id)
            .collect();
        self.withdraw(out, targets);
    }

    fn delisted(&mut self, out: &mut Outputs, repo: &RepoId, by: Version) {
        let older = self
            .held
            .announcement(repo)
            .filter(|held| held.version() < by);
        self.withdraw(out, older.map(HeldEvent::id));
        self.releases.request(out, repo);
        out.push(Output::Wake {
            repo: repo.clone(),
            cause: WakeCause::Announcement,
        });
    }

    /// Returns the held events of a coordinate.
    fn versions(&self, coordinate: &Coordinate) -> Vec<&HeldEvent> {
        let kind = coordinate.kind;
        let author = coordinate.public_key;
        let is_held = kind == kinds::ANNOUNCEMENT || kind == kinds::STATE;
        let identifier = Identifier::new(&coordinate.identifier)
            .ok()
            .filter(|_| is_held);
        let Some(identifier) = identifier else {
            return Vec::new();
        };
        let repo = RepoId::new(author, identifier);
        self.held
            .of(&repo)
            .filter(|held| held.event.kind == kind)
            .collect()
    }

    fn withdraw(&mut self, out: &mut Outputs, ids: impl IntoIterator<Item = EventId>) {
        for id in ids {
            let repos = self.held.get(&id).map(HeldEvent::repos).unwrap_or_default();
            self.drop_with_view(out, id, true);
            for repo in repos {
                self.releases.request(out, &repo);
            }
        }
    }

    fn tick(&mut self, out: &mut Outputs) {
        self.last_sweep = self.now.mono;
        self.releases.retry(out, self.now.mono, self.now.unix);
        self.tasks.retry(out, self.now.mono);
        let waited = self.overdue(Phase::Waiting);
        waited.into_iter().for_each(|id| self.expire(out, id));
        let expired = self.overdue(Phase::Expired);
        expired
            .into_iter()
            .for_each(|id| self.drop_event(out, id, false));
        let uploads = self
            .staging
            .iter()
            .filter(|(id, staged)| staged.until <= self.now.unix && !self.shares_time_of_event(id));
        let uploads: Vec<_> = uploads.map(|(id, _)| *id).collect();
        uploads
            .into_iter()
            .for_each(|id| self.drop_uploads(out, id));
    }

    /// Returns the next end of a phase or an upload.
    fn next_end(&self) -> Option<Timestamp> {
        let phases = [Phase::Waiting, Phase::Expired].into_iter();
        let ends = phases.filter_map(|phase| Some(self.held.deadlines(phase).next()?.0));
        let uploads = self
            .staging
            .iter()
            .filter(|(id, _)| !self.shares_time_of_event(id));
        ends.chain(uploads.map(|(_, staged)| staged.until)).min()
    }

    /// Returns whether the event of an upload waits itself; then the upload ends with it.
    fn shares_time_of_event(&self, id: &EventId) -> bool {
        self.held.get(id).is_some_and(HeldEvent::is_waiting)
    }

    /// Returns the events whose phase has ended and that no fetch or release under way may concern.
    fn overdue(&self, phase: Phase) -> Vec<EventId> {
        let mut overdue = Vec::new();
        for (end, held) in self.held.deadlines(phase) {
            if end > self.now.unix {
                break;
            }
            let hunters = self.wanted.hunters(&held.id());
            let mut repos = held.concerned.iter().chain(&hunters);
            if !repos.any(|repo| self.releases.is_busy(repo)) {
                overdue.push(held.id());
            }
        }
        overdue
    }

    /// Extends the time of events while servers that may have their data have not been asked yet.
    fn hunt_waiting(&mut self, out: &mut Outputs, repo: &RepoId) {
        let longest = self.config.hold_at_most.max(self.config.hold_for);
        let extended = self
            .hunted(repo)
            .filter(|held| held.until < held.since + longest);
        let ends: Vec<_> = extended
            .map(|held| (held.id(), held.since + longest))
            .collect();
        for (id, until) in ends {
            self.held.set_phase(out, id, Phase::Waiting, until);
        }
    }

    /// Notes the first answer: from then on, events with extended time have their usual time.
    fn hunt_answered(&mut self, repo: &RepoId) {
        if self.extended(repo).next().is_some() {
            self.releases.answered(repo, self.now.unix);
        }
    }

    /// Ends the extended time of events as if they had been received with the first answer: every server was asked.
    fn hunt_ended(&mut self, out: &mut Outputs, repo: &RepoId) {
        let first_answer = self.releases.take_first_answer(repo);
        let now = self.now.unix;
        let hold_for = self.config.hold_for;
        // Events received after the first answer have their own time.
        let end = |since: Timestamp| first_answer.map_or(now, |at| at.max(since)) + hold_for;
        let extended = self.extended(repo);
        let ends: Vec<_> = extended
            .map(|held| (held.id(), end(held.since).max(now)))
            .collect();
        for (id, until) in ends {
            self.held.set_phase(out, id, Phase::Waiting, until);
        }
    }

    /// Returns the waiting events that a repository hunts for, and those that are about it.
    fn hunted(&self, repo: &RepoId) -> impl Iterator<Item = &HeldEvent> {
        let mut ids: BTreeSet<EventId> = self.wanted.of(repo).collect();
        ids.extend(self.held.of(repo).map(HeldEvent::id));
        let held = ids.into_iter().filter_map(|id| self.held.get(&id));
        held.filter(|held| held.is_waiting())
    }

    /// Returns the events with more than their usual time left.
    fn extended(&self, repo: &RepoId) -> impl Iterator<Item = &HeldEvent> {
        let usual = self.hold_until();
        self.hunted(repo).filter(move |held| held.until > usual)
    }

    /// Ends the time in which an event is hunted for, and keeps the number of expired ones within its limit.
    fn expire(&mut self, out: &mut Outputs, id: EventId) {
        let Some(held) = self.held.get(&id) else {
            return;
        };
        let repo: Option<RepoId> = held.announcement().map(|a| a.repo.clone());
        let Config {
            remember_for,
            retry_expired_for,
            expired: limit,
            ..
        } = self.config;
        let term = if repo.is_some() {
            remember_for
        } else {
            retry_expired_for
        };
        self.held
            .set_phase(out, id, Phase::Expired, self.now.unix + term);
        if let Some(repo) = repo {
            self.tasks.add(
                out,
                CleanupTask::RemoveView {
                    repo,
                    is_immediate: false,
                },
            );
        }
        while !self.held.expired().is_within(limit) {
            let first = self
                .held
                .deadlines(Phase::Expired)
                .next()
                .map(|(_, held)| held.id());
            let Some(id) = first else { return };
            self.drop_event(out, id, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{Kind, Signature, Tag};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A strategy of announcements, states and pull requests of few authors under few identifiers.
    fn event(n: u8) -> Arc<Event> {
        let author = PublicKey::from_byte_array([n % 3 + 1; 32]);
        let name = if n.is_multiple_of(2) { "x" } else { "y" };
        let to = |name| format!("30617:{author}:{name}");
        let (kind, tags) = match n % 4 {
            0 | 1 => (
                30617 + u16::from(n % 8 / 4),
                vec![vec!["d".to_owned(), name.to_owned()]],
            ),
            _ => {
                let tip = vec!["c".to_owned(), "a".repeat(40)];
                (
                    1618,
                    vec![
                        vec!["a".to_owned(), to("x")],
                        vec!["a".to_owned(), to(name)],
                        tip,
                    ],
                )
            }
        };
        let id = EventId::from_slice(&[n; 32]).unwrap();
        let at = Timestamp::from_secs(u64::from(n));
        let tags = tags.into_iter().map(|tag| Tag::parse(tag).unwrap());
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        Arc::new(Event::new(
            id,
            author,
            at,
            Kind::from_u16(kind),
            tags,
            "",
            signature,
        ))
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = || (0..16u8).prop_map(|n| event(n).id);
        let phase = prop_oneof![Just(Phase::Waiting), Just(Phase::Expired)];
        let until = (0..5u64).prop_map(Timestamp::from_secs);
        let oid = (0..3u8).prop_map(|n| Oid::Sha1([n; 20]));
        let repo_of = |n| RepoId::new(PublicKey::from_byte_array([n; 32]), "x".parse().unwrap());
        let repo = move || repo_of(1);
        let target = (1..3u8).prop_flat_map(move |n| {
            prop_oneof![
                Just(PushTarget::Repository(repo_of(n))),
                Just(PushTarget::Contributor(repo_of(n)))
            ]
        });
        let task = prop_oneof![
            Just(CleanupTask::CreateView { repo: repo() }),
            Just(CleanupTask::RemoveView {
                repo: repo(),
                is_immediate: false
            }),
            Just(CleanupTask::RemoveView {
                repo: repo(),
                is_immediate: true
            }),
        ];
        prop_oneof![
            4 => (0..16u8, phase.clone(), until.clone())
                .prop_map(|(n, phase, until)| Record::Held {
                    event: event(n),
                    phase,
                    since: until,
                    until,
                }),
            3 => (id(), phase, until.clone())
                .prop_map(|(id, phase, until)| Record::Moved { id, phase, until }),
            2 => id().prop_map(|id| Record::Gone { id }),
            2 => (id(), oid.clone(), target, 0..9u64, until).prop_map(
                |(id, tip, target, bytes, until)| Record::Staged { id, tip, target, bytes, until },
            ),
            1 => (id(), proptest::option::of(oid))
                .prop_map(|(id, keep)| Record::Unstaged { id, keep }),
            1 => task.clone().prop_map(|task| Record::TaskAdded { task }),
            1 => task.prop_map(|task| Record::TaskDone { task }),
        ]
    }

    fn restore(records: Vec<Record>) -> Purgatory {
        let now = Now::new(Mono::ZERO, Timestamp::from_secs(0));
        let policy = Policy::new("grasp.example".parse().unwrap());
        Purgatory::restore(Config::default(), policy, records, now)
    }

    proptest! {
        #[test]
        fn the_records_restore_the_same_state_with_all_accounts(records in vec(record(), 0..60)) {
            let purgatory = restore(records);
            let again = restore(purgatory.records());
            prop_assert_eq!(format!("{again:?}"), format!("{purgatory:?}"));
        }

        #[test]
        fn removing_everything_leaves_nothing(mut records in vec(record(), 0..60)) {
            let tasks = restore(records.clone()).tasks;
            for n in 0..16 {
                let id = event(n).id;
                records.push(Record::Gone { id });
                records.push(Record::Unstaged { id, keep: None });
            }
            records.extend(tasks.iter().map(|task| Record::TaskDone { task: task.clone() }));
            prop_assert_eq!(format!("{:?}", restore(records)), format!("{:?}", restore(vec![])));
        }
    }
}
