//! Tests of complete servers, through their relays and git endpoints.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod archive;
mod attacks;
mod conformance;
mod consistency;
mod contributors;
mod convergence;
mod crash;
mod damage;
mod embedding;
mod fetching;
mod git_quotas;
mod host_limits;
mod hosting;
mod hunting;
mod identity;
mod libgit2;
mod lifecycle;
mod maintainers;
mod management;
mod moderation;
mod nodes;
mod outbox;
mod packets;
mod packs;
mod page_budget;
mod page_feeds;
mod page_proposals;
mod page_threads;
mod page_visibility;
mod pages;
mod paths;
mod private;
mod pushes;
mod quotas;
mod races;
mod removal;
mod repo_changes;
mod slow_clients;
mod syncing;
mod third_party_client;
mod tls;
#[path = "../../../grasp-sync/tests/driver/tls_front.rs"]
mod tls_front;
