//! Attacks through requests of git that the server answers or judges itself.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use grasp_tests::wire::{CAPABILITIES, ZERO_ID, pkt};
use tokio::time::sleep;

use crate::attacks;
use crate::scenario::{Report, Scenario};

attacks![long_command_lists];

/// Duration of each attack.
const ATTACK_DURATION: Duration = Duration::from_secs(20);

/// Connections of the one address that attacks.
const CONNECTIONS: usize = 60;

/// Returns this number of commands without the end of the list, each with a name of about this length.
fn command_list(count: usize, name_length: usize) -> Vec<u8> {
    let mut list = Vec::new();
    let mut random: u64 = 1;
    for n in 0..count {
        let capabilities = if n == 0 { format!("\0{CAPABILITIES}") } else { String::new() };
        let mut name = format!("refs/heads/{n:05}");
        while name.len() < name_length {
            name += "/";
            name += &"x".repeat(200.min(name_length.saturating_sub(name.len())).max(1));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let new = format!("{random:016x}{:024x}", random.rotate_left(7));
        list.extend(pkt(format!("{ZERO_ID} {new} {name}{capabilities}")));
    }
    list
}

/// Sends lists of refs with names of 1 KB, compressed and not, that never end.
async fn long_command_lists() -> Report {
    let scenario = Scenario::start().await;
    let path = scenario.server.path(&scenario.honest.repo()) + "/git-receive-pack";
    let long = command_list(20_000, 1_000);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&long).expect("a write to memory");
    let compressed = encoder.finish().expect("a write to memory");
    assert!(long.len() / compressed.len() > 20, "{} of {}", compressed.len(), long.len());
    let plain = command_list(20_000, 110);
    let attacker = scenario.attacker(1);
    let attack = async {
        let lists = (0..CONNECTIONS).map(async |n| {
            let (encoding, body) =
                if n % 2 == 0 { ("gzip", &compressed) } else { ("identity", &plain) };
            let _stream = attacker.start_unfinished_post(&path, encoding, body).await;
            sleep(ATTACK_DURATION).await;
        });
        join_all(lists).await;
    };
    scenario.run(0, attack).await
}
