//! rust-nostr's relay, in memory, at the port of loopback that is given.

use nostr_relay_builder::prelude::{LocalRelay, RateLimit, RelayBuilder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).ok_or("usage: rust-nostr-relay PORT")?.parse()?;
    let many = RateLimit { notes_per_minute: u32::MAX, ..RateLimit::default() };
    let relay = LocalRelay::new(RelayBuilder::default().port(port).rate_limit(many));
    relay.run().await?;
    std::future::pending().await
}
