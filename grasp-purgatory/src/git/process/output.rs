//! The error output of a running git.
//!
//! Before git unpacks anything, its trace says how many objects the pack claims to have. The
//! number is a promise: with more or with fewer behind it git finds the pack broken. So a sender that claims too many is
//! stopped before the first of them is looked at.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::super::limits::ProcessLimits;
use crate::resources::Holding;

/// Bytes of git's error output that are kept.
const MAX_KEPT: usize = 8 * 1024;

/// Bytes of a line that are read.
const MAX_LINE: usize = 1024;

/// Text before the version and the number of objects of a pack.
const CLAIM: &str = "--pack_header=";

/// The error output.
#[derive(Debug, Default)]
pub(super) struct ErrorOutput {
    /// The end of it.
    pub(super) last: Vec<u8>,
    /// The limit of objects, if a pack claimed more.
    pub(super) too_many: Option<u64>,
    /// The most objects that a pack claimed, if that was listened for.
    pub(super) claimed_objects: Option<u64>,
}

/// What the error output is watched for.
#[derive(Debug, Default)]
pub(in crate::git) struct OutputWatch {
    /// A pack with more objects than these ends the group.
    pub(in crate::git) most_objects: Option<u64>,
    /// Told when another server has begun to answer.
    pub(in crate::git) answered: Option<oneshot::Sender<()>>,
    /// Limits that the group has once a pack comes, and the memory that it holds until then.
    pub(in crate::git) until_pack: Option<(ProcessLimits, Holding)>,
}

/// Time within which another server must begin to send a pack. Large repositories without bitmaps take minutes.
const PACK_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Prefix of a traced response header.
const HEADER: &[u8] = b"<= Recv header";

/// Reads the error output to its end.
pub(super) async fn read(
    stderr: Option<impl AsyncRead + Unpin>,
    group: Option<Pid>,
    mut watch: OutputWatch,
) -> ErrorOutput {
    let (mut output, mut line) = (ErrorOutput::default(), Vec::new());
    let Some(mut stderr) = stderr else {
        return output;
    };
    let mut buffer = [0; 4096];
    let deadline = Instant::now() + PACK_TIMEOUT;
    loop {
        let read = match watch.until_pack {
            Some(_) => timeout_at(deadline, stderr.read(&mut buffer)).await,
            None => Ok(stderr.read(&mut buffer).await),
        };
        let Ok(read) = read else {
            // The memory that is held until a pack comes is for others, too.
            watch.until_pack = None;
            group.map(|group| kill_process_group(group, Signal::TERM));
            continue;
        };
        let Ok(count @ 1..) = read else { break };
        let new = buffer.get(..count).unwrap_or_default();
        output.last.extend(new);
        let excess = output.last.len().saturating_sub(MAX_KEPT);
        output.last.drain(..excess);
        // A header cut in two by the buffer is one of several.
        if new.windows(HEADER.len()).any(|window| window == HEADER) {
            watch.answered.take().map(|answered| answered.send(()));
        }
        let Some(most) = watch.most_objects else { continue };
        output.claimed_objects = output.claimed_objects.max(highest_claim(&mut line, new));
        if let (Some(_), Some(group)) = (output.claimed_objects, group) {
            watch.until_pack.take().inspect(|(limits, _)| limits.raise_all(group));
        }
        let is_too_many = output.claimed_objects.is_some_and(|claimed| claimed > most);
        if is_too_many && output.too_many.replace(most).is_none() {
            // It may be gone already, which is what is wanted.
            group.map(|group| kill_process_group(group, Signal::TERM));
        }
    }
    output
}

/// The most objects that any line which ends here claims. What follows the last end is kept for the next time.
fn highest_claim(line: &mut Vec<u8>, heard: &[u8]) -> Option<u64> {
    let mut highest = None;
    for byte in heard {
        match byte {
            b'\n' => {
                highest = highest.max(claim(&String::from_utf8_lossy(line)));
                line.clear();
            }
            _ if line.len() < MAX_LINE => line.push(*byte),
            _ => {}
        }
    }
    highest
}

/// Returns the number of objects that a pack claims to have, if this line is git's own trace of the command that reads the
/// pack. The same text in a header or a message of the other server is in lines that begin differently.
fn claim(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let is_time = words.next()?.starts_with(|c: char| c.is_ascii_digit());
    let is_command = words.next()?.starts_with("run-command.c:");
    (is_time && is_command).then_some(())?;
    let (_, header) = line.split_once(CLAIM)?;
    let (_version, number) = header.split_once(',')?;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use grasp_core::resources::{Bounds, Claimant};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::resources::SharedPool;

    const LINE: &str = "11:12:15.647642 run-command.c:666       trace: run_command: git index-pack --stdin \
                        --fix-thin '--keep=fetch-pack 25463 on vm' --pack_header=2,4711 --strict";

    #[test]
    fn the_claim_is_found_in_whatever_pieces_it_comes() {
        assert_eq!(claim(LINE), Some(4711));
        let header =
            "11:12:15.647642 http.c:845 <= Recv header: X: run-command.c:1 --pack_header=2,9";
        let message = "remote: run-command.c:666 --pack_header=2,9";
        for nothing in
            ["", "--pack_header=2", "1 run-command.c:1 --pack_header=2,x", header, message]
        {
            assert_eq!(claim(nothing), None, "{nothing}");
        }
        let text = format!("remote: hello\n{LINE}\nremote: --pack_header=2,3\n");
        for size in 1..text.len() {
            let mut line = Vec::new();
            let pieces = text.as_bytes().chunks(size);
            let highest = pieces.filter_map(|piece| highest_claim(&mut line, piece)).max();
            assert_eq!(highest, Some(4711), "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut line = Vec::new();
        for _ in 0..100 {
            assert_eq!(highest_claim(&mut line, &[b'x'; 4096]), None);
        }
        assert_eq!(line.len(), MAX_LINE);
    }

    #[tokio::test]
    async fn the_first_header_is_an_answer() {
        for (said, is_answer) in [
            ("05:26:11.8 http.c:872   <= Recv header: HTTP/1.1 200 OK\n", true),
            ("05:26:11.8 http.c:872   => Send header: GET /x HTTP/1.1\n", false),
        ] {
            let (answered, mut is_answered) = oneshot::channel();
            let watch = OutputWatch { answered: Some(answered), ..OutputWatch::default() };
            let _ = read(Some(said.as_bytes()), None, watch).await;
            assert_eq!(is_answered.try_recv().is_ok(), is_answer, "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_a_list_is_given_back_if_no_pack_comes() {
        let pool = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(24) });
        let held = pool.try_take(&Claimant::default(), 24).unwrap();
        let until_pack = Some((ProcessLimits::default(), held));
        let (said_to, words) = tokio::io::duplex(64);
        let listening = tokio::spawn(read(
            Some(words),
            None,
            OutputWatch { until_pack, ..OutputWatch::default() },
        ));
        tokio::time::advance(PACK_TIMEOUT / 2).await;
        tokio::task::yield_now().await;
        assert_eq!(pool.usage().all, 24);
        tokio::time::advance(PACK_TIMEOUT).await;
        tokio::task::yield_now().await;
        assert_eq!(pool.usage().all, 0);
        drop(said_to);
        let _ = listening.await.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_pack_raises_the_limits_of_the_group_and_gives_back_the_memory_of_the_list() {
        let limits = |mib: u64| ProcessLimits { memory: Some(mib << 20), ..Default::default() };
        // The shell starts another, which says that it is there, and in the end what it may use.
        let script = "/bin/sh -c 'echo; read go; ulimit -S -d'; ulimit -S -d";
        let mut command = limits(16).command(Path::new("/bin/sh"));
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        stdout.read_exact(&mut [0]).await.unwrap();
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pool = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(24) });
        for said in ["remote: hello\n", &format!("{LINE}\n")] {
            let held = pool.try_take(&Claimant::default(), 24).unwrap();
            let until_pack = Some((limits(96), held));
            let (most_objects, (said_to, words)) = (Some(9_999), tokio::io::duplex(4096));
            let watch = OutputWatch { most_objects, until_pack, ..OutputWatch::default() };
            let listening = tokio::spawn(read(Some(words), group, watch));
            let mut said_to = said_to;
            said_to.write_all(said.as_bytes()).await.unwrap();
            if said.contains(CLAIM) {
                // It is given back while git still runs.
                while pool.usage().all > 0 {
                    tokio::task::yield_now().await;
                }
            }
            drop(said_to);
            let _ = listening.await.unwrap();
            assert_eq!(pool.usage().all, 0);
        }
        stdin.write_all(b"go\n").await.unwrap();
        let mut limits = String::new();
        stdout.read_to_string(&mut limits).await.unwrap();
        assert_eq!(limits, "98304\n98304\n");
        child.wait().await.unwrap();
    }

    #[tokio::test]
    async fn only_who_claims_more_than_may_come_is_stopped() {
        for (most, too_many) in [(None, false), (Some(4711), false), (Some(4710), true)] {
            let said = format!("{LINE}\nfatal: end");
            let watch = OutputWatch { most_objects: most, ..OutputWatch::default() };
            let output = read(Some(said.as_bytes()), None, watch).await;
            assert_eq!(output.too_many.is_some(), too_many, "{most:?}");
            assert!(output.last.ends_with(b"fatal: end"));
        }
    }
}
