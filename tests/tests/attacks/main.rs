//! Attacks on the real server, with honest traffic beside them.
//!
//! ```sh
//! cargo test -p grasp-tests --test attacks                     # all, one after the other
//! cargo test -p grasp-tests --test attacks -- delta filter     # those whose names contain one of these words
//! ```
//!
//! `docs/explanation/security.md` lists all replays with their figures, and the tests of attacks that are not replayed.
//!
//! Each attack has a server of its own: the command that operators run, in a process of its own, with default settings
//! except for its port, its directory and private targets. During the attack a maintainer signs and pushes, a reader requests
//! an event by id and another client clones. [`Report`](scenario::Report) checks the result: the 95th percentile of each
//! honest operation, memory, disk, and that all resources are released. Other work on the machine makes operations slow, never
//! fast: a replay in which only times failed is run once more, and both figures are printed.
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod attacker;
mod git;
mod honest;
mod management;
mod names;
mod nostr;
mod packs;
mod pages;
mod private;
mod purgatory;
mod requests;
mod scenario;
mod server;
mod sync;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use self::scenario::Report;

/// One attack: its name, and a replay that returns the figures.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) replay: fn() -> BoxFuture<'static, Report>,
}

/// Defines an [`Attack`] for each async function, under its name.
macro_rules! attacks {
    ($($name:ident),* $(,)?) => {
        pub(crate) const ATTACKS: &[crate::Attack] = &[$(crate::Attack {
            name: stringify!($name),
            replay: || ::std::boxed::Box::pin($name()),
        }),*];
    };
}
pub(crate) use attacks;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The command that operators run, which runs itself to render pages.
    let is_command = |first: &String| ["serve", "render"].contains(&first.as_str());
    if arguments.first().is_some_and(is_command) {
        return grasp_bin::run();
    }
    let words: Vec<&String> = arguments
        .iter()
        .filter(|word| !word.starts_with('-'))
        .collect();
    let all = [
        git::ATTACKS,
        management::ATTACKS,
        names::ATTACKS,
        nostr::ATTACKS,
        pages::ATTACKS,
        private::ATTACKS,
        purgatory::ATTACKS,
        requests::ATTACKS,
        sync::ATTACKS,
    ]
    .concat_refs();
    let is_chosen = |attack: &&Attack| {
        words.is_empty() || words.iter().any(|word| attack.name.contains(word.as_str()))
    };
    let chosen: Vec<&Attack> = all.into_iter().filter(is_chosen).collect();
    if arguments.iter().any(|word| word == "--list") {
        chosen
            .iter()
            .for_each(|attack| println!("{}: test", attack.name));
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("running {} attacks", chosen.len());
    let failed = chosen
        .iter()
        .filter(|attack| !runtime.block_on(passes(attack)))
        .count();
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {failed} failed",
        chosen.len() - failed
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Replays an attack and prints its figures; returns whether every check passed.
async fn passes(attack: &Attack) -> bool {
    let first = replay(attack).await;
    match first {
        ReplayResult::Slow => matches!(replay(attack).await, ReplayResult::Passed),
        other => matches!(other, ReplayResult::Passed),
    }
}

/// The result of a replay.
enum ReplayResult {
    Passed,
    /// Honest operations took too long, and every other check passed.
    Slow,
    Failed,
}

async fn replay(attack: &Attack) -> ReplayResult {
    // A panic has printed its own message.
    let report = AssertUnwindSafe((attack.replay)()).catch_unwind().await;
    let failures = report
        .as_ref()
        .map_or(vec!["the replay panicked".to_owned()], |one| one.failures());
    let is_slow = report.as_ref().is_ok_and(Report::is_only_slow);
    let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
    let figures = report.map(|report| report.to_string()).unwrap_or_default();
    println!("test {} ... {verdict}  {figures}", attack.name);
    failures
        .iter()
        .for_each(|failure| println!("    {failure}"));
    match failures.is_empty() {
        true => ReplayResult::Passed,
        false if is_slow => ReplayResult::Slow,
        false => ReplayResult::Failed,
    }
}

/// Joins lists of attacks.
trait ConcatRefs {
    fn concat_refs(self) -> Vec<&'static Attack>;
}

impl<const N: usize> ConcatRefs for [&'static [Attack]; N] {
    fn concat_refs(self) -> Vec<&'static Attack> {
        self.into_iter().flatten().collect()
    }
}
