//! `grasp doctor`: checks what a server needs from its surroundings, and names a remedy for each problem.

mod local;
mod network;

use std::fmt;

use crate::config::Config;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    subject: String,
    state: State,
    detail: String,
}

/// The state of the subject of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Good,
    Skipped,
    /// The server works, but should be set up differently.
    Warning {
        remedy: String,
    },
    /// The server does not work.
    Failed {
        remedy: String,
    },
}

impl Finding {
    fn good(subject: &str, detail: impl Into<String>) -> Self {
        Self { subject: subject.into(), state: State::Good, detail: detail.into() }
    }

    fn skipped(subject: &str, detail: impl Into<String>) -> Self {
        Self { subject: subject.into(), state: State::Skipped, detail: detail.into() }
    }

    fn warning(subject: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let state = State::Warning { remedy: remedy.into() };
        Self { subject: subject.into(), state, detail: detail.into() }
    }

    fn failed(subject: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let state = State::Failed { remedy: remedy.into() };
        Self { subject: subject.into(), state, detail: detail.into() }
    }

    fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, remedy) = match &self.state {
            State::Good => ("ok", None),
            State::Skipped => ("skipped", None),
            State::Warning { remedy } => ("warning", Some(remedy)),
            State::Failed { remedy } => ("FAILED", Some(remedy)),
        };
        write!(f, "{word:<8} {:<12} {}", self.subject, self.detail)?;
        match remedy {
            Some(remedy) => write!(f, "\n{:<21} → {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// Runs all checks and prints their results. Returns whether none has failed.
pub(crate) fn run(config: &Config, offline: bool) -> std::io::Result<bool> {
    let mut findings = local::findings(config);
    if offline {
        findings.push(Finding::skipped("network", "skipped by --offline"));
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        findings.extend(runtime.block_on(network::findings(config)));
    }
    for finding in &findings {
        println!("{finding}");
    }
    let failed = findings.iter().filter(|finding| finding.is_failed()).count();
    match failed {
        0 => println!("\nno check failed"),
        failed => println!("\n{failed} of {} checks failed", findings.len()),
    }
    Ok(failed == 0)
}
