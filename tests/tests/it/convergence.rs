//! Several servers that list each other: after operations on any of them, all serve the same events and refs.

mod data_loss;
mod downtime;
mod kill;
mod late_join;
mod lifecycle;
mod maintainers;
mod member;
mod network;
mod ordering;
mod repair;
mod threads;
