use super::*;

const START: Mono = Mono::from_secs(100);

fn other() -> Arc<str> {
    "http://b:7334".into()
}

/// A node that became the writer at the start.
fn writer() -> Lease {
    let mut lease = Lease::new(START);
    assert_eq!(lease.handle(START, Input::Time), [Output::Claim]);
    assert_eq!(lease.handle(START, Input::Held), [Output::Follow(None), Output::Start]);
    assert_eq!(lease.handle(START, Input::Started), []);
    lease
}

#[test]
fn a_free_lease_makes_a_writer_that_renews_every_second() {
    let mut lease = writer();
    assert_eq!(lease.next_deadline(), Some(START + CLAIM_INTERVAL));
    let later = START + CLAIM_INTERVAL;
    assert_eq!(lease.handle(later, Input::Time), [Output::Claim]);
    assert_eq!(lease.handle(later, Input::Time), [], "one claim at a time");
    assert_eq!(lease.handle(later, Input::Held), []);
}

#[test]
fn a_writer_that_cannot_renew_steps_back_when_its_lease_may_have_expired() {
    let mut lease = writer();
    let now = loop {
        let now = lease.next_deadline().expect("a deadline");
        let outputs = lease.handle(now, Input::Time);
        if outputs.contains(&Output::Stop) {
            break now;
        }
        lease.handle(now, Input::ClaimFailed);
    };
    assert_eq!(now, START + LEASE);
    assert_eq!(lease.handle(now, Input::Stopped), [Output::Follow(None)]);
    assert_eq!(lease.handle(now + LEASE, Input::Time), [Output::Claim]);
}

#[test]
fn the_lease_counts_from_the_claim_and_not_from_its_answer() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START + Duration::from_secs(4), Input::Held);
    lease.handle(START + Duration::from_secs(4), Input::Started);
    let outputs = lease.handle(START + LEASE, Input::Time);
    assert!(outputs.contains(&Output::Stop), "{outputs:?}");
}

#[test]
fn a_reader_claims_again_when_the_lease_of_the_writer_ends() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    let remaining = Duration::from_millis(300);
    let outputs = lease.handle(START, Input::HeldBy(other(), remaining));
    assert_eq!(outputs, [Output::Follow(Some(other()))]);
    assert_eq!(lease.next_deadline(), Some(START + remaining));
    lease.handle(START + remaining, Input::Time);
    assert_eq!(lease.handle(START + remaining, Input::HeldBy(other(), LEASE)), []);
}

#[test]
fn a_writer_that_lost_its_lease_stops_and_follows_the_new_one() {
    let mut lease = writer();
    let now = START + CLAIM_INTERVAL;
    assert_eq!(lease.handle(now, Input::Time), [Output::Claim]);
    assert_eq!(lease.handle(now, Input::HeldBy(other(), LEASE)), [Output::Stop]);
    assert_eq!(lease.handle(now, Input::Stopped), [Output::Follow(Some(other()))]);
}

#[test]
fn parts_that_start_after_the_lease_was_lost_are_stopped() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START, Input::Held);
    let outputs = lease.handle(START + LEASE, Input::Time);
    assert_eq!(outputs, [], "the parts do not run yet");
    assert_eq!(lease.handle(START + LEASE, Input::Started), [Output::Stop]);
    assert_eq!(lease.handle(START + LEASE, Input::Stopped), [Output::Follow(None)]);
}

#[test]
fn a_node_that_cannot_start_to_write_leaves_it_to_others() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START, Input::Held);
    assert_eq!(lease.handle(START, Input::StartFailed), [Output::Release]);
    assert_eq!(lease.next_deadline(), Some(START + CLAIM_INTERVAL));
}

#[test]
fn a_process_that_stops_gives_the_lease_back_after_its_parts_have_stopped() {
    let mut lease = writer();
    assert_eq!(lease.handle(START, Input::Shutdown), [Output::Stop]);
    assert_eq!(lease.handle(START, Input::Stopped), [Output::Release]);
    assert_eq!(lease.next_deadline(), None);
    let mut starting = Lease::new(START);
    starting.handle(START, Input::Time);
    starting.handle(START, Input::Held);
    assert_eq!(starting.handle(START, Input::Shutdown), []);
    assert_eq!(starting.handle(START, Input::Started), [Output::Stop]);
    assert_eq!(starting.handle(START, Input::Stopped), [Output::Release]);
}

#[test]
fn a_renewal_that_is_answered_after_the_end_is_given_back() {
    let mut lease = writer();
    lease.handle(START + CLAIM_INTERVAL, Input::Time);
    lease.handle(START + CLAIM_INTERVAL, Input::Shutdown);
    assert_eq!(lease.handle(START + CLAIM_INTERVAL, Input::Held), [Output::Release]);
}

mod simulated;
