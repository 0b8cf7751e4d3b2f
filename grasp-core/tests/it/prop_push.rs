//! A push is authorised exactly if a simple reading of the rule says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Presence;
use grasp_core::nip34::State;
use grasp_core::push::{
    Candidate, CommandReader, KnownProposal, Progress, PushRequest, PushView, RefVerdict,
    authorise, encode_pkt,
};
use grasp_core::{Namespace, Oid, RefName};
use nostr::event::EventId;
use proptest::prelude::*;

use crate::events::{event, key};

const NAMES: [&str; 7] = [
    "refs/heads/main",
    "refs/heads/dev",
    "refs/tags/v1",
    "refs/nostr/0707070707070707070707070707070707070707070707070707070707070707",
    "refs/nostr/123",
    "refs/notes/x",
    "refs/heads/pr/x",
];
const NONE: &str = "0000000000000000000000000000000000000000";

fn oid() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a".repeat(40), "b".repeat(40)])
}

fn oid_or_none() -> impl Strategy<Value = String> {
    prop_oneof![oid(), Just(NONE.to_owned())]
}

fn name(range: std::ops::Range<usize>) -> impl Strategy<Value = &'static str> {
    prop::sample::select(NAMES[range].to_vec())
}

#[derive(Debug, Clone)]
struct Repository {
    refs: BTreeMap<RefName, Oid>,
    candidates: Vec<Candidate>,
    maintainers: BTreeSet<nostr::key::PublicKey>,
    proposals: BTreeMap<EventId, KnownProposal>,
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let refs = prop::collection::btree_map(
        name(0..3),
        prop_oneof![8 => oid(), 1 => Just("abc".to_owned())],
        0..3,
    );
    (0u8..3, 1u64..5, any::<u8>(), refs, any::<bool>()).prop_map(
        |(author, at, id, refs, stored)| {
            let mut tags = vec![vec!["d".to_owned(), "x".to_owned()]];
            tags.extend(
                refs.into_iter()
                    .map(|(name, oid)| vec![name.to_owned(), oid]),
            );
            let state = Arc::new(State::parse(&event(30618, author, at, id, &tags)).unwrap());
            Candidate {
                state,
                presence: if stored {
                    Presence::Stored
                } else {
                    Presence::Held
                },
            }
        },
    )
}

fn repository() -> impl Strategy<Value = Repository> {
    let refs = prop::collection::btree_map(name(0..4), oid(), 0..4);
    let known = prop_oneof![
        oid().prop_map(|tip| KnownProposal::Tip(Presence::Held, tip.parse().unwrap())),
        Just(KnownProposal::Foreign),
        Just(KnownProposal::Unknown),
        Just(KnownProposal::Unavailable),
    ];
    let maintainers = prop::collection::btree_set((0u8..3).prop_map(key), 0..3);
    (
        refs,
        prop::collection::vec(candidate(), 0..4),
        maintainers,
        prop::option::of(known),
    )
        .prop_map(|(refs, candidates, maintainers, known)| Repository {
            refs: refs
                .into_iter()
                .map(|(n, o)| (n.parse().unwrap(), o.parse().unwrap()))
                .collect(),
            candidates,
            maintainers,
            proposals: known
                .into_iter()
                .map(|k| (EventId::from_slice(&[7; 32]).unwrap(), k))
                .collect(),
        })
}

type Commands = BTreeMap<&'static str, (String, String)>;

fn commands() -> impl Strategy<Value = Commands> {
    prop::collection::btree_map(name(0..7), (oid_or_none(), oid_or_none()), 1..4)
}

fn request(commands: &Commands, atomic: bool) -> PushRequest {
    let mut bytes = Vec::new();
    for (position, (name, (old, new))) in commands.iter().enumerate() {
        let capabilities = match (position, atomic) {
            (0, true) => "\0atomic",
            _ => "",
        };
        encode_pkt(
            format!("{old} {new} {name}{capabilities}").as_bytes(),
            &mut bytes,
        );
    }
    bytes.extend_from_slice(b"0000");
    match CommandReader::default().feed(&bytes) {
        Ok(Progress::Complete { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

fn view(repository: &Repository) -> PushView<'_> {
    PushView {
        refs: &repository.refs,
        maintainers: &repository.maintainers,
        candidates: &repository.candidates,
        proposals: &repository.proposals,
    }
}

/// Returns the refs after the push.
fn resulting_refs(repository: &Repository, commands: &Commands) -> BTreeMap<String, String> {
    let mut refs: BTreeMap<String, String> = repository
        .refs
        .iter()
        .map(|(name, oid)| (name.to_string(), oid.to_string()))
        .chain(
            commands
                .iter()
                .map(|(name, (_, new))| ((*name).to_owned(), new.clone())),
        )
        .collect();
    refs.retain(|name, oid| {
        oid != NONE && (name.starts_with("refs/heads/") || name.starts_with("refs/tags/"))
    });
    refs
}

/// Returns whether a maintainer's state that is served, or newer than the served one, has exactly these refs.
fn is_signed(repository: &Repository, refs: &BTreeMap<String, String>) -> bool {
    let by_maintainers = || {
        repository
            .candidates
            .iter()
            .filter(|c| repository.maintainers.contains(&c.state.repo.owner))
    };
    let served = by_maintainers()
        .filter(|c| c.presence == Presence::Stored)
        .map(|c| c.state.version)
        .max();
    by_maintainers()
        .filter(|c| served.is_none_or(|served| c.state.version >= served))
        .any(|c| {
            let declared: BTreeMap<_, _> = c
                .state
                .refs
                .iter()
                .map(|(name, declared)| {
                    let declared = declared.map_or("nonsense".to_owned(), |oid| oid.to_string());
                    (name.to_string(), declared)
                })
                .collect();
            declared == *refs
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn branches_change_exactly_if_the_model_says_so(repository in repository(), commands in commands()) {
        let verdict = authorise(&request(&commands, false), &view(&repository));
        let current = |name: &str| repository.refs.get(&name.parse::<RefName>().unwrap()).map_or(NONE.to_owned(), Oid::to_string);
        let branches_and_tags: Vec<_> = commands.iter().filter(|(n, _)| n.starts_with("refs/heads/") || n.starts_with("refs/tags/")).collect();
        let moving: Vec<_> = branches_and_tags.iter().filter(|(n, (_, new))| current(n) != **new).collect();
        let is_current = moving.iter().all(|(n, (old, _))| current(n) == **old);
        let allowed = is_current && is_signed(&repository, &resulting_refs(&repository, &commands));

        for (name, verdict) in &verdict.refs {
            if !name.is_branch_or_tag() {
                continue;
            }
            let is_moving = moving.iter().any(|(n, _)| **n == name.as_str());
            match (is_moving, allowed) {
                (false, _) => prop_assert_eq!(verdict, &RefVerdict::Satisfied),
                (true, true) => prop_assert_eq!(verdict, &RefVerdict::Execute),
                (true, false) => prop_assert!(matches!(verdict, RefVerdict::Refused(_))),
            }
        }
        prop_assert_eq!(verdict.realises.is_some(), allowed && !moving.is_empty());
    }

    #[test]
    fn other_namespaces_are_never_authorised(repository in repository(), commands in commands(), atomic in any::<bool>()) {
        let verdict = authorise(&request(&commands, atomic), &view(&repository));
        let Some(authorised) = &verdict.authorised else { return Ok(()) };
        prop_assert!(!authorised.execute().is_empty() || !authorised.stage().is_empty());
        for command in authorised.execute() {
            prop_assert!(matches!(command.name.namespace(), Namespace::Branch(_) | Namespace::Tag(_) | Namespace::Nostr(_)));
            prop_assert_eq!(command.old, repository.refs.get(&command.name).copied());
        }
        for command in authorised.stage() {
            prop_assert!(matches!(command.name.namespace(), Namespace::Nostr(_)) && command.new.is_some());
        }
    }

    #[test]
    fn executed_commands_were_requested_and_accepted(repository in repository(), commands in commands()) {
        let request = request(&commands, false);
        let verdict = authorise(&request, &view(&repository));
        let found = |wanted: RefVerdict| -> Vec<_> {
            let pairs = request.commands().iter().zip(&verdict.refs);
            pairs.filter(|(_, (_, verdict))| *verdict == wanted).map(|(command, _)| command.clone()).collect()
        };
        let (execute, stage) = (found(RefVerdict::Execute), found(RefVerdict::Stage));
        match &verdict.authorised {
            Some(authorised) => {
                prop_assert_eq!(authorised.execute(), execute);
                prop_assert_eq!(authorised.stage(), stage);
            }
            None => prop_assert!(execute.is_empty() && stage.is_empty()),
        }
    }

    #[test]
    fn an_atomic_push_changes_everything_or_nothing(repository in repository(), commands in commands()) {
        let verdict = authorise(&request(&commands, true), &view(&repository));
        prop_assert!(verdict.is_accepted() || verdict.authorised.is_none());
    }

    #[test]
    fn the_verdict_is_deterministic(repository in repository(), commands in commands()) {
        let request = request(&commands, false);
        prop_assert_eq!(authorise(&request, &view(&repository)), authorise(&request, &view(&repository)));
    }

    #[test]
    fn an_incomplete_list_gives_no_request(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(Progress::Complete { request, .. }) = CommandReader::default().feed(&bytes) {
            prop_assert!(!request.commands().is_empty());
        }
    }
}
