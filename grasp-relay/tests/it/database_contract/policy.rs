//! What operators decide while the server runs.

use grasp_core::policy::{PolicyList, PolicySubject};
use grasp_core::quota::QuotaSubject;
use grasp_relay::store::policy::{
    AuditEntry, AuditPage, PolicyAction, PolicyChange, PolicyChanged, Role, UsedAuth,
};

use super::*;

/// Returns a change by an actor, with an authorization if it has a number.
fn policy_change(actor: &str, auth: Option<u8>, actions: Vec<PolicyAction>) -> PolicyChange {
    let audit = AuditEntry {
        actor: actor.to_owned(),
        via: "nip86".to_owned(),
        auth: auth.map(|n| EventId::from_byte_array([n; 32])),
        method: "banpubkey".to_owned(),
        params: "[]".to_owned(),
        error: None,
    };
    PolicyChange {
        at: time(NOW),
        actions,
        audit,
        auth_until: auth.map(|_| time(NOW + 120)),
    }
}

async fn decide(store: &dyn Store, actions: Vec<PolicyAction>) {
    let changed = store.change_policy(policy_change("alice", None, actions));
    assert_eq!(changed.await.unwrap(), PolicyChanged::Done);
}

fn add(subject: PolicySubject, reason: &str) -> PolicyAction {
    PolicyAction::Add {
        subject,
        reason: reason.to_owned(),
    }
}

pub(super) async fn entries_of_the_policy_are_added_replaced_and_removed(store: &dyn Store) {
    let banned = PolicySubject::BannedAuthor(owner(1));
    let named = PolicySubject::BannedName(name("a name: ß"));
    let allowed = PolicySubject::AllowedRepo(repo(2));
    decide(store, vec![add(banned.clone(), "spam")]).await;
    decide(
        store,
        vec![
            add(named.clone(), ""),
            add(allowed.clone(), ""),
            add(banned.clone(), "more spam"),
        ],
    )
    .await;
    let entries = store.policy_entries(None).await.unwrap();
    let subjects: Vec<_> = entries.iter().map(|entry| entry.subject.clone()).collect();
    assert_eq!(subjects, [allowed, banned.clone(), named.clone()]);
    assert_eq!(entries[1].reason, "more spam");
    assert_eq!(
        (entries[1].actor.as_str(), entries[1].at),
        ("alice", time(NOW))
    );
    decide(store, vec![PolicyAction::Remove(banned.clone())]).await;
    let left = store.policy_entries(Some(PolicyList::BannedName)).await;
    assert_eq!(left.unwrap()[0].subject, named);
    let gone = store.policy_entries(Some(PolicyList::BannedAuthor)).await;
    assert!(gone.unwrap().is_empty());
}

pub(super) async fn each_change_raises_the_version_and_a_refused_call_does_not(store: &dyn Store) {
    let before = store.policy_version().await.unwrap();
    decide(
        store,
        vec![add(PolicySubject::RefusedKind(Kind::from(7)), "")],
    )
    .await;
    let changed = store.policy_version().await.unwrap();
    assert!(changed > before);
    let mut refused = policy_change("bob", None, Vec::new());
    refused.audit.error = Some("no right".to_owned());
    let logged = store.change_policy(refused).await.unwrap();
    assert_eq!(logged, PolicyChanged::Done);
    assert_eq!(store.policy_version().await.unwrap(), changed);
    let rows = store.audit(AuditPage {
        limit: 10,
        ..AuditPage::default()
    });
    let errors: Vec<_> = rows
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.entry.error)
        .collect();
    assert_eq!(errors, [Some("no right".to_owned()), None]);
}

pub(super) async fn an_authorization_changes_something_once(store: &dyn Store) {
    let ban = |n| vec![add(PolicySubject::BannedAuthor(owner(n)), "")];
    let first = store.change_policy(policy_change("alice", Some(1), ban(1)));
    // Both may be in the same transaction.
    let again = store.change_policy(policy_change("alice", Some(1), ban(2)));
    let mut done = join_all([first, again]).await;
    done.push(
        store
            .change_policy(policy_change("alice", Some(1), ban(3)))
            .await,
    );
    let done: Vec<_> = done.into_iter().map(Result::unwrap).collect();
    let replayed = PolicyChanged::Replayed;
    assert_eq!(done, [PolicyChanged::Done, replayed, replayed]);
    assert_eq!(store.policy_entries(None).await.unwrap().len(), 1);
    let page = AuditPage {
        limit: 10,
        ..AuditPage::default()
    };
    assert_eq!(
        store.audit(page).await.unwrap().len(),
        1,
        "a replay is not logged"
    );
    let auth = UsedAuth {
        id: EventId::from_byte_array([1; 32]),
        until: time(NOW + 120),
    };
    assert!(!store.see_auth(auth, time(NOW)).await.unwrap());
    let other = UsedAuth {
        id: EventId::from_byte_array([2; 32]),
        ..auth
    };
    assert!(store.see_auth(other, time(NOW)).await.unwrap());
    assert!(!store.see_auth(other, time(NOW + 120)).await.unwrap());
}

pub(super) async fn repositories_are_held_and_restored(store: &dyn Store) {
    let hold = PolicyAction::Hold {
        repo: repo(1),
        reason: "asked to".to_owned(),
        until: time(NOW + 90),
    };
    decide(store, vec![hold]).await;
    let held = store.held_repos().await.unwrap();
    assert_eq!((&held[0].repo, held[0].since), (&repo(1), time(NOW)));
    assert_eq!(
        (held[0].until, held[0].actor.as_str()),
        (time(NOW + 90), "alice")
    );
    decide(store, vec![PolicyAction::Restore(repo(1))]).await;
    assert!(store.held_repos().await.unwrap().is_empty());
}

pub(super) async fn a_removed_role_is_taken_from_its_members(store: &dyn Store) {
    let role = |id: &str, position| Role {
        id: id.to_owned(),
        label: id.to_uppercase(),
        description: String::new(),
        color: "#ff0000".to_owned(),
        position,
    };
    let assign = |n, role: &str| PolicyAction::Assign(owner(n), role.to_owned());
    let roles = vec![
        PolicyAction::PutRole(role("b", 2)),
        PolicyAction::PutRole(role("a", 3)),
        PolicyAction::PutRole(role("a", 1)),
        assign(1, "a"),
        assign(1, "b"),
        assign(2, "b"),
    ];
    decide(store, roles).await;
    assert_eq!(store.roles().await.unwrap(), [role("a", 1), role("b", 2)]);
    let unassign = PolicyAction::Unassign(owner(1), "a".to_owned());
    decide(store, vec![unassign, assign(1, "b")]).await;
    let members = store.role_members().await.unwrap();
    let members: Vec<_> = members.iter().map(|row| (row.pubkey, &*row.role)).collect();
    assert_eq!(members, [(owner(1), "b"), (owner(2), "b")]);
    decide(store, vec![PolicyAction::RemoveRole("b".to_owned())]).await;
    assert!(store.role_members().await.unwrap().is_empty());
    assert_eq!(store.roles().await.unwrap(), [role("a", 1)]);
}

pub(super) async fn a_text_replaces_a_setting_until_it_is_taken_back(store: &dyn Store) {
    let replace =
        |value: Option<&str>| vec![PolicyAction::Override("name".into(), value.map(Into::into))];
    decide(store, replace(Some("ours"))).await;
    decide(store, replace(Some("theirs"))).await;
    let texts = store.overrides().await.unwrap();
    assert_eq!(
        (texts["name"].value.as_str(), texts["name"].revision),
        ("theirs", 2)
    );
    let subject = QuotaSubject::Owner(owner(1));
    decide(
        store,
        vec![PolicyAction::SetQuota(subject.clone(), Some(7))],
    )
    .await;
    assert_eq!(
        store.quotas().await.unwrap(),
        BTreeMap::from([(subject, 7)])
    );
    decide(store, replace(None)).await;
    assert!(store.overrides().await.unwrap().is_empty());
}

pub(super) async fn the_log_is_read_by_pages_newest_first(store: &dyn Store) {
    for actor in ["alice", "bob", "alice", "bob"] {
        let logged = store.change_policy(policy_change(actor, None, Vec::new()));
        assert_eq!(logged.await.unwrap(), PolicyChanged::Done);
    }
    let page = |before, actor: Option<&str>| AuditPage {
        before,
        actor: actor.map(Into::into),
        method: Some("banpubkey".into()),
        limit: 2,
    };
    let newest = store.audit(page(None, None)).await.unwrap();
    assert_eq!(newest.iter().map(|row| row.seq).collect::<Vec<_>>(), [4, 3]);
    let older = store.audit(page(Some(3), None)).await.unwrap();
    assert_eq!(older.iter().map(|row| row.seq).collect::<Vec<_>>(), [2, 1]);
    let theirs = store.audit(page(None, Some("bob"))).await.unwrap();
    assert_eq!(theirs.iter().map(|row| row.seq).collect::<Vec<_>>(), [4, 2]);
    let other = AuditPage {
        method: Some("unbanpubkey".into()),
        ..page(None, None)
    };
    assert!(store.audit(other).await.unwrap().is_empty());
}
