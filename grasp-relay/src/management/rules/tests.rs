use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde_json::json;

use super::*;
use grasp_core::RepoId;
use grasp_core::policy::PolicySubject;

const OPERATOR: u8 = 1;
const SERVICE: u8 = 2;
const ADMIN: u8 = 3;
const MODERATOR: u8 = 4;
const OBSERVER: u8 = 5;
const STRANGER: u8 = 6;
const LABELED: u8 = 7;

fn key(n: u8) -> PublicKey {
    PublicKey::from_byte_array([n; 32])
}

fn facts() -> RightsFacts {
    let mut facts = RightsFacts {
        operator: Some(key(OPERATOR)),
        trusted_proxies: vec!["192.0.2.0/28".parse().unwrap()],
        ..RightsFacts::of_service(key(SERVICE))
    };
    for (who, role) in [
        (ADMIN, "admin"),
        (MODERATOR, "moderator"),
        (OBSERVER, "observer"),
        (LABELED, "friend"),
    ] {
        let roles = facts.roles.entry(key(who)).or_default();
        roles.insert(role.parse().unwrap());
    }
    facts
}

fn call(method: &str, params: Value) -> Call {
    let Value::Array(params) = params else {
        panic!("a list")
    };
    Call::parse(method, &params).unwrap_or_else(|error| panic!("{method}: {error}"))
}

fn signed(who: u8) -> Caller {
    Caller::new(Actor::Key(key(who)), CallProof::Signed, &facts())
}

fn judge(who: u8, method: &str, params: Value) -> Result<Call, CallRefusal> {
    let authorized = authorize(&signed(who), call(method, params), &facts());
    authorized.map(|authorized| authorized.call().clone())
}

fn hex(n: u8) -> String {
    key(n).to_hex()
}

/// Valid parameters of each method, about somebody without a role.
fn params_of(method: Method) -> Value {
    let (repo, id) = (format!("30617:{}:x", hex(STRANGER)), "ab".repeat(32));
    match method {
        Method::SetQuota => json!([hex(STRANGER), 1_000]),
        Method::Repair | Method::HoldRepo | Method::RestoreRepo => json!([repo]),
        Method::Preview => json!(["grasp.whoami", []]),
        Method::BanPubkey | Method::UnbanPubkey | Method::AllowPubkey | Method::UnallowPubkey => {
            json!([hex(STRANGER), "a reason"])
        }
        Method::BanEvent | Method::AllowEvent => json!([id, "a reason"]),
        Method::DisallowKind | Method::AllowKind => json!([7]),
        Method::BlockIp | Method::UnblockIp => json!(["198.51.100.0/24", "a reason"]),
        Method::BanRepo | Method::UnbanRepo | Method::AllowRepo | Method::UnallowRepo => {
            json!(["a name", null])
        }
        Method::CreateRole | Method::EditRole => json!(["friend", "Friend", "of us", "#00f", 1]),
        Method::DeleteRole => json!(["friend"]),
        Method::AssignRole | Method::UnassignRole => json!([hex(STRANGER), "moderator"]),
        Method::ChangeRelayName | Method::ChangeRelayDescription => json!(["a text"]),
        Method::ChangeRelayIcon => json!(["https://example.com/a.png"]),
        _ => json!([]),
    }
}

#[test]
fn every_method_is_read_and_has_a_name_of_its_own() {
    for method in Method::ALL {
        let name = method.name();
        assert_eq!(name.parse(), Ok(*method));
        assert_eq!(call(name, params_of(*method)).method(), *method);
        let Value::Array(mut params) = params_of(*method) else {
            panic!("a list")
        };
        params.resize(8, Value::Null);
        let error = Call::parse(name, &params).unwrap_err();
        assert!(error.to_string().contains("more parameters"), "{name}");
    }
    assert!("banPubkey".parse::<Method>().is_err());
}

#[test]
fn each_rank_may_call_its_methods_and_those_below() {
    let ranks = [
        (STRANGER, Rank::Anyone),
        (LABELED, Rank::Anyone),
        (OBSERVER, Rank::Observer),
        (MODERATOR, Rank::Moderator),
        (ADMIN, Rank::Admin),
        (OPERATOR, Rank::Operator),
    ];
    for (who, rank) in ranks {
        assert_eq!(signed(who).rank, rank);
        for method in Method::ALL {
            let judged = judge(who, method.name(), params_of(*method));
            match rank >= method.info().rank {
                true => assert!(judged.is_ok(), "{rank} {method}: {judged:?}"),
                false => assert_eq!(judged, Err(CallRefusal::Right), "{rank} {method}"),
            }
        }
    }
    let local = Caller::new(Actor::Local(1000), CallProof::Local, &facts());
    assert_eq!(local.rank, Rank::Operator);
    assert_eq!(local.actor.to_string(), "local:1000");
}

#[test]
fn a_call_without_right_gets_the_same_text_whether_its_target_exists() {
    for target in [STRANGER, OPERATOR, SERVICE] {
        assert_eq!(
            judge(OBSERVER, "banpubkey", json!([hex(target)])),
            Err(CallRefusal::Right)
        );
    }
    assert!(CallRefusal::Right.is_about_rights() && !CallRefusal::Operator.is_about_rights());
}

#[test]
fn a_session_authorizes_reads_only() {
    let session = |who, method: &str, params| {
        let caller = Caller::new(Actor::Key(key(who)), CallProof::Session, &facts());
        authorize(&caller, call(method, params), &facts()).map(|_| ())
    };
    for method in Method::ALL {
        let needs_signature = method.info().is_change || *method == Method::OpenSession;
        let expected = match needs_signature {
            true => Err(CallRefusal::Unsigned),
            false => Ok(()),
        };
        assert_eq!(
            session(OPERATOR, method.name(), params_of(*method)),
            expected,
            "{method}"
        );
    }
}

#[test]
fn any_key_reads_its_own_and_nothing_else() {
    let own = Some(key(STRANGER));
    assert_eq!(
        judge(STRANGER, "grasp.getusage", json!([])),
        Ok(Call::GetUsage(own))
    );
    let narrowed = judge(STRANGER, "grasp.listrepos", json!([{"query": "x"}])).unwrap();
    let expected = RepoQuery {
        query: Some("x".into()),
        owner: own,
        ..RepoQuery::default()
    };
    assert_eq!(narrowed, Call::ListRepos(expected));
    assert_eq!(
        judge(STRANGER, "grasp.getusage", json!([hex(ADMIN)])),
        Err(CallRefusal::Right)
    );
    let other = json!([{"owner": hex(ADMIN)}]);
    assert_eq!(
        judge(STRANGER, "grasp.listrepos", other),
        Err(CallRefusal::Right)
    );
    assert_eq!(
        judge(OBSERVER, "grasp.getusage", json!([])),
        Ok(Call::GetUsage(None))
    );
}

#[test]
fn operator_server_oneself_and_higher_ranks_are_not_banned() {
    let banned = |who, target: u8| {
        let by_key = judge(who, "banpubkey", json!([hex(target)])).map(|_| ());
        let repo = format!("30617:{}:x", hex(target));
        let by_repo = judge(who, "grasp.banrepo", json!([repo])).map(|_| ());
        let by_owner = judge(who, "grasp.banrepo", json!([hex(target)])).map(|_| ());
        assert_eq!((&by_key, &by_key), (&by_repo, &by_owner));
        by_key
    };
    assert_eq!(banned(ADMIN, OPERATOR), Err(CallRefusal::Operator));
    assert_eq!(banned(OPERATOR, OPERATOR), Err(CallRefusal::Operator));
    assert_eq!(banned(OPERATOR, SERVICE), Err(CallRefusal::Service));
    assert_eq!(banned(MODERATOR, MODERATOR), Err(CallRefusal::Oneself));
    assert_eq!(banned(MODERATOR, ADMIN), Err(CallRefusal::HigherRank));
    assert_eq!(banned(MODERATOR, OBSERVER), Ok(()));
    assert_eq!(
        judge(MODERATOR, "unbanpubkey", json!([hex(OPERATOR)])).map(|_| ()),
        Ok(())
    );
}

#[test]
fn only_the_operator_holds_repositories_of_the_operator() {
    let hold = |who, target: u8| {
        let repo = format!("30617:{}:x", hex(target));
        judge(who, "grasp.holdrepo", json!([repo, "copy"])).map(|_| ())
    };
    assert_eq!(hold(ADMIN, OPERATOR), Err(CallRefusal::Operator));
    assert_eq!(hold(OPERATOR, OPERATOR), Ok(()));
    assert_eq!(hold(MODERATOR, MODERATOR), Ok(()));
}

#[test]
fn loopback_and_trusted_proxies_are_not_blocked() {
    let block = |text: &str| judge(ADMIN, "blockip", json!([text])).map(|_| ());
    for loopback in [
        "127.0.0.1",
        "127.9.0.0/16",
        "0.0.0.0/0",
        "::1",
        "::/0",
        "::ffff:127.0.0.1",
        "::ffff:0.0.0.0/96",
    ] {
        assert_eq!(block(loopback), Err(CallRefusal::Loopback), "{loopback}");
    }
    for proxy in ["192.0.2.3", "192.0.2.0/24", "192.0.2.8/29"] {
        assert_eq!(block(proxy), Err(CallRefusal::Proxy), "{proxy}");
    }
    for other in ["192.0.2.16", "2001:db8::/32", "10.0.0.0/8"] {
        assert_eq!(block(other), Ok(()), "{other}");
    }
}

#[test]
fn kinds_that_git_and_deletion_need_are_not_refused() {
    let needed = [
        5, 62, 1617, 1618, 1619, 1621, 1630, 1631, 1632, 1633, 30617, 30618,
    ];
    for kind in needed {
        let judged = judge(ADMIN, "disallowkind", json!([kind]));
        assert_eq!(judged, Err(CallRefusal::NeededKind(kind)));
    }
    assert!(judge(ADMIN, "disallowkind", json!([1111])).is_ok());
    let allowed = allowed_kinds([&nostr::event::Kind::Comment]);
    assert!(!allowed.contains(&1111));
    assert!(needed.iter().all(|kind| allowed.contains(kind)));
}

#[test]
fn admin_is_given_and_taken_by_the_operator_only() {
    for method in ["assignrole", "unassignrole"] {
        let give = |who, role: &str| judge(who, method, json!([hex(STRANGER), role])).map(|_| ());
        assert_eq!(give(ADMIN, "admin"), Err(CallRefusal::GrantsAdmin));
        assert_eq!(give(OPERATOR, "admin"), Ok(()));
        assert_eq!(give(ADMIN, "moderator"), Ok(()));
        assert_eq!(give(OPERATOR, "operator"), Err(CallRefusal::OperatorRole));
    }
    for role in ["observer", "moderator", "admin", "operator"] {
        let built_in = Err(CallRefusal::BuiltInRole(role.parse().unwrap()));
        assert_eq!(judge(OPERATOR, "deleterole", json!([role])), built_in);
        assert_eq!(judge(OPERATOR, "createrole", json!([role])), built_in);
        assert_eq!(judge(OPERATOR, "editrole", json!([role])), built_in);
    }
}

#[test]
fn a_text_that_a_setting_fixes_is_changed_there() {
    let mut facts = facts();
    let place = "grasp.toml, line 12".to_owned();
    facts.fixed.insert(RelayText::Name, place);
    let change = |method| {
        let text = call(method, json!(["a text"]));
        authorize(&signed(OPERATOR), text, &facts)
    };
    let refused = change("changerelayname").unwrap_err().to_string();
    assert_eq!(
        refused,
        "about.name is set in grasp.toml, line 12; change it there"
    );
    assert!(change("changerelaydescription").is_ok());
}

#[test]
fn what_its_author_deleted_is_not_restored() {
    let repo = |name: &str| RepoId::new(key(STRANGER), name.parse().unwrap());
    let held = [repo("held")].into();
    assert_eq!(judge_restore(&repo("held"), &held), Ok(()));
    assert_eq!(
        judge_restore(&repo("deleted"), &held),
        Err(CallRefusal::NotHeld)
    );
}

#[test]
fn a_preview_is_judged_as_the_call_itself() {
    let preview = |who, method: &str, params: Value| {
        let caller = Caller::new(Actor::Key(key(who)), CallProof::Session, &facts());
        let preview = call("grasp.preview", json!([method, params]));
        authorize(&caller, preview, &facts()).map(|_| ())
    };
    assert_eq!(
        preview(MODERATOR, "banpubkey", json!([hex(STRANGER)])),
        Ok(())
    );
    assert_eq!(
        preview(OBSERVER, "banpubkey", json!([hex(STRANGER)])),
        Err(CallRefusal::Right)
    );
    assert_eq!(
        preview(ADMIN, "banpubkey", json!([hex(OPERATOR)])),
        Err(CallRefusal::Operator)
    );
    assert!(Call::parse("grasp.preview", &[json!("grasp.preview"), json!([])]).is_err());
    assert!(Call::parse("grasp.preview", &[json!("banpubkey"), json!("x")]).is_err());
}

#[test]
fn a_repository_is_named_by_owner_name_or_both() {
    let npub = grasp_core::service::npub(&key(STRANGER));
    let repo = RepoId::new(key(STRANGER), "x".parse().unwrap());
    for (text, expected) in [
        (npub.clone(), PolicySubject::BannedAuthor(key(STRANGER))),
        (format!("{npub}/x"), PolicySubject::BannedRepo(repo.clone())),
        (repo.to_string(), PolicySubject::BannedRepo(repo)),
        ("x".into(), PolicySubject::BannedName("x".parse().unwrap())),
    ] {
        let read = call("grasp.banrepo", json!([text, " spam "]));
        assert_eq!(
            read,
            Call::Add(Method::BanRepo, expected, Some("spam".into()))
        );
    }
}

#[test]
fn wrong_parameters_are_errors() {
    let long = "x".repeat(501);
    for (method, params) in [
        ("banpubkey", json!([])),
        ("banpubkey", json!([1])),
        ("banpubkey", json!(["x"])),
        ("banpubkey", json!([hex(STRANGER), 7])),
        ("banpubkey", json!([hex(STRANGER), long])),
        ("banpubkey", json!([hex(STRANGER), "a\nb"])),
        ("banpubkey", json!([hex(STRANGER), "a\u{202e}b"])),
        ("banevent", json!(["ab"])),
        ("allowkind", json!(["1"])),
        ("allowkind", json!([65_536])),
        ("blockip", json!(["example.com"])),
        ("grasp.banrepo", json!(["../x"])),
        ("grasp.holdrepo", json!([hex(STRANGER)])),
        ("grasp.setquota", json!([hex(STRANGER), -1])),
        ("grasp.setquota", json!([hex(STRANGER), u64::MAX])),
        ("grasp.listrepos", json!([{"state": "lost"}])),
        ("grasp.listrepos", json!([{"unknown": 1}])),
        ("grasp.listaudit", json!(["x"])),
        ("createrole", json!(["a b"])),
        ("createrole", json!(["a", "b", "c", "d", "e"])),
        ("changerelayname", json!(["x".repeat(101)])),
        ("changerelayicon", json!(["javascript:alert(1)"])),
        ("toString", json!([])),
    ] {
        let Value::Array(list) = &params else {
            panic!("a list")
        };
        assert!(Call::parse(method, list).is_err(), "{method} {params}");
    }
}

#[test]
fn requests_are_read_and_answers_written() {
    let request = Request::parse(br#"{"method":"supportedmethods"}"#).unwrap();
    assert_eq!(request.call(), Ok(Call::SupportedMethods));
    for body in [
        "",
        "[]",
        "{}",
        r#"{"method":1}"#,
        r#"{"method":"a","params":{}}"#,
    ] {
        assert!(Request::parse(body.as_bytes()).is_err(), "{body}");
    }
    let large = vec![b' '; Request::MAX_BYTES + 1];
    assert!(Request::parse(&large).is_err());
    assert_eq!(response(Ok(&json!(true))), r#"{"result":true}"#);
    assert_eq!(response(Err("no")), r#"{"error":"no","result":null}"#);
}

#[test]
fn a_token_is_valid_for_its_key_and_time() {
    let now = Timestamp::from_secs(1_000);
    let sessions = SessionKey::new([9; 32]);
    let (token, expires_at) = sessions.open(&key(STRANGER), now);
    assert_eq!(expires_at, now + SessionKey::LIFETIME);
    assert_eq!(sessions.judge(&token, now), Some(key(STRANGER)));
    let last = Timestamp::from_secs(expires_at.as_secs() - 1);
    assert_eq!(sessions.judge(&token, last), Some(key(STRANGER)));
    assert_eq!(sessions.judge(&token, expires_at), None);
    let other = token.replace(&hex(STRANGER), &hex(OPERATOR));
    let later = token.replace(".1900.", ".9900.");
    assert_ne!(later, token);
    let cut = &token[..token.len() - 1];
    for forged in [other.as_str(), &later, cut, "", ".", ".."] {
        assert_eq!(sessions.judge(forged, now), None, "{forged}");
    }
    assert_eq!(SessionKey::new([8; 32]).judge(&token, now), None);
    assert_eq!(format!("{sessions:?}"), "SessionKey");
}

#[test]
fn the_methods_are_offered_once_somebody_may_call_more_than_anybody() {
    let mut nobody = RightsFacts::of_service(key(SERVICE));
    assert!(!nobody.has_managers());
    let label = ["friend".parse().unwrap()].into();
    nobody.roles.insert(key(LABELED), label);
    assert!(!nobody.has_managers());
    assert!(facts().has_managers());
}
