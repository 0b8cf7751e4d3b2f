//! The context of a hunt on a server: reads what is missing from purgatory and the store, fetches it within the limits,
//! and reports to purgatory.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{CloneUrl, Now, Oid, RelayUrl, RepoId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::{mpsc, oneshot};

use super::Order;
use super::queue::Executor;
use super::survey::addressed_to;
use crate::git::{Fetched, Fetcher, GitError};
use crate::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntHandle, HuntReport, Scope, SyncContext,
    hunt,
};
use crate::purgatory::{Input, Phase, Purgatory, Want};

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
        tokio::spawn(forward(inbox, orders));
        hunt(
            config,
            Arc::new(ServerContext {
                parts: self,
                executor,
                inputs,
            }),
        )
    }
}

/// Does not keep the driver alive: the hunt ends with it.
struct ServerContext {
    parts: HuntParts,
    executor: Executor,
    /// Inputs for purgatory, in their order.
    inputs: mpsc::UnboundedSender<Input>,
}

impl ServerContext {
    /// Sends an input to purgatory, after those before it. Does not wait.
    fn tell(&self, input: Input) {
        let _ = self.inputs.send(input);
    }

    async fn read_wants(&self, repo: &RepoId, scope: Scope) -> Result<Vec<Want>, GitError> {
        let is_damaged = self.executor.damage.is_damaged(repo);
        let scope = if is_damaged { Scope::Everything } else { scope };
        let mut reader = self.executor.reach_reader(&repo.identifier);
        let maintainers = reader.reach(&repo.owner).await?.maintainers;
        let known = maintainers.iter().filter_map(|key| reader.get(key));
        let announcements: Vec<Arc<Announcement>> = known
            .map(|known| known.known.announcement.clone())
            .collect();
        let (asked, known) = (repo.clone(), announcements.clone());
        let mut wants = self
            .executor
            .ask(move |purgatory| purgatory.wants(&asked, &known))
            .await?;
        match scope {
            Scope::Waiting => wants.retain(|want| want.phase == Phase::Waiting),
            Scope::Everything => {
                wants.extend(self.served(repo, &maintainers, announcements).await?);
            }
        }
        let tips = wants
            .iter()
            .flat_map(|want| want.tips.iter().copied())
            .collect();
        let lacking = self
            .parts
            .fetcher
            .store()
            .repository(repo)
            .lacking(&tips)
            .await?;
        for want in &mut wants {
            want.tips.retain(|tip| lacking.contains(tip));
        }
        let is_here = |want: &Want| want.phase == Phase::Waiting && want.tips.is_empty();
        if wants.iter().any(is_here) {
            // The fetch or push of the last object causes a survey. In case it did not:
            self.tell(Input::Changed { repo: repo.clone() });
        }
        wants.retain(|want| !want.tips.is_empty());
        Ok(wants)
    }

    /// Returns the tips of served events, which restores objects that were lost on disk. A state of a maintainer with a
    /// repository here is wanted too: what that one lost may be here.
    async fn served(
        &self,
        repo: &RepoId,
        maintainers: &BTreeSet<PublicKey>,
        announcements: Vec<Arc<Announcement>>,
    ) -> Result<Vec<Want>, GitError> {
        let row = self.parts.fetcher.store().row(repo).await?;
        let Some(view) = row.view else {
            return Ok(Vec::new());
        };
        let shown = match view.state {
            Some(id) => self.executor.events(Filter::new().id(id)).await?,
            None => Vec::new(),
        };
        let proposals = self
            .executor
            .events(addressed_to(maintainers, repo))
            .await?;
        let proposals = proposals
            .iter()
            .filter_map(|event| Proposal::parse(event).ok());
        let proposals: Vec<Proposal> = proposals.collect();
        let shown: Vec<State> = shown
            .iter()
            .filter_map(|event| State::parse(event).ok())
            .collect();
        self.executor
            .ask(move |purgatory| {
                let mut wants = Vec::new();
                for state in shown {
                    let Some(tips) = state.tips() else { continue };
                    let owners = BTreeSet::from([state.repo.owner]);
                    wants.push(purgatory.want_of(
                        state.version.id,
                        tips,
                        &owners,
                        &announcements,
                        &[],
                    ));
                }
                for proposal in proposals {
                    let owners = proposal.repos.iter().map(|repo| repo.owner).collect();
                    let tips = vec![proposal.tip];
                    let clone = &proposal.clone;
                    wants.push(purgatory.want_of(
                        proposal.id,
                        tips,
                        &owners,
                        &announcements,
                        clone,
                    ));
                }
                for want in &mut wants {
                    want.phase = Phase::Expired;
                }
                wants
            })
            .await
    }
}

impl SyncContext for ServerContext {
    fn now(&self) -> Now {
        self.executor.parts.relay.now()
    }

    async fn wants(&self, repo: &RepoId, scope: Scope) -> Option<Vec<Want>> {
        let wants = self.read_wants(repo, scope).await;
        let warn = |error: &_| tracing::warn!(%error, %repo, "could not read what to hunt for");
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
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Fetched {
        let fetcher = &self.parts.fetcher;
        let _report = FetchInProgress::report(self, repo);
        let (name, wanted) = (repo.clone(), oids.clone());
        let question = move |purgatory: &Purgatory| purgatory.wanted_for(&name, &wanted);
        let (claimant, is_proposal) = match self.executor.ask(question.clone()).await {
            Err(_) => return Fetched::nothing(FetchError::Cancelled),
            // Objects of served events that were lost are fetched without a limit.
            Ok(None) => return fetcher.fetch(repo, url, oids, answered).await,
            Ok(Some(wanted_for)) => wanted_for,
        };
        let room = match self.executor.hunted_room(repo, &claimant).await {
            Ok(0) => return Fetched::nothing(FetchError::TooLarge),
            Ok(room) if is_proposal => room.min(MAX_PROPOSAL_FETCH),
            Ok(room) => room,
            Err(error) => return Fetched::nothing(FetchError::Internal(error.to_string())),
        };
        let fetched = fetcher
            .clone()
            .within(room)
            .fetch(repo, url, oids, answered)
            .await;
        self.executor.charge_hunted(repo, &claimant, fetched.bytes);
        if let Ok(None) = self.executor.ask(question).await {
            // Its event was withdrawn while it came, or is served already.
            if let Err(error) = self.executor.clear_objects(repo, oids).await {
                tracing::warn!(%error, %repo, "could not look for objects that nothing refers to");
            }
        }
        fetched
    }

    /// Returns the repos with a view, and those of expired events.
    async fn repos(&self) -> BTreeSet<RepoId> {
        let expired = self
            .executor
            .ask(|purgatory| purgatory.wanting(Phase::Expired))
            .await;
        let mut repos = expired.unwrap_or_default();
        match self.parts.fetcher.store().repositories().await {
            Ok(views) => repos.extend(views),
            Err(error) => tracing::warn!(%error, "could not list the repositories to hunt for"),
        }
        repos
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
    repo: RepoId,
}

impl<'a> FetchInProgress<'a> {
    fn report(context: &'a ServerContext, repo: &RepoId) -> Self {
        context.tell(Input::FetchStarted { repo: repo.clone() });
        Self {
            context,
            repo: repo.clone(),
        }
    }
}

impl Drop for FetchInProgress<'_> {
    fn drop(&mut self) {
        self.context.tell(Input::FetchEnded {
            repo: self.repo.clone(),
        });
    }
}

/// Forwards inputs in their order; the hunt does not wait for that.
async fn forward(mut inbox: mpsc::UnboundedReceiver<Input>, orders: mpsc::WeakSender<Order>) {
    while let Some(input) = inbox.recv().await {
        let Some(orders) = orders.upgrade() else {
            return;
        };
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
        HuntReport::Started { repo, attempt } => {
            tracing::debug!(%repo, attempt, "hunting for git data");
        }
        HuntReport::Complete { repo } => {
            tracing::info!(%repo, "all wanted git data has arrived");
        }
        HuntReport::Needless { repo } => {
            tracing::debug!(%repo, "no git data is wanted");
        }
        HuntReport::WaitingForHosts { repo } => {
            tracing::debug!(%repo, "the limits of the git servers are used up; queued");
        }
        HuntReport::Classified { host, class } => {
            tracing::debug!(%host, ?class, "classified a git server");
        }
        HuntReport::Incomplete {
            repo,
            attempts,
            next,
        } => {
            tracing::debug!(%repo, attempts, ?next, "git data is still wanted");
        }
        HuntReport::Fetched { repo, url, oids } => {
            tracing::debug!(%repo, %url, oids, "fetched git data");
        }
        HuntReport::Failed { repo, url, error } => {
            tracing::warn!(%repo, %url, %error, "could not fetch git data");
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
            self.0
                .lock()
                .unwrap()
                .push((*event.metadata().level(), text.0));
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
        let repo = RepoId::new(
            PublicKey::from_byte_array([1; 32]),
            "grasp".parse().unwrap(),
        );
        let url: CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        let (one, host) = (repo.clone(), url.host());
        let (minute, error) = (Duration::from_secs(60), FetchError::Stalled);
        let cases = [
            (
                Level::DEBUG,
                HuntReport::Started {
                    repo: one.clone(),
                    attempt: 2,
                },
                "attempt=2",
            ),
            (
                Level::INFO,
                HuntReport::Complete { repo: one.clone() },
                "has arrived",
            ),
            (
                Level::DEBUG,
                HuntReport::Needless { repo: one.clone() },
                "no git data",
            ),
            (
                Level::DEBUG,
                HuntReport::Incomplete {
                    repo: one.clone(),
                    attempts: 2,
                    next: Some(minute),
                },
                "attempts=2 next=Some(60s)",
            ),
            (
                Level::DEBUG,
                HuntReport::Fetched {
                    repo: one.clone(),
                    url: url.clone(),
                    oids: 3,
                },
                "url=https://git.example.com/x.git oids=3",
            ),
            (
                Level::WARN,
                HuntReport::Failed {
                    repo: one,
                    url,
                    error,
                },
                "url=https://git.example.com/x.git error=stopped sending",
            ),
        ];
        for (level, report, part) in cases {
            let (said_at, line) = said(|| log(&report));
            assert_eq!(said_at, level, "{line}");
            assert!(line.contains(":grasp") && line.contains(part), "{line}");
        }
        let (level, line) = said(|| {
            log(&HuntReport::Paused {
                host,
                length: minute,
            })
        });
        assert!(
            level == Level::INFO && line.contains("host=git.example.com"),
            "{line}"
        );
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
        let repo = RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap());
        let (_, line) = said(|| log(&HuntReport::Failed { repo, url, error }));
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    }
}
