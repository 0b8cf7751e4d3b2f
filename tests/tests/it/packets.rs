//! Malformed git requests.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use grasp_core::RepoId;
use grasp_core::push::MAX_COMMANDS;
use grasp_tests::wire::{CAPABILITIES, ZERO_ID, pkt, push};
use grasp_tests::{Author, Instance, Leftovers, Workdir};

const MAIN: &str = "refs/heads/main";

/// Ref names that git refuses, or that contain control sequences of terminals.
const BAD_NAMES: &[&str] = &[
    "refs/heads/a b",
    "refs/heads/a\x07b",
    "refs/heads/a\x1b[31mred",
    "refs/heads/a\nb",
    "refs/heads/a\rb",
    "refs/heads/a\x7fb",
    "refs/heads/..",
    "refs/heads/a..b",
    "refs/heads/a~1",
    "refs/heads/a^",
    "refs/heads/a:b",
    "refs/heads/a?",
    "refs/heads/a*",
    "refs/heads/[a",
    "refs/heads/a\\b",
    "refs/heads/.a",
    "refs/heads/a.lock",
    "refs/heads/a/",
    "refs/heads//a",
    "refs/heads/@{a",
    "../../HEAD",
    "HEAD",
];

struct Hosted {
    instance: Instance,
    alice: Author,
    repo: RepoId,
    work: Workdir,
    tip: String,
    refs: String,
}

async fn hosted() -> Hosted {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let repo = alice.repo("x");
    let refs = instance.refs(&repo).await;
    Hosted {
        instance,
        alice,
        repo,
        work,
        tip,
        refs,
    }
}

impl Hosted {
    /// Asserts that no ref has moved, no operation runs and no temporary file is left.
    async fn assert_unchanged(&self, after: &str) {
        assert_eq!(self.instance.refs(&self.repo).await, self.refs, "{after}");
        assert_eq!(
            self.instance.until_idle().await,
            Leftovers::default(),
            "{after}"
        );
    }
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn malformed_command_lists_are_refused() {
    let hosted = hosted().await;
    let tip = hosted.tip.clone();
    let command = |name: &str| push(&[(ZERO_ID, &tip, name)], b"");
    let line = |text: &str| [pkt(format!("{text}\0{CAPABILITIES}")), b"0000".to_vec()].concat();
    let good = command("refs/heads/new");
    let mut lists: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"0".to_vec(),
        b"0003".to_vec(),
        b"zzzz".to_vec(),
        b"ffff".to_vec(),
        b"0001".to_vec(),
        b"0002".to_vec(),
        b"0004".to_vec(),
        vec![0; 4_096],
        vec![0xff; 4_096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        line("refs/heads/new"),
        line(&format!("{tip} refs/heads/new")),
        line(&format!("{ZERO_ID} {} refs/heads/new", &tip[..39])),
        line(&format!(
            "{} {} refs/heads/new",
            "0".repeat(64),
            "a".repeat(64)
        )),
        line(&format!("{ZERO_ID}  {tip} refs/heads/new")),
        line(&format!("shallow {tip}")),
        line("push-cert"),
        push(
            &[
                (ZERO_ID, &tip, "refs/heads/a"),
                (ZERO_ID, &tip, "refs/heads/a"),
            ],
            b"",
        ),
        [&command("refs/heads/new")[..], b"0001"].concat()[4..].to_vec(),
    ];
    lists.extend(BAD_NAMES.iter().map(|name| command(name)));
    lists.extend(
        (1..good.len() - 4)
            .step_by(7)
            .map(|length| good[..length].to_vec()),
    );
    for list in lists {
        let shown = String::from_utf8_lossy(&list[..list.len().min(200)]).into_owned();
        let answer = hosted
            .instance
            .post(&hosted.repo, "git-receive-pack", &[], &list)
            .await;
        assert_eq!(answer.status, 200, "{shown:?}: {answer:?}");
        assert!(!answer.body.contains("ok refs/"), "{shown:?}: {answer:?}");
        let clean = answer
            .body
            .bytes()
            .all(|b| b < 4 || b == b'\n' || b == b'\r' || b >= 0x20);
        assert!(clean, "control characters are not echoed: {answer:?}");
    }
    hosted.assert_unchanged("malformed lists").await;
}

#[tokio::test]
async fn refs_in_other_namespaces_are_refused_by_name() {
    let hosted = hosted().await;
    for name in [
        "refs/grasp/x",
        "refs/proven/0",
        "refs/remotes/a/b",
        "refs/notes/x",
        "refs/x",
    ] {
        let request = push(
            &[(ZERO_ID, &hosted.tip, name)],
            &hosted.work.pack(&["main"]).await,
        );
        let answer = hosted
            .instance
            .post(&hosted.repo, "git-receive-pack", &[], &request)
            .await;
        assert!(answer.body.contains(&format!("ng {name} ")), "{answer:?}");
    }
    hosted.assert_unchanged("foreign namespaces").await;
}

#[tokio::test]
async fn malformed_fetch_requests_do_not_affect_others() {
    let hosted = hosted().await;
    let want = format!(
        "want {} multi_ack_detailed side-band-64k ofs-delta\n",
        hosted.tip
    );
    let good = [pkt(want), b"0000".to_vec(), pkt("done\n")].concat();
    let missing = pkt(format!("want {}\n", "d".repeat(40)));
    let v2 = [
        pkt("command=fetch"),
        b"0001".to_vec(),
        missing.clone(),
        b"0000".to_vec(),
    ]
    .concat();
    let mut requests = vec![
        vec![0xff; 2_000],
        b"zzzz".to_vec(),
        b"0003".to_vec(),
        pkt("want \n"),
        [missing, b"0000".to_vec(), pkt("done\n")].concat(),
        [pkt("command=rm -rf"), b"0000".to_vec()].concat(),
        v2,
    ];
    requests.extend(
        (1..good.len())
            .step_by(9)
            .map(|length| good[..length].to_vec()),
    );
    for request in requests {
        for headers in [&[][..], &[("Git-Protocol", "version=2")]] {
            let instance = &hosted.instance;
            let answer = instance
                .post(&hosted.repo, "git-upload-pack", headers, &request)
                .await;
            assert_eq!(answer.status, 200, "{request:?}: {answer:?}");
            assert!(!answer.body.contains("PACK"), "{request:?}: {answer:?}");
        }
    }
    let instance = &hosted.instance;
    assert!(
        instance
            .post(&hosted.repo, "git-upload-pack", &[], &good)
            .await
            .body
            .contains("PACK")
    );
    hosted.assert_unchanged("malformed requests").await;
}

#[tokio::test]
async fn compressed_requests_are_read_and_compression_bombs_are_refused() {
    let hosted = hosted().await;
    let want = format!(
        "want {} multi_ack_detailed side-band-64k ofs-delta\n",
        hosted.tip
    );
    let good = [pkt(want), b"0000".to_vec(), pkt("done\n")].concat();
    let zipped = gzip(&good);
    let bomb = gzip(&vec![b'0'; 32 << 20]);
    let mut truncated = zipped.clone();
    truncated.truncate(zipped.len() - 9);
    // A member of ordinary size before the bomb.
    let delayed = [gzip(&good[..20]), bomb.clone()].concat();
    for (service, body, encoding, status) in [
        ("git-upload-pack", &zipped, "gzip", 200),
        ("git-upload-pack", &bomb, "gzip", 413),
        ("git-upload-pack", &delayed, "gzip", 413),
        ("git-upload-pack", &good, "gzip", 400),
        ("git-upload-pack", &truncated, "gzip", 400),
        ("git-upload-pack", &good, "br", 415),
        ("git-upload-pack", &zipped, "gzip, gzip", 415),
        ("git-receive-pack", &bomb, "gzip", 413),
        ("git-receive-pack", &good, "gzip", 400),
        ("git-receive-pack", &good, "deflate", 415),
    ] {
        let headers = [("Content-Encoding", encoding)];
        let answer = hosted
            .instance
            .post(&hosted.repo, service, &headers, body)
            .await;
        assert_eq!(
            answer.status,
            status,
            "{service} {encoding} {}: {answer:?}",
            body.len()
        );
        assert!(!answer.body.contains("ok refs/"), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), "*");
    }
    hosted.assert_unchanged("bombs").await;
}

#[tokio::test]
async fn a_compression_bomb_after_valid_commands_is_refused_for_each_ref() {
    let hosted = hosted().await;
    let next = hosted.work.commit("next").await;
    hosted
        .instance
        .ingest(vec![hosted.alice.later(1).state("x", &[(MAIN, &next)])])
        .await;
    let commands = push(&[(&hosted.tip, &next, MAIN)], b"");
    let random: Vec<u8> = (0..20_000u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let bomb = gzip(&[&commands[..], &random, &vec![0; 32 << 20]].concat());
    let headers = [("Content-Encoding", "gzip")];
    let answer = hosted
        .instance
        .post(&hosted.repo, "git-receive-pack", &headers, &bomb)
        .await;
    assert!(answer.body.contains(&format!("ng {MAIN} ")), "{answer:?}");
    hosted.assert_unchanged("a bomb as a pack").await;
}

#[tokio::test]
async fn thousands_of_refs_change_in_one_push_and_too_many_are_refused() {
    let hosted = hosted().await;
    let names: Vec<String> = (0..2_500).map(|n| format!("refs/heads/b{n}")).collect();
    let mut refs: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (name.as_str(), hosted.tip.as_str()))
        .collect();
    refs.push((MAIN, &hosted.tip));
    let state = hosted.alice.later(1).state("x", &refs);
    hosted.instance.ingest(vec![state.clone()]).await;
    assert!(hosted.instance.serves(&state).await, "all objects are here");
    let listed = hosted.instance.refs(&hosted.repo).await;
    assert_eq!(listed.lines().count(), 2_502);

    // All of them are deleted by a push.
    let state = hosted.alice.later(2).state(
        "x",
        &[(MAIN, &hosted.tip), ("refs/heads/z", &"d".repeat(40))],
    );
    hosted.instance.ingest(vec![state]).await;
    let next = hosted.work.commit("next").await;
    let state = hosted.alice.later(3).state("x", &[(MAIN, &next)]);
    hosted.instance.ingest(vec![state.clone()]).await;
    let url = hosted.instance.clone_url(&hosted.repo);
    hosted
        .work
        .git(&["push", "-q", "--mirror", &url])
        .await
        .expect_ok();
    assert!(hosted.instance.serves(&state).await);
    assert_eq!(hosted.instance.refs(&hosted.repo).await.lines().count(), 2);

    let many: Vec<String> = (0..=MAX_COMMANDS)
        .map(|n| format!("refs/heads/b{n}"))
        .collect();
    let many: Vec<_> = many
        .iter()
        .map(|name| (ZERO_ID, next.as_str(), name.as_str()))
        .collect();
    let request = push(&many, b"");
    let answer = hosted
        .instance
        .post(&hosted.repo, "git-receive-pack", &[], &request)
        .await;
    assert!(
        answer
            .body
            .contains(&format!("more than {MAX_COMMANDS} refs")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn unsigned_uploads_of_one_push_are_limited() {
    let hosted = hosted().await;
    let names: Vec<String> = (0..40).map(|n| format!("refs/nostr/{n:064x}")).collect();
    let commands: Vec<_> = names
        .iter()
        .map(|name| (ZERO_ID, hosted.tip.as_str(), name.as_str()))
        .collect();
    let pack = hosted.work.pack(&["main"]).await;
    let request = push(&commands, &pack);
    let answer = hosted
        .instance
        .post(&hosted.repo, "git-receive-pack", &[], &request)
        .await;
    assert_eq!(
        answer.body.matches("ok refs/nostr/").count(),
        32,
        "{answer:?}"
    );
    assert_eq!(
        answer.body.matches("ng refs/nostr/").count(),
        8,
        "{answer:?}"
    );
}
