//! One server follows another that it knows as its bootstrap relay alone, at default timings.

use std::time::{Duration, Instant};

use grasp_purgatory::Purgatory;
use grasp_tests::{Instance, Maker, Workdir};
use nostr::event::Event;

use crate::{MAIN, announce_at};

/// Beyond this something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// When what happened, since the push began.
#[derive(Clone, Copy, Debug, Default)]
struct Journey {
    /// The push was over, and the first server serves its state.
    pushed: Duration,
    /// The second heard of the repository, if that was news.
    announced: Duration,
    /// It heard of the state.
    stated: Duration,
    /// It serves the state and its refs.
    served: Duration,
}

pub(crate) async fn two_servers(rounds: usize) {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Maker::new();
    let work = Workdir::init().await;
    let (mut first, mut update) = (Vec::new(), Vec::new());
    for n in 0..rounds {
        let name = format!("r{n}");
        let commit = work.commit(&format!("first of {name}")).await;
        let places = [a.clone_url(&alice.repo(&name)), b.clone_url(&alice.repo(&name))];
        let announcement = announce_at(&alice, &name, &[&a, &b], &places);
        let state = alice.state(&name, &[(MAIN, &commit)]);
        a.take(vec![announcement, state.clone()]).await;
        first.push(journey(&work, [&a, &b], &places, &state, &commit).await);
        let commit = work.commit(&format!("second of {name}")).await;
        let state = alice.later(1).state(&name, &[(MAIN, &commit)]);
        a.take(vec![state.clone()]).await;
        update.push(journey(&work, [&a, &b], &places, &state, &commit).await);
    }
    println!(
        "two servers, from the beginning of `git push` to one until the other serves state and refs"
    );
    say("a new repository", &mut first, "1.0 s after the push");
    say("an update", &mut update, "0.8 s after the push");
}

fn say(what: &str, journeys: &mut [Journey], wanted: &str) {
    println!(
        "  {what:<18} pushed  announced    stated    served   after the push   (wanted: {wanted})"
    );
    for Journey { pushed, announced, stated, served } in journeys.iter() {
        let after = served.saturating_sub(*pushed);
        println!(
            "  {:<16} {pushed:>8.0?} {announced:>10.0?} {stated:>9.0?} {served:>9.0?} {after:>16.0?}",
            ""
        );
    }
    let mut after: Vec<_> = journeys.iter().map(|j| j.served.saturating_sub(j.pushed)).collect();
    after.sort_unstable();
    let median = after.get(after.len() / 2).copied().unwrap_or_default();
    println!("  {:<16} median {median:.0?} after the push", "");
}

/// Pushes to the first, and watches the second.
async fn journey(
    work: &Workdir,
    [a, b]: [&Instance; 2],
    [to, other]: &[String; 2],
    state: &Event,
    commit: &str,
) -> Journey {
    let start = Instant::now();
    let push = async {
        work.git(&["push", "-q", to, "main"]).await.expect_ok();
        assert!(a.serves(state).await);
        start.elapsed()
    };
    let (pushed, journey) = tokio::join!(push, watch(b, state, start));
    let listed = work.git(&["ls-remote", other, MAIN]).await.expect_ok();
    assert!(listed.starts_with(commit), "what is served is the refs");
    Journey { pushed, ..journey }
}

async fn watch(b: &Instance, state: &Event, start: Instant) -> Journey {
    let mut journey = Journey::default();
    while !b.serves(state).await {
        assert!(start.elapsed() < PATIENCE, "{journey:?}");
        let held = b.keeper().ask(Purgatory::counts).await.expect("a keeper");
        for (count, when) in
            [(held.announcements, &mut journey.announced), (held.states, &mut journey.stated)]
        {
            if count > 0 && when.is_zero() {
                *when = start.elapsed();
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Journey { served: start.elapsed(), ..journey }
}

async fn instance(bootstrap: &[&Instance]) -> Instance {
    Instance::with(|settings| {
        settings.outbound.allow_private = true;
        let relays = bootstrap.iter().map(|other| other.relay_url().parse().expect("a relay"));
        settings.sync.engine.bootstrap = relays.collect();
    })
    .await
}
