//! Maintenance of all repositories, one at a time.
//!
//! It runs when the server starts, which finds what an earlier run left between a change in the store and its effect in
//! git. The maintenance of a repository begins after that of the one before has ended, so that a server with many
//! repositories is rarely busy with more than one of them. One that takes too long goes on beside the next.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::RepoId;
use nostr::types::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::Order;
use super::queue::Executor;
use super::refs::announcement_of;
use crate::Input;
use crate::git::{GitError, RepoGuard, RepoStore};

/// Time from the end of maintenance to its next start.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Time after which a pack is read as a whole again, to find damage.
const VERIFY_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Time after which repositories are listed again if that failed.
const LIST_RETRY: Duration = Duration::from_secs(60);

/// Time between two repositories, for the disk to do other things.
const PAUSE_BETWEEN_REPOSITORIES: Duration = Duration::from_millis(20);

/// Time that the maintenance of one repository is waited for.
const REPOSITORY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Maintains all repositories, at once, by schedule and when that is requested. Requests are answered after the next pass
/// that begins, all together.
async fn run<L, M>(
    mut requests: mpsc::Receiver<oneshot::Sender<()>>,
    list: impl Fn() -> L,
    maintain: impl Fn(RepoId) -> M,
) where
    L: Future<Output = Option<BTreeSet<RepoId>>>,
    M: Future<Output = ()> + Send + 'static,
{
    let mut requested: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        requested.extend(std::iter::from_fn(|| requests.try_recv().ok()));
        let names = list().await;
        let next = if names.is_some() {
            MAINTENANCE_INTERVAL
        } else {
            LIST_RETRY
        };
        for repo in names.unwrap_or_default() {
            if requests.is_closed() {
                return;
            }
            sleep(PAUSE_BETWEEN_REPOSITORIES).await;
            let work = tokio::spawn(maintain(repo.clone()));
            if timeout(REPOSITORY_TIMEOUT, work).await.is_err() {
                tracing::warn!(%repo, "the maintenance of a repository takes long; going on");
            }
        }
        requested.drain(..).for_each(|reply| _ = reply.send(()));
        tokio::select! {
            () = sleep(next) => {}
            request = requests.recv() => match request {
                Some(reply) => requested.push(reply),
                None => return,
            },
        }
    }
}

impl Executor {
    /// Runs maintenance for as long as there is a handle of the driver.
    pub(super) async fn run_maintenance(self, requests: mpsc::Receiver<oneshot::Sender<()>>) {
        let list = || async {
            let names = self.try_names().await;
            let executor = self.clone();
            tokio::spawn(async move { executor.sweep().await });
            names
                .inspect_err(
                    |error| tracing::warn!(%error, "could not list the hosted repositories"),
                )
                .ok()
        };
        run(requests, list, |name| {
            self.clone().maintain_and_settle(name)
        })
        .await;
    }

    /// Maintains a repository in its queue, and waits until what follows from that is done.
    async fn maintain_and_settle(self, repo: RepoId) {
        let (done, is_done) = oneshot::channel();
        self.order(Order::Maintain {
            repo: repo.clone(),
            done,
        })
        .await;
        let _ = is_done.await;
        self.settle(repo).await;
    }

    /// Waits until all that is known about a repository now has had its effects.
    async fn settle(&self, repo: RepoId) {
        let (reply, is_settled) = oneshot::channel();
        self.order(Order::Settle {
            repo,
            events: BTreeSet::new(),
            reply,
        })
        .await;
        let _ = is_settled.await;
    }

    /// Removes what events brought that were deleted or have vanished. What their repositories show instead stays: it is
    /// known once they were surveyed.
    pub(super) async fn collect_affected(&self, repos: BTreeSet<RepoId>) {
        for repo in repos {
            self.settle(repo.clone()).await;
            self.collect_removed(&repo).await;
        }
    }

    /// Returns every repository that is hosted, on disk or by a stored announcement.
    async fn try_names(&self) -> Result<BTreeSet<RepoId>, GitError> {
        let mut names = BTreeSet::new();
        for store in self.parts.stores() {
            names.extend(store.all().await?);
        }
        names.extend(self.parts.relay.hosted(&self.parts.policy.now()).await?);
        Ok(names)
    }

    /// Removes packs from the pack storage that nothing has named for a day.
    async fn sweep(&self) {
        for store in self.parts.stores() {
            match store.sweep(self.parts.relay.now().mono).await {
                Ok(0) => {}
                Ok(deleted) => {
                    tracing::info!(deleted, "deleted unused packs from the pack storage")
                }
                Err(error) => tracing::warn!(%error, "could not delete unused packs"),
            }
        }
    }

    /// Removes retired data whose time is over, and repacks. Objects that nothing refers to are removed.
    pub(super) async fn maintain(&self, repo: &RepoId, has_held: bool) {
        if let Err(error) = self.try_maintain(repo, has_held).await {
            tracing::warn!(%error, %repo, "maintenance of a repository failed");
        }
    }

    async fn try_maintain(&self, repo: &RepoId, has_held: bool) -> Result<(), GitError> {
        let now = self.parts.relay.now().unix;
        self.unavailable.forget(repo);
        if !has_held {
            self.remove_ended(repo).await?;
        }
        for store in self.parts.stores() {
            self.inspect(store, repo, false).await;
            self.verify(store, repo, now).await;
            let mut guard = store.lock(repo).await?;
            self.forget_vanished(&mut guard).await?;
            if !has_held {
                guard.remove_if_deserted().await?;
            }
            if guard.compact().await? {
                tracing::debug!(%repo, "repacked a repository");
            }
            let row = guard.row().await?;
            drop(guard);
            let keep = self.keep(repo, &row).await?;
            if store.repository(repo).collect(&keep).await? {
                tracing::debug!(%repo, "removed objects that nothing refers to");
            }
        }
        Ok(())
    }

    /// Removes a withheld repository whose announcement is kept no longer: its time is over, or its owner has deleted it.
    async fn remove_ended(&self, repo: &RepoId) -> Result<(), GitError> {
        let mut guard = self.parts.repos.lock(repo).await?;
        let is_withheld = self.parts.policy.now().withholds(repo);
        if !is_withheld || guard.row().await?.view.is_none() {
            return Ok(());
        }
        match self.parts.relay.keeps(announcement_of(repo)).await? {
            true => Ok(()),
            false => guard.destroy().await,
        }
    }

    /// Checks that the objects of a repository are there, and hunts for those that are not. Histories are walked if `walk`.
    pub(super) async fn inspect(&self, store: &RepoStore, repo: &RepoId, walk: bool) {
        match self.damage.inspect(store, repo, walk).await {
            Ok(true) => {
                self.tell(Input::Damaged { repo: repo.clone() }).await;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, %repo, "could not check a repository for missing objects");
            }
        }
    }

    /// Reads the packs of a repository that were not read for a month.
    async fn verify(&self, store: &RepoStore, repo: &RepoId, now: Timestamp) {
        match store
            .repository(repo)
            .verify(now - VERIFY_INTERVAL, now)
            .await
        {
            Ok(damaged) if damaged.is_empty() => {}
            Ok(damaged) => {
                tracing::error!(%repo, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
                self.inspect(store, repo, false).await;
            }
            Err(error) => {
                tracing::warn!(%error, %repo, "could not read the packs of a repository")
            }
        }
    }

    /// Removes retired data of an owner who has vanished since (NIP-62).
    async fn forget_vanished(&self, guard: &mut RepoGuard) -> Result<(), GitError> {
        if guard.retired_refs().await?.is_empty() {
            return Ok(());
        }
        let owner = guard.repo().owner;
        if self.has_vanished(&owner).await? {
            guard.forget_retired().await
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use nostr::key::PublicKey;
    use tokio::time::Instant;

    use super::super::MAINTENANCE_QUEUE;
    use super::*;

    /// Passes over these repositories, whose maintenance takes so long, and when each began or was listed.
    struct Passes {
        log: Arc<Mutex<Vec<(Duration, String)>>>,
        requests: mpsc::Sender<oneshot::Sender<()>>,
    }

    impl Passes {
        fn start(names: Option<&'static [&'static str]>, takes: Duration) -> Self {
            let (requests, inbox) = mpsc::channel(MAINTENANCE_QUEUE);
            let (log, began) = (Arc::<Mutex<Vec<_>>>::default(), Instant::now());
            let (listed, maintained) = (log.clone(), log.clone());
            let list = move || {
                listed
                    .lock()
                    .unwrap()
                    .push((began.elapsed(), String::from("list")));
                let names = names.map(|all| all.iter().map(|name| repo(name)).collect());
                std::future::ready(names)
            };
            let maintain = move |repo: RepoId| {
                maintained
                    .lock()
                    .unwrap()
                    .push((began.elapsed(), repo.identifier.to_string()));
                sleep(takes)
            };
            tokio::spawn(run(inbox, list, maintain));
            Self { log, requests }
        }

        async fn until(&self, time: Duration) -> Vec<(Duration, String)> {
            sleep(time).await;
            self.log.lock().unwrap().clone()
        }
    }

    fn repo(name: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([1; 32]), name.parse().unwrap())
    }

    fn steps(steps: &[(Duration, &str)]) -> Vec<(Duration, String)> {
        steps
            .iter()
            .map(|(at, step)| (*at, (*step).to_owned()))
            .collect()
    }

    const NAMES: Option<&[&str]> = Some(&["a", "b"]);

    #[tokio::test(start_paused = true)]
    async fn maintains_one_repository_at_a_time() {
        let (takes, pause) = (Duration::from_secs(5), PAUSE_BETWEEN_REPOSITORIES);
        let passes = Passes::start(NAMES, takes);
        let end = pause * 2 + takes * 2;
        let expected = [
            (Duration::ZERO, "list"),
            (pause, "a"),
            (pause * 2 + takes, "b"),
        ];
        assert_eq!(
            passes.until(end + MAINTENANCE_INTERVAL / 2).await,
            steps(&expected)
        );
        let all = passes.until(MAINTENANCE_INTERVAL / 2 + pause).await;
        assert_eq!(
            all.get(3),
            steps(&[(end + MAINTENANCE_INTERVAL, "list")]).first()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn continues_after_a_timeout() {
        let pause = PAUSE_BETWEEN_REPOSITORIES;
        let passes = Passes::start(NAMES, REPOSITORY_TIMEOUT * 10);
        let all = passes.until(REPOSITORY_TIMEOUT + pause * 3).await;
        assert_eq!(
            all.get(2),
            steps(&[(pause * 2 + REPOSITORY_TIMEOUT, "b")]).first()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lists_again_after_a_failure() {
        let passes = Passes::start(None, Duration::ZERO);
        let expected = [(Duration::ZERO, "list"), (LIST_RETRY, "list")];
        assert_eq!(passes.until(LIST_RETRY * 3 / 2).await, steps(&expected));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_answered_together_after_a_pass_that_began_after_them() {
        let passes = Passes::start(NAMES, Duration::from_secs(5));
        // In the middle of the first pass.
        sleep(Duration::from_secs(1)).await;
        let mut over = Vec::new();
        for _ in 0..3 {
            let (reply, is_over) = oneshot::channel();
            passes.requests.send(reply).await.unwrap();
            over.push(is_over);
        }
        for is_over in over {
            is_over.await.unwrap();
        }
        let all = passes.until(Duration::ZERO).await;
        assert_eq!(all.iter().filter(|(_, step)| step == "list").count(), 2);
        assert_eq!(all.len(), 6);
    }
}
