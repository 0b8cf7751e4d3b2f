//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod conformance;
mod fetching;
mod hosting;
mod hunting;
mod keeping;
mod news;
mod packets;
mod packs;
mod paths;
mod races;
mod slow;
mod stranger;
mod syncing;
