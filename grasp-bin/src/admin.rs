//! Queries of a running server from the command line, over a socket in its data directory.
//!
//! A request is one line of JSON, and so is its response. Only the user that the server runs as may connect.

mod client;
mod show;
mod socket;
mod summary;
mod table;
mod watch;

pub(crate) use self::client::AdminClient;
pub(crate) use self::show::{AdminCommand, run};
pub(crate) use self::socket::AdminSocket;

use grasp_relay::web::figures::{RepoRow, Status, WaitingRow};
use serde::{Deserialize, Serialize};

/// A request to a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AdminRequest {
    Status,
    Repositories,
    Waiting,
}

/// Answers requests on the admin socket.
pub(crate) trait AdminHandler: Clone + Send + Sync + 'static {
    /// Returns the response to a request.
    fn handle(&self, request: AdminRequest) -> impl Future<Output = AdminResponse> + Send;
}

/// The response to an [`AdminRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AdminResponse {
    Status(Box<Status>),
    Repositories(Vec<RepoRow>),
    Waiting(Vec<WaitingRow>),
    /// The request could not be read or answered, for this reason.
    Failed(String),
}
