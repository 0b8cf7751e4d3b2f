//! Embeds a whole server: relay, git host, purgatory, hunt, sync, pages and status.
//!
//! `cargo run -p grasp-relay --example whole_server --features server -- DIR [ADDRESS]`
//!
//! It serves until standard input ends.

use std::error::Error;
use std::path::PathBuf;

use grasp_relay::Clock;
use grasp_relay::instance::{InstanceError, MustAct, Server, Settings};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("expected a data directory")?);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let listener = TcpListener::bind(address).await?;
    // The public address, which announcements have to list.
    let service = listener.local_addr()?.to_string().parse()?;
    let mut settings = Settings::new(service, dir);
    settings.name = Some("an embedded server".into());

    let server = match Server::open(&settings, Clock::system()).await {
        Ok(server) => server,
        Err(error) => return Err(explain(&error).into()),
    };
    println!("http://{}/", settings.policy.service);
    server.serve(listener, end_of_input()).await?;
    println!("served {} repositories", server.status().await.repositories);
    server.close().await?;
    Ok(())
}

/// Says who has to do something about an error.
fn explain(error: &InstanceError) -> String {
    let who = match error.must_act() {
        MustAct::Operator => "change the settings",
        MustAct::Restore => "restore a backup",
        _ => "look at this machine",
    };
    format!("{}; {who}", error.in_one_line())
}

async fn end_of_input() {
    let mut input = tokio::io::stdin();
    while input.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
}
