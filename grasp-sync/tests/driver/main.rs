//! The driver on real sockets: scripted relays, and a small local relay.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod bad_negentropy;
mod bad_peers;
mod encrypted;
mod events;
mod local;
mod other_relays;
mod refusal_texts;
mod scripted;
mod sidecar;
mod sidecar_quirks;
mod syncing;
mod tls_front;
mod trial;
mod user_relays;
