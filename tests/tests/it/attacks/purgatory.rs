//! What strangers may do to events that wait, and to what they wait for.

use super::Scene;

#[tokio::test]
async fn refused_deletion_requests_keep_no_later_one_from_the_repository() {
    let scene = Scene::new().await;
    // Eve is served as well, so that her requests are about git data; each also names what is not hers.
    let work = scene.instance.host(&scene.eve, "y").await;
    drop(work);
    let own = format!("30617:{}:y", scene.eve.key());
    let foreign = scene.announcement_id().await;
    let request =
        |n: usize| scene.eve.later(1).sign(5, &n.to_string(), &[&["a", &own], &["e", &foreign]]);
    let verdicts = scene.instance.ingest((0..1_100).map(request).collect()).await;
    assert!(verdicts.iter().all(|verdict| !verdict.answer().accepted), "none of them is honoured");
    // Ids are mined as easily as this: alice's is the lowest of many.
    let all = format!("30617:{}:x", scene.alice.key());
    let mine = |n: usize| scene.alice.later(1).sign(5, &n.to_string(), &[&["a", &all]]);
    let lowest = (0..64).map(mine).min_by_key(|event| event.id).unwrap();
    assert!(scene.send(&lowest).await.0);
    scene.is_gone().await;
}

#[tokio::test]
async fn a_push_that_takes_its_time_keeps_no_deleted_repository_in_service() {
    let scene = Scene::new().await;
    let _push = scene.instance.purgatory().begin_work(&scene.repo);
    let all = format!("30617:{}:x", scene.alice.key());
    assert!(scene.send(&scene.alice.later(1).sign(5, "", &[&["a", &all]])).await.0);
    scene.is_gone().await;
}
