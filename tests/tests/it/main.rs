//! grasp from outside.
#![allow(clippy::unwrap_used)]

mod stranger;
