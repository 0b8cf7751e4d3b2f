//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod conformance;
mod crash;
mod hosting;
mod keeping;
mod libgit2;
mod packets;
mod packs;
mod paths;
mod pushes;
mod quotas;
mod races;
mod slow;
mod stranger;
