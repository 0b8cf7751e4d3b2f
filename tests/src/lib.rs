//! Whole instances for tests: real sockets on loopback, real stores on disk.

mod equality;
mod faulty;
mod git_server;
mod http;
mod instance;
mod litter;
mod maker;
mod nodes;
mod outside;
mod postgres;
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

pub use equality::{Equal, Sight};
pub use faulty::Fault;
pub use git_server::{Asked, GitServer, Manner};
pub use http::{HttpAnswer, answer, exchange, head, http, post};
pub use instance::Instance;
pub use litter::{Litter, eventually, eventually_async, files};
pub use maker::Maker;
pub use nodes::{are_nodes_wanted, pass_in_turn};
pub use outside::Outside;
pub use postgres::{PASSWORD, Postgres, Session, USER};
pub use s3_server::{Fault as S3Fault, S3Server};
pub use settings::{Settings, TimeMachine, Wrapping};
pub use workdir::{GitOutput, Workdir};
