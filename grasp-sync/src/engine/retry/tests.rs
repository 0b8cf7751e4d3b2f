use super::super::io::{BatchId, Ids};
use super::*;

fn id(n: u8) -> EventId {
    EventId::from_byte_array([n; 32])
}

fn job_id(number: u64) -> JobId {
    JobId {
        batch: BatchId(0),
        number,
    }
}

const T0: Mono = Mono::from_secs(100);

#[test]
fn offered_events_are_requested_in_chunks_and_once() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    for n in 0..5 {
        let job = Some(ids.next(job_id));
        assert_eq!(wants.want(T0, id(n), job), WantResult::Queued);
        assert_eq!(wants.want(T0, id(n), job), WantResult::Already);
    }
    let sizes: Vec<_> = (0..3)
        .map(|_| wants.take_due(T0, ids.next(SubId), 3).len())
        .collect();
    assert_eq!(sizes, [3, 2, 0]);
    wants.check();
}

#[test]
fn all_jobs_that_wait_for_an_event_are_resolved() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let jobs = [ids.next(job_id), ids.next(job_id)];
    for job in jobs {
        assert_eq!(wants.want(T0, id(1), Some(job)), WantResult::Queued);
    }
    let sub = ids.next(SubId);
    assert_eq!(wants.take_due(T0, sub, 9).len(), 1);
    wants.delivered(sub, id(1));
    assert!(
        wants.ended(T0, sub).missed.is_empty(),
        "delivered is not missing"
    );
    assert_eq!(wants.resolve(id(1)), jobs.into());
    assert!(wants.len() == 0);
}

#[test]
fn each_event_is_requested_twelve_times_with_growing_backoff() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let job = ids.next(job_id);
    assert_eq!(wants.want(T0, id(1), Some(job)), WantResult::Queued);
    let (mut now, mut rests) = (T0, Vec::new());
    let last = loop {
        let sub = ids.next(SubId);
        assert_eq!(wants.take_due(now, sub, 9).len(), 1);
        let missed = wants.ended(now, sub).missed;
        let Some(next) = wants.deadline() else {
            break missed;
        };
        rests.push((next - now).as_secs());
        now = next;
    };
    assert_eq!(rests, [30, 60, 120, 240, 480, 900, 900, 900, 900, 900, 900]);
    assert_eq!(last.len(), 1);
    assert!(last[0].is_given_up && !last[0].is_first && last[0].jobs == [job].into());
    assert_eq!(wants.want(now, id(1), Some(job)), WantResult::GivenUp);
}

#[test]
fn reconnecting_or_new_offers_renew_no_budget() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    assert_eq!(wants.want(T0, id(1), None), WantResult::Queued);
    let sub = ids.next(SubId);
    let _ = wants.take_due(T0, sub, 9);
    assert!(wants.ended(T0, sub).missed[0].is_first);
    wants.disconnected();
    assert_eq!(wants.want(T0, id(1), None), WantResult::QueuedAfterFailure);
    assert_eq!(wants.want(T0, id(2), None), WantResult::Queued);
    assert_eq!(wants.take_due(T0, ids.next(SubId), 9), [id(2)].into());
    assert_eq!(wants.deadline(), Some(T0 + EVENT_BACKOFF.first));
}

#[test]
fn a_truncated_answer_costs_no_attempt_and_makes_requests_smaller() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    (0..200).for_each(|n| assert_eq!(wants.want(T0, id(n), None), WantResult::Queued));
    let sub = ids.next(SubId);
    let requested = wants.take_due(T0, sub, 200);
    requested
        .iter()
        .take(60)
        .for_each(|id| wants.delivered(sub, *id));
    let ended = wants.ended(T0, sub);
    assert!(ended.missed.is_empty() && ended.truncated_at == Some(60));
    assert_eq!(wants.take_due(T0, ids.next(SubId), 60).len(), 60);
}

#[test]
fn a_request_that_was_not_accepted_costs_no_attempt() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let _ = wants.want(T0, id(1), None);
    for _ in 0..50 {
        let sub = ids.next(SubId);
        assert_eq!(wants.take_due(T0, sub, 9).len(), 1);
        wants.returned(T0, sub);
    }
}

#[test]
fn events_that_only_a_finished_job_wanted_are_forgotten() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let (one, two) = (ids.next(job_id), ids.next(job_id));
    let _ = wants.want(T0, id(1), Some(one));
    let _ = wants.want(T0, id(2), Some(one));
    let _ = wants.want(T0, id(2), Some(two));
    wants.abandon(one);
    wants.check();
    assert_eq!(wants.take_due(T0, ids.next(SubId), 9), [id(2)].into());
}

#[test]
fn an_event_that_fails_by_another_path_is_no_longer_requested() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let _ = wants.want(T0, id(1), None);
    let sub = ids.next(SubId);
    let _ = wants.take_due(T0, sub, 9);
    assert!(wants.failed(T0, id(1)).is_first);
    wants.check();
    assert!(
        wants.ended(T0, sub).missed.is_empty(),
        "one failure counts once"
    );
}

#[test]
fn memory_of_failures_is_bounded() {
    let mut wants = Wants::default();
    for n in 0..MAX_REMEMBERED as u32 + 50 {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        let _ = wants.failed(T0, EventId::from_byte_array(bytes));
    }
    assert_eq!(wants.tried.len(), MAX_REMEMBERED);
}

#[test]
fn the_number_of_wanted_events_is_bounded() {
    let (mut wants, mut ids) = (Wants::default(), Ids::default());
    let job = Some(ids.next(job_id));
    let offered = |n: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(id)
    };
    for n in 0..MAX_WANTED {
        assert_eq!(wants.want(T0, offered(n), job), WantResult::Queued);
    }
    assert_eq!(
        wants.want(T0, offered(MAX_WANTED), job),
        WantResult::GivenUp
    );
    assert_eq!(wants.want(T0, offered(1), job), WantResult::Already);
    wants.resolve(offered(0));
    assert_eq!(wants.want(T0, offered(MAX_WANTED), job), WantResult::Queued);
}
