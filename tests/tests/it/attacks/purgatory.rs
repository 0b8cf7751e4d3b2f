//! Attacks on held events and on the git data that they wait for.

use super::Fixture;

#[tokio::test]
async fn refused_deletion_requests_do_not_block_a_later_valid_one() {
    let fixture = Fixture::new().await;
    // Eve has a served repository, so that her requests are about git data; each also names an event of alice.
    let work = fixture.instance.host(&fixture.eve, "y").await;
    drop(work);
    let own = format!("30617:{}:y", fixture.eve.key());
    let foreign = fixture.announcement_id().await;
    let request = |n: usize| {
        fixture
            .eve
            .later(1)
            .sign(5, &n.to_string(), &[&["a", &own], &["e", &foreign]])
    };
    let outcomes = fixture
        .instance
        .ingest((0..1_100).map(request).collect())
        .await;
    assert!(
        outcomes.iter().all(|outcome| !outcome.answer().is_accepted),
        "all are refused"
    );
    // Alice's request has the lowest id of many: ids are as easy to mine as this.
    let all = format!("30617:{}:x", fixture.alice.key());
    let mine = |n: usize| {
        fixture
            .alice
            .later(1)
            .sign(5, &n.to_string(), &[&["a", &all]])
    };
    let lowest = (0..64).map(mine).min_by_key(|event| event.id).unwrap();
    assert!(fixture.publish(&lowest).await.0);
    fixture.until_gone().await;
}

#[tokio::test]
async fn a_deleted_repository_is_removed_during_a_slow_push() {
    let fixture = Fixture::new().await;
    let _push = fixture.instance.purgatory().begin_work(&fixture.repo);
    let all = format!("30617:{}:x", fixture.alice.key());
    assert!(
        fixture
            .publish(&fixture.alice.later(1).sign(5, "", &[&["a", &all]]))
            .await
            .0
    );
    fixture.until_gone().await;
}
