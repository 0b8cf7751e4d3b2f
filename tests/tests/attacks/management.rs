//! An attacker that knows how a server is administrated.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use grasp_tests::SignedCall;
use nostr::key::Keys;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::attacks;
use crate::scenario::{Report, Scenario};

attacks![management];

/// Duration of the attack.
const ATTACK_DURATION: Duration = Duration::from_secs(15);

/// Connections of each of the addresses that attack.
const CONNECTIONS: usize = 8;

/// Addresses that attack, each with another kind of request.
const ADDRESSES: usize = 5;

/// Repeats a change that the operator made, and sends calls of keys without rights, of a new key each time, without
/// signatures, and of 64 KiB, while the operator bans and unbans somebody.
async fn management() -> Report {
    let operator = Keys::generate();
    let key = operator.public_key().to_hex();
    let scenario = Scenario::with(&["--operator", &key]).await;
    let address = scenario.server.address().to_string();
    let somebody = Keys::generate().public_key().to_hex();
    let made = SignedCall::new(&operator, &address, "banpubkey", json!([somebody, "spam"]));
    let (status, answer) = made.send(&address).await;
    assert_eq!(status, 200, "{answer}");
    let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
    let mut changes = 0;
    let mut rows = Vec::new();
    let from: Vec<_> = (1..=ADDRESSES)
        .map(|n| scenario.attacker(n as u8))
        .collect();
    let attack = async {
        let end = Instant::now() + ATTACK_DURATION;
        let attackers = (0..ADDRESSES * CONNECTIONS).map(async |n| {
            let attacker = from[n % ADDRESSES];
            let own = Keys::generate();
            let mut answers = Vec::new();
            while Instant::now() < end {
                let params = json!([key]);
                let call = match n % ADDRESSES {
                    0 => made.clone(),
                    1 => SignedCall::new(&own, &address, "banpubkey", params),
                    2 => SignedCall::new(&Keys::generate(), &address, "grasp.getusage", json!([])),
                    3 => SignedCall {
                        authorization: format!("Bearer {key}.9999999999.{}", "00".repeat(32)),
                        ..made.clone()
                    },
                    _ => SignedCall::of_body(&own, &address, vec![b'['; 64 * 1024]),
                };
                let status = attacker
                    .status("POST", "/", &call.headers(), &call.body)
                    .await;
                answers.push(status.unwrap_or_default());
                if status.is_none_or(|status| status == 429) {
                    sleep(Duration::from_millis(20)).await;
                }
            }
            answers
        });
        let moderation = async {
            while Instant::now() < end {
                for method in ["banpubkey", "unbanpubkey"] {
                    let call = SignedCall::new(&operator, &address, method, json!([somebody]));
                    changes += usize::from(call.send(&address).await.0 == 200);
                    // An operator makes fewer than 60 calls a minute.
                    sleep(Duration::from_millis(1_500)).await;
                }
            }
        };
        let (all, ()) = tokio::join!(join_all(attackers), moderation);
        for status in all.into_iter().flatten() {
            *answers.entry(status).or_default() += 1;
        }
        let log = SignedCall::new(&operator, &address, "grasp.listaudit", json!([]));
        let (_, log) = log.send(&address).await;
        rows = log["result"].as_array().cloned().unwrap_or_default();
    };
    let report = scenario.run(0, attack).await;
    let is_own = rows.iter().all(|row| row["actor"] == key);
    println!("    statuses {answers:?}, {changes} changes by the operator");
    let expected = [200, 400, 401, 403, 429];
    let is_expected = answers
        .keys()
        .all(|status| expected.contains(status) || *status == 0);
    report
        .and_all_succeeded()
        .and(is_expected, "an answer has another status")
        .and(is_own, "somebody else changed something, or filled the log")
        .and(
            rows.len() == changes + 1,
            "a change is not logged, or was made twice",
        )
        .and(changes > 4, "the operator could not change anything")
}
