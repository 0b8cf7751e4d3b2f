//! A GRASP server as a library: a nostr relay and a git smart-HTTP host on one port.

pub mod clock;
pub mod feed;
pub mod git_http;
pub mod in_step;
pub mod ingest;
#[cfg(feature = "server")]
pub mod instance;
pub mod management;
pub mod metrics;
#[cfg(feature = "postgres")]
pub mod nodes;
pub mod nostr;
pub mod policy;
pub mod private;
#[cfg(feature = "server")]
pub mod publish;
pub mod purgatory;
pub mod role;
pub mod server;
pub mod store;
#[cfg(feature = "tls")]
pub mod tls;
pub mod web;

pub use clock::Clock;
pub use feed::{Accepted, Feed};
pub use server::{Config, Parts, serve};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
