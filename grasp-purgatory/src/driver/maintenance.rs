//! Maintenance of all identifiers, one at a time.
//!
//! It runs when the server starts, which finds what an earlier run left between a change in the store and its effect in
//! git. The maintenance of an identifier begins after that of the one before has ended, so that a server with many
//! repositories is rarely busy with more than one of them. One that takes too long goes on beside the next.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::{Identifier, Oid};
use nostr::types::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::queue::Executor;
use super::{Order, Until};
use crate::Input;
use crate::git::{FamilyGuard, GitError, RepoStore};

/// Time from the end of maintenance to its next start.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Time after which a pack is read as a whole again, to find damage.
const VERIFY_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Time after which identifiers are listed again if that failed.
const LIST_RETRY: Duration = Duration::from_secs(60);

/// Time between two identifiers, for the disk to do other things.
const PAUSE_BETWEEN_REPOSITORIES: Duration = Duration::from_millis(20);

/// Time that the maintenance of one identifier is waited for.
const REPOSITORY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Maintains all identifiers, at once, by schedule and when that is requested. Requests are answered after the next pass
/// that begins, all together.
async fn run<L, M>(
    mut requests: mpsc::Receiver<oneshot::Sender<()>>,
    list: impl Fn() -> L,
    maintain: impl Fn(Identifier) -> M,
) where
    L: Future<Output = Option<BTreeSet<Identifier>>>,
    M: Future<Output = ()> + Send + 'static,
{
    let mut requested: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        requested.extend(std::iter::from_fn(|| requests.try_recv().ok()));
        let names = list().await;
        let next = if names.is_some() { MAINTENANCE_INTERVAL } else { LIST_RETRY };
        for identifier in names.unwrap_or_default() {
            if requests.is_closed() {
                return;
            }
            sleep(PAUSE_BETWEEN_REPOSITORIES).await;
            let work = tokio::spawn(maintain(identifier.clone()));
            if timeout(REPOSITORY_TIMEOUT, work).await.is_err() {
                tracing::warn!(%identifier, "the maintenance of a repository takes long; going on");
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
        run(requests, list, |name| self.clone().maintain_and_settle(name)).await;
    }

    /// Maintains an identifier in its queue, and waits until what follows from that is done.
    async fn maintain_and_settle(self, identifier: Identifier) {
        let (done, is_done) = oneshot::channel();
        self.order(Order::Maintain { identifier: identifier.clone(), done }).await;
        let _ = is_done.await;
        self.tell(Input::Changed { identifier: identifier.clone() }).await;
        let (reply, is_settled) = oneshot::channel();
        self.order(Order::Wait { until: Until::Settled(identifier), reply }).await;
        let _ = is_settled.await;
    }

    /// Returns every identifier that is hosted, on disk or by a stored announcement.
    async fn try_names(&self) -> Result<BTreeSet<Identifier>, GitError> {
        let mut names = BTreeSet::new();
        for store in self.parts.stores() {
            names.extend(store.identifiers().await?);
        }
        names.extend(self.parts.relay.hosted(&self.parts.policy).await?);
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

    /// Removes retired data whose time is over, and repacks. Objects that no view needs are removed, but for the tips that
    /// held events are `waiting` for, if there are any.
    pub(super) async fn maintain(&self, identifier: &Identifier, waiting: Option<BTreeSet<Oid>>) {
        if let Err(error) = self.try_maintain(identifier, waiting).await {
            tracing::warn!(%error, %identifier, "maintenance of a repository failed");
        }
    }

    async fn try_maintain(
        &self,
        identifier: &Identifier,
        waiting: Option<BTreeSet<Oid>>,
    ) -> Result<(), GitError> {
        let now = self.parts.relay.now().unix;
        self.unrelated.forget(identifier);
        for store in self.parts.stores() {
            self.inspect(store, identifier, false).await;
            self.verify(store, identifier, now).await;
            let mut guard = store.lock(identifier).await?;
            self.forget_vanished(&mut guard).await?;
            if waiting.is_none() {
                guard.remove_if_deserted().await?;
            }
            if guard.compact().await? {
                tracing::debug!(%identifier, "repacked a repository");
            }
            drop(guard);
            if store.collect(identifier, &waiting.clone().unwrap_or_default(), now).await? {
                tracing::debug!(%identifier, "removed objects that nothing refers to");
            }
        }
        Ok(())
    }

    /// Checks that the objects of an identifier are there, and hunts for those that are not. Histories are walked if `walk`.
    pub(super) async fn inspect(&self, store: &RepoStore, identifier: &Identifier, walk: bool) {
        match self.damage.inspect(store, identifier, walk).await {
            Ok(true) => {
                self.tell(Input::Damaged { identifier: identifier.clone() }).await;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, %identifier, "could not check a repository for missing objects");
            }
        }
    }

    /// Reads the packs of an identifier that were not read for a month.
    async fn verify(&self, store: &RepoStore, identifier: &Identifier, now: Timestamp) {
        match store.verify(identifier, now - VERIFY_INTERVAL, now).await {
            Ok(damaged) if damaged.is_empty() => {}
            Ok(damaged) => {
                tracing::error!(%identifier, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
                self.inspect(store, identifier, false).await;
            }
            Err(error) => {
                tracing::warn!(%error, %identifier, "could not read the packs of a repository")
            }
        }
    }

    /// Removes retired views of owners who have vanished since (NIP-62).
    async fn forget_vanished(&self, guard: &mut FamilyGuard) -> Result<(), GitError> {
        for owner in guard.retired_owners().await? {
            if self.has_vanished(&owner).await? {
                guard.forget_retired_of(&owner).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::Instant;

    use super::super::MAINTENANCE_QUEUE;
    use super::*;

    /// Passes over these identifiers, whose maintenance takes so long, and when each began or was listed.
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
                listed.lock().unwrap().push((began.elapsed(), String::from("list")));
                let names = names.map(|all| all.iter().map(|it| it.parse().unwrap()).collect());
                std::future::ready(names)
            };
            let maintain = move |name: Identifier| {
                maintained.lock().unwrap().push((began.elapsed(), name.to_string()));
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

    fn steps(steps: &[(Duration, &str)]) -> Vec<(Duration, String)> {
        steps.iter().map(|(at, step)| (*at, (*step).to_owned())).collect()
    }

    const NAMES: Option<&[&str]> = Some(&["a", "b"]);

    #[tokio::test(start_paused = true)]
    async fn maintains_one_identifier_at_a_time() {
        let (takes, pause) = (Duration::from_secs(5), PAUSE_BETWEEN_REPOSITORIES);
        let passes = Passes::start(NAMES, takes);
        let end = pause * 2 + takes * 2;
        let expected = [(Duration::ZERO, "list"), (pause, "a"), (pause * 2 + takes, "b")];
        assert_eq!(passes.until(end + MAINTENANCE_INTERVAL / 2).await, steps(&expected));
        let all = passes.until(MAINTENANCE_INTERVAL / 2 + pause).await;
        assert_eq!(all.get(3), steps(&[(end + MAINTENANCE_INTERVAL, "list")]).first());
    }

    #[tokio::test(start_paused = true)]
    async fn continues_after_a_timeout() {
        let pause = PAUSE_BETWEEN_REPOSITORIES;
        let passes = Passes::start(NAMES, REPOSITORY_TIMEOUT * 10);
        let all = passes.until(REPOSITORY_TIMEOUT + pause * 3).await;
        assert_eq!(all.get(2), steps(&[(pause * 2 + REPOSITORY_TIMEOUT, "b")]).first());
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
