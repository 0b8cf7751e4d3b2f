//! Commits of refs, packs and purgatory, as statements that every database executes.
//!
//! Parameters are written `?1`. A conflict is named by its columns, which all databases understand.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::deletion::{self, DeletionRequest};
use grasp_core::service::Endpoint;
use grasp_core::{RefName, RepoId, kinds};
use grasp_purgatory::database::{
    ADDITIONS_KEPT, Addition, Commit, Committed, Conflict, DataSource, Forget, Garbage, Generation,
    MaintainerChanges, ProposalChanges, QuotaChange, RepoChange, RetiredRef, ViewChange,
};
use grasp_purgatory::git::Refs;
use grasp_purgatory::{Phase, Record};
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::types::Value;
use serde::Serialize;

use super::git::SignedView;
use super::keys::{Digest, Keys, newest, seconds};
use super::policy::UsedAuth;
use super::rules::{Removal, Rows, Rules};
use super::{StoreError, failure, keeps_versions};

/// Retired refs of a repository after which older ones are forgotten; those of one time stay together.
const MAX_RETIRED_REFS: i64 = 10_000;

/// Branches and tags are only those that a state declares.
#[derive(Debug, thiserror::Error)]
#[error("branches or tags without a state that declares them")]
struct Unsigned;

/// The columns that identify a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RepoKey {
    pub(crate) endpoint: i64,
    pub(crate) identifier: String,
    pub(crate) owner: PublicKey,
}

impl RepoKey {
    pub(crate) fn new(endpoint: Endpoint, repo: &RepoId) -> Self {
        let identifier = repo.identifier.to_string();
        Self {
            endpoint: number(endpoint),
            identifier,
            owner: repo.owner,
        }
    }

    fn of(change: &RepoChange) -> Self {
        Self::new(change.endpoint, &change.repo)
    }

    /// Returns the parameters `?1` to `?3` of a statement, and those that follow.
    pub(crate) fn values(&self, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
        let mut values = vec![
            integer(self.endpoint),
            text(&self.identifier),
            blob(self.owner.as_bytes()),
        ];
        values.extend(more);
        values
    }
}

/// The rows of refs, packs and purgatory within one transaction.
pub(crate) trait GitRows: Rows + Sized {
    /// Returns the generation of a view that exists.
    fn generation(&self, key: &RepoKey) -> Result<Option<Generation>, StoreError>;

    /// Gives a view a generation that none had before.
    fn next_generation(&self, key: &RepoKey) -> Result<i64, StoreError>;

    /// Remembers an authorization; returns whether it had not been used before.
    fn use_auth(&self, auth: &UsedAuth) -> Result<bool, StoreError>;

    /// Takes note that a view is removed.
    fn view_removed(&self, _: &RepoKey) {}
}

impl<R: GitRows> Changes for R {}

/// Committing.
pub(crate) trait Changes: GitRows {
    /// Performs a commit, or returns why nothing of it happens.
    fn commit(&self, commit: &Commit) -> Result<Committed, StoreError> {
        if let Some(conflict) = self.conflict(commit)? {
            return Ok(Committed::Conflict(conflict));
        }
        // Views first: a state that another one replaces is then the state of no view.
        for change in &commit.repos {
            self.change_repo(change)?;
        }
        if !commit.withdraw.is_empty() {
            self.withdraw(&commit.withdraw)?;
        }
        let mut affected = self.progress().take_affected();
        let mut removed = BTreeSet::new();
        if !commit.save.is_empty() {
            // None of them is a request that would have to be continued.
            let (report, _) = self.save(&commit.save, commit.now)?;
            affected.extend(report.affected);
            removed = report.removed;
        }
        commit
            .records
            .iter()
            .try_for_each(|record| self.apply(record))?;
        commit
            .additions
            .iter()
            .try_for_each(|addition| self.add(addition))?;
        for change in &commit.quotas {
            self.change_quota(change)?;
        }
        Ok(Committed::Done { affected, removed })
    }

    fn conflict(&self, commit: &Commit) -> Result<Option<Conflict>, StoreError> {
        for change in &commit.repos {
            let Some(view) = &change.view else { continue };
            if self.generation(&RepoKey::of(change))? != view.from {
                return Ok(Some(Conflict::Moved(change.endpoint, change.repo.clone())));
            }
        }
        let mut refused = BTreeSet::new();
        for event in &commit.save {
            if !self.would_serve(event, commit.now)? {
                refused.insert(event.id);
            }
        }
        let saved: BTreeSet<EventId> = commit.save.iter().map(|event| event.id).collect();
        for id in commit.require.iter().filter(|id| !saved.contains(id)) {
            if self.served(id)?.is_none() {
                refused.insert(*id);
            }
        }
        Ok((!refused.is_empty()).then_some(Conflict::Refused(refused)))
    }

    fn change_repo(&self, change: &RepoChange) -> Result<(), StoreError> {
        let key = RepoKey::of(change);
        if let Some(view) = &change.view {
            self.change_view(&key, view)?;
        }
        for pack in &change.remove_packs {
            self.change(
                "DELETE FROM packs WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 AND name = ?4",
                key.values([text(&pack.name)]),
            )?;
        }
        for pack in &change.add_packs {
            self.change(
                "INSERT INTO packs (endpoint, identifier, owner, name, bytes)
                     VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (endpoint, identifier, owner, name)
                     DO UPDATE SET bytes = excluded.bytes, verified = excluded.verified",
                key.values([text(&pack.name), integer(seconds(pack.bytes))]),
            )?;
        }
        if let Some((name, at)) = &change.verified {
            self.change(
                "UPDATE packs SET verified = ?5
                     WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 AND name = ?4",
                key.values([text(name), time(*at)]),
            )?;
        }
        self.forget(&key, &change.forget)?;
        if change.is_collected {
            let collected =
                "DELETE FROM garbage WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            self.change(collected, key.values([]))?;
        }
        if let Some(garbage) = change.garbage {
            self.change(
                "INSERT INTO garbage (endpoint, identifier, owner, mark) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (endpoint, identifier, owner) DO UPDATE SET mark =
                     CASE WHEN garbage.mark > excluded.mark THEN garbage.mark ELSE excluded.mark END",
                key.values([integer(mark(garbage))]),
            )?;
        }
        Ok(())
    }

    fn change_view(&self, key: &RepoKey, view: &ViewChange) -> Result<(), StoreError> {
        self.retire(key, &view.retired)?;
        self.note_proposals(key, &view.proposals)?;
        self.forget_maintainers(key, &view.maintained.removed)?;
        let state = view.state.filter(|_| view.to.is_some());
        self.forget_state(key, state)?;
        let Some(refs) = &view.to else {
            self.view_removed(key);
            let removed =
                "DELETE FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3";
            return self.change(removed, key.values([]));
        };
        let generation = self.next_generation(key)?;
        self.note_maintainers(key, &view.maintained.added, generation)?;
        match state {
            Some(state) => self.note_state(&state, refs)?,
            None if refs.encode_declared().is_empty() => {}
            None => return Err(failure(Unsigned)),
        }
        let mut maintainers = Vec::with_capacity(32 * view.maintainers.len());
        for maintainer in &view.maintainers {
            maintainers.extend_from_slice(maintainer.as_bytes());
        }
        self.change(
            "INSERT INTO views
                 (endpoint, identifier, owner, generation, proposals, state, maintainers, shows)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT (endpoint, identifier, owner) DO UPDATE SET
                     generation = excluded.generation, proposals = excluded.proposals,
                     state = excluded.state, maintainers = excluded.maintainers,
                     shows = excluded.shows",
            key.values([
                integer(generation),
                Value::Text(refs.encode_proposals()),
                state.map_or(Value::Null, |state| blob(state.as_bytes())),
                Value::Blob(maintainers),
                view.shows
                    .map_or(Value::Null, |owner| blob(owner.as_bytes())),
            ]),
        )
    }

    /// Notes what a state declares, once for all repositories that show it.
    fn note_state(&self, state: &EventId, refs: &Refs) -> Result<(), StoreError> {
        self.change(
            "INSERT INTO states (id, head, refs) VALUES (?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET head = excluded.head, refs = excluded.refs
                 WHERE states.head <> excluded.head OR states.refs <> excluded.refs",
            vec![
                blob(state.as_bytes()),
                text(refs.head.as_str()),
                Value::Text(refs.encode_declared()),
            ],
        )
    }

    /// Forgets the state of a repository that will show another one, or none, unless others show it.
    fn forget_state(&self, key: &RepoKey, next: Option<EventId>) -> Result<(), StoreError> {
        self.change(
            "DELETE FROM states WHERE id = (SELECT state FROM views
                     WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3)
                 AND id <> ?4 AND NOT EXISTS (SELECT 1 FROM views v WHERE v.state = states.id
                     AND (v.endpoint <> ?1 OR v.identifier <> ?2 OR v.owner <> ?3))",
            key.values([next.map_or_else(|| blob(&[]), |next| blob(next.as_bytes()))]),
        )
    }

    fn retire(&self, key: &RepoKey, tips: &[RetiredRef]) -> Result<(), StoreError> {
        for retired in tips {
            self.change(
                "INSERT INTO retired_refs (endpoint, identifier, owner, tip, name, since)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT (endpoint, identifier, owner, tip)
                     DO UPDATE SET name = excluded.name, since = excluded.since",
                key.values([
                    text(&retired.tip.to_string()),
                    text(retired.name.as_str()),
                    time(retired.since),
                ]),
            )?;
        }
        if !tips.is_empty() {
            self.change(
                "DELETE FROM retired_refs WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3
                     AND since < (SELECT since FROM retired_refs
                         WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3
                         ORDER BY since DESC LIMIT 1 OFFSET ?4)",
                key.values([integer(MAX_RETIRED_REFS - 1)]),
            )?;
        }
        Ok(())
    }

    /// Notes where pull requests have refs.
    fn note_proposals(&self, key: &RepoKey, proposals: &ProposalChanges) -> Result<(), StoreError> {
        for id in &proposals.added {
            self.change(
                "INSERT INTO proposal_refs (endpoint, identifier, owner, event)
                     VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (event, endpoint, identifier, owner) DO NOTHING",
                key.values([blob(id.as_bytes())]),
            )?;
        }
        for id in &proposals.removed {
            self.change(
                "DELETE FROM proposal_refs
                     WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 AND event = ?4",
                key.values([blob(id.as_bytes())]),
            )?;
        }
        Ok(())
    }

    /// Notes who maintains a repository, and since which generation.
    fn note_maintainers(
        &self,
        key: &RepoKey,
        added: &BTreeSet<PublicKey>,
        generation: i64,
    ) -> Result<(), StoreError> {
        for maintainer in added {
            self.change(
                "INSERT INTO maintained (endpoint, identifier, owner, maintainer, since)
                     VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (endpoint, identifier, maintainer, owner) DO NOTHING",
                key.values([blob(maintainer.as_bytes()), integer(generation)]),
            )?;
        }
        Ok(())
    }

    fn forget_maintainers(
        &self,
        key: &RepoKey,
        removed: &BTreeSet<PublicKey>,
    ) -> Result<(), StoreError> {
        for maintainer in removed {
            self.change(
                "DELETE FROM maintained WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3
                     AND maintainer = ?4",
                key.values([blob(maintainer.as_bytes())]),
            )?;
        }
        Ok(())
    }

    fn forget(&self, key: &RepoKey, forget: &Forget) -> Result<(), StoreError> {
        match forget {
            Forget::Nothing => Ok(()),
            Forget::All => self.change(
                "DELETE FROM retired_refs WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
                key.values([]),
            ),
            Forget::Before(since) => self.change(
                "DELETE FROM retired_refs
                     WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 AND since < ?4",
                key.values([time(*since)]),
            ),
            Forget::Tips(tips) => {
                for tip in tips {
                    self.change(
                        "DELETE FROM retired_refs
                             WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3 AND tip = ?4",
                        key.values([text(&tip.to_string())]),
                    )?;
                }
                Ok(())
            }
        }
    }

    /// Counts an addition, and forgets old ones.
    fn add(&self, addition: &Addition) -> Result<(), StoreError> {
        let author = addition
            .author
            .map_or_else(Vec::new, |author| author.to_bytes().to_vec());
        self.change(
            "INSERT INTO additions (at, identifier, owner, author, kind, bytes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (at, identifier, owner, author, kind)
                 DO UPDATE SET bytes = additions.bytes + excluded.bytes",
            vec![
                time(addition.at),
                text(addition.repo.identifier.as_str()),
                blob(addition.repo.owner.as_bytes()),
                Value::Blob(author),
                integer(kind_of(addition)),
                integer(seconds(addition.bytes)),
            ],
        )?;
        self.change(
            "DELETE FROM additions WHERE at < ?1",
            vec![integer(seconds(
                addition.at.as_secs().saturating_sub(ADDITIONS_KEPT),
            ))],
        )
    }

    /// Sets or removes a quota that the operator gives.
    fn change_quota(&self, change: &QuotaChange) -> Result<(), StoreError> {
        let subject = text(&change.subject.to_string());
        match change.bytes {
            Some(bytes) => self.change(
                "INSERT INTO quotas (subject, bytes) VALUES (?1, ?2)
                     ON CONFLICT (subject) DO UPDATE SET bytes = excluded.bytes",
                vec![subject, integer(seconds(bytes))],
            ),
            None => self.change("DELETE FROM quotas WHERE subject = ?1", vec![subject]),
        }
    }

    /// Applies one change of purgatory.
    fn apply(&self, record: &Record) -> Result<(), StoreError> {
        match record {
            Record::Held {
                event,
                phase,
                since,
                until,
            } => self.change(
                "INSERT INTO held (id, phase, since, until, event) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (id) DO UPDATE SET phase = excluded.phase, since = excluded.since,
                         until = excluded.until, event = excluded.event",
                vec![
                    blob(event.id.as_bytes()),
                    integer(phase_number(*phase)),
                    time(*since),
                    time(*until),
                    Value::Text(event.as_json()),
                ],
            ),
            Record::Moved { id, phase, until } => self.change(
                "UPDATE held SET phase = ?2, until = ?3 WHERE id = ?1",
                vec![
                    blob(id.as_bytes()),
                    integer(phase_number(*phase)),
                    time(*until),
                ],
            ),
            Record::Gone { id } => {
                self.change("DELETE FROM held WHERE id = ?1", vec![blob(id.as_bytes())])
            }
            Record::Staged { .. } => self.stage(record),
            Record::Unstaged { id, keep } => self.change(
                "DELETE FROM staged WHERE id = ?1 AND tip <> ?2",
                vec![
                    blob(id.as_bytes()),
                    text(&keep.map(|tip| tip.to_string()).unwrap_or_default()),
                ],
            ),
            Record::TaskAdded { task } => self.change(
                "INSERT INTO tasks (key, task) VALUES (?1, ?2)
                     ON CONFLICT (key) DO UPDATE SET task = excluded.task",
                vec![Value::Text(task.key()), to_json(task)?],
            ),
            Record::TaskDone { task } => self.change(
                "DELETE FROM tasks WHERE key = ?1 AND task = ?2",
                vec![Value::Text(task.key()), to_json(task)?],
            ),
        }
    }

    fn stage(&self, record: &Record) -> Result<(), StoreError> {
        let Record::Staged {
            id,
            tip,
            target,
            bytes,
            until,
        } = record
        else {
            return Ok(());
        };
        self.change(
            "INSERT INTO staged (id, tip, place, target, bytes, until)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (id, tip, place) DO UPDATE SET target = excluded.target,
                     bytes = excluded.bytes, until = excluded.until",
            vec![
                blob(id.as_bytes()),
                text(&tip.to_string()),
                Value::Text(target.upload_key()),
                to_json(target)?,
                integer(seconds(*bytes)),
                time(*until),
            ],
        )?;
        self.change(
            "UPDATE staged SET until = ?2 WHERE id = ?1",
            vec![blob(id.as_bytes()), time(*until)],
        )
    }
}

/// Returns the change of a repository by the removal of an event that signed for some of its refs; `None` if it has none.
pub(crate) fn refs_removal(
    event: &Event,
    signed: SignedView,
    removal: Removal,
) -> Option<RepoChange> {
    let (endpoint, repo, view) = signed;
    if matches!(removal, Removal::Hidden(_)) && repo.owner == event.pubkey {
        return None;
    }
    let is_gone = |name: &RefName| match event.kind {
        kind if kind == kinds::ANNOUNCEMENT => true,
        kind if kind == kinds::STATE => name.is_branch_or_tag(),
        _ => name.event() == Some(event.id),
    };
    let shows = view.shows.filter(|_| event.kind != kinds::ANNOUNCEMENT);
    // A state may declare no refs at all.
    let takes_state = event.kind == kinds::ANNOUNCEMENT || view.state == Some(event.id);
    let state = view.state.filter(|_| !takes_state);
    if !view.refs.refs.keys().any(is_gone) && shows == view.shows && state == view.state {
        return None;
    }
    let mut left = Refs::clone(&view.refs);
    left.refs.retain(|name, _| !is_gone(name));
    let mut tips = Vec::new();
    if let Some(since) = removal.retires(event.kind) {
        for (tip, name) in view.refs.all_retired_by(&left) {
            tips.push(RetiredRef { tip, name, since });
        }
    }
    let mut change = RepoChange::new(endpoint, repo);
    change.garbage = Some(Garbage::Removed);
    change.view = Some(ViewChange {
        maintained: MaintainerChanges::between(Some(&view), &view.maintainers, shows),
        from: Some(view.generation),
        state,
        maintainers: view.maintainers,
        shows,
        retired: tips,
        proposals: ProposalChanges::between(&view.refs, &left),
        to: Some(Arc::new(left)),
    });
    Some(change)
}

/// Returns the endpoint of its number.
pub(crate) fn endpoint(number: i64) -> Endpoint {
    if number == 0 {
        Endpoint::Repository
    } else {
        Endpoint::PullRequests
    }
}

pub(crate) fn number(endpoint: Endpoint) -> i64 {
    match endpoint {
        Endpoint::Repository => 0,
        Endpoint::PullRequests => 1,
    }
}

/// Bits of an addition's kind.
const AUTHORITY: i64 = 1;
const HUNTED: i64 = 2;

fn kind_of(addition: &Addition) -> i64 {
    let authority = if addition.has_authority { AUTHORITY } else { 0 };
    let source = if addition.source == DataSource::Hunted {
        HUNTED
    } else {
        0
    };
    authority | source
}

/// Returns from its column whether an addition came with authority, and its source.
pub(crate) fn addition_kind(kind: i64) -> (bool, DataSource) {
    let source = if kind & HUNTED != 0 {
        DataSource::Hunted
    } else {
        DataSource::Pushed
    };
    (kind & AUTHORITY != 0, source)
}

fn mark(garbage: Garbage) -> i64 {
    match garbage {
        Garbage::Moved => 1,
        Garbage::Removed => 2,
    }
}

/// Returns the mark of a repository from its column.
pub(crate) fn garbage(mark: i64) -> Garbage {
    if mark == 1 {
        Garbage::Moved
    } else {
        Garbage::Removed
    }
}

fn phase_number(phase: Phase) -> i64 {
    match phase {
        Phase::Waiting => 0,
        Phase::Expired => 1,
    }
}

/// Returns the phase of a held event from its column.
pub(crate) fn phase(number: i64) -> Phase {
    if number == 0 {
        Phase::Waiting
    } else {
        Phase::Expired
    }
}

pub(crate) fn integer(number: impl Into<i64>) -> Value {
    Value::Integer(number.into())
}

pub(crate) fn time(time: Timestamp) -> Value {
    Value::Integer(seconds(time.as_secs()))
}

pub(crate) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub(crate) fn blob(bytes: &[u8]) -> Value {
    Value::Blob(bytes.to_vec())
}

fn to_json(value: &impl Serialize) -> Result<Value, StoreError> {
    serde_json::to_string(value)
        .map(Value::Text)
        .map_err(failure)
}

/// The keys of rows that tasks need.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Events of which the existence matters.
    pub(crate) ids: Vec<[u8; 32]>,
    /// Events and kept versions that may be removed.
    pub(crate) targets: Vec<[u8; 32]>,
    pub(crate) authors: Vec<[u8; 32]>,
    pub(crate) coordinates: Vec<Digest>,
    /// Coordinates whose versions are kept.
    pub(crate) kept: Vec<Digest>,
    pub(crate) gates: Vec<Digest>,
    pub(crate) requests: Vec<([u8; 32], [u8; 32])>,
    pub(crate) vanishing: Vec<(Digest, [u8; 32], i64)>,
    /// The time up to which expired events are removed.
    pub(crate) expired: Option<i64>,
    /// The time of a sweep.
    pub(crate) swept: Option<Timestamp>,
    pub(crate) views: Vec<RepoKey>,
    /// Authorizations that may have been used.
    pub(crate) auth: Vec<[u8; 32]>,
}

impl Wanted {
    /// Adds what saving or checking an event needs.
    pub(crate) fn event(&mut self, keys: &Keys, event: &Event) {
        self.ids.push(event.id.to_bytes());
        self.authors.push(event.pubkey.to_bytes());
        if deletion::is_deletable(event.kind) {
            self.gates.push(keys.own_event(&event.pubkey, &event.id));
        }
        if let Some(coordinate) = deletion::coordinate(event) {
            self.coordinate(keys, &coordinate);
            if keeps_versions(event.kind) {
                self.targets.push(event.id.to_bytes());
            }
        }
        if event.kind == Kind::EventDeletion {
            self.requests
                .push((event.pubkey.to_bytes(), event.id.to_bytes()));
        }
        self.request(keys, event);
    }

    /// Adds what carrying out a request needs; nothing for other kinds.
    pub(crate) fn request(&mut self, keys: &Keys, event: &Event) {
        if event.kind == Kind::RequestToVanish {
            let list = keys.author(&event.pubkey);
            self.vanishing
                .push((list, event.pubkey.to_bytes(), newest(event.created_at)));
        }
        if event.kind == Kind::EventDeletion {
            let request = DeletionRequest::parse(event).unwrap_or_default();
            self.targets
                .extend(request.ids.iter().map(|id| id.to_bytes()));
            request
                .coordinates
                .iter()
                .for_each(|coordinate| self.coordinate(keys, coordinate));
        }
    }

    /// Adds the versions of a coordinate.
    pub(crate) fn coordinate(&mut self, keys: &Keys, coordinate: &Coordinate) {
        let key = keys.coordinate(coordinate);
        self.coordinates.push(key);
        self.gates.push(key);
        if keeps_versions(coordinate.kind) {
            self.kept.push(key);
        }
    }

    pub(crate) fn save(&mut self, keys: &Keys, events: &[Arc<Event>], now: Timestamp) {
        events.iter().for_each(|event| self.event(keys, event));
        self.expired = self.expired.max(Some(seconds(now.as_secs())));
    }

    pub(crate) fn remove(&mut self, ids: &[EventId]) {
        self.targets.extend(ids.iter().map(|id| id.to_bytes()));
    }

    pub(crate) fn commit(&mut self, keys: &Keys, commit: &Commit) {
        for change in commit.repos.iter().filter(|change| change.view.is_some()) {
            self.views.push(RepoKey::of(change));
        }
        self.remove(&commit.withdraw);
        self.ids
            .extend(commit.require.iter().map(|id| id.to_bytes()));
        if !commit.save.is_empty() {
            self.save(keys, &commit.save, commit.now);
        }
    }

    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.expired = self.expired.max(Some(seconds(now.as_secs())));
        self.swept = self.swept.max(Some(now));
    }

    /// Adds what another write needs.
    #[cfg(feature = "postgres")]
    pub(crate) fn add(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.targets.extend(other.targets);
        self.authors.extend(other.authors);
        self.coordinates.extend(other.coordinates);
        self.kept.extend(other.kept);
        self.gates.extend(other.gates);
        self.requests.extend(other.requests);
        self.vanishing.extend(other.vanishing);
        self.expired = self.expired.max(other.expired);
        self.swept = self.swept.max(other.swept);
        self.views.extend(other.views);
        self.auth.extend(other.auth);
    }
}
