//! The context of the hunt: reads what is missing from purgatory and the store, fetches it within the limits, and reports
//! to purgatory.

mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{CloneUrl, Identifier, Now, Oid, RelayUrl, kinds};
use grasp_purgatory::git::{Fetched, Fetcher};
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntHandle, HuntReport, Scope, SyncContext,
    hunt,
};
use grasp_purgatory::{Input, Phase, Purgatory, Want, select_addresses};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::{mpsc, oneshot};

use super::Order;
use super::disk::{Addition, MAX_PROPOSAL_FETCH};
use super::lane::LaneExecutor;
use super::refs::DriverError;
use super::survey::{MAX_OTHER_FAMILIES, addressed_to};

/// The parts of the hunt.
#[derive(Clone)]
pub struct HuntParts {
    /// Limits and times of the hunt.
    pub config: HuntConfig,
    /// Fetches from git servers.
    pub fetcher: Fetcher,
    /// Called with every report. Must not block.
    pub observer: HuntObserver,
    /// Returns the class of the git server of a relay.
    pub classify: Classify,
}

/// Returns the class of the git server of this relay, if its relay information tells.
pub type Classify =
    Arc<dyn Fn(RelayUrl) -> Pin<Box<dyn Future<Output = Option<HostClass>> + Send>> + Send + Sync>;

/// Counts reports of the hunt.
pub type HuntObserver = Arc<dyn Fn(&HuntReport) + Send + Sync>;

/// Implements [`SyncContext`] for the hunt. Does not keep the driver alive: the hunt ends with it.
pub(super) struct HuntContext {
    executor: LaneExecutor,
    orders: mpsc::WeakSender<Order>,
    fetcher: Fetcher,
    observer: HuntObserver,
    classify: Classify,
    /// Reports to purgatory, in their order.
    reports: mpsc::UnboundedSender<Input>,
}

impl HuntContext {
    pub(super) fn hunt(
        parts: HuntParts,
        executor: LaneExecutor,
        orders: mpsc::WeakSender<Order>,
    ) -> HuntHandle {
        let HuntParts { config, fetcher, observer, classify } = parts;
        log::begin(&config);
        let (reports, inbox) = mpsc::unbounded_channel();
        tokio::spawn(forward(inbox, orders.clone()));
        hunt(config, Arc::new(Self { executor, orders, fetcher, observer, classify, reports }))
    }

    async fn try_wants(
        &self,
        identifier: &Identifier,
        scope: Scope,
    ) -> Result<Vec<Want>, DriverError> {
        let is_damaged = self.executor.damage.is_damaged(identifier);
        let scope = if is_damaged { Scope::Everything } else { scope };
        let events = self.executor.events(named(kinds::ANNOUNCEMENT, identifier)).await?;
        let stored: Vec<_> = read(&events, |event| Announcement::parse(event).ok());
        let (mut wants, families) = self.kept(identifier, stored.clone()).await?;
        match scope {
            Scope::Waiting => wants.retain(|want| want.phase == Phase::Waiting),
            Scope::Everything => wants.extend(self.served(identifier, &stored).await?),
        }
        let tips = wants.iter().flat_map(|want| want.tips.iter().copied()).collect();
        let lacking = self.executor.parts.repos.lacking(identifier, &tips).await?;
        wants.iter_mut().for_each(|want| want.tips.retain(|tip| lacking.contains(tip)));
        self.look_elsewhere(&mut wants, &families).await?;
        let is_here = |want: &Want| want.phase == Phase::Waiting && want.tips.is_empty();
        if wants.iter().any(is_here) {
            // The fetch or push of the last object causes a survey. In case it did not:
            let changed = Input::Changed { identifier: identifier.clone() };
            self.order(Order::Tell(changed)).await?;
        }
        wants.retain(|want| !want.tips.is_empty());
        Ok(wants)
    }

    /// Returns what purgatory wants, and the families in which each of its pull requests may be complete.
    async fn kept(
        &self,
        identifier: &Identifier,
        stored: Vec<Announcement>,
    ) -> Result<(Vec<Want>, BTreeMap<EventId, BTreeSet<Identifier>>), DriverError> {
        let name = identifier.clone();
        let question = move |purgatory: &Purgatory| {
            let proposals = purgatory.proposals(&name).into_iter();
            let families = proposals.map(|kept| (kept.id, kept.families)).collect();
            (purgatory.wants(&name, &stored), families)
        };
        self.ask(question).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let (reply, answer) = oneshot::channel();
        let question = move |purgatory: &Purgatory| _ = reply.send(question(purgatory));
        self.order(Order::Ask(Box::new(question))).await?;
        answer.await.map_err(|_| DriverError::Gone)
    }

    async fn order(&self, order: Order) -> Result<(), DriverError> {
        let orders = self.orders.upgrade().ok_or(DriverError::Gone)?;
        orders.send(order).await.map_err(|_| DriverError::Gone)
    }

    /// Removes the tips of pull requests that are complete in another family that they are addressed to. Each family is
    /// read once for all of them.
    async fn look_elsewhere(
        &self,
        wants: &mut [Want],
        families: &BTreeMap<EventId, BTreeSet<Identifier>>,
    ) -> Result<(), DriverError> {
        let names = |want: &Want, family: &Identifier| {
            !want.tips.is_empty() && families.get(&want.id).is_some_and(|all| all.contains(family))
        };
        let open = wants.iter().filter(|want| !want.tips.is_empty());
        let named = open.filter_map(|want| families.get(&want.id)).flatten().cloned().collect();
        let named = self.executor.parts.repos.existing(named).await?;
        for family in named.into_iter().take(MAX_OTHER_FAMILIES) {
            let there = wants.iter().filter(|want| names(want, &family));
            let tips = there.flat_map(|want| want.tips.iter().copied()).collect();
            let lacking = self.executor.parts.repos.lacking(&family, &tips).await?;
            for want in wants.iter_mut().filter(|want| names(want, &family)) {
                want.tips.retain(|tip| lacking.contains(tip));
            }
        }
        Ok(())
    }

    /// Returns the tips of served events, which restores objects that were lost on disk.
    async fn served(
        &self,
        identifier: &Identifier,
        announcements: &[Announcement],
    ) -> Result<Vec<Want>, DriverError> {
        let want = |id, tips, owners: &[PublicKey], untrusted: &[CloneUrl]| {
            // Servers of its own owners come first: other announcements of the name may list thousands.
            let is_owners = |a: &&Announcement| owners.contains(&a.repo.owner);
            let own = announcements.iter().filter(is_owners);
            let others = announcements.iter().filter(|a| !is_owners(a));
            let trusted = self.places(own.chain(others).flat_map(|a| &a.clone));
            let untrusted = self.places(untrusted.iter().filter(|url| !trusted.contains(url)));
            Want { id, phase: Phase::Expired, tips, trusted, untrusted }
        };
        let events = self.executor.events(named(kinds::STATE, identifier)).await?;
        let states = read(&events, |event| State::parse(event).ok());
        let states = states.iter().filter_map(|state| {
            Some(want(state.version.id, state.tips()?, &[state.repo.owner], &[]))
        });
        let repos = announcements.iter().map(|announcement| announcement.repo.clone());
        let events = self.executor.events(addressed_to(repos)).await?;
        let proposals = read(&events, |event| Proposal::parse(event).ok());
        let proposals = proposals.iter().map(|p| {
            let owners: Vec<_> = p.repos.iter().map(|repo| repo.owner).collect();
            want(p.id, vec![p.tip], &owners, &p.clone)
        });
        Ok(states.chain(proposals).collect())
    }

    /// Selects addresses of git servers.
    fn places<'a>(&self, urls: impl Iterator<Item = &'a CloneUrl> + Clone) -> Vec<CloneUrl> {
        select_addresses(urls, &self.executor.parts.policy.service, self.now().unix)
    }

    /// Returns the identifiers with a view, and those of expired events.
    async fn try_identifiers(&self) -> Result<BTreeSet<Identifier>, DriverError> {
        let mut identifiers = self.ask(|purgatory| purgatory.wanting(Phase::Expired)).await?;
        let views = self.executor.parts.repos.repositories().await?;
        identifiers.extend(views.into_iter().map(|repo| repo.identifier));
        Ok(identifiers)
    }
}

impl SyncContext for HuntContext {
    fn now(&self) -> Now {
        self.executor.parts.clock.now()
    }

    async fn wants(&self, identifier: &Identifier, scope: Scope) -> Option<Vec<Want>> {
        let wants = self.try_wants(identifier, scope).await;
        wants
            .inspect_err(
                |error| tracing::warn!(%error, %identifier, "could not read what to hunt for"),
            )
            .ok()
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        self.fetcher.list(url, wanted).await
    }

    async fn classify(&self, relay: &RelayUrl) -> Option<HostClass> {
        (self.classify)(relay.clone()).await
    }

    async fn fetch(
        &self,
        identifier: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Fetched {
        let Some(_under_way) = UnderWay::begin(&self.orders, identifier).await else {
            return Fetched::nothing(FetchError::Cancelled);
        };
        let (name, wanted) = (identifier.clone(), oids.clone());
        let question = move |purgatory: &Purgatory| purgatory.wanted_for(&name, &wanted);
        let Ok(wanted_for) = self.ask(question).await else {
            return Fetched::nothing(FetchError::Cancelled);
        };
        let Some((claimant, is_proposal)) = wanted_for else {
            // Objects of served events that were lost are fetched without a limit.
            return self.fetcher.fetch(identifier, url, oids, answered).await;
        };
        let (disk, now) = (&self.executor.disk, self.now().mono);
        let room = disk.room(now, identifier, &claimant, Addition::Hunted);
        let left = match disk.family_room(&self.executor.parts.repos, identifier, &claimant).await {
            Ok(left) => left,
            Err(error) => return Fetched::nothing(FetchError::Internal(error.to_string())),
        };
        let room = room.min(left);
        if room == 0 {
            return Fetched::nothing(FetchError::TooLarge);
        }
        let most = if is_proposal { room.min(MAX_PROPOSAL_FETCH) } else { room };
        let fetcher = self.fetcher.clone().within(most);
        let fetched = fetcher.fetch(identifier, url, oids, answered).await;
        disk.charge(now, identifier, &claimant, (Addition::Hunted, fetched.bytes));
        fetched
    }

    async fn identifiers(&self) -> BTreeSet<Identifier> {
        let identifiers = self.try_identifiers().await;
        identifiers
            .inspect_err(
                |error| tracing::warn!(%error, "could not list the repositories to hunt for"),
            )
            .unwrap_or_default()
    }

    fn report(&self, report: &HuntReport) {
        log::tell(report);
        (self.observer)(report);
        if let Some(input) = report.for_purgatory() {
            let _ = self.reports.send(input);
        }
    }
}

/// Forwards reports in their order; the hunt does not wait for that.
async fn forward(mut inbox: mpsc::UnboundedReceiver<Input>, orders: mpsc::WeakSender<Order>) {
    while let Some(input) = inbox.recv().await {
        let Some(orders) = orders.upgrade() else { return };
        let _ = orders.send(Order::Tell(input)).await;
    }
}

/// Sends an input without waiting.
fn send(orders: &mpsc::WeakSender<Order>, input: Input) {
    let Some(orders) = orders.upgrade() else { return };
    // The queue is rarely full; if it is, a task waits for it.
    if let Err(mpsc::error::TrySendError::Full(order)) = orders.try_send(Order::Tell(input)) {
        tokio::spawn(async move { drop(orders.send(order).await) });
    }
}

/// A fetch in progress that was reported to purgatory. Its end is reported when this is dropped, which causes a survey.
struct UnderWay {
    orders: mpsc::WeakSender<Order>,
    identifier: Identifier,
}

impl UnderWay {
    async fn begin(orders: &mpsc::WeakSender<Order>, identifier: &Identifier) -> Option<Self> {
        let started = Input::FetchStarted { identifier: identifier.clone() };
        orders.upgrade()?.send(Order::Tell(started)).await.ok()?;
        Some(Self { orders: orders.clone(), identifier: identifier.clone() })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        send(&self.orders, Input::FetchEnded { identifier: self.identifier.clone() });
    }
}

fn named(kind: nostr::event::Kind, identifier: &Identifier) -> Filter {
    Filter::new().kind(kind).identifier(identifier.as_str())
}

fn read<T>(events: &[Arc<Event>], parse: impl Fn(&Event) -> Option<T>) -> Vec<T> {
    events.iter().filter_map(|event| parse(event)).collect()
}
