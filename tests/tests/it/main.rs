//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod conformance;
mod hosting;
mod news;
mod stranger;
mod syncing;
