//! One server is down for a while, and the others catch up with it in proportion to its downtime.

use std::time::Duration;

use grasp_core::sync::ConnectionStatus;
use grasp_sync::driver::RelayStatus;
use grasp_tests::{AdjustableClock, Author, Convergence, eventually_async};

use super::network::{MAIN, Network};
use super::threads::comment;

/// Returns the status of one member at another, once it is connected and no further batches are confirmed.
async fn stable_status(network: &Network, of: usize, by: usize) -> RelayStatus {
    let (one, other) = (&network.members[by], &network.members[of]);
    eventually_async(|| async {
        let before = one.status_of(other).await?;
        // New items are requested once the discovery window has closed.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = one.status_of(other).await?;
        let is_stable =
            status.connection == ConnectionStatus::Connected && status.batches == before.batches;
        is_stable.then_some(status)
    })
    .await
}

/// Waits until a member has noticed that another is down.
async fn until_disconnected(network: &Network, of: usize, by: usize) {
    let (one, other) = (&network.members[by], &network.members[of]);
    eventually_async(|| async {
        let status = one.status_of(other).await?;
        let gone = [ConnectionStatus::Disconnected, ConnectionStatus::Connecting];
        gone.contains(&status.connection).then_some(())
    })
    .await;
}

/// Three servers, the third of which was down for a while.
struct Downtime {
    network: Network,
    /// The status of the third server at each of the others, before and after.
    statuses: [(RelayStatus, RelayStatus); 2],
}

impl Downtime {
    /// During the downtime no new root is published: further requests are a consequence of the downtime alone.
    /// because of the absence.
    async fn of(seconds: u64) -> Self {
        let time = AdjustableClock::default();
        let settings = time.settings();
        let mut network = Network::with_settings(3, &settings).await;
        let alice = Author::new().earlier(100);
        let hosted = network.host(0, &alice, "x").await;
        let issue = alice.later(1).issue(&hosted.repo, "an issue");
        network.at(0).publish_all(&[&issue]).await;
        network
            .convergence()
            .serving(hosted.signed())
            .serving([&issue])
            .wait()
            .await;
        let before = [
            stable_status(&network, 2, 0).await,
            stable_status(&network, 2, 1).await,
        ];

        network.members[2].stop().await;
        until_disconnected(&network, 2, 0).await;
        until_disconnected(&network, 2, 1).await;
        time.advance(seconds);
        let next = hosted.work.commit("meanwhile").await;
        let state = alice.later(seconds).state("x", &[(MAIN, &next)]);
        network.at(0).publish_all(&[&state]).await;
        hosted.push(&network.at(0), &["main"]).await;
        let comment = comment(&alice.later(seconds), &issue, &issue, "a comment");
        network.at(1).publish_all(&[&comment]).await;
        Convergence::of(&[network.at(0), network.at(1)])
            .serving([&state, &comment])
            .wait()
            .await;

        network.members[2].start().await;
        let convergence = network.convergence().serving([&state, &comment]);
        convergence
            .with_refs(&hosted.repo, &[(MAIN, &next)])
            .wait()
            .await;
        let after = [
            stable_status(&network, 2, 0).await,
            stable_status(&network, 2, 1).await,
        ];

        // New events are live in both directions.
        let (here, there) = (alice.later(seconds + 1), alice.later(seconds + 2));
        let (here, there) = (
            here.issue(&hosted.repo, "here"),
            there.issue(&hosted.repo, "there"),
        );
        network.at(2).publish_all(&[&here]).await;
        network.at(0).publish_all(&[&there]).await;
        network.convergence().serving([&here, &there]).wait().await;
        let ([one, two], [three, four]) = (before, after);
        Self {
            network,
            statuses: [(one, three), (two, four)],
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_minute_only_missed_events_are_requested() {
    let Downtime { network, statuses } = Downtime::of(60).await;
    for (before, after) in statuses {
        assert!(before.batches > 0, "{before:?}");
        assert_eq!(
            after.batches, before.batches,
            "earlier batches count: {before:?} {after:?}"
        );
    }
    // The restarted server does not request what it had either, according to its own records.
    for which in [0, 1] {
        let status = stable_status(&network, which, 2).await;
        assert!(status.counts.stored() <= 3, "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_hour_everything_is_requested_again() {
    for (before, after) in Downtime::of(60 * 60).await.statuses {
        assert!(
            after.batches > before.batches,
            "earlier batches do not count: {before:?} {after:?}"
        );
    }
}
