//! `grasp doctor`: looks at everything a server needs from its surroundings, and says what to do about what is missing.

mod here;
mod there;

use std::fmt;

use crate::config::Config;

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What was looked at.
    about: String,
    /// How it is.
    state: State,
    /// What was seen.
    seen: String,
}

/// How a thing is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// As it should be.
    Good,
    /// Not looked at, and why that is no matter.
    Skipped,
    /// It works, and should be otherwise.
    Odd { remedy: String },
    /// It does not work.
    Bad { remedy: String },
}

impl Finding {
    fn good(about: &str, seen: impl Into<String>) -> Self {
        Self { about: about.into(), state: State::Good, seen: seen.into() }
    }

    fn skipped(about: &str, seen: impl Into<String>) -> Self {
        Self { about: about.into(), state: State::Skipped, seen: seen.into() }
    }

    fn odd(about: &str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        let state = State::Odd { remedy: remedy.into() };
        Self { about: about.into(), state, seen: seen.into() }
    }

    fn bad(about: &str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        let state = State::Bad { remedy: remedy.into() };
        Self { about: about.into(), state, seen: seen.into() }
    }

    fn is_bad(&self) -> bool {
        matches!(self.state, State::Bad { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, remedy) = match &self.state {
            State::Good => ("ok", None),
            State::Skipped => ("skipped", None),
            State::Odd { remedy } => ("odd", Some(remedy)),
            State::Bad { remedy } => ("BAD", Some(remedy)),
        };
        write!(f, "{word:<8} {:<12} {}", self.about, self.seen)?;
        match remedy {
            Some(remedy) => write!(f, "\n{:<21} → {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// Looks at everything and prints what it finds; whether nothing is bad.
pub(crate) fn examine(config: &Config, offline: bool) -> std::io::Result<bool> {
    let mut findings = here::findings(config);
    if offline {
        findings.push(Finding::skipped("network", "left out, as asked"));
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        findings.extend(runtime.block_on(there::findings(config)));
    }
    for finding in &findings {
        println!("{finding}");
    }
    let bad = findings.iter().filter(|finding| finding.is_bad()).count();
    match bad {
        0 => println!("\nnothing stands in the way"),
        bad => println!("\n{bad} of {} stand in the way", findings.len()),
    }
    Ok(bad == 0)
}
