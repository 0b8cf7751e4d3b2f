//! Relays behind TLS: those with a valid certificate are synced from, others are not.

use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::nostr::types::Timestamp;
use grasp_sync::driver::{RelayStatus, Settings};
use grasp_sync::engine::{Fault, Flaw};
use grasp_sync::{Roots, Sidecar, Syncer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::local::Local;
use crate::scripted::HonestRelay;
use crate::tls_front::{Authority, Certificate, Front};
use crate::trial::Trial;

/// The year until which certificates are valid, unless they are expired.
const VALID_UNTIL_YEAR: i32 = 4000;

fn trust(authority: &Authority, settings: &mut Settings) {
    settings.roots = Roots::default().with(authority.pem().as_bytes()).unwrap();
}

fn secure(front: &Front) -> RelayUrl {
    format!("wss://{}", front.host()).parse().unwrap()
}

/// Asserts that a relay with this certificate is refused for this reason, and that a good relay is not affected.
async fn assert_refused(authority: &Authority, shown: Certificate, flaw: Flaw) {
    let mut trial = Trial::new().await;
    let issues = trial.issues(2);
    let relay = HonestRelay::new(issues.clone()).start().await;
    let front = Front::start(relay.address(), shown).await;
    let syncer = trial
        .start_sync_at(&[secure(&front)], |settings| trust(authority, settings))
        .await;

    let is_over = |status: &RelayStatus| status.failed.is_some();
    let status = Local::until_status(&syncer, &secure(&front), is_over).await;
    let failed = status.failed.unwrap();
    assert_eq!((failed.why, failed.attempts), (Fault::Certificate(flaw), 1));
    let eleven_hours = Duration::from_secs(11 * 60 * 60);
    assert!(
        failed.retry_at > Timestamp::now() + eleven_hours,
        "{failed:?}"
    );
    trial.assert_undisturbed(&syncer).await;
    // One connection for the websocket, one for NIP-11; nothing came through.
    assert!(
        front.connections() <= 2,
        "{} connections",
        front.connections()
    );
    assert_eq!(relay.received().connections, 0);
    assert!(!issues.iter().any(|issue| trial.local.has(issue)));
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_authority_the_operator_trusts_is_synced_from() {
    let mut trial = Trial::new().await;
    let (issues, authority) = (trial.issues(3), Authority::new("ours"));
    let honest = HonestRelay::new(issues.clone());
    let relay = honest.start().await;
    let front = Front::start(
        relay.address(),
        authority.certify("localhost", VALID_UNTIL_YEAR),
    )
    .await;
    let syncer = trial
        .start_sync_at(&[secure(&front)], |settings| trust(&authority, settings))
        .await;
    trial.assert_arrive(&issues).await;
    Local::until_status(&syncer, &secure(&front), |status| {
        status.synced_at.is_some()
    })
    .await;
    let live = trial.author.issue(&trial.repo, "live");
    honest.publish(live.clone());
    trial.assert_arrive(&[live]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_an_untrusted_authority_is_refused_without_a_retry() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    assert_refused(
        &ours,
        theirs.certify("localhost", VALID_UNTIL_YEAR),
        Flaw::Untrusted,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_is_refused_without_a_retry() {
    let ours = Authority::new("ours");
    assert_refused(
        &ours,
        ours.certify("elsewhere.example", VALID_UNTIL_YEAR),
        Flaw::OtherName,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_without_a_retry() {
    let ours = Authority::new("ours");
    assert_refused(&ours, ours.certify("localhost", 2020), Flaw::OutOfDate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_tls_is_refused_without_a_retry() {
    let mut trial = Trial::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: RelayUrl = format!("wss://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let syncer = trial
        .start_sync_at(std::slice::from_ref(&url), |_| {})
        .await;
    let is_over = |status: &RelayStatus| status.failed.is_some();
    let failed = Local::until_status(&syncer, &url, is_over)
        .await
        .failed
        .unwrap();
    assert_eq!((failed.why, failed.attempts), (Fault::Tls, 1));
    trial.assert_undisturbed(&syncer).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_keeps_a_relay_behind_tls_complete() {
    let authority = Authority::new("ours");
    let trial = Trial::new().await;
    let (ours, issues) = (HonestRelay::new([]), trial.issues(3));
    let (here, there) = (
        ours.start().await,
        HonestRelay::new(issues.clone()).start().await,
    );
    ours.publish(trial.author.announcement("grasp", &[&there.url()]));
    let front = Front::start(
        here.address(),
        authority.certify("localhost", VALID_UNTIL_YEAR),
    )
    .await;
    let mut settings = Local::settings(&[]);
    trust(&authority, &mut settings);
    let sidecar = Sidecar::trusting(secure(&front), &settings.roots);
    let syncer = Syncer::start(std::sync::Arc::new(sidecar), settings)
        .await
        .unwrap();
    ours.until_has(&issues.iter().collect::<Vec<_>>()).await;
    syncer.stop().await;
}
