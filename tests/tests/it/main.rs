//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod conformance;
mod fetching;
mod hosting;
mod hunting;
mod news;
mod stranger;
mod syncing;
