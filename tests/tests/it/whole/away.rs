//! One server is away for a while, and catches up by the way that is right for so long a while.

use std::time::Duration;

use grasp_sync::driver::RelayStatus;
use grasp_sync::index::ConnectionStatus;
use grasp_tests::{AdjustableClock, Author, Convergence, eventually_async};

use super::net::{MAIN, Net};
use super::threads::comment;

/// What one member thinks of another, once it is complete and live and everything that is here is confirmed.
async fn settled(net: &Net, of: usize, by: usize) -> RelayStatus {
    let (one, other) = (&net.members[by], &net.members[of]);
    eventually_async(|| async {
        let before = one.thinks_of(other).await?;
        // What has just arrived is asked for by name once the window of discovery has closed.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = one.thinks_of(other).await?;
        let is_settled =
            status.connection == ConnectionStatus::Connected && status.batches == before.batches;
        is_settled.then_some(status)
    })
    .await
}

/// Waits until a member has noticed that another is gone.
async fn missed(net: &Net, of: usize, by: usize) {
    let (one, other) = (&net.members[by], &net.members[of]);
    eventually_async(|| async {
        let status = one.thinks_of(other).await?;
        let gone = [ConnectionStatus::Disconnected, ConnectionStatus::Connecting];
        gone.contains(&status.connection).then_some(())
    })
    .await;
}

/// The third of three servers is away for so long, and comes back.
struct Absence {
    net: Net,
    /// What each of the others thought of it before, and after.
    thought: [(RelayStatus, RelayStatus); 2],
}

impl Absence {
    /// Nothing begins meanwhile that has to be asked for by a name of its own: what is asked for anew then is so
    /// because of the absence.
    async fn of(seconds: u64) -> Self {
        let time = AdjustableClock::default();
        let settings = time.settings();
        let mut net = Net::set(3, &settings).await;
        let alice = Author::new().earlier(100);
        let hosted = net.host(0, &alice, "x").await;
        let issue = alice.later(1).issue(&hosted.repo, "an issue");
        net.at(0).publish_all(&[&issue]).await;
        net.equal().serving(hosted.signed()).serving([&issue]).wait().await;
        let before = [settled(&net, 2, 0).await, settled(&net, 2, 1).await];

        net.members[2].stop().await;
        missed(&net, 2, 0).await;
        missed(&net, 2, 1).await;
        time.advance(seconds);
        let next = hosted.work.commit("meanwhile").await;
        let state = alice.later(seconds).state("x", &[(MAIN, &next)]);
        net.at(0).publish_all(&[&state]).await;
        hosted.push(&net.at(0), &["main"]).await;
        let said = comment(&alice.later(seconds), &issue, &issue, "is anybody there?");
        net.at(1).publish_all(&[&said]).await;
        Convergence::of(&[net.at(0), net.at(1)]).serving([&state, &said]).wait().await;

        net.members[2].start().await;
        let equal = net.equal().serving([&state, &said]);
        equal.with_refs(&hosted.repo, &[(MAIN, &next)]).wait().await;
        let after = [settled(&net, 2, 0).await, settled(&net, 2, 1).await];

        // And what is new comes live, both ways.
        let (here, there) = (alice.later(seconds + 1), alice.later(seconds + 2));
        let (here, there) = (here.issue(&hosted.repo, "here"), there.issue(&hosted.repo, "there"));
        net.at(2).publish_all(&[&here]).await;
        net.at(0).publish_all(&[&there]).await;
        net.equal().serving([&here, &there]).wait().await;
        let ([one, two], [three, four]) = (before, after);
        Self { net, thought: [(one, three), (two, four)] }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_minute_only_what_was_missed_is_asked_for() {
    let Absence { net, thought } = Absence::of(60).await;
    for (before, after) in thought {
        assert!(before.batches > 0, "{before:?}");
        assert_eq!(after.batches, before.batches, "what was had counts: {before:?} {after:?}");
    }
    // Nor does it ask for what it had when it went: its own records say so.
    for which in [0, 1] {
        let status = settled(&net, which, 2).await;
        assert!(status.counts.stored() <= 3, "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_hour_everything_is_asked_for_anew() {
    for (before, after) in Absence::of(60 * 60).await.thought {
        assert!(after.batches > before.batches, "nothing counts: {before:?} {after:?}");
    }
}
