//! Restarts of PostgreSQL and kills of the writer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures_util::future::join_all;
use grasp_core::admission::Outcome;
use grasp_relay::store::postgres::{PostgresOptions, PostgresStore};
use grasp_relay::store::{EventStore, StoreError};
use nostr::event::EventId;
use nostr::filter::Filter;

use super::{chain, check_indexes, expire_lease, open, reader};
use crate::store_contract::block_on;
use crate::store_events::*;
use crate::support::in_time;
use crate::support::postgres::{PASSWORD, Postgres};

const WRITERS: u64 = 16;

#[test]
fn acknowledged_events_survive_a_restart_of_postgresql_and_writing_continues() {
    let Some(server) = Postgres::durable() else {
        return;
    };
    let url = server.database();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (store, node) = (Arc::new(open(&url).await), reader(&url).await);
        let mut commits = node.commits();
        let (acknowledged, mut received) = tokio::sync::mpsc::unbounded_channel();
        let write = |writer: u64| {
            let (store, acknowledged) = (Arc::clone(&store), acknowledged.clone());
            tokio::spawn(async move {
                for number in (writer..).step_by(WRITERS as usize) {
                    let event = ALICE.writes(1621).id(number).tag("t", number).done();
                    // Errors are those of commits that were interrupted; the event may have been stored or not.
                    let saved = store.save(vec![Arc::clone(&event)], time(NOW)).await;
                    if saved.is_ok_and(|saved| saved == [Outcome::Stored])
                        && acknowledged.send(event.id).is_err()
                    {
                        return;
                    }
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let mut stored = BTreeSet::new();
        for _ in 0..2 {
            for _ in 0..300 {
                stored.extend(in_time(received.recv()).await);
            }
            tokio::task::block_in_place(|| server.restart());
            // Events that were acknowledged before the restart do not prove that writing continues.
            while let Ok(id) = received.try_recv() {
                stored.insert(id);
            }
            for _ in 0..100 {
                stored.extend(in_time(received.recv()).await);
            }
        }
        received.close();
        while let Some(id) = received.recv().await {
            stored.insert(id);
        }
        for writer in writers {
            in_time(writer).await.unwrap();
        }
        let last = store.last_seq().await.unwrap();
        in_time(commits.wait_for(|seq| *seq >= last)).await.unwrap();
        let found = find(&node, Filter::new().ids(stored.iter().copied())).await;
        assert_eq!(BTreeSet::from_iter(found), stored);
        store.close().await.unwrap();
    });
    check_indexes(&server, &url);
}

#[test]
fn the_certificate_of_the_server_is_verified_if_required() {
    let Some(server) = Postgres::durable() else {
        return;
    };
    let name = server.database().rsplit('/').next().unwrap().to_owned();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let roots = server.enable_tls(&made.cert.pem(), &made.signing_key.serialize_pem());
    let url = |more: &str| server.tcp_url(PASSWORD, &name) + more;
    let connect = |url: String| {
        block_on(async {
            let store = PostgresStore::connect(&url, PostgresOptions::default()).await?;
            store.last_seq().await?;
            let sql =
                "SELECT bool_and(ssl)::TEXT FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                WHERE application_name = 'grasp'";
            Ok::<_, StoreError>(server.sql(&name, sql))
        })
    };
    // Without `sslmode` the certificate is not required on loopback.
    assert_eq!(connect(url("")).unwrap(), "false");
    // Another spelling of the address, which does not look like loopback.
    let elsewhere = |more: &str| url(more).replace("@127.0.0.1", "@0.0.0.0");
    for more in ["", "?sslmode=prefer"] {
        let refused = chain(&connect(elsewhere(more)).unwrap_err());
        assert!(
            refused.contains("offers TLS that is not trusted"),
            "{refused}"
        );
        assert!(
            refused.contains("sslrootcert") && refused.contains("UnknownIssuer"),
            "{refused}"
        );
    }
    assert_eq!(connect(elsewhere("?sslmode=disable")).unwrap(), "false");
    let trusted = format!("?sslmode=verify-full&sslrootcert={}", roots.display());
    assert_eq!(connect(url(&trusted)).unwrap(), "true");
    let refused = chain(&connect(url("?sslmode=require")).unwrap_err());
    assert!(refused.contains("certificate"), "{refused}");
    let refused = chain(&connect(url("?sslmode=require&sslrootcert=/none")).unwrap_err());
    assert!(
        refused.contains("the certificates of /none cannot be read"),
        "{refused}"
    );
}

/// The variable that makes a process of this binary the one that is killed; its value is the address of the database.
const KILLED_URL_VAR: &str = "GRASP_TEST_POSTGRES_KILLED_URL";
/// The variable with the first number of its events.
const FIRST_NUMBER_VAR: &str = "GRASP_TEST_POSTGRES_FIRST_NUMBER";

#[test]
fn acknowledged_events_survive_kill_9_of_the_writer() {
    let Some(server) = Postgres::durable() else {
        return;
    };
    let url = server.database();
    let mut acknowledged = BTreeSet::new();
    for round in 0..3 {
        let mut child = spawn(&url, round * 1_000_000);
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map_while(Result::ok);
        let awaited = 150 + usize::try_from(round).unwrap() * 77;
        acknowledged.extend(ids(&mut lines).take(awaited));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(ids(&mut lines));
        assert!(acknowledged.len() >= awaited);
        block_on(async {
            let store = reader(&url).await;
            let found = find(&store, Filter::new().ids(acknowledged.iter().copied())).await;
            assert_eq!(BTreeSet::from_iter(found), acknowledged);
        });
        expire_lease(&server, &url);
    }
    check_indexes(&server, &url);
}

fn spawn(url: &str, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_postgres::failures::writes_until_killed"])
        .args(["--ignored", "--nocapture"])
        .env(KILLED_URL_VAR, url)
        .env(FIRST_NUMBER_VAR, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads acknowledged ids from the output of a test binary.
fn ids(lines: &mut impl Iterator<Item = String>) -> impl Iterator<Item = EventId> {
    lines.filter_map(|line| EventId::from_hex(line.strip_prefix("stored ")?).ok())
}

#[test]
#[ignore = "the process that is killed by the test above"]
fn writes_until_killed() {
    let (Ok(url), Ok(first)) = (
        std::env::var(KILLED_URL_VAR),
        std::env::var(FIRST_NUMBER_VAR),
    ) else {
        return;
    };
    let first: u64 = first.parse().unwrap();
    block_on(async {
        let store = open(&url).await;
        let output = RefCell::new(std::io::stdout().lock());
        let write = async |writer: u64| {
            for number in (first + writer..).step_by(WRITERS as usize) {
                let event = ALICE.writes(1621).id(number).tag("t", number).done();
                let saved = store
                    .save(vec![Arc::clone(&event)], time(NOW))
                    .await
                    .unwrap();
                assert_eq!(saved, [Outcome::Stored]);
                writeln!(output.borrow_mut(), "stored {}", event.id).unwrap();
            }
        };
        join_all((0..WRITERS).map(write)).await;
    });
}
