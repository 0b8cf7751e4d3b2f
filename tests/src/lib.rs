//! Complete server instances for tests: real sockets on loopback, real stores on disk.
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod author;
mod client;
mod convergence;
mod faulty_store;
mod git_server;
mod http;
mod instance;
mod leftovers;
mod management;
mod nodes;
mod plain_relay;
mod postgres;
mod reserved;
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    reason = "a module of the tests of grasp-purgatory"
)]
#[path = "../../grasp-purgatory/tests/it/s3_server.rs"]
mod s3_server;
mod settings;
pub mod wire;
mod workdir;

pub use author::Author;
pub use client::ServerClient;
pub use convergence::{Convergence, Snapshot};
pub use faulty_store::Fault;
pub use git_server::{Behaviour, GitServer, ReceivedRequest};
pub use http::{HttpResponse, exchange, http, post, read_response, request_head};
pub use instance::Instance;
pub use leftovers::{Leftovers, eventually, eventually_async, files};
pub use management::SignedCall;
pub use nodes::{are_nodes_wanted, proxy_round_robin};
pub use plain_relay::{PlainRelay, without_document};
pub use postgres::{PASSWORD, Postgres, Session, USER};
pub use reserved::reserve_address;
pub use s3_server::{Fault as S3Fault, S3Server};
pub use settings::{AdjustableClock, Settings, StoreWrapper};
pub use workdir::{GitOutput, Workdir, write_program};
