//! Abandoned subscriptions do not grow memory. The test has a process of its own, so that its figure is meaningful.

#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the other socket tests, of which this one needs little"
)]
#[path = "it/support.rs"]
mod support;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use grasp_relay::nostr::Limits;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Relay, in_time, note};

/// The growth that both rounds may leave: enough for the allocator, and less than a hundredth of what was allocated.
const MAX_GROWTH_KIB: usize = 16 * 1024;

/// Resident memory of this process in KiB: relay and client together.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kib.expect("a figure")
}

fn limits() -> Limits {
    Limits {
        messages_per_minute: u32::MAX,
        queries_per_minute: u32::MAX,
        connections_per_ip: 10_000,
        ..Limits::default()
    }
}

fn req(nth: usize) -> String {
    format!(r##"["REQ","{nth}",{{"#a":["30617:x:{nth}"],"kinds":[1]}}]"##)
}

type Socket = WebSocketStream<TcpStream>;

async fn feed(writer: &mut SplitSink<Socket, Message>, text: String) {
    in_time(writer.feed(Message::Text(text.into())))
        .await
        .expect("sent");
}

/// Returns the type of the next message.
async fn message_type(reader: &mut SplitStream<Socket>) -> String {
    let message = in_time(reader.next())
        .await
        .expect("open")
        .expect("a frame");
    let text = message.into_text().expect("text");
    text.split('"').nth(1).expect("a message type").to_owned()
}

/// Opens and closes subscriptions as fast as possible.
async fn open_and_close(relay: &Relay, subscriptions: usize) {
    let (mut writer, mut reader) = relay.client().await.into_inner().split();
    for nth in 0..subscriptions {
        feed(&mut writer, req(nth)).await;
        feed(&mut writer, format!(r#"["CLOSE","{nth}"]"#)).await;
        if nth % 100 == 0 {
            feed(&mut writer, r#"["COUNT","here",{}]"#.into()).await;
            in_time(writer.flush()).await.expect("sent");
            while message_type(&mut reader).await != "COUNT" {}
        }
    }
}

/// Opens as many subscriptions as allowed and one more per client, and drops the connections.
async fn open_and_disconnect(relay: &Relay, clients: usize, each: usize) {
    for _ in 0..clients {
        let (mut writer, mut reader) = relay.client().await.into_inner().split();
        for nth in 0..=each {
            feed(&mut writer, req(nth)).await;
        }
        in_time(writer.flush()).await.expect("sent");
        let mut refusals = 0;
        for _ in 0..=each {
            refusals += usize::from(message_type(&mut reader).await == "CLOSED");
        }
        assert_eq!(refusals, 1);
    }
}

#[tokio::test]
async fn a_hundred_thousand_abandoned_subscriptions_leave_nothing_behind() {
    let relay = Relay::limited(limits()).await;
    open_and_close(&relay, 2_000).await;
    open_and_disconnect(&relay, 5, 500).await;
    let before = resident();
    open_and_close(&relay, 50_000).await;
    open_and_disconnect(&relay, 100, 500).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB more");
    // The relay still works.
    let mut client = relay.client().await;
    client.req("s", r#"{"kinds":[1]}"#).await;
    relay.accept(&note(1, "still served")).await;
    assert_eq!(client.next().await[0], "EVENT");
    let stats = relay.hub.stats().await;
    assert_eq!(stats.subscriptions, 1, "{stats:?}");
}
