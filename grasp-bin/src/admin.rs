//! A running server asked from the command line, over a socket in its data directory.
//!
//! A question is one line of JSON, and so is its answer. Only whoever may read the data directory may ask.

mod client;
mod glance;
mod show;
mod socket;
mod table;
mod watch;

pub(crate) use self::client::Client;
pub(crate) use self::show::{Look, look};
pub(crate) use self::socket::AdminSocket;

use grasp_relay::web::figures::{RepoRow, Status, WaitingRow};
use serde::{Deserialize, Serialize};

/// What may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// How everything stands.
    Status,
    /// Which repositories there are.
    Repositories,
    /// What waits for git data.
    Waiting,
}

/// Whoever answers.
pub(crate) trait Answers: Clone + Send + Sync + 'static {
    /// The answer to a question.
    fn answer(&self, question: Question) -> impl Future<Output = Answer> + Send;
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// How everything stands.
    Status(Box<Status>),
    /// Which repositories there are.
    Repositories(Vec<RepoRow>),
    /// What waits for git data.
    Waiting(Vec<WaitingRow>),
    /// The question could not be read or answered.
    Failed(String),
}
