//! The context of a hunt on a server: reads what is missing from purgatory and the store, fetches it within the limits,
//! and reports to purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{CloneUrl, Identifier, Now, Oid, RelayUrl, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::{mpsc, oneshot};

use super::Order;
use super::queue::Executor;
use super::survey::{MAX_OTHER_FAMILIES, addressed_to};
use crate::database::Source;
use crate::git::{Fetched, Fetcher, GitError};
use crate::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntHandle, HuntReport, Scope, SyncContext,
    hunt,
};
use crate::purgatory::{HeldProposal, Input, Phase, Purgatory, Want, select_addresses};

/// Bytes that are fetched for one pull request.
const MAX_PROPOSAL_FETCH: u64 = 256 << 20;

/// The parts of a hunt.
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

impl HuntParts {
    /// Starts the hunt for a server.
    pub(super) fn start(self, executor: Executor, orders: mpsc::WeakSender<Order>) -> HuntHandle {
        log_start(&self.config);
        let config = self.config.clone();
        let (inputs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(forward(inbox, orders.clone()));
        hunt(config, Arc::new(ServerContext { parts: self, executor, orders, inputs }))
    }
}

/// Does not keep the driver alive: the hunt ends with it.
struct ServerContext {
    parts: HuntParts,
    executor: Executor,
    orders: mpsc::WeakSender<Order>,
    /// Inputs for purgatory, in their order.
    inputs: mpsc::UnboundedSender<Input>,
}

impl ServerContext {
    /// Calls a function with the state of purgatory.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let (reply, answer) = oneshot::channel();
        let question = move |purgatory: &Purgatory| _ = reply.send(question(purgatory));
        let orders = self.orders.upgrade().ok_or(GitError::Stopping)?;
        let asked = orders.send(Order::Ask(Box::new(question))).await;
        asked.map_err(|_| GitError::Stopping)?;
        answer.await.map_err(|_| GitError::Stopping)
    }

    /// Sends an input to purgatory, after those before it. Does not wait.
    fn tell(&self, input: Input) {
        let _ = self.inputs.send(input);
    }

    async fn read_wants(
        &self,
        identifier: &Identifier,
        scope: Scope,
    ) -> Result<Vec<Want>, GitError> {
        let is_damaged = self.executor.damage.is_damaged(identifier);
        let scope = if is_damaged { Scope::Everything } else { scope };
        let stored: Vec<_> = self.stored(kinds::ANNOUNCEMENT, identifier).await?;
        let stored: Vec<_> = stored.iter().flat_map(|event| Announcement::parse(event)).collect();
        let (name, known) = (identifier.clone(), stored.clone());
        let question = move |purgatory: &Purgatory| {
            (purgatory.wants(&name, &known), purgatory.proposals(&name))
        };
        let (mut wants, proposals) = self.ask(question).await?;
        match scope {
            Scope::Waiting => wants.retain(|want| want.phase == Phase::Waiting),
            Scope::Everything => wants.extend(self.served(identifier, &stored).await?),
        }
        self.remove_present(identifier, &mut wants, |_| true).await?;
        self.look_elsewhere(&mut wants, proposals).await?;
        let is_here = |want: &Want| want.phase == Phase::Waiting && want.tips.is_empty();
        if wants.iter().any(is_here) {
            // The fetch or push of the last object causes a survey. In case it did not:
            self.tell(Input::Changed { identifier: identifier.clone() });
        }
        wants.retain(|want| !want.tips.is_empty());
        Ok(wants)
    }

    /// Returns the served events of a kind under an identifier.
    async fn stored(
        &self,
        kind: Kind,
        identifier: &Identifier,
    ) -> Result<Vec<Arc<Event>>, GitError> {
        self.executor.events(Filter::new().kind(kind).identifier(identifier.as_str())).await
    }

    /// Removes tips that are complete in a family from those of the wants that may be there.
    async fn remove_present(
        &self,
        family: &Identifier,
        wants: &mut [Want],
        may_be_there: impl Fn(&Want) -> bool,
    ) -> Result<(), GitError> {
        let there = wants.iter().filter(|want| may_be_there(want));
        let tips = there.flat_map(|want| want.tips.iter().copied()).collect();
        let lacking = self.parts.fetcher.store().lacking(family, &tips).await?;
        for want in wants.iter_mut().filter(|want| may_be_there(want)) {
            want.tips.retain(|tip| lacking.contains(tip));
        }
        Ok(())
    }

    /// Removes the tips of pull requests that are complete in another family that they are addressed to. Each family is
    /// read once for all of them.
    async fn look_elsewhere(
        &self,
        wants: &mut [Want],
        proposals: Vec<HeldProposal>,
    ) -> Result<(), GitError> {
        let families: BTreeMap<EventId, BTreeSet<Identifier>> =
            proposals.into_iter().map(|proposal| (proposal.id, proposal.families)).collect();
        let open = wants.iter().filter(|want| !want.tips.is_empty());
        let named = open.filter_map(|want| families.get(&want.id)).flatten().cloned().collect();
        let named = self.parts.fetcher.store().existing(named).await?;
        for family in named.into_iter().take(MAX_OTHER_FAMILIES) {
            let names = |want: &Want| families.get(&want.id).is_some_and(|it| it.contains(&family));
            self.remove_present(&family, wants, names).await?;
        }
        Ok(())
    }

    /// Returns the tips of served events, which restores objects that were lost on disk.
    async fn served(
        &self,
        identifier: &Identifier,
        announcements: &[Announcement],
    ) -> Result<Vec<Want>, GitError> {
        let want = |id, tips, owners: &[PublicKey], untrusted: &[CloneUrl]| {
            // Servers of its own owners come first: other announcements of the name may list thousands.
            let is_owners = |a: &&Announcement| owners.contains(&a.repo.owner);
            let own = announcements.iter().filter(is_owners);
            let others = announcements.iter().filter(|a| !is_owners(a));
            let trusted = self.places(own.chain(others).flat_map(|a| &a.clone));
            let untrusted = self.places(untrusted.iter().filter(|url| !trusted.contains(url)));
            Want { id, phase: Phase::Expired, tips, trusted, untrusted }
        };
        let states = self.stored(kinds::STATE, identifier).await?;
        let states = states.iter().flat_map(|event| State::parse(event)).filter_map(|state| {
            Some(want(state.version.id, state.tips()?, &[state.repo.owner], &[]))
        });
        let repos = announcements.iter().map(|announcement| announcement.repo.clone());
        let proposals = self.executor.events(addressed_to(repos)).await?;
        let proposals = proposals.iter().flat_map(|event| Proposal::parse(event)).map(|proposal| {
            let owners: Vec<_> = proposal.repos.iter().map(|repo| repo.owner).collect();
            want(proposal.id, vec![proposal.tip], &owners, &proposal.clone)
        });
        Ok(states.chain(proposals).collect())
    }

    /// Selects addresses of git servers.
    fn places<'a>(&self, urls: impl Iterator<Item = &'a CloneUrl> + Clone) -> Vec<CloneUrl> {
        select_addresses(urls, &self.executor.parts.policy.service, self.now().unix)
    }
}

impl SyncContext for ServerContext {
    fn now(&self) -> Now {
        self.executor.parts.relay.now()
    }

    async fn wants(&self, identifier: &Identifier, scope: Scope) -> Option<Vec<Want>> {
        let wants = self.read_wants(identifier, scope).await;
        let warn =
            |error: &_| tracing::warn!(%error, %identifier, "could not read what to hunt for");
        wants.inspect_err(warn).ok()
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        self.parts.fetcher.list(url, wanted).await
    }

    async fn classify(&self, relay: &RelayUrl) -> Option<HostClass> {
        (self.parts.classify)(relay.clone()).await
    }

    async fn fetch(
        &self,
        identifier: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Fetched {
        let fetcher = &self.parts.fetcher;
        let _report = FetchInProgress::report(self, identifier);
        let (name, wanted) = (identifier.clone(), oids.clone());
        let question = move |purgatory: &Purgatory| purgatory.wanted_for(&name, &wanted);
        let (claimant, is_proposal) = match self.ask(question).await {
            Err(_) => return Fetched::nothing(FetchError::Cancelled),
            // Objects of served events that were lost are fetched without a limit.
            Ok(None) => return fetcher.fetch(identifier, url, oids, answered).await,
            Ok(Some(wanted_for)) => wanted_for,
        };
        let room = match self.executor.hunted_room(identifier, &claimant).await {
            Ok(0) => return Fetched::nothing(FetchError::TooLarge),
            Ok(room) if is_proposal => room.min(MAX_PROPOSAL_FETCH),
            Ok(room) => room,
            Err(error) => return Fetched::nothing(FetchError::Internal(error.to_string())),
        };
        let fetched = fetcher.clone().within(room).fetch(identifier, url, oids, answered).await;
        let added = (Source::Hunted, fetched.bytes);
        self.executor.disk.charge(self.now(), identifier, &claimant, added);
        fetched
    }

    /// Returns the identifiers with a view, and those of expired events.
    async fn identifiers(&self) -> BTreeSet<Identifier> {
        let expired = self.ask(|purgatory| purgatory.wanting(Phase::Expired)).await;
        let mut identifiers = expired.unwrap_or_default();
        match self.parts.fetcher.store().repositories().await {
            Ok(views) => identifiers.extend(views.into_iter().map(|repo| repo.identifier)),
            Err(error) => tracing::warn!(%error, "could not list the repositories to hunt for"),
        }
        identifiers
    }

    fn report(&self, report: &HuntReport) {
        log(report);
        (self.parts.observer)(report);
        if let Some(input) = report.for_purgatory() {
            self.tell(input);
        }
    }
}

/// A fetch that was reported to purgatory. Its end is reported when this is dropped, which causes a survey.
struct FetchInProgress<'a> {
    context: &'a ServerContext,
    identifier: Identifier,
}

impl<'a> FetchInProgress<'a> {
    fn report(context: &'a ServerContext, identifier: &Identifier) -> Self {
        context.tell(Input::FetchStarted { identifier: identifier.clone() });
        Self { context, identifier: identifier.clone() }
    }
}

impl Drop for FetchInProgress<'_> {
    fn drop(&mut self) {
        self.context.tell(Input::FetchEnded { identifier: self.identifier.clone() });
    }
}

/// Forwards inputs in their order; the hunt does not wait for that.
async fn forward(mut inbox: mpsc::UnboundedReceiver<Input>, orders: mpsc::WeakSender<Order>) {
    while let Some(input) = inbox.recv().await {
        let Some(orders) = orders.upgrade() else { return };
        let _ = orders.send(Order::Tell(input)).await;
    }
}

/// Logs that the hunt begins, and how much each server will be asked for.
fn log_start(config: &HuntConfig) {
    let (at_once, per_minute) = (config.per_host.at_once, config.per_host.starts);
    let (grasp, grasp_per_minute) = (config.per_grasp_host.at_once, config.per_grasp_host.starts);
    tracing::info!(
        at_once,
        per_minute,
        grasp_at_once = grasp,
        grasp_per_minute,
        "hunting for git data that events wait for"
    );
}

/// Logs a report: `info` what was achieved, `warn` who failed us, `debug` everything on the way. Texts of servers are
/// bounded and without control characters.
fn log(report: &HuntReport) {
    match report {
        HuntReport::Started { identifier, attempt } => {
            tracing::debug!(%identifier, attempt, "hunting for git data");
        }
        HuntReport::Complete { identifier } => {
            tracing::info!(%identifier, "all wanted git data has arrived");
        }
        HuntReport::Needless { identifier } => {
            tracing::debug!(%identifier, "no git data is wanted");
        }
        HuntReport::WaitingForHosts { identifier } => {
            tracing::debug!(%identifier, "the limits of the git servers are used up; queued");
        }
        HuntReport::Classified { host, class } => {
            tracing::debug!(%host, ?class, "classified a git server");
        }
        HuntReport::Incomplete { identifier, attempts, next } => {
            tracing::debug!(%identifier, attempts, ?next, "git data is still wanted");
        }
        HuntReport::Fetched { identifier, url, oids } => {
            tracing::debug!(%identifier, %url, oids, "fetched git data");
        }
        HuntReport::Failed { identifier, url, error } => {
            tracing::warn!(%identifier, %url, %error, "could not fetch git data");
        }
        HuntReport::Paused { host, length } => {
            tracing::info!(%host, ?length, "a git server asked for fewer requests and is paused");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::Mutex;
    use std::time::Duration;

    use grasp_core::limits::PeerText;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Level, Metadata, Subscriber};

    use super::*;

    /// Keeps every line with its level.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0, "{}={value:?} ", field.name()).unwrap();
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    fn said(say: impl FnOnce()) -> (Level, String) {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), say);
        let mut lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    #[test]
    fn each_report_is_logged_with_its_level_and_fields() {
        let identifier: Identifier = "grasp".parse().unwrap();
        let url: CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        let (one, host) = (identifier.clone(), url.host());
        let (minute, error) = (Duration::from_secs(60), FetchError::Stalled);
        let cases = [
            (
                Level::DEBUG,
                HuntReport::Started { identifier: one.clone(), attempt: 2 },
                "attempt=2",
            ),
            (Level::INFO, HuntReport::Complete { identifier: one.clone() }, "has arrived"),
            (Level::DEBUG, HuntReport::Needless { identifier: one.clone() }, "no git data"),
            (
                Level::DEBUG,
                HuntReport::Incomplete { identifier: one.clone(), attempts: 2, next: Some(minute) },
                "attempts=2 next=Some(60s)",
            ),
            (
                Level::DEBUG,
                HuntReport::Fetched { identifier: one.clone(), url: url.clone(), oids: 3 },
                "url=https://git.example.com/x.git oids=3",
            ),
            (
                Level::WARN,
                HuntReport::Failed { identifier: one, url, error },
                "url=https://git.example.com/x.git error=stopped sending",
            ),
        ];
        for (level, report, part) in cases {
            let (said_at, line) = said(|| log(&report));
            assert_eq!(said_at, level, "{line}");
            assert!(line.contains("identifier=grasp") && line.contains(part), "{line}");
        }
        let (level, line) = said(|| log(&HuntReport::Paused { host, length: minute }));
        assert!(level == Level::INFO && line.contains("host=git.example.com"), "{line}");
        let (level, line) = said(|| log_start(&HuntConfig::default()));
        assert!(
            level == Level::INFO && line.contains("at_once=5 per_minute=30 grasp_at_once=8"),
            "{line}"
        );
    }

    #[test]
    fn line_breaks_in_texts_of_peers_do_not_forge_log_lines() {
        let error = FetchError::Refused(PeerText::new("no\nERROR forged \u{1b}[31m line"));
        let url = "https://git.example.com/x.git".parse().unwrap();
        let identifier = "x".parse().unwrap();
        let (_, line) = said(|| log(&HuntReport::Failed { identifier, url, error }));
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    }
}
