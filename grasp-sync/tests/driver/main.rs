//! The driver on real sockets: scripted relays, and a small local relay.
#![allow(clippy::unwrap_used)]

mod bad_peers;
mod bad_sets;
mod bad_words;
mod encrypted;
mod events;
mod local;
mod scripted;
mod sidecar;
mod strangers;
mod syncing;
mod tls_front;
mod trial;
