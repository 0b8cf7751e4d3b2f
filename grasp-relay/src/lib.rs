//! A GRASP server as a library: a nostr relay and a git smart-HTTP host on one port.

pub mod ingest;
pub mod store;
