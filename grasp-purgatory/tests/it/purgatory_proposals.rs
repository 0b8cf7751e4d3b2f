//! Pull requests, and uploads that are received before them.

use std::time::Duration;

use grasp_core::admission::{Hold, Origin, Policy};
use grasp_core::resources::ClientNetwork;
use grasp_core::service::{Endpoint, npub};
use grasp_core::{Oid, RepoId};
use grasp_purgatory::{Bound, Config, Input, PushTarget};
use nostr::event::{Event, EventId};

use crate::model_disk::proposal_ref;
use crate::model_events::*;
use crate::model_world::World;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a model with a served repository that Alice and Bob maintain.
fn served() -> World {
    served_with(Config::default())
}

fn served_with(config: Config) -> World {
    let mut world = World::with(config, Policy::new(US.parse().unwrap()));
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world
}

fn tip_in(world: &World, repo: &RepoId, event: &Event) -> Option<Oid> {
    world.view(repo)?.get(&proposal_ref(&event.id)).copied()
}

#[test]
fn a_pull_request_is_held_for_its_tip_and_then_in_every_view_of_the_maintainers() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    assert!(!world.serves(&request));
    assert!(world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap());
    assert!(world.serves(&request));
    for maintainer in [ALICE, BOB] {
        assert_eq!(
            tip_in(&world, &maintainer.repo("x"), &request),
            Some(oid(9))
        );
    }
}

#[test]
fn a_pull_request_may_be_addressed_to_repositories_of_different_identifiers() {
    let mut world = served();
    world.send(&announcement(CAROL, "y", 0, &[])).unwrap();
    world.send(&state(CAROL, "y", 1, &[("main", 1)])).unwrap();
    world.fetch(&CAROL.repo("y"), &[1]).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x"), CAROL.repo("y")], 9);
    world.send(&request).unwrap();
    world.fetch(&CAROL.repo("y"), &[9]).unwrap();
    assert!(world.serves(&request));
    for repo in [CAROL.repo("y"), ALICE.repo("x"), BOB.repo("x")] {
        assert_eq!(tip_in(&world, &repo, &request), Some(oid(9)), "{repo}");
    }
}

#[test]
fn a_tip_in_a_repository_that_is_not_served_releases_the_pull_request_nowhere() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    let request = pull_request(DAVE, 2, &[BOB.repo("x"), CAROL.repo("y")], 9);
    world.send(&request).unwrap();
    world.fetch(&CAROL.repo("y"), &[9]).unwrap();
    assert!(!world.serves(&request));
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(
        !world.serves(&request),
        "what another repository has is not here"
    );
    world.fetch(&ALICE.repo("x"), &[9]).unwrap();
    assert!(world.serves(&request));
    assert_eq!(tip_in(&world, &ALICE.repo("x"), &request), Some(oid(9)));
}

#[test]
fn an_upload_is_staged_until_the_event_that_names_it_arrives() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    assert!(world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap());
    assert_eq!(tip_in(&world, &ALICE.repo("x"), &request), None);
    world.send(&request).unwrap();
    assert!(world.serves(&request));
    assert_eq!(tip_in(&world, &ALICE.repo("x"), &request), Some(oid(9)));
    assert!(world.disk.git.staging.is_empty());
    assert_eq!(world.core.counts().staged, 0);
}

#[test]
fn of_competing_uploads_the_signed_one_is_kept() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    for tip in [7, 9, 8] {
        assert!(world.push_tip(&ALICE.repo("x"), request.id, tip).unwrap());
    }
    world.send(&request).unwrap();
    assert_eq!(tip_in(&world, &ALICE.repo("x"), &request), Some(oid(9)));
    assert!(world.disk.git.staging.is_empty());
    let here = world.objects(&ALICE.repo("x"));
    assert!(
        !here.contains(&oid(7)) && !here.contains(&oid(8)),
        "never left staging"
    );
}

#[test]
fn an_upload_that_the_event_does_not_name_is_dropped_and_the_event_held() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 7).unwrap();
    world.send(&request).unwrap();
    assert!(!world.serves(&request) && world.core.holds(&request.id));
    assert!(world.disk.git.staging.is_empty());
    assert!(!world.push_tip(&ALICE.repo("x"), request.id, 7).unwrap());
    assert!(world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap());
    assert!(world.serves(&request));
}

#[test]
fn an_upload_that_arrives_while_its_event_is_being_held_is_not_lost() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    // The push was judged before the event came.
    let (repo, id) = (ALICE.repo("x"), request.id);
    let target = PushTarget::Repository(repo);
    world.disk.git.stage(id, oid(9), target.clone());
    world
        .handle(Input::PushStaged {
            id,
            tip: oid(9),
            target,
            bytes: 1,
            network: None,
        })
        .unwrap();
    world.run().unwrap();
    assert!(world.serves(&request));
}

#[test]
fn uploads_per_event_are_bounded_and_the_excess_one_is_dropped() {
    let mut world = served();
    let (repo, id) = (
        ALICE.repo("x"),
        pull_request(DAVE, 2, &[ALICE.repo("x")], 4).id,
    );
    for tip in 1..=4 {
        assert!(world.push_tip(&repo, id, tip).unwrap());
    }
    assert!(!world.push_tip(&repo, id, 5).unwrap());
    // An upload that was judged before the others arrived.
    let target = PushTarget::Repository(repo);
    world.disk.git.stage(id, oid(6), target.clone());
    world
        .handle(Input::PushStaged {
            id,
            tip: oid(6),
            target,
            bytes: 1,
            network: None,
        })
        .unwrap();
    let left: Vec<_> = world.disk.git.staging[&id]
        .iter()
        .map(|(tip, _)| *tip)
        .collect();
    assert_eq!(left, [1, 2, 3, 4].map(oid));
}

#[test]
fn one_network_that_fills_staging_makes_room_for_others() {
    let mut world = served_with(Config {
        staged: Bound {
            count: 100,
            bytes: 1_000,
        },
        ..Config::default()
    });
    let repo = ALICE.repo("x");
    let upload = |world: &mut World, n: u8, address: Option<&str>| {
        let (id, tip) = (EventId::from_byte_array([n; 32]), oid(n));
        let target = PushTarget::Repository(repo.clone());
        world.disk.git.stage(id, tip, target.clone());
        let network = address.map(|address| ClientNetwork::of(address.parse().unwrap()));
        world
            .handle(Input::PushStaged {
                id,
                tip,
                target,
                bytes: 100,
                network,
            })
            .unwrap();
        world.run().unwrap();
        world.core.keeps_upload(&id, &tip)
    };
    let kept = (1..=10)
        .filter(|n| upload(&mut world, *n, Some("192.0.2.1")))
        .count();
    assert_eq!(kept, 2, "a quarter, in whole uploads");
    // Uploads of unknown networks have no share; the network with the most uploads makes room.
    assert!((11..=18).all(|n| upload(&mut world, n, None)));
    assert!(!upload(&mut world, 19, None));
    assert!(upload(&mut world, 20, Some("198.51.100.1")));
    assert_eq!(world.core.counts().staged, 10);
    assert_eq!(
        world.disk.git.staging.len(),
        10,
        "nothing else is left on disk"
    );
}

#[test]
fn an_upload_without_its_event_is_dropped_after_twenty_minutes() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap();
    world.wait(MINUTE * 20 - Duration::from_secs(1)).unwrap();
    assert!(!world.disk.git.staging.is_empty());
    world.wait(Duration::from_secs(1)).unwrap();
    assert!(world.disk.git.staging.is_empty());
    world.send(&request).unwrap();
    assert!(!world.serves(&request));
}

#[test]
fn an_upload_survives_a_restart_with_its_deadline() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap();
    world.restart(MINUTE * 10);
    world.send(&request).unwrap();
    assert!(world.serves(&request));

    let late = pull_request(DAVE, 3, &[ALICE.repo("x")], 8);
    world.push_tip(&ALICE.repo("x"), late.id, 8).unwrap();
    world.restart(MINUTE * 20);
    world.wait(Duration::from_secs(1)).unwrap();
    assert!(world.disk.git.staging.is_empty());
}

#[test]
fn a_served_pull_request_reaches_views_that_become_relevant_later() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    world.fetch(&ALICE.repo("x"), &[9]).unwrap();
    world
        .send(&announcement(BOB, "x", 3, &[ALICE, CAROL]))
        .unwrap();
    world.send(&announcement(CAROL, "x", 3, &[BOB])).unwrap();
    assert_eq!(tip_in(&world, &CAROL.repo("x"), &request), Some(oid(9)));
}

#[test]
fn a_served_pull_request_whose_tip_comes_to_the_named_repository_later_reaches_the_others() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world
        .send(&announcement(BOB, "x", 0, &[ALICE, CAROL]))
        .unwrap();
    world.send(&announcement(CAROL, "x", 0, &[BOB])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1, 9]).unwrap();
    let request = pull_request(DAVE, 2, &[CAROL.repo("x")], 9);
    world.send(&request).unwrap();
    assert!(
        world.serves(&request),
        "she maintains Alice's repository, too"
    );
    world.fetch(&CAROL.repo("x"), &[9]).unwrap();
    for maintainer in [ALICE, BOB, CAROL] {
        assert_eq!(
            tip_in(&world, &maintainer.repo("x"), &request),
            Some(oid(9))
        );
    }
}

#[test]
fn a_pull_request_to_repositories_that_are_not_served_is_held() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[])).unwrap();
    let request = pull_request(DAVE, 2, &[BOB.repo("x")], 9);
    world.send(&request).unwrap();
    world.fetch(&ALICE.repo("x"), &[9]).unwrap();
    assert!(world.core.holds(&request.id) && !world.serves(&request));
}

#[test]
fn a_pull_request_and_its_upload_are_held_until_a_repository_is_served() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    let request = pull_request(DAVE, 2, &[BOB.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap();
    world.send(&request).unwrap();
    assert!(!world.serves(&request), "alice's repository has no data");
    world.wait(MINUTE * 25).unwrap();
    world.handle(Input::Tick).unwrap();
    world.send(&state(ALICE, "x", 3, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&request));
    assert_eq!(tip_in(&world, &ALICE.repo("x"), &request), Some(oid(9)));
}

#[test]
fn a_repository_that_is_not_served_yet_gets_no_refs_of_pull_requests() {
    let mut world = served();
    world.send(&announcement(BOB, "y", 0, &[])).unwrap();
    world.send(&state(BOB, "y", 1, &[("main", 1)])).unwrap();
    world.fetch(&BOB.repo("y"), &[1]).unwrap();
    world.send(&announcement(CAROL, "y", 0, &[])).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x"), CAROL.repo("y")], 9);
    world.send(&request).unwrap();
    world.fetch(&ALICE.repo("x"), &[9]).unwrap();
    assert!(world.serves(&request));
    assert!(world.view(&CAROL.repo("y")).unwrap().is_empty());
}

#[test]
fn a_wrong_upload_that_arrives_after_its_event_is_dropped_at_once() {
    let mut world = served();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    let (id, target) = (request.id, PushTarget::Repository(ALICE.repo("x")));
    world.disk.git.stage(id, oid(7), target.clone());
    world
        .handle(Input::PushStaged {
            id,
            tip: oid(7),
            target,
            bytes: 1,
            network: None,
        })
        .unwrap();
    assert!(world.disk.git.staging.is_empty());
    assert_eq!(world.core.counts().staged, 0);
}

/// Returns a pull request for an unknown repository whose tip is pushed to its author's `/prs/` path here.
fn at_own_prs_path(to: &RepoId) -> std::sync::Arc<Event> {
    let clone = format!(
        "https://{US}/prs/{}/{}.git",
        npub(&DAVE.key()),
        to.identifier
    );
    DAVE.signs(
        1618,
        2,
        vec![
            vec!["a".into(), to.to_string()],
            vec!["c".into(), oid(9).to_string()],
            vec!["clone".into(), clone],
        ],
    )
}

fn stage_at(world: &mut World, target: PushTarget, event: &Event) {
    world.disk.git.stage(event.id, oid(9), target.clone());
    world
        .handle(Input::PushStaged {
            id: event.id,
            tip: oid(9),
            target,
            bytes: 1,
            network: None,
        })
        .unwrap();
}

fn open_to_contributors() -> World {
    let mut policy = Policy::new(US.parse().unwrap());
    policy.contributor_proposals = true;
    World::with(Config::default(), policy)
}

#[test]
fn a_pull_request_for_an_unknown_repository_is_served_below_prs() {
    let mut world = open_to_contributors();
    let request = at_own_prs_path(&ALICE.repo("x"));
    stage_at(
        &mut world,
        PushTarget::Contributor(DAVE.repo("x")),
        &request,
    );
    world.send(&request).unwrap();
    assert!(world.serves(&request));
    let place = (Endpoint::PullRequests, DAVE.repo("x"));
    assert!(world.disk.git.proposals(&place).contains(&request.id));
    assert!(world.view(&DAVE.repo("x")).is_none() && world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn a_later_upload_of_the_same_tip_elsewhere_does_not_replace_the_authors() {
    let mut world = open_to_contributors();
    let request = at_own_prs_path(&ALICE.repo("x"));
    stage_at(
        &mut world,
        PushTarget::Contributor(DAVE.repo("x")),
        &request,
    );
    stage_at(&mut world, PushTarget::Contributor(BOB.repo("x")), &request);
    stage_at(
        &mut world,
        PushTarget::Repository(ALICE.repo("x")),
        &request,
    );
    world.send(&request).unwrap();
    assert!(world.serves(&request));
    assert_eq!(world.core.counts().staged, 0);
}

#[test]
fn an_upload_below_another_contributors_path_does_not_count() {
    let mut world = open_to_contributors();
    let request = at_own_prs_path(&ALICE.repo("x"));
    stage_at(&mut world, PushTarget::Contributor(BOB.repo("x")), &request);
    world.send(&request).unwrap();
    assert!(!world.serves(&request) && world.core.holds(&request.id));
}

#[test]
fn an_event_that_needs_no_git_data_is_not_held() {
    let mut world = World::new();
    let note = DAVE.signs(1, 0, vec![]);
    let held = Input::Held {
        event: note.clone(),
        hold: Hold::Proposal,
        origin: Origin::anonymous(),
    };
    world.handle(held).unwrap();
    assert_eq!(world.answer, Some(grasp_purgatory::HoldOutcome::Unreadable));
    assert!(!world.core.holds(&note.id));
}

#[test]
fn pull_requests_per_author_in_a_view_are_bounded_except_for_maintainers() {
    for (author, expected) in [(DAVE, 200), (BOB, 210)] {
        let mut world = served();
        for n in 0..210 {
            world
                .send(&pull_request(author, n, &[ALICE.repo("x")], 1))
                .unwrap();
        }
        let shown = world.view(&ALICE.repo("x")).unwrap().keys();
        let shown = shown.filter(|name| name.event().is_some()).count();
        assert_eq!(shown, expected);
        let later = pull_request(CAROL, 1, &[ALICE.repo("x")], 1);
        world.send(&later).unwrap();
        assert!(world.serves(&later), "other authors are not affected");
    }
}
