//! Slow clients, and clients that disconnect.

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::future::join_all;
use grasp_purgatory::git::Slots;
use grasp_relay::git_http::GitLimits;
use grasp_relay::nostr::Limits;
use grasp_tests::wire::{ZERO_ID, pkt, push};
use grasp_tests::{Author, Instance, Leftovers, Settings, read_response, request_head};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::packs::{Hosted, hosted};

const MAIN: &str = "refs/heads/main";
const SHORT_TIMEOUT: Duration = Duration::from_millis(150);

fn with_short_timeouts() -> Settings {
    Settings {
        git: GitLimits {
            stall: SHORT_TIMEOUT,
            ..GitLimits::default()
        },
        relay: Limits {
            header_timeout: SHORT_TIMEOUT,
            write_timeout: SHORT_TIMEOUT,
            ..Limits::default()
        },
        ..Settings::default()
    }
}

impl Hosted {
    /// Sends the head of a request of this length to a service of the repository.
    async fn start_request(&self, service: &str, length: usize) -> TcpStream {
        let address = self.instance.address().to_string();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let path = format!("{}/{service}", self.instance.path(&self.repo));
        let length = length.to_string();
        let head = request_head(&address, "POST", &path, &[("Content-Length", &length)]);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// Signs the state of a new commit of this size, and returns the request that would push it.
    async fn sign_push(&self, bytes: usize) -> Vec<u8> {
        let next = self.work.commit_incompressible(bytes).await;
        self.instance
            .ingest(vec![self.alice.later(1).state("x", &[(MAIN, &next)])])
            .await;
        push(
            &[(&self.tip, &next, MAIN)],
            &self.work.pack(&["main"]).await,
        )
    }

    async fn assert_main_unchanged(&self) {
        let refs = self.instance.refs(&self.repo).await;
        assert!(refs.contains(&format!("{}\t{MAIN}", self.tip)), "{refs}");
        assert_eq!(self.instance.until_idle().await, Leftovers::default());
    }
}

#[tokio::test]
async fn an_unfinished_request_head_times_out() {
    let hosted = hosted(with_short_timeouts()).await;
    let mut stream = TcpStream::connect(hosted.instance.address()).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is closed");
}

#[tokio::test]
async fn an_unfinished_request_body_times_out() {
    let hosted = hosted(with_short_timeouts()).await;
    for (service, bytes) in [
        ("git-upload-pack", "0032want "),
        ("git-receive-pack", "00a1"),
    ] {
        for sent in ["", bytes] {
            let mut stream = hosted.start_request(service, 10_000).await;
            stream.write_all(sent.as_bytes()).await.unwrap();
            let answer = timeout(Duration::from_secs(5), read_response(&mut stream))
                .await
                .unwrap();
            assert_eq!(answer.status, 408, "{service} after {sent:?}: {answer:?}");
        }
    }
    hosted.assert_main_unchanged().await;
}

#[tokio::test]
async fn single_bytes_are_no_progress() {
    let hosted = hosted(with_short_timeouts()).await;
    let mut stream = hosted.start_request("git-receive-pack", 10_000).await;
    let (mut reading, mut writing) = stream.split();
    let send_bytes = async {
        while writing.write_all(b"0").await.is_ok() {
            sleep(SHORT_TIMEOUT / 10).await;
        }
    };
    let mut received = Vec::new();
    let read = timeout(Duration::from_secs(5), reading.read_to_end(&mut received));
    tokio::select! {
        () = send_bytes => {}
        read = read => assert!(read.is_ok(), "the connection is closed"),
    }
    hosted.assert_main_unchanged().await;
}

#[tokio::test]
async fn an_unfinished_pack_is_refused_with_the_reason() {
    let hosted = hosted(with_short_timeouts()).await;
    let request = hosted.sign_push(100_000).await;
    let mut stream = hosted
        .start_request("git-receive-pack", request.len())
        .await;
    stream
        .write_all(&request[..request.len() / 2])
        .await
        .unwrap();
    let answer = timeout(Duration::from_secs(5), read_response(&mut stream))
        .await
        .unwrap();
    let reason = format!("ng {MAIN} nothing more was sent for");
    assert!(
        answer.status == 200 && answer.body.contains(&reason),
        "{answer:?}"
    );
    hosted.assert_main_unchanged().await;
}

#[tokio::test]
async fn a_client_that_disconnects_during_a_push_leaves_nothing_behind() {
    let hosted = hosted(Settings::default()).await;
    let request = hosted.sign_push(400_000).await;
    let commands = request.iter().position(|byte| *byte == b'P').unwrap();
    for length in [
        10,
        commands - 2,
        commands,
        commands + 5,
        commands + 300_000,
        request.len() - 1,
    ] {
        let mut stream = hosted
            .start_request("git-receive-pack", request.len())
            .await;
        stream.write_all(&request[..length]).await.unwrap();
        // Git starts once some of the pack was received.
        if length > commands + 290_000 {
            hosted
                .instance
                .leftovers_when(|leftovers| !leftovers.processes.is_empty())
                .await;
        }
        drop(stream);
        hosted.assert_main_unchanged().await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_report_has_pushed_all_or_nothing() {
    let hosted = hosted(Settings::default()).await;
    let mut tip = hosted.tip.clone();
    for round in 1..6 {
        let next = hosted.work.commit(&format!("round {round}")).await;
        let state = hosted.alice.later(round).state("x", &[(MAIN, &next)]);
        hosted.instance.ingest(vec![state.clone()]).await;
        let request = push(&[(&tip, &next, MAIN)], &hosted.work.pack(&["main"]).await);
        let mut stream = hosted
            .start_request("git-receive-pack", request.len())
            .await;
        stream.write_all(&request).await.unwrap();
        drop(stream);
        assert_eq!(hosted.instance.until_idle().await, Leftovers::default());
        // In either case refs and events are consistent.
        let pushed = loop {
            hosted.instance.settle("x").await;
            let moved = hosted.instance.refs(&hosted.repo).await.contains(&next);
            if moved == hosted.instance.serves(&state).await {
                break moved;
            }
        };
        if pushed {
            tip = next;
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_a_clone_does_not_keep_git_running() {
    let hosted = hosted(Settings {
        one_process: true,
        ..with_short_timeouts()
    })
    .await;
    let next = hosted.work.commit_incompressible(16 << 20).await;
    hosted
        .instance
        .ingest(vec![hosted.alice.later(1).state("x", &[(MAIN, &next)])])
        .await;
    let url = hosted.instance.clone_url(&hosted.repo);
    hosted
        .work
        .git(&["push", "-q", &url, "main"])
        .await
        .expect_ok();
    let want = pkt(format!("want {next} side-band-64k ofs-delta\n"));
    let request = [want, b"0000".to_vec(), pkt("done\n")].concat();
    for reads_some in [true, false] {
        let mut stream = hosted.start_request("git-upload-pack", request.len()).await;
        stream.write_all(&request).await.unwrap();
        if reads_some {
            stream.read_exact(&mut vec![0; 100_000]).await.unwrap();
        }
        hosted
            .instance
            .leftovers_when(|leftovers| !leftovers.processes.is_empty())
            .await;
        assert_eq!(hosted.instance.until_idle().await, Leftovers::default());
        drop(stream);
    }
}

#[tokio::test]
async fn git_ends_when_the_client_of_a_clone_disconnects() {
    let hosted = hosted(Settings::default()).await;
    let next = hosted.work.commit_incompressible(16 << 20).await;
    hosted
        .instance
        .ingest(vec![hosted.alice.later(1).state("x", &[(MAIN, &next)])])
        .await;
    let url = hosted.instance.clone_url(&hosted.repo);
    hosted
        .work
        .git(&["push", "-q", &url, "main"])
        .await
        .expect_ok();
    let want = pkt(format!("want {next} side-band-64k ofs-delta\n"));
    let request = [want, b"0000".to_vec(), pkt("done\n")].concat();
    let mut stream = hosted.start_request("git-upload-pack", request.len()).await;
    stream.write_all(&request).await.unwrap();
    stream.read_exact(&mut vec![0; 1_000]).await.unwrap();
    drop(stream);
    assert_eq!(hosted.instance.until_idle().await, Leftovers::default());
}

#[tokio::test]
async fn an_unsigned_upload_ends_when_its_client_disconnects() {
    let hosted = hosted(Settings::default()).await;
    let tip = hosted.work.commit("unsigned").await;
    let pack = hosted.work.pack(&["main"]).await;
    let request = push(&[(ZERO_ID, &tip, &format!("refs/nostr/{:064x}", 1))], &pack);
    // All processes are in use, so that the upload is not checked before its client disconnects.
    let git = hosted.instance.purgatory().repos().git();
    let spawn = |_| git.command("cat-file").arg("--batch").spawn();
    let busy = join_all((0..Slots::default().local_processes.get()).map(spawn)).await;
    assert!(busy.iter().all(Result::is_ok));
    let mut stream = hosted
        .start_request("git-receive-pack", request.len())
        .await;
    stream.write_all(&request).await.unwrap();
    hosted
        .instance
        .leftovers_when(|leftovers| leftovers.incoming > 0 && leftovers.processes.is_empty())
        .await;
    drop(stream);
    hosted.assert_main_unchanged().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_not_cut_off() {
    let second = Duration::from_secs(1);
    let relay = Limits {
        write_timeout: second,
        ..Limits::default()
    };
    let hosted = hosted(Settings {
        relay,
        ..Settings::one_process()
    })
    .await;
    let next = hosted.work.commit_incompressible(16 << 20).await;
    hosted
        .instance
        .ingest(vec![hosted.alice.later(1).state("x", &[(MAIN, &next)])])
        .await;
    let url = hosted.instance.clone_url(&hosted.repo);
    hosted
        .work
        .git(&["push", "-q", &url, "main"])
        .await
        .expect_ok();
    let want = pkt(format!("want {next} side-band-64k ofs-delta\n"));
    let request = [want, b"0000".to_vec(), pkt("done\n")].concat();
    let mut stream = hosted.start_request("git-upload-pack", request.len()).await;
    stream.write_all(&request).await.unwrap();
    // The kernel buffers megabytes; each lasts longer than the timeout.
    let (mut read, mut buffer) = (0, vec![0; 1 << 16]);
    while read < 12 << 20 {
        sleep(Duration::from_millis(60)).await;
        read += stream
            .read_exact(&mut buffer)
            .await
            .expect("the connection stays");
    }
}

#[tokio::test]
async fn many_requests_of_one_address_do_not_delay_other_clients() {
    let instance = Instance::with_settings_and(Settings::default(), |settings| {
        settings.processes.client_processes = NonZeroUsize::new(4).unwrap();
    })
    .await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    // Larger than the part that is read before git starts.
    let tip = work.commit_incompressible(400_000).await;
    let pack = work.pack(&["main"]).await;
    let mut uploads = Vec::new();
    for n in 0..6 {
        let name = format!("refs/nostr/{n:064x}");
        let request = push(&[(ZERO_ID, &tip, &name)], &pack);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(instance.address()).await.unwrap();
        let address = instance.address().to_string();
        let path = format!("{}/git-receive-pack", instance.path(&alice.repo("x")));
        let length = request.len().to_string();
        let head = request_head(&address, "POST", &path, &[("Content-Length", &length)]);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
            .write_all(&request[..request.len() - 10])
            .await
            .unwrap();
        uploads.push(stream);
    }
    instance
        .leftovers_when(|leftovers| !leftovers.processes.is_empty())
        .await;
    for _ in 0..5 {
        let repo = alice.repo("x");
        let refs = instance.refs(&repo);
        assert!(
            timeout(Duration::from_secs(20), refs)
                .await
                .expect("no delay")
                .contains(MAIN)
        );
        assert_eq!(
            instance.leftovers().processes.len(),
            1,
            "one upload of the address"
        );
    }
}
