//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod conformance;
mod hosting;
mod keeping;
mod packets;
mod packs;
mod paths;
mod races;
mod slow;
mod stranger;
