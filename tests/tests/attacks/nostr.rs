//! Attacks through the relay: events, filters, connections, negentropy.

use serde_json::json;

use crate::attacks;
use crate::scene::{Report, Scene};

attacks![many_connections];

/// One address opens as many connections as it can and leaves them silent.
async fn many_connections() -> Report {
    let scene = Scene::start().await;
    let attacker = scene.attacker(1);
    let attack = async {
        let mut open = Vec::new();
        for _ in 0..500 {
            if let Some(mut relay) = attacker.relay().await {
                relay.send(&json!(["REQ", "a", { "kinds": [1] }])).await;
                open.push(relay);
            }
        }
    };
    scene.during(1 << 20, attack).await
}
