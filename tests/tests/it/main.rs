//! grasp from client.
#![allow(clippy::unwrap_used)]

mod archive;
mod attacks;
mod conformance;
mod contributors;
mod crash;
mod damage;
mod encrypted;
mod fetching;
mod hosting;
mod hunting;
mod keeping;
mod libgit2;
mod news;
mod nodes;
mod packets;
mod packs;
mod paths;
mod politeness;
mod pushes;
mod quotas;
mod races;
mod slow;
mod stranger;
mod syncing;
#[path = "../../../grasp-sync/tests/driver/tls_front.rs"]
mod tls_front;
mod whole;
