//! Tests of the PostgreSQL store beyond the contract of all stores.

mod failures;
mod import;
mod steps;

use std::collections::BTreeSet;
use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use grasp_core::admission::{Outcome, Policy};
use grasp_core::policy::PolicySubject;
use grasp_purgatory::database::{Commit, Database, DatabaseError};
use grasp_relay::policy::PolicyOwner;
use grasp_relay::store::policy::{
    AuditEntry, PolicyAction, PolicyChange, PolicyChanged, PolicyStore as _,
};
use grasp_relay::store::postgres::{Epoch, LEASE, LeaseClaim, PostgresOptions, PostgresStore};
use grasp_relay::store::{EventStore, StoreError, StoredEvent};
use nostr::filter::Filter;

use crate::store_contract::{block_on, rules};
use crate::store_events::*;
use crate::support::in_time;
use crate::support::postgres::{PASSWORD, Postgres};

/// Runs a test on an empty store that holds the lease.
pub(crate) fn on_postgres(rule: impl for<'s> FnOnce(&'s PostgresStore) -> BoxFuture<'s, ()>) {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let store = open(&url).await;
        rule(&store).await;
        store.close().await.unwrap();
    });
    check_indexes(server, &url);
}

/// Opens a store under the rules of the contract, with the lease.
pub(crate) async fn open(url: &str) -> PostgresStore {
    let store = reader(url).await;
    assert!(matches!(claim(&store, "a").await, LeaseClaim::Held(_)));
    store
}

/// Opens a store under the rules of the contract.
pub(crate) async fn reader(url: &str) -> PostgresStore {
    let options = PostgresOptions {
        rules: rules(),
        ..PostgresOptions::default()
    };
    PostgresStore::connect(url, options).await.unwrap()
}

async fn claim(store: &PostgresStore, node: &str) -> LeaseClaim {
    store.claim_lease(node).await.unwrap()
}

/// Checks that the indexes of a database and its events agree.
pub(crate) fn check_indexes(server: &Postgres, url: &str) {
    for table in ["lists", "heads", "expirations"] {
        let stray =
            format!("SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM events)");
        assert_eq!(server.sql(url, &stray), "0", "{table}");
    }
    let unlisted = "SELECT count(*) FROM events WHERE seq NOT IN (SELECT seq FROM lists)";
    assert_eq!(server.sql(url, unlisted), "0");
    let gates = "SELECT count(*) FROM gates WHERE request NOT IN (SELECT seq FROM requests)";
    assert_eq!(server.sql(url, gates), "0");
}

/// Lets the lease expire, as if its holder had not renewed it.
fn expire_lease(server: &Postgres, url: &str) {
    server.sql(
        url,
        "UPDATE lease SET expires = now() - INTERVAL '1 second'",
    );
}

/// Returns the text of an error and its causes.
fn chain(error: &StoreError) -> String {
    let causes = std::iter::successors(Some(error as &dyn Error), |&error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[test]
fn a_store_without_the_lease_reads_and_does_not_write() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let (writer, other) = (open(&url).await, reader(&url).await);
        let note = ALICE.writes(1).done();
        stored(&writer, &note).await;
        assert!(serves(&other, &note).await);
        let refused = other
            .save(vec![ALICE.writes(1).id(7).done()], time(NOW))
            .await;
        assert!(matches!(refused, Err(StoreError::Fenced)));
        assert!(matches!(
            other.remove(vec![note.id]).await,
            Err(StoreError::Fenced)
        ));
        assert!(matches!(
            other.sweep(time(NOW)).await,
            Err(StoreError::Fenced)
        ));
        let refused = Database::commit(&other, Commit::default()).await;
        assert!(matches!(refused, Err(DatabaseError::Fenced)));
        assert_eq!(find(&writer, Filter::new()).await, [note.id]);
    });
}

#[test]
fn one_store_holds_the_lease_until_it_expires_or_is_given_back() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let (one, two) = (reader(&url).await, reader(&url).await);
        assert_eq!(one.epoch(), None);
        assert_eq!(claim(&one, "one").await, LeaseClaim::Held(Epoch(1)));
        assert_eq!(claim(&one, "one").await, LeaseClaim::Held(Epoch(1)));
        let held = claim(&two, "two").await;
        let LeaseClaim::HeldBy { node, remaining } = held else {
            panic!("{held:?}")
        };
        assert!(
            node == "one" && remaining <= LEASE && remaining > LEASE / 2,
            "{remaining:?}"
        );
        one.release_lease().await.unwrap();
        assert_eq!(one.epoch(), None);
        assert_eq!(claim(&two, "two").await, LeaseClaim::Held(Epoch(2)));
        expire_lease(server, &url);
        // No other node has taken it.
        assert_eq!(claim(&two, "two").await, LeaseClaim::Held(Epoch(2)));
        // Giving back what another holds does nothing.
        one.release_lease().await.unwrap();
        assert_eq!(claim(&two, "two").await, LeaseClaim::Held(Epoch(2)));
    });
}

#[test]
fn a_writer_whose_lease_was_taken_can_write_no_more() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let (old, new) = (open(&url).await, reader(&url).await);
        let note = ALICE.writes(1).done();
        stored(&old, &note).await;
        expire_lease(server, &url);
        // It still is the writer while no other node is.
        stored(&old, &ALICE.writes(1).id(1).done()).await;
        assert_eq!(claim(&new, "b").await, LeaseClaim::Held(Epoch(2)));
        assert_eq!(old.epoch(), Some(Epoch(1)), "it has not noticed yet");
        let late: Vec<_> = (10..20).map(|n| ALICE.writes(1).id(n).done()).collect();
        let saves = late
            .iter()
            .map(|event| old.save(vec![event.clone()], time(NOW)));
        for saved in join_all(saves).await {
            assert!(matches!(saved, Err(StoreError::Fenced)));
        }
        assert_eq!(old.epoch(), None);
        assert!(matches!(
            old.remove(vec![note.id]).await,
            Err(StoreError::Fenced)
        ));
        assert!(matches!(claim(&old, "a").await, LeaseClaim::HeldBy { node, .. } if node == "b"));
        stored(&new, &ALICE.writes(1).id(2).done()).await;
        assert_eq!(find(&old, Filter::new()).await.len(), 3);
    });
}

/// Waits until this many statements wait for locks.
fn await_locks(server: &Postgres, url: &str, count: &str) {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let start = Instant::now();
    while server.sql(url, sql) != count {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no statement waits for a lock"
        );
    }
}

#[test]
fn taking_the_lease_waits_for_a_commit_in_progress() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (old, new) = (Arc::new(open(&url).await), Arc::new(reader(&url).await));
        stored(&*old, &ALICE.writes(1).id(1).done()).await;
        expire_lease(server, &url);
        // Another session keeps the commit from being finished.
        let blocked = server.hold(&url, "LOCK TABLE lists IN SHARE MODE");
        let note = ALICE.writes(1).id(2).done();
        let writer = Arc::clone(&old);
        let save = tokio::spawn(async move { writer.save(vec![note], time(NOW)).await });
        await_locks(server, &url, "1");
        let taker = Arc::clone(&new);
        let take = tokio::spawn(async move { taker.claim_lease("b").await });
        await_locks(server, &url, "2");
        drop(blocked);
        assert_eq!(in_time(save).await.unwrap().unwrap(), [Outcome::Stored]);
        assert_eq!(
            in_time(take).await.unwrap().unwrap(),
            LeaseClaim::Held(Epoch(2))
        );
        let late = old
            .save(vec![ALICE.writes(1).id(3).done()], time(NOW))
            .await;
        assert!(matches!(late, Err(StoreError::Fenced)));
        assert_eq!(find(&*new, Filter::new()).await.len(), 2);
    });
}

#[test]
fn several_processes_create_a_database_at_the_same_time() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let stores = join_all((0..6).map(|_| reader(&url))).await;
        let keys = join_all(stores.iter().map(PostgresStore::node_key)).await;
        let keys: BTreeSet<_> = keys.into_iter().map(Result::unwrap).collect();
        assert_eq!(keys.len(), 1);
        let names: Vec<_> = (0..6).map(|n| n.to_string()).collect();
        let claims = stores
            .iter()
            .zip(&names)
            .map(|(store, name)| claim(store, name));
        let held = |claim: &LeaseClaim| matches!(claim, LeaseClaim::Held(_));
        assert_eq!(
            join_all(claims)
                .await
                .iter()
                .filter(|claim| held(claim))
                .count(),
            1
        );
    });
}

#[test]
fn a_database_of_a_newer_release_or_of_another_application_is_refused() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let connect = |url| block_on(PostgresStore::connect(url, PostgresOptions::default()));
    let url = server.database();
    drop(connect(&url).unwrap());
    let newest = server.sql(&url, "SELECT version FROM grasp_schema");
    server.sql(&url, "UPDATE grasp_schema SET version = 99");
    let refused = connect(&url).unwrap_err();
    assert!(matches!(
        refused,
        StoreError::NewerSchema { found: 99, known } if known.to_string() == newest
    ));
    let url = server.database();
    server.sql(&url, "CREATE TABLE theirs (x BIGINT)");
    assert!(chain(&connect(&url).unwrap_err()).contains("another application"));
    assert_eq!(
        server.sql(
            &url,
            "SELECT count(*) FROM pg_tables WHERE tablename = 'events'"
        ),
        "0"
    );
}

/// Undoes all steps after the first.
const TO_FIRST_VERSION: &str =
    "DROP VIEW repositories; DROP TABLE states, views_before_states;
    ALTER TABLE views DROP COLUMN proposals, ADD COLUMN head TEXT NOT NULL, ADD COLUMN refs TEXT NOT NULL;
    DROP TABLE tls; DROP TABLE quotas; DROP INDEX packs_by_owner; DROP TABLE maintained;
    DROP TABLE policy, policy_version, held_repos, hidden, hidden_causes, unannounced, audit, roles, role_members, auth_seen, overrides;
    UPDATE grasp_schema SET version = 1";

/// Views of two maintainers, of an address, and of a contributor.
const VIEWS: &str = "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, maintainers, shows) VALUES
    (0, 'x', '\\x05', 7, '', '', decode(repeat('0a', 32) || repeat('0b', 32), 'hex'), NULL),
    (0, 'x', '\\x06', 8, '', '', decode(repeat('0a', 32), 'hex'), '\\x05'), (1, 'x', '\\x07', 9, '', '', '', NULL);
    INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state, maintainers)
    SELECT 0, 'y', owner, 10, 'refs/heads/a', E'# x\\n' || repeat('1', 40) || E' refs/heads/a\\n' || nostr.line ||
        repeat('3', 40) || E' refs/tags/v1\\n^' || repeat('1', 40) || E'\\n', '\\x09', ''
    FROM (SELECT repeat('2', 40) || ' refs/nostr/' || repeat('e', 64) || E'\\n') nostr(line),
        (VALUES (decode(repeat('05', 32), 'hex')), (decode(repeat('06', 32), 'hex'))) owners(owner)";

#[test]
fn a_database_of_an_earlier_version_is_migrated_with_its_data() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let kept = ALICE.writes(1).id(1).done();
    block_on(async {
        let store = open(&url).await;
        stored(&store, &kept).await;
        store.release_lease().await.unwrap();
        store.close().await.unwrap();
    });
    let newest = server.sql(&url, "SELECT version FROM grasp_schema");
    // As the first version made it.
    server.sql(&url, TO_FIRST_VERSION);
    server.sql(&url, VIEWS);
    block_on(async {
        let store = open(&url).await;
        assert_eq!(find(&store, Filter::new().id(id(1))).await, [id(1)]);
        store.close().await.unwrap();
    });
    assert_eq!(server.sql(&url, "SELECT version FROM grasp_schema"), newest);
    assert_eq!(server.sql(&url, "SELECT count(*) FROM tls"), "0");
    let maintained = "SELECT string_agg(left(encode(maintainer, 'hex'), 2) || length(maintainer) ||
        encode(owner, 'hex') || since, ' ' ORDER BY maintainer) FROM maintained";
    assert_eq!(server.sql(&url, maintained), "0a32057 0b32057");
    let shown = "SELECT string_agg(head || ' ' || refs || proposals, '') FROM repositories WHERE identifier = 'y'";
    let expected = format!(
        "refs/heads/a # x\n{one} refs/heads/a\n{three} refs/tags/v1\n^{one}\n{two} refs/nostr/{id}\n",
        one = "1".repeat(40),
        two = "2".repeat(40),
        three = "3".repeat(40),
        id = "e".repeat(64)
    );
    assert_eq!(server.sql(&url, shown).trim(), expected.repeat(2).trim());
    assert_eq!(server.sql(&url, "SELECT count(*) FROM states"), "1");
    check_indexes(server, &url);
}

#[test]
fn a_database_of_0_2_0_is_refused_with_a_remedy() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let connect = |url: &str| block_on(PostgresStore::connect(url, PostgresOptions::default()));
    drop(connect(&url).unwrap());
    server.sql(&url, "ALTER TABLE packs ADD COLUMN is_attic BIGINT");
    let text = chain(&connect(&url).unwrap_err());
    assert!(
        text.contains("0.2.0") && text.contains("a new database"),
        "{text}"
    );
}

#[test]
fn connection_errors_name_the_cause_and_not_the_password() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let name = server.database().rsplit('/').next().unwrap().to_owned();
    let wrong = "another-secret-word";
    let refused = |url: String| {
        let refused = block_on(PostgresStore::connect(&url, PostgresOptions::default()));
        let error = refused.unwrap_err();
        let text = chain(&error) + &format!("{error:?}");
        assert!(!text.contains(wrong) && !text.contains(PASSWORD), "{text}");
        text
    };
    assert!(refused(server.tcp_url(wrong, &name)).contains("password authentication failed"));
    assert!(refused(server.tcp_url(PASSWORD, "none")).contains("\"none\" does not exist"));
    // TLS is required, and this server has none.
    let url = server.tcp_url(PASSWORD, &name) + "?sslmode=verify-full";
    assert!(refused(url).contains("TLS"));
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("postgres://grasp:{wrong}@{closed}/grasp");
    assert!(refused(url).contains(&format!("grasp at {closed} as grasp")));
    for url in [
        "",
        "postgres://",
        "sqlite:///x",
        "postgres://u:another-secret-word@h/db?x=y",
    ] {
        assert!(refused(url.to_owned()).contains("not the address"), "{url}");
    }
    let store = block_on(async {
        let options = PostgresOptions::default();
        PostgresStore::connect(&server.tcp_url(PASSWORD, &name), options)
            .await
            .unwrap()
    });
    assert!(!format!("{store:?}").contains(PASSWORD));
}

#[test]
fn stored_events_are_listed_in_the_order_of_commits() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let (writer, node) = (open(&url).await, reader(&url).await);
        assert_eq!(node.last_seq().await.unwrap(), 0);
        let mut commits = node.commits();
        let note = |n: u64| ALICE.writes(1).at(NOW - n).id(n).done();
        for n in [3, 1, 2] {
            stored(&writer, &note(n)).await;
        }
        let last = node.last_seq().await.unwrap();
        in_time(commits.wait_for(|seq| *seq >= last)).await.unwrap();
        let listed = async |after, max| {
            let listed = node.stored_after(after, max).await.unwrap();
            assert!(listed.windows(2).all(|pair| pair[0].0 < pair[1].0));
            listed
        };
        let all = listed(0, 10).await;
        let ids =
            |listed: &[(u64, StoredEvent)]| listed.iter().map(|it| it.1.id).collect::<Vec<_>>();
        assert_eq!(ids(&all), [id(3), id(1), id(2)]);
        assert_eq!(all[2].0, last);
        assert_eq!(all[0].1.event().unwrap(), *note(3));
        assert_eq!(ids(&listed(all[0].0, 1).await), [id(1)]);
        // A removed event is not listed, and its number is not used again.
        assert_eq!(writer.remove(vec![id(2)]).await.unwrap(), 1);
        assert_eq!(ids(&listed(all[0].0, 10).await), [id(1)]);
        stored(&writer, &note(4)).await;
        assert_eq!(ids(&listed(last, 10).await), [id(4)]);
        // Commits without events are notified, too.
        commits.mark_unchanged();
        writer.remove(vec![id(4)]).await.unwrap();
        in_time(commits.changed()).await.unwrap();
    });
}

#[test]
fn nodes_are_listed_for_a_day() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let (one, two) = (reader(&url).await, reader(&url).await);
        assert_eq!(claim(&one, "http://one").await, LeaseClaim::Held(Epoch(1)));
        one.report_node("http://one", "{\"lag\":0}").await.unwrap();
        two.report_node("http://two", "old").await.unwrap();
        two.report_node("http://two", "new").await.unwrap();
        server.sql(
            &url,
            "UPDATE nodes SET seen = seen - INTERVAL '1 hour' WHERE address = 'http://one'",
        );
        let nodes = two.nodes().await.unwrap();
        let [first, second] = &nodes[..] else {
            panic!("{nodes:?}")
        };
        assert!(first.address == "http://one" && first.is_writer && first.report == "{\"lag\":0}");
        assert!(
            first.seen >= Duration::from_secs(3_600) && first.seen < Duration::from_secs(3_700)
        );
        assert!(second.address == "http://two" && !second.is_writer && second.report == "new");
        assert!(second.seen < Duration::from_secs(60));
        server.sql(
            &url,
            "UPDATE nodes SET seen = seen - INTERVAL '23 hours' WHERE address = 'http://one'",
        );
        expire_lease(server, &url);
        let nodes = one.nodes().await.unwrap();
        assert!(nodes.len() == 1 && nodes[0].address == "http://two");
        assert_eq!(one.node_key().await.unwrap(), two.node_key().await.unwrap());
    });
}

#[test]
fn what_operators_decide_at_the_writer_is_in_force_at_other_nodes() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let ban = PolicySubject::BannedAuthor(ALICE.key());
    let audit = AuditEntry {
        actor: "local:0".to_owned(),
        via: "socket".to_owned(),
        auth: None,
        method: "ban".to_owned(),
        params: "[]".to_owned(),
        error: None,
    };
    let change = PolicyChange {
        at: time(NOW),
        actions: vec![PolicyAction::Add {
            subject: ban,
            reason: String::new(),
        }],
        audit,
        auth_until: None,
    };
    block_on(async {
        let (writer, node) = (open(&url).await, reader(&url).await);
        let owner = PolicyOwner::new(Policy::new("us.example".parse().unwrap()));
        let live = owner.live();
        let decided = async {
            assert!(
                node.change_policy(change.clone()).await.is_err(),
                "no writer"
            );
            let changed = writer.change_policy(change).await.unwrap();
            assert_eq!(changed, PolicyChanged::Done);
            live.until(|policy| policy.bans.authors.contains(&ALICE.key()))
                .await;
        };
        tokio::select! {
            () = owner.follow(&node) => {}
            () = decided => {}
        }
        assert!(owner.live().now().bans.authors.contains(&ALICE.key()));
    });
}
