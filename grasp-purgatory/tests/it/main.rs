//! The git half against real git: no network, everything below a temporary directory.
#![allow(clippy::unwrap_used)]

mod git_fixture;
mod git_process;
mod git_push;
mod git_refs;
mod git_staging;
mod git_views;
