//! Keeps a nostr relay complete.

pub mod engine;
