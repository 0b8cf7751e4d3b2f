//! A push that was understood, from its first judgement to the report.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Bytes;
use grasp_core::RefName;
use grasp_core::push::{
    AuthorisedPush, OptionsReader, PushRequest, PushVerdict, RefReport, RefVerdict,
    encode_progress, encode_report,
};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_purgatory::git::{Blame, GitError, Incoming};
use grasp_purgatory::{Input, PushTarget};
use nostr::event::EventId;
use tokio::sync::mpsc;

use super::body::{BodyError, GitBody};
use super::judge::Grounds;
use super::{GitHttp, HttpError, Seat};
use crate::keeper::Addition;

/// Why a push that was understood did not happen.
enum Failed {
    /// The connection is gone, or what came is not what it should be.
    Body(BodyError),
    /// Git or the disk.
    Git(GitError),
    /// Our other parts.
    Ours(HttpError),
    /// Push options that could not be read.
    Options(String),
    /// The client went away, and nobody has signed for what it sent.
    ClientGone,
    /// The sender has added as much git data as they may in a day.
    Quota,
    /// The repository would become larger than it may be.
    RepositoryFull {
        /// Bytes that it may have.
        limit: u64,
    },
}

impl Failed {
    /// What the person who pushed reads.
    fn reason(&self) -> String {
        match self {
            Self::Body(error) => error.to_string(),
            Self::Git(error) if error.blame() != Blame::Us || error.is_disk_full() => {
                error.to_string()
            }
            Self::Git(_) | Self::Ours(_) => String::from("the server failed, try again"),
            Self::Options(why) => why.clone(),
            Self::ClientGone => String::from("the client closed the connection"),
            Self::Quota => {
                String::from("you have pushed as much as you may in a day, try again tomorrow")
            }
            Self::RepositoryFull { limit } => format!(
                "the repository would have more than {limit} bytes of git data, the limit of this server \
                 (git.repository_bytes)"
            ),
        }
    }
}

impl Failed {
    /// Tells the operator, as loudly as it concerns them.
    fn log(&self) {
        match self {
            Self::Git(error) if error.blame() == Blame::Us => {
                tracing::error!(%error, "a push failed");
            }
            Self::Ours(error) => tracing::error!(%error, "a push failed"),
            Self::Git(_)
            | Self::Body(_)
            | Self::Options(_)
            | Self::ClientGone
            | Self::Quota
            | Self::RepositoryFull { .. } => {
                tracing::debug!(reason = self.reason(), "a push was refused");
            }
        }
    }
}

impl From<GitError> for Failed {
    fn from(error: GitError) -> Self {
        Self::Git(error)
    }
}

impl From<BodyError> for Failed {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

impl From<HttpError> for Failed {
    fn from(error: HttpError) -> Self {
        Self::Ours(error)
    }
}

/// Bytes of a pack that are awaited before git is started.
const GATHERED: usize = 256 * 1024;

/// Where the report of a push goes. It is closed when the client is gone.
type Answer = mpsc::Sender<Vec<u8>>;

/// One push.
pub(super) struct Push {
    pub(super) git: Arc<GitHttp>,
    pub(super) seat: Seat,
    pub(super) request: PushRequest,
}

/// What follows the commands.
pub(super) struct Pack {
    pub(super) body: GitBody,
    pub(super) rest: Vec<u8>,
}

impl Push {
    /// Does it and reports, with a sign of life now and then.
    pub(super) async fn run(self, pack: Pack, answer: Answer) {
        let capabilities = self.request.capabilities();
        let refs: Vec<_> = self.request.commands().iter().map(|c| c.name.clone()).collect();
        let work = self.work(pack, &answer);
        tokio::pin!(work);
        let mut signs = tokio::time::interval(self.git.limits.sign_of_life);
        signs.tick().await;
        let reports = loop {
            tokio::select! {
                reports = &mut work => break reports,
                _ = signs.tick() => {
                    let sign = encode_progress("still working", capabilities);
                    // Whoever does not read has enough signs waiting; the work goes on.
                    if !sign.is_empty() {
                        let _ = answer.try_send(sign);
                    }
                }
            }
        };
        let reports = reports.unwrap_or_else(|failed| {
            let refusal = Some(failed.reason());
            failed.log();
            refs.into_iter().map(|name| RefReport { name, refusal: refusal.clone() }).collect()
        });
        let _ = answer.send(encode_report(&reports, capabilities)).await;
    }

    /// A client that still sends reads no answer: whatever the end is, the request is taken to its own.
    async fn work(&self, mut pack: Pack, answer: &Answer) -> Result<Vec<RefReport>, Failed> {
        let reports = self.judge_and_execute(&mut pack, answer).await;
        if self.seat.endpoint == Endpoint::PullRequests {
            // A place was made for what was to come. It goes if nothing came; a round finds it if not now.
            if let Err(error) = self.git.keeper.vacate(&self.seat.repo).await {
                tracing::warn!(%error, "could not remove an empty place");
            }
        }
        pack.body.drain().await;
        reports
    }

    async fn judge_and_execute(
        &self,
        pack: &mut Pack,
        answer: &Answer,
    ) -> Result<Vec<RefReport>, Failed> {
        if self.request.capabilities().push_options {
            pack.pass_over_options().await?;
        }
        let Seat { repos, repo, endpoint, .. } = &self.seat;
        let refs = repos.refs(repo).await?;
        let grounds = self.git.grounds(&self.seat, &self.request).await?;
        let early = grounds.judge(&self.request, &refs);
        let Some(push) = &early.authorised else { return Ok(reports(&early)) };
        let _at_work = self.git.keeper.at_work(repo);
        if *endpoint == Endpoint::PullRequests {
            repos.lock(&repo.identifier).await?.create_view(&repo.owner).await?;
        }
        let claimant = self.claimant(&grounds, &early, !refs.is_empty());
        let received = self.receive(pack, push, claimant);
        let incoming = if push.execute().is_empty() {
            tokio::select! {
                received = received => received?,
                () = answer.closed() => return Err(Failed::ClientGone),
            }
        } else {
            received.await?
        };
        self.execute(incoming).await
    }

    /// The party that git works for: whoever signed the state, with authority if their repository is served already.
    fn claimant(&self, grounds: &Grounds, verdict: &PushVerdict, is_served: bool) -> Claimant {
        match grounds.author_of(verdict.realises) {
            Some(author) if is_served => self.seat.claimant.signed_by(author).with_authority(),
            Some(author) => self.seat.claimant.signed_by(author),
            None => self.seat.claimant,
        }
    }

    /// Receives the pack, checks that everything is there and takes out what is needed, before the lock is taken: a
    /// long history is walked while nobody has to wait for it.
    async fn receive(
        &self,
        pack: &mut Pack,
        push: &AuthorisedPush,
        claimant: Claimant,
    ) -> Result<Option<Incoming>, Failed> {
        let mut incoming = self.unpack(pack, push, claimant).await?;
        if let Some(incoming) = &mut incoming {
            let tips = push.execute().iter().chain(push.stage());
            incoming.check_all(&tips.filter_map(|command| command.new).collect()).await?;
            incoming.prepare(push).await?;
        }
        Ok(incoming)
    }

    /// Receives the pack into quarantine; `None` if the push only deletes.
    async fn unpack(
        &self,
        pack: &mut Pack,
        push: &AuthorisedPush,
        claimant: Claimant,
    ) -> Result<Option<Incoming>, Failed> {
        if self.request.commands().iter().all(|command| command.new.is_none()) {
            return Ok(None);
        }
        let (keeper, name) = (&self.git.keeper, &self.seat.repo.identifier);
        let now = keeper.clock().now().mono;
        let room = keeper.disk().room(now, name, &claimant, Addition::Pushed);
        if room == 0 {
            return Err(Failed::Quota);
        }
        let left = keeper.disk().family_room(&self.seat.repos, name).await?;
        let full = Failed::RepositoryFull { limit: keeper.disk().repository_bytes() };
        if left == 0 {
            return Err(full);
        }
        let most = self.max_bytes(push).min(room);
        let incoming = match self.receive_pack(pack, most.min(left), claimant).await {
            Err(Failed::Git(GitError::TooLarge { .. })) if left < most => return Err(full),
            received => received?,
        };
        let bytes = incoming.bytes().await?;
        keeper.disk().charge(now, name, &claimant, (Addition::Pushed, bytes));
        Ok(Some(incoming))
    }

    /// Receives a pack of at most so many bytes.
    async fn receive_pack(
        &self,
        pack: &mut Pack,
        max_bytes: u64,
        claimant: Claimant,
    ) -> Result<Incoming, Failed> {
        // A client that sends a small pack slowly keeps no process waiting.
        let rest = std::mem::take(&mut pack.rest);
        let first = pack.body.gather(rest, GATHERED).await?;
        let incoming = self.seat.repos.incoming(&self.seat.repo, claimant).await?;
        let memory = self.git.limits.push_memory;
        let mut unpacking = incoming.unpack(max_bytes, memory).await?;
        unpacking.feed(&first).await?;
        while let Some(bytes) = pack.body.next().await? {
            unpacking.feed(&bytes).await?;
        }
        unpacking.finish().await?;
        Ok(incoming)
    }

    /// How much a push may bring. What nobody has signed for has to fit where it waits.
    fn max_bytes(&self, push: &AuthorisedPush) -> u64 {
        let most = self.git.limits.push_bytes;
        if !push.execute().is_empty() {
            return most;
        }
        most.min(self.seat.repos.staging_limits().bytes_per_event)
    }

    /// Judges again under the lock, moves refs, and waits until what follows from it is served.
    async fn execute(&self, incoming: Option<Incoming>) -> Result<Vec<RefReport>, Failed> {
        let (keeper, Seat { repos, repo, .. }) = (&self.git.keeper, &self.seat);
        let mut guard = repos.lock(&repo.identifier).await?;
        let refs = guard.refs(&repo.owner).await?;
        let grounds = self.git.grounds(&self.seat, &self.request).await?;
        let verdict = grounds.judge(&self.request, &refs);
        let Some(push) = &verdict.authorised else { return Ok(reports(&verdict)) };
        if self.seat.endpoint == Endpoint::Repository {
            let events = self.events(&verdict, push);
            keeper.tell(Input::PushAuthorised { repo: repo.clone(), events }).await;
        }
        let head = grounds.head_of(verdict.realises);
        let now = keeper.clock().now().unix;
        let accepted = guard.accept(&repo.owner, push, incoming, head, now).await;
        drop(guard);
        // Also after a failure: what was staged before it is there, and must be accounted for.
        self.tell_staged(push).await;
        accepted?;
        keeper.settle(&repo.identifier).await.map_err(HttpError::from)?;
        let mut reports = reports(&verdict);
        self.correct(&mut reports, &verdict, push).await?;
        Ok(reports)
    }

    /// The state and the pull requests that a push brings data for.
    fn events(&self, verdict: &PushVerdict, push: &AuthorisedPush) -> BTreeSet<EventId> {
        let proposals = push.execute().iter().filter_map(|command| command.name.event());
        proposals.chain(verdict.realises).collect()
    }

    async fn tell_staged(&self, push: &AuthorisedPush) {
        for command in push.stage() {
            let (Some(id), Some(tip)) = (command.name.event(), command.new) else { continue };
            let Seat { repos, repo, endpoint, .. } = &self.seat;
            let target = match endpoint {
                Endpoint::Repository => PushTarget::Repository(repo.clone()),
                Endpoint::PullRequests => PushTarget::Contributor(repo.clone()),
            };
            if let Ok(bytes) = repos.staged_bytes(&repo.identifier, id, tip).await {
                let network = self.seat.claimant.network;
                self.git.keeper.tell(Input::PushStaged { id, tip, target, bytes, network }).await;
            }
        }
    }
}

impl Pack {
    async fn pass_over_options(&mut self) -> Result<(), Failed> {
        let mut options = OptionsReader::default();
        let mut bytes = Bytes::from(std::mem::take(&mut self.rest));
        loop {
            match options.feed(&bytes).map_err(|why| Failed::Options(why.to_string()))? {
                Some(rest) => {
                    self.rest = rest;
                    return Ok(());
                }
                None => {
                    let cut_off =
                        || Failed::Options(String::from("the push options are incomplete"));
                    bytes = self.body.next().await?.ok_or_else(cut_off)?;
                }
            }
        }
    }
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
