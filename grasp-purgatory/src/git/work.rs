//! Work for clients within this process: in slots of their networks, and on their accounts of CPU time.

use std::time::Duration;

use grasp_core::resources::Claimant;
use rustix::time::{ClockId, clock_gettime};

use super::binary::Git;
use super::blocking;
use super::command::CLIENT_WAIT;
use super::error::GitError;
use super::limits::CpuAccount;
use crate::resources::Holding;

/// CPU time that counts for each step beside what is measured.
const CPU_PER_STEP: Duration = Duration::from_micros(50);

/// A step for a client, with the slot that it is performed in.
#[derive(Debug)]
pub(super) struct Step {
    account: Option<CpuAccount>,
    _slot: Holding,
}

impl Step {
    /// Charges CPU time that could not be measured.
    pub(super) fn charge(&self, used: Duration) {
        if let Some(account) = &self.account {
            account.charge_time(used);
        }
    }
}

impl Git {
    /// Performs one short step of work for a client, on a thread for such work. Steps of one client network have few slots,
    /// and their CPU time counts like that of git: a network that has used its share is refused.
    pub async fn work<T: Send + 'static>(
        &self,
        claimant: Claimant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let step = self.begin_step(claimant).await?;
        blocking(move || {
            let start = thread_time();
            let result = work();
            step.charge(thread_time().saturating_sub(start));
            Ok(result)
        })
        .await
    }

    /// Performs a step that must not be refused, such as the report of work that was done. It is counted like others.
    pub async fn work_at_once<T: Send + 'static>(
        &self,
        claimant: Claimant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GitError> {
        let account = self.pools.client_cpu.account(claimant);
        blocking(move || {
            let start = thread_time();
            let result = work();
            if let Some(account) = account {
                account.charge_time(thread_time().saturating_sub(start));
            }
            Ok(result)
        })
        .await
    }

    /// Waits for a slot of the claimant.
    pub(super) async fn begin_step(&self, claimant: Claimant) -> Result<Step, GitError> {
        let slot = self
            .pools
            .client_steps
            .wait(&claimant, 1, CLIENT_WAIT)
            .await;
        let slot = slot.map_err(GitError::Busy)?;
        let account = self.pools.client_cpu.open_with(claimant, CPU_PER_STEP);
        Ok(Step {
            account: account.map_err(GitError::Busy)?,
            _slot: slot,
        })
    }

    /// Charges a client for work whose CPU time cannot be measured; refuses if its network has used its share.
    pub fn spend(&self, claimant: Claimant, cost: Duration) -> Result<(), GitError> {
        self.pools
            .client_cpu
            .open_with(claimant, cost)
            .map_err(GitError::Busy)?;
        Ok(())
    }
}

/// Returns the CPU time that this thread has used.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroUsize;

    use grasp_core::resources::ClientNetwork;

    use super::*;
    use crate::git::Slots;

    fn at(net: u8) -> Claimant {
        Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()))
    }

    fn git(client_cpu: Duration) -> Git {
        let path = std::env::var_os("PATH").unwrap();
        let local_processes = NonZeroUsize::new(4).unwrap();
        Git::find(
            &path,
            Slots {
                client_cpu,
                local_processes,
                ..Slots::default()
            },
        )
        .unwrap()
    }

    /// Uses this much CPU time.
    fn burn(time: Duration) {
        let start = thread_time();
        while thread_time().saturating_sub(start) < time {}
    }

    #[tokio::test]
    async fn a_network_that_used_its_cpu_time_is_refused_further_steps() {
        let git = git(Duration::from_millis(400));
        let mut refused = 0;
        for _ in 0..20 {
            let step = git.work(at(1), || burn(Duration::from_millis(10))).await;
            refused += usize::from(matches!(step, Err(GitError::Busy(_))));
        }
        assert!((8..18).contains(&refused), "{refused}");
        for allowed in [at(2), at(1).with_authority(), Claimant::server()] {
            git.work(allowed, || ()).await.unwrap();
        }
        git.work_at_once(at(1), || ()).await.unwrap();
    }

    #[tokio::test]
    async fn steps_of_one_network_leave_slots_for_others() {
        let git = git(Duration::from_secs(60));
        let first = git.begin_step(at(1)).await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(10), git.begin_step(at(1))).await;
        assert!(
            second.is_err(),
            "one address has a quarter of what is not reserved"
        );
        git.work(at(2), || ()).await.unwrap();
        drop(first);
        git.work(at(1), || ()).await.unwrap();
    }
}
