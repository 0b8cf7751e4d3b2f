//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod hosting;
mod stranger;
