//! Pushes (`git-receive-pack`), from the commands to the report.
//!
//! A push brings objects. Purgatory moves the refs together with the events that sign them, in one transaction. The
//! report tells what of that did not happen, so that a ref is reported as `ok` only if it is served.

mod proposals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use grasp_core::push::{
    AuthorisedPush, Capabilities, CommandReader, MAX_LIST_BYTES, Progress, PushRequest,
    PushVerdict, RefReport, RefVerdict, encode_error, encode_progress, encode_report,
};
use grasp_core::quota::QuotaExceeded;
use grasp_core::resources::{Bounds, Claimant};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, ParseError, RefName};
use grasp_purgatory::database::DataSource;
use grasp_purgatory::git::{Git, GitError, Incoming, Refs, Turn};
use grasp_purgatory::resources::{Holding, SharedPool};
use grasp_purgatory::{HoldOutcome, Input, PushTarget};
use nostr::event::EventId;
use tokio::sync::mpsc;

use super::body::{BodyError, MaxExpansion, RequestBody};
use super::push_facts::{PushFacts, events_of};
use super::{GitHttp, HttpError, NO_CACHE, RepoRequest};
use grasp_purgatory::driver::{Outcomes, PurgatoryDriver, Reservation, Upload};

/// Longest time that a push waits for other pushes to its repository: with authority, and without.
const MAX_WAIT_WITH_AUTHORITY: Duration = Duration::from_secs(10 * 60);
const MAX_WAIT_FOR_TURN: Duration = Duration::from_secs(60);

/// Bytes of a pack that are awaited before git is started.
const GATHERED_BYTES: usize = 256 * 1024;

/// Memory that one byte of a command list costs: the commands, the verdicts, the report and its encoded form.
const MEMORY_PER_LIST_BYTE: u64 = 8;

/// Memory for the command lists of all pushes, in bytes: four of the largest size.
const COMMAND_MEMORY_BYTES: u64 = 4 * MEMORY_PER_LIST_BYTE * MAX_LIST_BYTES as u64;

/// Bytes of a command list up to which they are parsed at once, and refs up to which a report is encoded at once. More is
/// a step for the client, like the judgement of any push.
const SMALL_LIST_BYTES: usize = 4 * 1024;
const SMALL_REPORT: usize = 100;

/// Bytes of a pack without objects: a push may always bring that.
const EMPTY_PACK_BYTES: u64 = 32;

/// CPU time for looking up one event that a push names.
const CPU_PER_EVENT: Duration = Duration::from_micros(20);

/// Parts of a report that are queued for a client.
const REPORT_PARTS: usize = 4;

const STATE_NOT_STORED: &str = "the server could not store the state event yet, and keeps trying";
const STATE_REPLACED: &str = "the state event was replaced or deleted meanwhile";
const NOT_SERVED: &str = "the server could not set the ref yet, and keeps trying";
const TOO_MANY_PROPOSALS: &str = "the repository has as many pull requests as this server allows";
const UPLOAD_NOT_KEPT: &str = "the upload could not be kept until its event comes";

/// The sender of a push's report. It is closed when the client is gone.
type Report = mpsc::Sender<Vec<u8>>;

/// A failure of a push whose commands were read; the text is reported to the client.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Server(#[from] HttpError),
    #[error(
        "the server lacks history that your shallow clone lacks too; run git fetch --unshallow, and \
         push again"
    )]
    Shallow,
    #[error("the client closed the connection")]
    ClientGone,
    #[error("other pushes to this repository take too long, try again later")]
    TurnNotReached,
    #[error("you have pushed as much as you may in a day, try again tomorrow")]
    Daily,
    #[error(transparent)]
    Full(#[from] QuotaExceeded),
}

impl PushError {
    /// Logs the failure, and returns the text for the client.
    fn report(&self) -> String {
        let (is_ours, is_disk_full) = match self {
            Self::Git(error) => (error.is_ours(), error.is_disk_full()),
            Self::Server(_) => (true, false),
            _ => (false, false),
        };
        match is_ours {
            true => tracing::error!(error = %self, "a push failed"),
            false => tracing::debug!(reason = %self, "a push was refused"),
        }
        if let Self::Git(GitError::PackStorage(_)) = self {
            return String::from("the server cannot store packs at the moment, try again later");
        }
        match is_ours && !is_disk_full {
            true => String::from("the server failed, try again"),
            false => self.to_string(),
        }
    }
}

/// Memory for the command lists of pushes, from their first byte to the report. Nothing is reserved for authority, which
/// is known only once a list is complete.
#[derive(Clone, Debug)]
pub(super) struct CommandMemory(SharedPool);

impl Default for CommandMemory {
    fn default() -> Self {
        Self(SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(COMMAND_MEMORY_BYTES)
        }))
    }
}

impl CommandMemory {
    /// Takes nothing yet: [`Holding::resize`] takes what is read.
    fn open(&self, claimant: &Claimant) -> Result<Holding, GitError> {
        self.0.try_take(claimant, 0).map_err(GitError::Busy)
    }
}

impl GitHttp {
    pub(super) async fn receive(
        self: &Arc<Self>,
        target: RepoRequest,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let max_bytes = self.limits.push_bytes;
        let stall = self.limits.stall;
        let mut body = RequestBody::new(headers, body, max_bytes, stall)?;
        let mut memory = self.command_memory.open(&target.claimant)?;
        let git = target.repos.git();
        let commands = match read_commands(git, target.claimant, &mut body, &mut memory).await {
            Ok(commands) => commands,
            Err(error) => {
                drop(memory);
                if error.leaves_body() {
                    body.drain().await;
                }
                return Err(error);
            }
        };
        match commands {
            Commands::Probe => Ok(receive_pack_result(Body::empty())),
            Commands::Unreadable { why, capabilities } => {
                drop(memory);
                body.drain().await;
                Ok(receive_pack_result(encode_error(&why, capabilities).into()))
            }
            Commands::Push { request, rest } => {
                let (report, parts) = mpsc::channel(REPORT_PARTS);
                let push = Push {
                    git: Arc::clone(self),
                    purgatory: self.purgatory()?,
                    target,
                    request: Arc::new(request),
                    _memory: memory,
                };
                tokio::spawn(push.run(RequestPack { body, rest }, report));
                let parts = stream::unfold(parts, |mut parts| async move {
                    let part: Vec<u8> = parts.recv().await?;
                    Some((Ok::<_, std::convert::Infallible>(Bytes::from(part)), parts))
                });
                Ok(receive_pack_result(Body::from_stream(parts)))
            }
        }
    }
}

fn receive_pack_result(body: Body) -> Response {
    let content_type = "application/x-git-receive-pack-result";
    (NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// The beginning of a request to push.
enum Commands {
    /// An empty request by which git asks whether it may send a large one. It authorises nothing.
    Probe,
    Unreadable {
        why: String,
        capabilities: Capabilities,
    },
    /// The commands, and the first bytes of what follows them.
    Push { request: PushRequest, rest: Vec<u8> },
}

/// Reads the commands. Their memory is taken while they come; a client whose network has its share is refused.
async fn read_commands(
    git: &Git,
    claimant: Claimant,
    body: &mut RequestBody,
    memory: &mut Holding,
) -> Result<Commands, HttpError> {
    body.limit_expansion(MaxExpansion::COMMANDS);
    let mut reader = CommandReader::default();
    while let Some(bytes) = body.next().await? {
        let progress;
        (reader, progress) = parse(git, claimant, reader, bytes).await?;
        let cost = reader.list_bytes() as u64 * MEMORY_PER_LIST_BYTE;
        memory.resize(cost).map_err(GitError::Busy)?;
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Probe) => return Ok(Commands::Probe),
            Ok(Progress::Complete { request, rest }) => {
                body.limit_expansion(MaxExpansion::OTHER);
                return Ok(Commands::Push { request, rest });
            }
            Err(why) => {
                let capabilities = reader.capabilities();
                return Ok(Commands::Unreadable {
                    why: why.to_string(),
                    capabilities,
                });
            }
        }
    }
    let why = String::from("the list of refs is incomplete");
    Ok(Commands::Unreadable {
        why,
        capabilities: reader.capabilities(),
    })
}

/// Parses the next bytes of a list.
async fn parse(
    git: &Git,
    claimant: Claimant,
    mut reader: CommandReader,
    bytes: Bytes,
) -> Result<(CommandReader, Result<Progress, ParseError>), GitError> {
    if bytes.len() <= SMALL_LIST_BYTES {
        let progress = reader.feed(&bytes);
        return Ok((reader, progress));
    }
    let feed = move || {
        let progress = reader.feed(&bytes);
        (reader, progress)
    };
    git.work(claimant, feed).await
}

struct Push {
    git: Arc<GitHttp>,
    purgatory: PurgatoryDriver,
    target: RepoRequest,
    request: Arc<PushRequest>,
    /// The memory of the command list, until it is reported.
    _memory: Holding,
}

/// A pack in quarantine, and what it reserves of the quotas until it is committed.
struct Received {
    incoming: Incoming,
    reserved: Reservation,
}

/// The part of a request that follows the commands.
struct RequestPack {
    body: RequestBody,
    /// Bytes that were received together with the commands.
    rest: Vec<u8>,
}

impl Push {
    /// Executes the push and reports; sends progress messages meanwhile.
    async fn run(self, pack: RequestPack, report: Report) {
        let git = self.target.repos.git().clone();
        let claimant = self.target.claimant;
        let request = Arc::clone(&self.request);
        let capabilities = request.capabilities();
        let work = self.execute_and_drain(pack, &report);
        tokio::pin!(work);
        let mut messages = tokio::time::interval(self.git.limits.sign_of_life);
        messages.tick().await;
        let reports = loop {
            tokio::select! {
                reports = &mut work => break reports,
                _ = messages.tick() => {
                    let message = encode_progress("still working", capabilities);
                    // A client that does not read has enough messages queued; the push goes on.
                    if !message.is_empty() {
                        let _ = report.try_send(message);
                    }
                }
            }
        };
        let encode = move || match reports {
            Ok(reports) => encode_report(&reports, capabilities),
            Err(error) => encode_report(&refuse_all(&request, &error.report()), capabilities),
        };
        let encoded = match self.request.commands().len() <= SMALL_REPORT {
            true => Ok(encode()),
            false => git.work_at_once(claimant, encode).await,
        };
        // Only a server that stops encodes nothing.
        if let Ok(encoded) = encoded {
            let _ = report.send(encoded).await;
        }
    }

    /// Executes the push and receives the request to its end in any case: a client that still sends reads no report.
    async fn execute_and_drain(
        &self,
        mut pack: RequestPack,
        report: &Report,
    ) -> Result<Vec<RefReport>, PushError> {
        let reports = self.judge_and_execute(&mut pack, report).await;
        if self.target.endpoint == Endpoint::PullRequests {
            // A repository was created for the push. If nothing came it is removed, now or by maintenance.
            if let Err(error) = self.purgatory.remove_empty(&self.target.repo).await {
                tracing::warn!(%error, "could not remove the empty repository of a contributor");
            }
        }
        pack.body.drain().await;
        reports
    }

    async fn judge_and_execute(
        &self,
        pack: &mut RequestPack,
        report: &Report,
    ) -> Result<Vec<RefReport>, PushError> {
        let RepoRequest {
            repos,
            repo,
            endpoint,
            ..
        } = &self.target;
        let events = u32::try_from(events_of(&self.request).len()).unwrap_or(u32::MAX);
        repos
            .git()
            .spend(self.target.claimant, CPU_PER_EVENT.saturating_mul(events))?;
        let refs = repos.view_for(repo, self.target.claimant).await?.refs;
        let is_served = !refs.refs.is_empty();
        let facts = self.git.facts(&self.target, &self.request).await?;
        let JudgedPush {
            facts,
            verdict: early,
        } = self.judge(facts, refs, self.target.claimant).await?;
        let Some(push) = &early.authorised else {
            return Ok(reports(&early));
        };
        let _at_work = self.purgatory.begin_work(repo);
        if *endpoint == Endpoint::PullRequests {
            repos.lock(repo).await?.create_view().await?;
        }
        let claimant = self.claimant(&facts, &early, is_served);
        let received = self.receive(pack, push, claimant);
        let received = if push.execute().is_empty() {
            tokio::select! {
                received = received => received?,
                () = report.closed() => return Err(PushError::ClientGone),
            }
        } else {
            received.await?
        };
        let reports = self.execute(received, push, claimant, report).await?;
        if early.realises.is_some() {
            self.warn(report).await;
        }
        Ok(reports)
    }

    /// Tells the client that the owner of the repository has nearly used up a quota.
    async fn warn(&self, report: &Report) {
        match self.purgatory.quota().warning(&self.target.repo).await {
            Ok(None) => {}
            Ok(Some(warning)) => {
                let message = encode_progress(&warning, self.request.capabilities());
                if !message.is_empty() {
                    let _ = report.try_send(message);
                }
            }
            Err(error) => tracing::warn!(%error, "could not read how much git data is stored"),
        }
    }

    /// Judges the push, which is a step for its client: it may have thousands of refs.
    async fn judge(
        &self,
        facts: PushFacts,
        refs: Arc<Refs>,
        claimant: Claimant,
    ) -> Result<JudgedPush, GitError> {
        let request = Arc::clone(&self.request);
        self.target
            .repos
            .git()
            .work(claimant, move || JudgedPush::of(facts, &request, &refs))
            .await
    }

    /// Judges the push under the lock of the repository, where it waits for nothing that its client uses up.
    async fn judge_again(
        &self,
        facts: PushFacts,
        refs: Arc<Refs>,
        claimant: Claimant,
    ) -> Result<JudgedPush, GitError> {
        let request = Arc::clone(&self.request);
        let git = self.target.repos.git();
        git.work_at_once(claimant, move || JudgedPush::of(facts, &request, &refs))
            .await
    }

    /// Waits for the turn of this push. An upload that nobody signed for waits for other uploads only, and for no longer
    /// than its client.
    async fn turn(
        &self,
        push: &AuthorisedPush,
        claimant: Claimant,
        report: &Report,
    ) -> Result<Turn, PushError> {
        let RepoRequest { repos, repo, .. } = &self.target;
        let turn = if push.execute().is_empty() {
            tokio::select! {
                turn = repos.upload_turn(repo, &claimant, MAX_WAIT_FOR_TURN) => turn,
                () = report.closed() => return Err(PushError::ClientGone),
            }
        } else if claimant.has_authority {
            repos
                .push_turn(repo, &claimant, MAX_WAIT_WITH_AUTHORITY)
                .await
        } else {
            repos.push_turn(repo, &claimant, MAX_WAIT_FOR_TURN).await
        };
        turn.map_err(|_| PushError::TurnNotReached)
    }

    /// Returns the party that git works for: the author of the state, with authority if the repository is served
    /// already.
    fn claimant(&self, facts: &PushFacts, verdict: &PushVerdict, is_served: bool) -> Claimant {
        match facts.author_of(verdict.realises) {
            Some(author) if is_served => self.target.claimant.signed_by(author).with_authority(),
            Some(author) => self.target.claimant.signed_by(author),
            None => self.target.claimant,
        }
    }

    /// Receives the pack, checks that everything is there and takes out what is needed, before the lock is taken: a
    /// long history is walked while no other push has to wait.
    async fn receive(
        &self,
        pack: &mut RequestPack,
        push: &AuthorisedPush,
        claimant: Claimant,
    ) -> Result<Option<Received>, PushError> {
        let received = self.receive_and_check(pack, push, claimant).await;
        match received {
            Err(PushError::Git(GitError::Incomplete { .. })) if self.request.is_shallow() => {
                Err(PushError::Shallow)
            }
            received => received,
        }
    }

    async fn receive_and_check(
        &self,
        pack: &mut RequestPack,
        push: &AuthorisedPush,
        claimant: Claimant,
    ) -> Result<Option<Received>, PushError> {
        let mut received = self.unpack(pack, push, claimant).await?;
        if let Some(Received { incoming, .. }) = &mut received {
            let tips = push.execute().iter().chain(push.stage());
            incoming
                .check_all(&tips.filter_map(|command| command.new).collect())
                .await?;
            incoming.prepare(push).await?;
        }
        Ok(received)
    }

    /// Receives the pack into quarantine; `None` if the push only deletes.
    async fn unpack(
        &self,
        pack: &mut RequestPack,
        push: &AuthorisedPush,
        claimant: Claimant,
    ) -> Result<Option<Received>, PushError> {
        if self
            .request
            .commands()
            .iter()
            .all(|command| command.new.is_none())
        {
            return Ok(None);
        }
        let purgatory = &self.purgatory;
        let repo = &self.target.repo;
        let now = purgatory.relay().now();
        let room = purgatory
            .disk()
            .room(now.mono, repo, &claimant, DataSource::Pushed);
        if room == 0 {
            return Err(PushError::Daily);
        }
        let opened = purgatory.quota().open(repo, claimant).await;
        let mut reserved = opened.map_err(GitError::from)?;
        let max_bytes = self.max_bytes(push).min(room);
        let incoming = self
            .receive_pack(pack, max_bytes, &mut reserved, claimant)
            .await?;
        let bytes = incoming.bytes().await?;
        if reserved.bytes() > 0 {
            let confirmed = reserved.confirm(bytes).await;
            confirmed.map_err(GitError::from)??;
        }
        purgatory.charge_push(repo, &claimant, bytes);
        Ok(Some(Received { incoming, reserved }))
    }

    /// Receives a pack of at most `max_bytes`, and reserves its bytes before they are unpacked.
    async fn receive_pack(
        &self,
        pack: &mut RequestPack,
        max_bytes: u64,
        reserved: &mut Reservation,
        claimant: Claimant,
    ) -> Result<Incoming, PushError> {
        // Git is not started for a client that sends a small pack slowly.
        let rest = std::mem::take(&mut pack.rest);
        let first = pack.body.gather(rest, GATHERED_BYTES).await?;
        let mut bytes = first.len() as u64;
        reserved.grow_to(bytes.saturating_sub(EMPTY_PACK_BYTES))?;
        let incoming = self
            .target
            .repos
            .repository(&self.target.repo)
            .incoming(claimant)
            .await?;
        let memory = self.git.limits.push_memory;
        let mut unpacking = incoming.unpack(max_bytes, memory).await?;
        unpacking.feed(&first).await?;
        while let Some(next) = pack.body.next().await? {
            bytes += next.len() as u64;
            reserved.grow_to(bytes.saturating_sub(EMPTY_PACK_BYTES))?;
            unpacking.feed(&next).await?;
        }
        unpacking.finish().await?;
        Ok(incoming)
    }

    /// Returns the largest pack of a push, in bytes. Objects without a signed event have to fit into staging.
    fn max_bytes(&self, push: &AuthorisedPush) -> u64 {
        let max_bytes = self.git.limits.push_bytes;
        if !push.execute().is_empty() {
            return max_bytes;
        }
        max_bytes.min(self.target.repos.staging_limits().bytes_per_event)
    }

    /// Judges again under the lock, takes the objects in, and waits until the events of the push are served.
    async fn execute(
        &self,
        received: Option<Received>,
        early: &AuthorisedPush,
        claimant: Claimant,
        report: &Report,
    ) -> Result<Vec<RefReport>, PushError> {
        let (purgatory, RepoRequest { repos, repo, .. }) = (&self.purgatory, &self.target);
        // Until this push is served or refused: the next one is judged on the refs that it leaves.
        let _turn = self.turn(early, claimant, report).await?;
        let mut guard = repos.lock(repo).await?;
        let refs = repos.view(repo).await?.refs;
        let facts = self.git.facts(&self.target, &self.request).await?;
        let JudgedPush { facts, verdict } = self.judge_again(facts, refs, claimant).await?;
        let Some(push) = &verdict.authorised else {
            return Ok(reports(&verdict));
        };
        if self.target.endpoint == Endpoint::Repository {
            let events = self.events(&verdict, push);
            purgatory
                .tell(Input::PushAuthorised {
                    repo: repo.clone(),
                    events,
                })
                .await;
        }
        let taken = match received {
            // What it reserved is used from now on.
            Some(Received { incoming, reserved }) => {
                let taken = guard.take_push(push, incoming).await;
                drop(reserved);
                taken
            }
            None => Ok(()),
        };
        drop(guard);
        // Also after a failure: uploads that were staged before it are on disk and have to be counted.
        let kept = self.stage_uploads(push).await;
        taken?;
        let kept = kept?;
        if push.execute().is_empty() && waits_for_events(push, &facts, &kept) {
            return Ok(reports(&verdict));
        }
        let author = facts.author_of(verdict.realises);
        let events = self.events(&verdict, push);
        let settled = purgatory.settle_push(repo, author, &events).await;
        let outcomes = settled.map_err(HttpError::from)?;
        let proposals = push.execute().iter().chain(push.stage());
        let proposals = proposals.filter_map(|command| command.name.event());
        purgatory.settle_proposals(proposals.collect()).await;
        let not_set = if self.set_proposals(push, &facts).await? {
            NOT_SERVED
        } else {
            TOO_MANY_PROPOSALS
        };
        let served = repos.refs(repo).await?;
        let pushed = Pushed {
            verdict: &verdict,
            push,
            outcomes,
            kept,
            not_set,
        };
        Ok(pushed.reports(|name| served.get(name).copied()))
    }

    /// Returns the state and the pull requests whose git data a push brings.
    fn events(&self, verdict: &PushVerdict, push: &AuthorisedPush) -> BTreeSet<EventId> {
        let proposals = push
            .execute()
            .iter()
            .filter_map(|command| command.name.event());
        proposals.chain(verdict.realises).collect()
    }

    /// Reports uploads to staging. Returns those that are kept until their event can be served.
    async fn stage_uploads(&self, push: &AuthorisedPush) -> Result<BTreeSet<EventId>, HttpError> {
        let mut kept = BTreeSet::new();
        for command in push.stage() {
            let (Some(id), Some(tip)) = (command.name.event(), command.new) else {
                continue;
            };
            let RepoRequest {
                repos,
                repo,
                endpoint,
                ..
            } = &self.target;
            let target = match endpoint {
                Endpoint::Repository => PushTarget::Repository(repo.clone()),
                Endpoint::PullRequests => PushTarget::Contributor(repo.clone()),
            };
            if let Ok(bytes) = repos.repository(repo).staged_bytes(id, tip).await {
                let network = self.target.claimant.network;
                let upload = Upload {
                    id,
                    tip,
                    target,
                    bytes,
                    network,
                };
                if self.purgatory.stage(upload).await? {
                    kept.insert(id);
                }
            }
        }
        Ok(kept)
    }
}

/// Returns whether all uploads of a push wait for events that have not been received, so that nothing is to be served.
fn waits_for_events(push: &AuthorisedPush, facts: &PushFacts, kept: &BTreeSet<EventId>) -> bool {
    let mut events = push.stage().iter().map(|command| command.name.event());
    events.all(|id| id.is_some_and(|id| facts.is_unknown(&id) && kept.contains(&id)))
}

/// What became of an executed push.
struct Pushed<'a> {
    verdict: &'a PushVerdict,
    push: &'a AuthorisedPush,
    /// What became of the state and the pull requests that it brought objects for.
    outcomes: Outcomes,
    /// Events whose uploads are kept until they can be served.
    kept: BTreeSet<EventId>,
    /// The reason why a pull request has no ref.
    not_set: &'static str,
}

impl Pushed<'_> {
    /// Reports each ref: as accepted only if it is served, or kept until its event can be.
    fn reports(&self, served: impl Fn(&RefName) -> Option<Oid>) -> Vec<RefReport> {
        let mut refused: BTreeMap<&RefName, &str> = BTreeMap::new();
        for command in self.push.execute() {
            if served(&command.name) == command.new {
                continue;
            }
            match command.name.event() {
                Some(id) if self.outcomes.get(&id) == Some(&HoldOutcome::Held) => {}
                Some(_) => _ = refused.insert(&command.name, self.not_set),
                None => _ = refused.insert(&command.name, self.why_not_served()),
            }
        }
        for command in self.push.stage() {
            let is_kept = command
                .name
                .event()
                .is_some_and(|id| self.kept.contains(&id));
            if !is_kept && served(&command.name) != command.new {
                refused.insert(&command.name, UPLOAD_NOT_KEPT);
            }
        }
        let mut reports = reports(self.verdict);
        for report in &mut reports {
            if let Some(why) = refused.get(&report.name) {
                report.refusal = Some(String::from(*why));
            }
        }
        reports
    }

    /// Returns the reason why branches and tags are not served.
    fn why_not_served(&self) -> &'static str {
        let state = self.verdict.realises.and_then(|id| self.outcomes.get(&id));
        match state {
            Some(HoldOutcome::Held) => STATE_NOT_STORED,
            Some(HoldOutcome::Superseded) => STATE_REPLACED,
            _ => NOT_SERVED,
        }
    }
}

/// A verdict, and the facts that it follows from.
struct JudgedPush {
    facts: PushFacts,
    verdict: PushVerdict,
}

impl JudgedPush {
    fn of(facts: PushFacts, request: &PushRequest, refs: &Refs) -> Self {
        let verdict = facts.judge(request, &refs.tips());
        Self { facts, verdict }
    }
}

/// Reports the same refusal for every ref.
fn refuse_all(request: &PushRequest, refusal: &str) -> Vec<RefReport> {
    let names = request
        .commands()
        .iter()
        .map(|command| command.name.clone());
    names
        .map(|name| RefReport {
            name,
            refusal: Some(refusal.to_owned()),
        })
        .collect()
}

fn reports(verdict: &PushVerdict) -> Vec<RefReport> {
    let report = |(name, verdict): &(RefName, RefVerdict)| RefReport {
        name: name.clone(),
        refusal: match verdict {
            RefVerdict::Refused(why) => Some(why.to_string()),
            RefVerdict::Satisfied | RefVerdict::Execute | RefVerdict::Stage => None,
        },
    };
    verdict.refs.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use grasp_core::push::encode_pkt;
    use grasp_core::resources::ClientNetwork;
    use grasp_purgatory::git::Slots;
    use tokio::task::JoinHandle;

    use super::*;

    const STALL_TIMEOUT: Duration = Duration::from_secs(60);

    fn at(net: u8) -> Claimant {
        Claimant::at(ClientNetwork::of([198, 51, net, 1].into()))
    }

    fn git() -> Git {
        Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap()
    }

    /// Returns a list of about this many bytes, in names of 200 bytes.
    fn list(bytes: usize) -> Vec<u8> {
        let mut list = Vec::new();
        for n in 0..bytes / 300 {
            let name = format!("refs/heads/{n:05}{}", "x".repeat(195));
            let line = format!("{} {} {name}", "0".repeat(40), "a".repeat(40));
            encode_pkt(line.as_bytes(), &mut list);
        }
        list
    }

    /// Returns a request with this body, which never ends.
    fn request(headers: &HeaderMap, body: Vec<u8>) -> RequestBody {
        let chunks: Vec<_> = body
            .chunks(16_384)
            .map(|c| Ok::<_, axum::Error>(c.to_vec()))
            .collect();
        let body = Body::from_stream(stream::iter(chunks).chain(stream::pending()));
        RequestBody::new(headers, body, 1 << 30, STALL_TIMEOUT).unwrap()
    }

    /// Reads a list of half the largest size whose client then sends nothing.
    fn read_half(memory: &CommandMemory, claimant: Claimant) -> JoinHandle<String> {
        let memory = memory.clone();
        tokio::spawn(async move {
            let mut holding = memory.open(&claimant).unwrap();
            let mut body = request(&HeaderMap::new(), list(MAX_LIST_BYTES / 2));
            let read = read_commands(&git(), claimant, &mut body, &mut holding).await;
            read.err().expect("the list does not end").to_string()
        })
    }

    #[tokio::test]
    async fn lists_of_one_address_share_its_memory_while_they_are_read() {
        let memory = CommandMemory::default();
        let cost = list(MAX_LIST_BYTES / 2).len() as u64 * MEMORY_PER_LIST_BYTE;
        let mut waiting = Vec::new();
        for (claimant, held) in [(at(1), cost), (at(1), 2 * cost)] {
            waiting.push(read_half(&memory, claimant));
            while memory.0.usage().all < held {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        for _ in 0..3 {
            let refusal = read_half(&memory, at(1)).await.unwrap();
            assert!(refusal.contains("uses its share"), "{refusal}");
        }
        assert_eq!(memory.0.usage().all, 2 * cost);
        waiting.push(read_half(&memory, at(2)));
        while memory.0.usage().all < 3 * cost {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for client in waiting {
            client.abort();
            assert!(client.await.is_err_and(|error| error.is_cancelled()));
        }
        assert_eq!(memory.0.usage().all, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_may_not_inflate_like_a_pack() {
        use std::io::Write as _;

        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&list(MAX_LIST_BYTES / 2)).unwrap();
        let body = encoder.finish().unwrap();
        assert!(body.len() * 10 < MAX_LIST_BYTES / 2, "{}", body.len());
        let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, "gzip".parse().unwrap())]);
        let mut holding = CommandMemory::default().open(&at(1)).unwrap();
        let mut body = request(&headers, body);
        let read = read_commands(&git(), at(1), &mut body, &mut holding).await;
        assert!(matches!(read, Err(HttpError::Body(BodyError::TooLarge))));
    }
}
