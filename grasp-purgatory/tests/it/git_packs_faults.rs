//! Faults of the pack storage, and packs that it loses.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{Mono, RepoId};
use grasp_purgatory::git::{
    GitError, PackCache, PackStorage, PackStorageError, PackStorageOptions, Protocol,
};
use tokio::sync::Semaphore;

use crate::git_fixture::{Fixture, git, now};
use crate::git_packs::{CACHE_BYTES, Site, repository, serves};
use crate::s3_server::{Fault, SECRET_KEY};

/// Timeout of requests in tests that wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the error with which a clone is refused.
async fn refusal(fixture: &Fixture, repo: &RepoId) -> String {
    let claimant = grasp_core::resources::Claimant::default();
    match fixture
        .store
        .upload_pack(repo, Protocol::V2, claimant)
        .await
    {
        Ok(_) => panic!("it is served"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn requests_are_repeated_until_they_succeed() {
    let site = Site::on_s3().await;
    let (writer, server) = (site.writer().await, site.server());
    let (repo, work, _) = repository(&writer, "x").await;
    let slow = Fault::Slow(Duration::from_millis(200));
    for fault in [Fault::Unavailable, slow, Fault::LostAnswer] {
        server.fail(3, ("PUT", "/packs/"), fault.clone());
        let tip = work.commit(&format!("{fault:?}"));
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        let reader = site.reader().await;
        server.fail(3, ("GET", "/packs/"), fault.clone());
        assert!(serves(&reader, &repo, tip).await, "{fault:?}");
        git(&reader.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    }
    let (tip, reader) = (work.rev("HEAD"), site.reader().await);
    server.fail(3, ("GET", ".pack"), Fault::CutAnswer);
    assert!(serves(&reader, &repo, tip).await);
    git(&reader.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn parts_of_a_large_pack_are_repeated() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, site.reader().await);
    let (repo, work, _) = repository(&writer, "x").await;
    work.write("noise", &crate::git_fixture::noise(5_000_000));
    let tip = work.commit("large");
    for (method, fault) in [("PUT", Fault::LostAnswer), ("POST", Fault::Unavailable)] {
        site.server().fail(2, (method, "uploadId="), fault);
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        let mut guard = writer.store.lock(&repo).await.unwrap();
        guard.destroy().await.unwrap();
        drop(guard);
        writer.create(&repo).await;
    }
    site.server().heal();
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    site.server().fail(2, ("GET", ".pack"), Fault::CutAnswer);
    assert!(serves(&reader, &repo, tip).await);
}

#[tokio::test]
async fn a_push_that_cannot_be_stored_fails_and_changes_nothing() {
    let site = Site::on_s3().await;
    let packs = PackCache::new(site.storage.open(REQUEST_TIMEOUT), CACHE_BYTES);
    let writer = site.node(packs).await;
    writer.store.became_writer().await.unwrap();
    let (repo, work, first) = repository(&writer, "x").await;
    let before = site.database.content().clone();
    let second = work.commit("second");
    let staged = format!("refs/nostr/{}", "01".repeat(32));
    let never = Fault::Slow(Duration::from_secs(3600));
    for fault in [Fault::Unavailable, never] {
        for name in ["refs/heads/main", &staged] {
            site.server().fail(usize::MAX, ("PUT", ""), fault.clone());
            let error = writer
                .push(&repo, &work, &[(name, Some(second))])
                .await
                .unwrap_err();
            assert!(matches!(error, GitError::PackStorage(_)), "{error:?}");
            assert!(error.is_ours());
            assert!(
                error.to_string().starts_with("the pack storage failed: "),
                "{error}"
            );
            assert_eq!(*site.database.content(), before);
            site.server().heal();
        }
        assert!(
            !serves(&writer, &repo, second).await,
            "nothing is left of it"
        );
        assert_eq!(
            std::fs::read_dir(writer.root().join("staging"))
                .unwrap()
                .count(),
            0
        );
        assert!(serves(&writer, &repo, first).await);
    }
    assert!(writer.store.pack_figures().unwrap().failures >= 4);
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(second))])
        .await
        .unwrap();
    assert!(serves(&site.reader().await, &repo, second).await);
}

#[tokio::test]
async fn a_reader_reports_that_the_pack_storage_fails_and_recovers() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let (repo, _, tip) = repository(&writer, "x").await;
    let reader = site
        .node(PackCache::new(
            site.storage.open(REQUEST_TIMEOUT),
            CACHE_BYTES,
        ))
        .await;
    site.server()
        .fail(usize::MAX, ("GET", ""), Fault::Unavailable);
    let text = refusal(&reader, &repo).await;
    assert!(text.contains("the pack storage failed: SlowDown"), "{text}");
    assert!(
        serves(&writer, &repo, tip).await,
        "it has the packs on disk"
    );
    site.server().heal();
    assert!(serves(&reader, &repo, tip).await);
}

#[tokio::test]
async fn a_cancelled_clone_does_not_end_the_download_that_others_wait_for() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let (repo, _, tip) = repository(&writer, "x").await;
    let reader = Arc::new(site.reader().await);
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    site.server().fail(
        1,
        ("GET", ".pack"),
        Fault::Held(arrived.clone(), go_on.clone()),
    );
    let first = {
        let (reader, repo) = (reader.clone(), repo.clone());
        tokio::spawn(async move { serves(&reader, &repo, tip).await })
    };
    arrived.acquire().await.unwrap().forget();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    go_on.add_permits(1);
    assert!(serves(&reader, &repo, tip).await);
    assert_eq!(site.server().count("GET", ".pack"), 1);
}

#[tokio::test]
async fn a_clone_succeeds_although_a_pack_is_replaced_and_deleted_during_its_download() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, Arc::new(site.reader().await));
    let (repo, work, _) = repository(&writer, "x").await;
    let mut tip = grasp_core::Oid::ZERO;
    for n in 0..40 {
        tip = work.commit(&n.to_string());
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
    }
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    site.server().fail(
        usize::MAX,
        ("GET", ".pack"),
        Fault::Held(arrived.clone(), go_on.clone()),
    );
    let served = {
        let (reader, repo) = (reader.clone(), repo.clone());
        tokio::spawn(async move { serves(&reader, &repo, tip).await })
    };
    arrived.acquire().await.unwrap().forget();
    let old = site.stored("pack");
    assert!(
        writer
            .store
            .lock(&repo)
            .await
            .unwrap()
            .compact()
            .await
            .unwrap()
    );
    // As if a day had passed.
    let kept = |file: &Path| {
        let row = site.database.content().clone();
        format!("{row:?}").contains(file.file_stem().unwrap().to_str().unwrap())
    };
    let mut deleted = 0;
    for file in old.iter().filter(|file| !kept(file)) {
        ["pack", "idx", "rev"].iter().for_each(|kind| {
            _ = std::fs::remove_file(file.with_extension(kind));
        });
        deleted += 1;
    }
    assert!(deleted > 30);
    go_on.add_permits(1_000);
    assert!(served.await.unwrap());
    git(&reader.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_lost_pack_is_stored_again_from_the_cache() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let (repo, _, tip) = repository(&writer, "x").await;
    for file in [site.stored("pack"), site.stored("idx")].concat() {
        std::fs::remove_file(file).unwrap();
        let found = writer.store.repository(&repo).inspect(false).await.unwrap();
        assert!(!found.is_broken && found.lost.is_empty(), "{found:?}");
        assert!(serves(&site.reader().await, &repo, tip).await);
    }
}

#[tokio::test]
async fn a_lost_pack_without_a_copy_is_damage_until_its_objects_are_received_again() {
    let site = Site::on_s3().await;
    let old = site.writer().await;
    let (repo, work, tip) = repository(&old, "x").await;
    site.stored("pack")
        .iter()
        .for_each(|file| std::fs::remove_file(file).unwrap());
    let writer = site.writer().await;
    let found = writer.store.repository(&repo).inspect(false).await.unwrap();
    assert_eq!((found.is_broken, found.lost.len()), (true, 1));
    assert!(!serves(&writer, &repo, tip).await);
    let tips = BTreeSet::from([tip]);
    assert_eq!(
        writer.store.repository(&repo).lacking(&tips).await.unwrap(),
        tips
    );
    // The hunt brings the objects, in another pack than before.
    let other = work.commit("other");
    let incoming = writer.receive(&repo, &work.pack(&[other])).await.unwrap();
    let tips = BTreeSet::from([tip, other]);
    assert_eq!(
        writer
            .store
            .repository(&repo)
            .take_in(incoming, &tips)
            .await
            .unwrap(),
        tips
    );
    let found = writer.store.repository(&repo).inspect(true).await.unwrap();
    assert!(!found.is_broken && found.lost.is_empty(), "{found:?}");
    assert!(serves(&site.reader().await, &repo, tip).await);
}

#[tokio::test]
async fn a_damaged_pack_is_found_by_reading_the_pack_storage() {
    let site = Site::on_s3().await;
    let old = site.writer().await;
    let (repo, work, _) = repository(&old, "x").await;
    work.write("noise", &crate::git_fixture::noise(100_000));
    let tip = work.commit("large");
    old.push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let large = site
        .stored("pack")
        .into_iter()
        .max_by_key(|it| it.metadata().unwrap().len());
    let (large, flip) = (large.unwrap(), |file: &Path| {
        let mut content = std::fs::read(file).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 0xff;
        std::fs::write(file, content).unwrap();
    });
    let later = now() + Duration::from_secs(1);

    // A server that has the pack on disk stores it again.
    flip(&large);
    assert!(
        old.store
            .repository(&repo)
            .verify(later, now())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(serves(&site.reader().await, &repo, tip).await);

    // Without a copy, readable objects are kept and the others are missing.
    flip(&large);
    let writer = site.writer().await;
    assert!(!serves(&writer, &repo, tip).await);
    let damaged = writer
        .store
        .repository(&repo)
        .verify(later, now())
        .await
        .unwrap();
    assert_eq!(damaged.len(), 1);
    assert!(!large.exists());
    let found = writer.store.repository(&repo).inspect(false).await.unwrap();
    assert!(found.is_broken);
    let incoming = writer.receive(&repo, &work.pack(&[tip])).await.unwrap();
    let tips = BTreeSet::from([tip]);
    assert_eq!(
        writer
            .store
            .repository(&repo)
            .take_in(incoming, &tips)
            .await
            .unwrap(),
        tips
    );
    assert!(
        !writer
            .store
            .repository(&repo)
            .inspect(true)
            .await
            .unwrap()
            .is_broken
    );
    assert!(serves(&site.reader().await, &repo, tip).await);
}

#[tokio::test]
async fn a_damaged_file_of_the_cache_is_downloaded_again() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, site.reader().await);
    let (repo, _, tip) = repository(&writer, "x").await;
    assert!(serves(&reader, &repo, tip).await);
    let packs = reader.repo_dir(&repo).join("objects/pack");
    let files = std::fs::read_dir(packs)
        .unwrap()
        .map(|file| file.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "pack")) {
        let length = file.metadata().unwrap().len() as usize;
        let mut permissions = file.metadata().unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "a file of this test")]
        permissions.set_readonly(false);
        std::fs::set_permissions(&file, permissions).unwrap();
        std::fs::write(&file, vec![0; length]).unwrap();
    }
    assert!(!serves(&reader, &repo, tip).await);
    let found = reader.store.repository(&repo).inspect(true).await.unwrap();
    assert!(!found.is_broken && found.lost.is_empty(), "{found:?}");
    assert!(serves(&reader, &repo, tip).await);
}

#[tokio::test]
async fn an_empty_or_wrong_pack_storage_is_an_error_and_not_damage() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let (repo, ..) = repository(&writer, "x").await;
    std::fs::remove_dir_all(site.server().objects()).unwrap();
    let reader = site.reader().await;
    let text = refusal(&reader, &repo).await;
    assert!(text.contains("has no packs of this server"), "{text}");
    for found in [
        reader.store.became_writer().await.unwrap_err(),
        writer
            .store
            .repository(&repo)
            .inspect(true)
            .await
            .unwrap_err(),
        writer
            .store
            .sweep(grasp_core::Mono::from_secs(1))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        let GitError::PackStorage(error) = found else {
            panic!("{found:?}")
        };
        assert!(matches!(error, PackStorageError::Foreign), "{error:?}");
    }
}

#[tokio::test]
async fn errors_about_wrong_settings_contain_no_secrets() {
    let site = Site::on_s3().await;
    let server = site.server();
    let open = |url: &str, changes: &[(&str, &str)]| {
        let mut variables = server.variables();
        for (name, value) in changes {
            variables.insert((*name).to_owned(), (*value).to_owned());
        }
        PackStorage::open(
            url,
            &PackStorageOptions {
                variables,
                timeout: REQUEST_TIMEOUT,
            },
        )
    };
    open(&server.url(), &[]).unwrap().probe().await.unwrap();
    let wrong = [("AWS_SECRET_ACCESS_KEY", "another-secret")];
    let unknown = [("AWS_ACCESS_KEY_ID", "unknown")];
    let nowhere = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    let probes = [
        (open("s3://nothing/x", &[]), "does not exist"),
        (open(&server.url(), &wrong), "refused the credentials"),
        (open(&server.url(), &unknown), "refused the credentials"),
        (open(&server.url(), &nowhere), "the pack storage failed: "),
    ];
    for (storage, expected) in probes {
        let error = storage.unwrap().probe().await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{text}");
        assert!(
            !text.contains(SECRET_KEY) && !text.contains("another-secret"),
            "{text}"
        );
    }
    let missing = "file:///nonexistent/directory";
    let bundle = [("AWS_CA_BUNDLE", "/nonexistent")];
    for (opened, expected) in [
        (
            open("s3://key:very-secret-9@bucket/x", &[]),
            "variables of the environment",
        ),
        (
            open("gs://bucket", &[]),
            "s3://bucket/prefix or file:///directory",
        ),
        (
            open("packs", &[]),
            "s3://bucket/prefix or file:///directory",
        ),
        (open(missing, &[]), "does not exist"),
        (open(&server.url(), &bundle), "AWS_CA_BUNDLE"),
    ] {
        let text = opened.err().unwrap().to_string();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("very-secret"), "{text}");
    }
    let options = PackStorageOptions {
        variables: server.variables(),
        timeout: REQUEST_TIMEOUT,
    };
    assert!(!format!("{options:?}").contains(SECRET_KEY));
}

#[tokio::test]
async fn a_sweep_keeps_what_another_writer_has_named_since_its_list() {
    let site = Site::on_s3().await;
    let (old, day) = (
        Arc::new(site.writer().await),
        Duration::from_secs(24 * 60 * 60),
    );
    let (repo, work, tip) = repository(&old, "x").await;
    old.store
        .lock(&repo)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    let start = Mono::from_secs(1_000);
    assert_eq!(old.store.sweep(start).await.unwrap(), 0);
    // Suspended between its list and its first deletion.
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    site.server().fail(
        1,
        ("GET", "list-type=2"),
        Fault::Held(arrived.clone(), go_on.clone()),
    );
    let sweep = {
        let old = old.clone();
        tokio::spawn(async move { old.store.sweep(start + day * 2).await })
    };
    arrived.acquire().await.unwrap().forget();
    let new = site.writer().await;
    new.create(&repo).await;
    new.push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    go_on.add_permits(1);
    assert_eq!(sweep.await.unwrap().unwrap(), 0);
    assert_eq!(
        site.stored("pack").len(),
        1,
        "the same pack has the same name"
    );
    assert!(serves(&site.reader().await, &repo, tip).await);
}

#[tokio::test]
async fn a_sweep_without_the_lease_deletes_nothing() {
    let site = Site::on_s3().await;
    let (writer, day) = (site.writer().await, Duration::from_secs(24 * 60 * 60));
    let (repo, _, _) = repository(&writer, "x").await;
    writer
        .store
        .lock(&repo)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    let start = Mono::from_secs(1_000);
    assert_eq!(writer.store.sweep(start).await.unwrap(), 0);
    site.database.fail_once();
    assert!(writer.store.sweep(start + day * 2).await.is_err());
    assert_eq!(site.stored("pack").len(), 1);
    assert!(writer.store.sweep(start + day * 2).await.unwrap() >= 2);
    assert_eq!(site.stored("pack").len(), 0);
}
