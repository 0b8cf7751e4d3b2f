//! An event store that fails or waits on demand and counts queries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use grasp_core::admission::{Policy, Rejection};
use grasp_core::nip34::References;
use grasp_core::policy::{HiddenCause, PolicyList};
use grasp_core::quota::QuotaSubject;
use grasp_core::service::Endpoint;
use grasp_core::{RepoId, Version};
use grasp_purgatory::Record;
use grasp_purgatory::database::{
    Addition, Commit, Committed, Database, DatabaseError, DatabaseFuture, Pack, RepoRow,
    RetiredRef, View, ViewHead,
};
use grasp_relay::store::policy::{
    AuditPage, AuditRow, HeldRepo, HideStep, Override, PolicyChange, PolicyChanged, PolicyEntry,
    PolicyStore, RestoreStep, Role, RoleMember, UsedAuth,
};
use grasp_relay::store::{
    EventChunks, EventStore, Inventory, Present, SaveReport, Store, StoreFuture, SweepReport,
};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use tokio::sync::watch;

use crate::StoreWrapper;

/// A switch: while it is on, commits of state events fail. Commits can be held back, too.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    on: Arc<AtomicBool>,
    queries: Arc<AtomicUsize>,
    holds: watch::Sender<bool>,
    held_back: watch::Sender<usize>,
}

impl Fault {
    /// Returns a wrapper that applies this fault to the store of an instance.
    pub fn store_wrapper(&self) -> StoreWrapper {
        let fault = self.clone();
        Arc::new(move |store| {
            Arc::new(FaultyStore {
                store,
                fault: fault.clone(),
            })
        })
    }

    /// Returns the number of queries so far.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::SeqCst)
    }

    /// Holds back all commits and saves of events, until [`Self::let_commits_go`].
    pub fn hold_commits(&self) {
        self.holds.send_replace(true);
    }

    /// Lets commits go that were held back.
    pub fn let_commits_go(&self) {
        self.holds.send_replace(false);
    }

    /// Waits until a commit has been held back.
    pub async fn until_commit_is_held(&self) {
        let mut held_back = self.held_back.subscribe();
        _ = held_back.wait_for(|count| *count > 0).await;
    }

    /// Waits for as long as commits are held back.
    async fn pass(&self) {
        let mut holds = self.holds.subscribe();
        if *holds.borrow() {
            self.held_back.send_modify(|count| *count += 1);
            _ = holds.wait_for(|holds| !holds).await;
        }
    }

    /// Switches the fault on or off.
    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }
}

struct FaultyStore {
    store: Arc<dyn Store>,
    fault: Fault,
}

impl Database for FaultyStore {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        let state = commit
            .save
            .iter()
            .any(|event| event.kind == grasp_core::kinds::STATE);
        if state && self.fault.on.load(Ordering::SeqCst) {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Box::pin(std::future::ready(Err(DatabaseError::Failed(Box::new(
                error,
            )))));
        }
        Box::pin(async move {
            self.fault.pass().await;
            self.store.commit(commit).await
        })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        self.store.view(endpoint, repo)
    }

    fn view_head(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<ViewHead>> {
        self.store.view_head(endpoint, repo)
    }

    fn row(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, RepoRow> {
        self.store.row(endpoint, repo)
    }

    fn retired(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Vec<RetiredRef>> {
        self.store.retired(endpoint, repo)
    }

    fn packs(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeMap<RepoId, BTreeSet<Pack>>> {
        self.store.packs(endpoint)
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        self.store.repositories(endpoint)
    }

    fn maintained(
        &self,
        endpoint: Endpoint,
        repo: RepoId,
        most: usize,
    ) -> DatabaseFuture<'_, Vec<PublicKey>> {
        self.store.maintained(endpoint, repo, most)
    }

    fn all(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<RepoId>> {
        self.store.all(endpoint)
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        self.store.records()
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        self.store.additions(since)
    }

    fn quotas(&self) -> DatabaseFuture<'_, BTreeMap<QuotaSubject, u64>> {
        self.store.quotas()
    }

    fn git_usage(&self, owner: Option<PublicKey>) -> DatabaseFuture<'_, BTreeMap<RepoId, u64>> {
        self.store.git_usage(owner)
    }

    fn git_bytes(&self) -> DatabaseFuture<'_, u64> {
        self.store.git_bytes()
    }
}

impl EventStore for FaultyStore {
    fn save_events(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, SaveReport> {
        Box::pin(async move {
            self.fault.pass().await;
            self.store.save_events(events, now).await
        })
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Rejection>>> {
        self.store.refusals(events, now)
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        self.fault.queries.fetch_add(1, Ordering::SeqCst);
        self.store.query(filters, now)
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        self.store.count(filters, now)
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        self.fault.queries.fetch_add(1, Ordering::SeqCst);
        self.store.exists(questions, now)
    }

    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present> {
        self.fault.queries.fetch_add(1, Ordering::SeqCst);
        self.store.present(named, now)
    }

    fn heads(&self, coordinates: Vec<Coordinate>, now: Timestamp) -> StoreFuture<'_, Vec<Event>> {
        self.store.heads(coordinates, now)
    }

    fn keeps(&self, coordinate: Coordinate) -> StoreFuture<'_, bool> {
        self.store.keeps(coordinate)
    }

    fn listing(&self, repo: RepoId, most: usize) -> StoreFuture<'_, Vec<PublicKey>> {
        self.store.listing(repo, most)
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        self.store.inventory(filter, now, max)
    }

    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        self.store.superseded(coordinate)
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        self.store.remove(ids)
    }

    fn delist(&self, coordinate: Coordinate, by: Version, now: Timestamp) -> StoreFuture<'_, u64> {
        self.store.delist(coordinate, by, now)
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>> {
        self.store.delisted(coordinates)
    }

    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, SweepReport> {
        self.store.sweep(now)
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        self.store.probe()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.store.close()
    }
}

impl PolicyStore for FaultyStore {
    fn change_policy(&self, change: PolicyChange) -> StoreFuture<'_, PolicyChanged> {
        self.store.change_policy(change)
    }

    fn see_auth(&self, auth: UsedAuth, now: Timestamp) -> StoreFuture<'_, bool> {
        self.store.see_auth(auth, now)
    }

    fn policy_version(&self) -> StoreFuture<'_, u64> {
        self.store.policy_version()
    }

    fn policy_entries(&self, list: Option<PolicyList>) -> StoreFuture<'_, Vec<PolicyEntry>> {
        self.store.policy_entries(list)
    }

    fn held_repos(&self) -> StoreFuture<'_, Vec<HeldRepo>> {
        self.store.held_repos()
    }

    fn roles(&self) -> StoreFuture<'_, Vec<Role>> {
        self.store.roles()
    }

    fn role_members(&self) -> StoreFuture<'_, Vec<RoleMember>> {
        self.store.role_members()
    }

    fn overrides(&self) -> StoreFuture<'_, BTreeMap<String, Override>> {
        self.store.overrides()
    }

    fn audit(&self, page: AuditPage) -> StoreFuture<'_, Vec<AuditRow>> {
        self.store.audit(page)
    }

    fn hide(
        &self,
        cause: HiddenCause,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep> {
        self.store.hide(cause, until, now)
    }

    fn restore(
        &self,
        cause: HiddenCause,
        policy: Arc<Policy>,
        now: Timestamp,
    ) -> StoreFuture<'_, RestoreStep> {
        self.store.restore(cause, policy, now)
    }

    fn hidden_causes(&self) -> StoreFuture<'_, BTreeSet<HiddenCause>> {
        self.store.hidden_causes()
    }

    fn unannounced(&self) -> StoreFuture<'_, BTreeMap<RepoId, EventId>> {
        self.store.unannounced()
    }

    fn hide_dependents(
        &self,
        repo: RepoId,
        events: Vec<EventId>,
        until: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<'_, HideStep> {
        self.store.hide_dependents(repo, events, until, now)
    }

    fn forget_unannounced(&self, repo: RepoId) -> StoreFuture<'_, ()> {
        self.store.forget_unannounced(repo)
    }

    fn hidden(&self, ids: Vec<EventId>) -> StoreFuture<'_, BTreeSet<EventId>> {
        self.store.hidden(ids)
    }
}
