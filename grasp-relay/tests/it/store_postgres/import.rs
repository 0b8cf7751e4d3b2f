//! The import of a SQLite database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use grasp_core::admission::Rejection;
use grasp_core::policy::PolicySubject;
use grasp_core::quota::QuotaSubject;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, Version};
use grasp_purgatory::database::{
    Addition, Commit, Committed, DataSource, Database, Garbage, MaintainerChanges, Pack,
    ProposalChanges, QuotaChange, RepoChange, RetiredRef, ViewChange,
};
use grasp_purgatory::git::{Refs, Target};
use grasp_purgatory::{CleanupTask, Phase, PushTarget, Record};
use grasp_relay::store::policy::{
    AuditEntry, AuditPage, PolicyAction, PolicyChange, PolicyChanged, PolicyStore as _, Role,
};
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, Store};
use nostr::event::{Event, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;

use super::{chain, claim, open, reader};
use crate::store_contract::{block_on, rules};
use crate::store_events::*;
use crate::support::postgres::Postgres;

fn at(name: &str) -> Coordinate {
    Coordinate::new(Kind::from_u16(30_617), ALICE.key()).identifier(name)
}

fn repo() -> RepoId {
    RepoId::new(ALICE.key(), "x".parse().unwrap())
}

/// Returns a pull request of which the repository has a ref, although it names another.
fn proposal() -> Arc<Event> {
    let tip = Oid::Sha1([7; 20]);
    ALICE
        .writes(1618)
        .id(90)
        .tag("a", format!("30617:{}:y", BOB.key()))
        .tag("c", tip)
        .done()
}

/// Fills a SQLite store with rows of every kind.
async fn fill(store: &SqliteStore) {
    let version = |n: u64| {
        ALICE
            .writes(30_617)
            .at(n)
            .id(n)
            .tag("d", "x")
            .tag("maintainers", BOB.key())
            .done()
    };
    for n in 1..=4 {
        stored(store, &version(n)).await;
    }
    let (deleted, ending) = (ALICE.writes(1).id(50).done(), NOW + 100);
    stored(store, &deleted).await;
    stored(store, &ALICE.writes(5).id(51).tag("e", deleted.id).done()).await;
    stored(
        store,
        &ALICE
            .writes(1)
            .id(52)
            .tag("expiration", ending)
            .tag("t", "x")
            .done(),
    )
    .await;
    stored(
        store,
        &BOB.writes(62)
            .at(60)
            .id(60)
            .tag("relay", "ALL_RELAYS")
            .done(),
    )
    .await;
    let by = Version {
        created_at: time(9),
        id: id(9),
    };
    store
        .delist(at("y"), by, nostr::types::Timestamp::from_secs(1))
        .await
        .unwrap();
    let many = (0..1_200).map(|n| ALICE.writes(7).at(n).id(10_000 + n).tag("e", n % 9).done());
    assert_eq!(
        store.save(many.collect(), time(NOW)).await.unwrap().len(),
        1_200
    );
    stored(store, &proposal()).await;
    commit(store).await;
    decide(store).await;
}

/// Has operators decide something of every kind.
async fn decide(store: &SqliteStore) {
    let role = Role {
        id: "moderator".to_owned(),
        label: String::new(),
        description: String::new(),
        color: String::new(),
        position: 1,
    };
    let actions = vec![
        PolicyAction::Add {
            subject: PolicySubject::BannedAuthor(BOB.key()),
            reason: "spam".to_owned(),
        },
        PolicyAction::Hold {
            repo: repo(),
            reason: String::new(),
            until: time(NOW + 1),
        },
        PolicyAction::PutRole(role),
        PolicyAction::Assign(ALICE.key(), "moderator".to_owned()),
        PolicyAction::Override("name".to_owned(), Some("ours".to_owned())),
    ];
    let audit = AuditEntry {
        actor: "alice".to_owned(),
        via: "nip86".to_owned(),
        auth: Some(id(7)),
        method: "banpubkey".to_owned(),
        params: "[]".to_owned(),
        error: None,
    };
    let change = PolicyChange {
        at: time(NOW),
        actions,
        audit,
        auth_until: Some(time(NOW + 1)),
    };
    assert_eq!(
        store.change_policy(change).await.unwrap(),
        PolicyChanged::Done
    );
}

async fn commit(store: &SqliteStore) {
    let tip = Oid::Sha1([7; 20]);
    let mut refs = Refs::default();
    for name in [
        "refs/heads/main".parse().unwrap(),
        RefName::nostr(proposal().id),
    ] {
        refs.refs.insert(
            name,
            Target {
                oid: tip,
                peeled: None,
            },
        );
    }
    let retired = RetiredRef {
        tip: Oid::Sha1([8; 20]),
        name: "refs/heads/old".parse().unwrap(),
        since: time(NOW),
    };
    let mut change = RepoChange::new(Endpoint::Repository, repo());
    change.view = Some(ViewChange {
        from: None,
        state: Some(id(4)),
        maintainers: BTreeSet::from([ALICE.key(), BOB.key()]),
        maintained: MaintainerChanges {
            added: BTreeSet::from([ALICE.key()]),
            removed: BTreeSet::new(),
        },
        shows: Some(BOB.key()),
        retired: vec![retired],
        proposals: ProposalChanges::between(&Refs::default(), &refs),
        to: Some(Arc::new(refs)),
    });
    let pack = |name: &str| Pack {
        name: name.to_owned(),
        bytes: 99,
    };
    change.add_packs = vec![pack("pack-1"), pack("pack-2")];
    change.garbage = Some(Garbage::Removed);
    let addition = Addition {
        at: time(NOW),
        repo: repo(),
        author: Some(BOB.key()),
        has_authority: true,
        source: DataSource::Hunted,
        bytes: 5,
    };
    let quota = QuotaChange {
        subject: QuotaSubject::Repository(repo()),
        bytes: Some(8),
    };
    let held = Record::Held {
        event: BOB.writes(30_618).id(70).tag("d", "x").done(),
        phase: Phase::Expired,
        since: time(1),
        until: time(2),
    };
    let target = PushTarget::Repository(repo());
    let records = vec![
        held,
        Record::Staged {
            id: id(71),
            tip,
            target,
            bytes: 5,
            until: time(3),
        },
        Record::TaskAdded {
            task: CleanupTask::CreateView { repo: repo() },
        },
    ];
    let commit = Commit {
        repos: vec![change],
        records,
        additions: vec![addition],
        quotas: vec![quota],
        now: time(NOW),
        ..Commit::default()
    };
    let done = Database::commit(store, commit).await.unwrap();
    assert!(matches!(done, Committed::Done { .. }));
}

/// Returns the content of a store as texts.
async fn all(store: &dyn Store) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::new();
    for (name, now) in [("served", NOW), ("later", NOW + 100)] {
        all.insert(
            name,
            format!("{:?}", find_at(store, vec![Filter::new()], now).await),
        );
    }
    let tagged = find_at(store, vec![Filter::new().hashtag("x")], NOW).await;
    all.insert("tagged", format!("{tagged:?}"));
    all.insert(
        "kept",
        format!("{:?}", store.superseded(at("x")).await.unwrap()),
    );
    all.insert(
        "delisted",
        format!("{:?}", store.delisted(vec![at("y")]).await.unwrap()),
    );
    let heads = store.heads(vec![at("x")], time(NOW)).await.unwrap();
    all.insert("heads", format!("{heads:?}"));
    let listed = RepoId::new(BOB.key(), "x".parse().unwrap());
    all.insert(
        "listing",
        format!("{:?}", store.listing(listed, 9).await.unwrap()),
    );
    all.insert(
        "row",
        format!(
            "{:?}",
            store.row(Endpoint::Repository, repo()).await.unwrap()
        ),
    );
    let alice = RepoId::new(ALICE.key(), repo().identifier);
    let maintained = store.maintained(Endpoint::Repository, alice, 9).await;
    all.insert("maintained", format!("{:?}", maintained.unwrap()));
    let retired = store.retired(Endpoint::Repository, repo()).await.unwrap();
    all.insert("retired", format!("{retired:?}"));
    all.insert(
        "additions",
        format!("{:?}", store.additions(time(0)).await.unwrap()),
    );
    let entries = store.policy_entries(None).await.unwrap();
    all.insert("policy", format!("{entries:?}"));
    all.insert("version", store.policy_version().await.unwrap().to_string());
    let held = store.held_repos().await.unwrap();
    all.insert("held repositories", format!("{held:?}"));
    all.insert("roles", format!("{:?}", store.roles().await.unwrap()));
    let members = store.role_members().await.unwrap();
    all.insert("members", format!("{members:?}"));
    let overrides = store.overrides().await.unwrap();
    all.insert("overrides", format!("{overrides:?}"));
    let page = AuditPage {
        limit: 9,
        ..AuditPage::default()
    };
    all.insert("audit", format!("{:?}", store.audit(page).await.unwrap()));
    all.insert("quotas", format!("{:?}", store.quotas().await.unwrap()));
    all.insert(
        "packs",
        format!("{:?}", store.packs(Endpoint::Repository).await.unwrap()),
    );
    all.insert("records", format!("{:?}", store.records().await.unwrap()));
    all
}

fn sqlite(path: &Path) -> SqliteStore {
    let options = SqliteOptions {
        rules: rules(),
        ..SqliteOptions::default()
    };
    SqliteStore::open(path, options).unwrap()
}

#[test]
fn an_import_keeps_everything_of_a_sqlite_database() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grasp.db");
    block_on(async {
        let file = sqlite(&path);
        fill(&file).await;
        let before = all(&file).await;
        file.close().await.unwrap();
        let store = reader(&url).await;
        let report = store.import(&path).await.unwrap();
        assert_eq!(
            (report.events, report.superseded),
            (1 + 1 + 1 + 1 + 1 + 1_200, 3)
        );
        assert_eq!((report.repositories, report.packs, report.held), (1, 2, 1));
        let after = all(&store).await;
        assert!(
            !before
                .values()
                .any(|text| text.is_empty() || text == "[]" || text == "{}")
        );
        assert_eq!(after, before);
        assert!(chain(&store.import(&path).await.unwrap_err()).contains("not empty"));
        // Deleted events are still refused, numbers continue, and new events are served beside imported ones.
        let _ = claim(&store, "a").await;
        let deleted = ALICE.writes(1).id(50).done();
        assert_eq!(save(&store, &deleted).await, Rejection::Deleted.into());
        let vanished = BOB.writes(1).at(59).done();
        assert_eq!(save(&store, &vanished).await, Rejection::Vanished.into());
        let last = store.last_seq().await.unwrap();
        stored(&store, &ALICE.writes(7).id(80).tag("e", 3).done()).await;
        assert_eq!(store.stored_after(last, 9).await.unwrap().len(), 1);
        let tagged = Filter::new()
            .kind(Kind::from_u16(7))
            .custom_tag(nostr::filter::SingleLetterTag::LOWERCASE_E, "3");
        assert_eq!(
            store.count(vec![tagged], time(NOW)).await.unwrap(),
            1_200 / 9 + 1
        );
        // The places of the refs of pull requests are imported, too.
        stored(
            &store,
            &ALICE.writes(5).id(91).tag("e", proposal().id).done(),
        )
        .await;
        let view = store
            .view(Endpoint::Repository, repo())
            .await
            .unwrap()
            .unwrap();
        let left: Vec<_> = view.refs.refs.keys().map(|name| name.as_str()).collect();
        assert_eq!(left, ["refs/heads/main"]);
    });
}

#[test]
fn an_import_needs_an_unused_database_and_an_existing_file() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grasp.db");
    block_on(async {
        sqlite(&path).close().await.unwrap();
        let url = server.database();
        let (writer, other) = (open(&url).await, reader(&url).await);
        assert!(chain(&other.import(&path).await.unwrap_err()).contains("stop all nodes"));
        writer.release_lease().await.unwrap();
        writer.report_node("http://one", "").await.unwrap();
        assert!(chain(&other.import(&path).await.unwrap_err()).contains("stop all nodes"));
        server.sql(&url, "DELETE FROM nodes");
        assert!(other.import(&dir.path().join("none")).await.is_err());
        assert_eq!(other.import(&path).await.unwrap().events, 0);
    });
}
