//! Bodies of git requests and responses: inflated and bounded as they come, sent as git writes them, and given up when
//! the client or git stalls.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use futures_util::{StreamExt, stream};
use grasp_core::resources::{Bounds, Claimant};
use grasp_purgatory::git::{Finished, GitError, GitProcess, RefList};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Bytes that are inflated before the result is checked: a bomb inflates to at most about a thousand times this.
const INFLATE_CHUNK: usize = 4 * 1024;

/// A limit of what a compressed body inflates to.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxExpansion {
    /// Largest ratio of its size to its compressed size.
    ratio: u64,
    /// Size that it may have in any case, so that short and very regular ones pass.
    always: u64,
}

impl MaxExpansion {
    /// Of a list of commands, which is kept in memory. Ids of objects hardly deflate, and git sends it as it is.
    pub(super) const COMMANDS: Self = Self {
        ratio: 10,
        always: 256 * 1024,
    };
    /// Of anything else. Text deflates tenfold; packs hardly at all.
    pub(super) const OTHER: Self = Self {
        ratio: 100,
        always: 1024 * 1024,
    };
}

/// Bytes that a client must send within [`GitLimits::stall`](super::GitLimits::stall) of waiting for it. A byte now and
/// then would keep a git process; at the default this is 2 KB a second.
const MIN_PROGRESS: u64 = 128 * 1024;

/// Bytes that are read from git at once.
const READ_CHUNK: usize = 64 * 1024;

/// Size of an answer up to which git that fails has reported the failure in its own protocol; a longer answer may be an
/// incomplete pack.
const MAX_ERROR_ANSWER: u64 = 16 * 1024;

/// Bytes that git must write within [`TRANSFER_TIMEOUT`] of waiting for it. Keep-alive and progress packets are less.
const GIT_MIN_PROGRESS: u64 = 64 * 1024;

/// Bytes that a client must read within [`TRANSFER_TIMEOUT`] of waiting for it, while it keeps a git process: 7 KB a
/// second.
const CLIENT_MIN_PROGRESS: u64 = 2 * 1024 * 1024;

/// Time that a transfer may wait for git, and for the client. The socket takes bytes of a slow client in lumps that last
/// for minutes.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Bytes of one response that are buffered for its client, so that git need not wait: most responses are smaller.
const RESPONSE_BUFFER: u64 = 2 * 1024 * 1024;

/// Bytes of all responses that are buffered.
const RESPONSE_BUFFERS: u64 = 16 * RESPONSE_BUFFER;

/// Chunks that are queued for a response without a buffer.
const UNBUFFERED_CHUNKS: usize = 2;

/// Limits the time that one party is waited for without progress.
///
/// Time in which others are waited for does not count. A byte now and then is no progress: git sends five every five
/// seconds while it computes.
#[derive(Debug)]
struct StallTimeout {
    min_progress: u64,
    timeout: Duration,
    /// Bytes since progress was last counted.
    moved: u64,
    /// Time waited for these bytes.
    waited: Duration,
}

impl StallTimeout {
    const fn new(min_progress: u64, timeout: Duration) -> Self {
        Self {
            min_progress,
            timeout,
            moved: 0,
            waited: Duration::ZERO,
        }
    }

    /// Waits for a future of the party; fails once it has stalled.
    async fn wait<T>(&mut self, future: impl Future<Output = T>) -> io::Result<T> {
        let start = Instant::now();
        let result = timeout(self.timeout.saturating_sub(self.waited), future).await;
        self.waited += start.elapsed();
        result.map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Counts bytes that the party has moved.
    fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        if self.moved >= self.min_progress {
            (self.moved, self.waited) = (0, Duration::ZERO);
        }
    }
}

/// A fault of the client that keeps its body from being read to the end; each has its HTTP status.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the request was cut off")]
    CutOff(#[source] axum::Error),
    #[error("the request body is not valid gzip")]
    Broken,
    #[error("the request body is too large")]
    TooLarge,
    #[error("unknown content encoding")]
    Encoding,
    #[error("nothing more was sent for {0:?}")]
    Stalled(Duration),
}

/// The decoded body of a request.
pub(super) struct RequestBody {
    source: BodyDataStream,
    decoder: Option<MultiGzDecoder<Vec<u8>>>,
    /// Bytes that were received and not yet inflated.
    pending: Bytes,
    received: u64,
    produced: u64,
    max_bytes: u64,
    max_expansion: MaxExpansion,
    ended: bool,
    client: StallTimeout,
}

impl RequestBody {
    /// Reads a body of at most `max_bytes`, encoded as its headers say, from a client that stalls no longer than `stall`.
    pub(super) fn new(
        headers: &HeaderMap,
        body: Body,
        max_bytes: u64,
        stall: Duration,
    ) -> Result<Self, BodyError> {
        let encoding = headers
            .get(header::CONTENT_ENCODING)
            .map(|value| value.as_bytes());
        let decoder = match encoding {
            None | Some(b"identity") => None,
            Some(b"gzip" | b"x-gzip") => Some(MultiGzDecoder::new(Vec::new())),
            Some(_) => return Err(BodyError::Encoding),
        };
        Ok(Self {
            source: body.into_data_stream(),
            decoder,
            pending: Bytes::new(),
            received: 0,
            produced: 0,
            max_bytes,
            max_expansion: MaxExpansion::OTHER,
            ended: false,
            client: StallTimeout::new(MIN_PROGRESS, stall),
        })
    }

    /// Sets what the body may inflate to from now on.
    pub(super) fn limit_expansion(&mut self, max_expansion: MaxExpansion) {
        self.max_expansion = max_expansion;
    }

    /// Returns the next bytes; `None` at the end of a complete body.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if !self.pending.is_empty() {
                let bytes = self.decode()?;
                if !bytes.is_empty() {
                    return Ok(Some(bytes));
                }
                continue;
            }
            if self.ended {
                return Ok(None);
            }
            match self.receive().await? {
                Some(chunk) => self.pending = chunk,
                None => return self.finish().map(|rest| (!rest.is_empty()).then_some(rest)),
            }
        }
    }

    /// Appends to `bytes` until there are `enough`, or the body ends.
    pub(super) async fn gather(
        &mut self,
        mut bytes: Vec<u8>,
        enough: usize,
    ) -> Result<Vec<u8>, BodyError> {
        while bytes.len() < enough {
            let Some(next) = self.next_or_drain().await? else {
                break;
            };
            bytes.extend_from_slice(&next);
        }
        Ok(bytes)
    }

    /// Returns the next bytes. Drains the body before it returns that they are invalid.
    pub(super) async fn next_or_drain(&mut self) -> Result<Option<Bytes>, BodyError> {
        let next = self.next().await;
        if matches!(next, Err(BodyError::Broken | BodyError::TooLarge)) {
            self.drain().await;
        }
        next
    }

    /// Receives and drops the rest of the body: a client that is still sending reads no answer. Nothing is inflated, and
    /// at most `max_bytes` more are received.
    pub(super) async fn drain(&mut self) {
        let max_received = self.received.saturating_add(self.max_bytes);
        while !self.ended && self.received <= max_received {
            self.ended = !matches!(self.receive().await, Ok(Some(_)));
        }
        self.pending.clear();
        self.ended = true;
    }

    /// Returns the next bytes as they were sent. Only stalling is limited, not the time of the whole body.
    async fn receive(&mut self) -> Result<Option<Bytes>, BodyError> {
        let next = self.client.wait(self.source.next()).await;
        let chunk = match next.map_err(|_| BodyError::Stalled(self.client.timeout))? {
            Some(chunk) => chunk.map_err(BodyError::CutOff)?,
            None => return Ok(None),
        };
        self.received += chunk.len() as u64;
        self.client.moved(chunk.len());
        Ok(Some(chunk))
    }

    fn decode(&mut self) -> Result<Bytes, BodyError> {
        let Some(decoder) = &mut self.decoder else {
            let bytes = std::mem::take(&mut self.pending);
            return self.counted(bytes);
        };
        let chunk = self.pending.split_to(self.pending.len().min(INFLATE_CHUNK));
        decoder.write_all(&chunk).map_err(|_| BodyError::Broken)?;
        decoder.flush().map_err(|_| BodyError::Broken)?;
        let bytes = Bytes::from(std::mem::take(decoder.get_mut()));
        self.counted(bytes)
    }

    fn finish(&mut self) -> Result<Bytes, BodyError> {
        self.ended = true;
        let Some(decoder) = self.decoder.take() else {
            return Ok(Bytes::new());
        };
        let rest = decoder.finish().map_err(|_| BodyError::Broken)?;
        self.counted(rest.into())
    }

    fn counted(&mut self, bytes: Bytes) -> Result<Bytes, BodyError> {
        self.produced += bytes.len() as u64;
        let MaxExpansion { ratio, always } = self.max_expansion;
        let allowed = self.received.saturating_mul(ratio).max(always);
        if self.produced > self.max_bytes || self.produced > allowed {
            return Err(BodyError::TooLarge);
        }
        Ok(bytes)
    }
}

/// Memory for responses whose clients read more slowly than git writes.
#[derive(Clone, Debug)]
pub(super) struct ResponseBuffers(SharedPool);

impl Default for ResponseBuffers {
    fn default() -> Self {
        let bounds = Bounds {
            reserve: 0,
            smallest: RESPONSE_BUFFER,
            ..Bounds::of(RESPONSE_BUFFERS)
        };
        Self(SharedPool::new(bounds))
    }
}

impl ResponseBuffers {
    /// Takes a buffer for one response if one is free.
    pub(super) fn try_take(&self, claimant: &Claimant) -> Option<Holding> {
        self.0.try_take(claimant, RESPONSE_BUFFER).ok()
    }
}

/// Makes a body of a text and a list of refs, which is encoded while it is sent. A client that the list cannot be made for
/// now is refused before anything is sent.
pub(super) async fn of_list(start: Bytes, mut list: RefList) -> Result<Body, GitError> {
    let first = list
        .next_piece()
        .await?
        .map(Bytes::from_owner)
        .unwrap_or_default();
    let (sender, receiver) = mpsc::channel(UNBUFFERED_CHUNKS);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            sent = send_list([start, first], list, &sender) => if let Err(error) = sent {
                _ = sender.send(Err(error)).await;
            },
        }
    });
    Ok(Body::from_stream(stream::unfold(
        receiver,
        |mut receiver| async move {
            let next: io::Result<Bytes> = receiver.recv().await?;
            Some((next, receiver))
        },
    )))
}

/// Sends these bytes, and the rest of a list as fast as the client reads.
async fn send_list(
    begin: [Bytes; 2],
    mut list: RefList,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut client = StallTimeout::new(CLIENT_MIN_PROGRESS, TRANSFER_TIMEOUT);
    for bytes in begin.into_iter().filter(|bytes| !bytes.is_empty()) {
        if client.wait(sender.send(Ok(bytes))).await?.is_err() {
            return Ok(());
        }
    }
    while let Some(piece) = list.next_piece().await.map_err(io::Error::other)? {
        let length = piece.len();
        if client
            .wait(sender.send(Ok(Bytes::from_owner(piece))))
            .await?
            .is_err()
        {
            return Ok(());
        }
        client.moved(length);
    }
    Ok(())
}

/// A git process whose output is being sent. Dropped with the response, it is killed.
pub(super) struct GitOutput {
    stdout: ChildStdout,
    process: GitProcess,
    read: u64,
    git: StallTimeout,
    /// Called with the text of git's standard error once the process has ended.
    on_end: Box<dyn FnOnce(&str) + Send>,
}

impl GitOutput {
    pub(super) fn new(
        mut process: GitProcess,
        on_end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, GitError> {
        let stdout = process.take_stdout().ok_or(GitError::NoView)?;
        let git = StallTimeout::new(GIT_MIN_PROGRESS, TRANSFER_TIMEOUT);
        Ok(Self {
            stdout,
            process,
            read: 0,
            git,
            on_end: Box::new(on_end),
        })
    }

    /// Returns the next bytes; none at the end.
    pub(super) async fn next(&mut self) -> io::Result<Bytes> {
        let mut buffer = Vec::with_capacity(READ_CHUNK);
        let read = self.git.wait(self.stdout.read_buf(&mut buffer)).await??;
        self.git.moved(read);
        self.read += read as u64;
        Ok(Bytes::from(buffer))
    }

    /// Waits for the process once its output was read to the end.
    pub(super) async fn end(self) -> Result<Finished, GitError> {
        let finished = self.process.finish().await?;
        (self.on_end)(&finished.words);
        Ok(finished)
    }

    /// Sends `first`, then the output of git, which goes on writing while the buffer has room.
    ///
    /// If git fails in the middle of a long answer the body is broken off, so that it does not look complete. A short
    /// answer contains git's own report of the failure and is sent like any other.
    pub(super) fn into_body(self, first: Bytes, buffer: Option<Holding>) -> Body {
        let chunks = buffer.as_ref().map_or(UNBUFFERED_CHUNKS, |_| {
            (RESPONSE_BUFFER as usize) / READ_CHUNK
        });
        let (sender, receiver) = mpsc::channel(chunks);
        tokio::spawn(self.send(first, sender));
        Body::from_stream(stream::unfold(
            (receiver, buffer),
            |(mut receiver, buffer)| async move {
                let next: io::Result<Bytes> = receiver.recv().await?;
                Some((next, (receiver, buffer)))
            },
        ))
    }

    /// Sends the output until git ends or the client closes the connection.
    async fn send(self, first: Bytes, sender: mpsc::Sender<io::Result<Bytes>>) {
        tokio::select! {
            () = sender.closed() => {}
            sent = self.send_all(first, &sender) => if let Err(error) = sent {
                _ = sender.send(Err(error)).await;
            },
        }
    }

    async fn send_all(
        mut self,
        first: Bytes,
        sender: &mpsc::Sender<io::Result<Bytes>>,
    ) -> io::Result<()> {
        let mut client = StallTimeout::new(CLIENT_MIN_PROGRESS, TRANSFER_TIMEOUT);
        let mut bytes = first;
        loop {
            let length = bytes.len();
            if client.wait(sender.send(Ok(bytes))).await?.is_err() {
                return Ok(());
            }
            client.moved(length);
            bytes = self.next().await?;
            if bytes.is_empty() {
                break;
            }
        }
        let read = self.read;
        let finished = self.end().await.map_err(io::Error::other)?;
        let is_complete = finished.status.success() || read <= MAX_ERROR_ANSWER;
        if is_complete {
            Ok(())
        } else {
            Err(io::Error::other("git failed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tokio::time::sleep;

    use super::*;

    const STALL_TIMEOUT: Duration = Duration::from_secs(60);

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    async fn read(encoding: &'static str, body: Vec<u8>, max: u64) -> Result<Vec<u8>, BodyError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
        let chunks: Vec<_> = body
            .chunks(1_000)
            .map(|c| Ok::<_, axum::Error>(c.to_vec()))
            .collect();
        let mut body = RequestBody::new(
            &headers,
            Body::from_stream(stream::iter(chunks)),
            max,
            STALL_TIMEOUT,
        )?;
        let mut all = Vec::new();
        while let Some(bytes) = body.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn both_encodings_give_the_same_bytes() {
        let data: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(read("identity", data.clone(), 1 << 20).await.unwrap(), data);
        assert_eq!(read("gzip", gzip(&data), 1 << 20).await.unwrap(), data);
    }

    #[tokio::test]
    async fn broken_gzip_is_an_error_and_never_raw_bytes() {
        assert!(matches!(
            read("gzip", b"0032want".to_vec(), 100).await,
            Err(BodyError::Broken)
        ));
        let mut cut = gzip(&[7; 5_000]);
        cut.truncate(cut.len() - 9);
        assert!(matches!(
            read("gzip", cut, 10_000).await,
            Err(BodyError::Broken)
        ));
    }

    #[tokio::test]
    async fn inflated_and_raw_bodies_are_bounded() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert!(matches!(
            read("gzip", bomb, u64::MAX).await,
            Err(BodyError::TooLarge)
        ));
        assert!(matches!(
            read("identity", vec![0; 101], 100).await,
            Err(BodyError::TooLarge)
        ));
        assert!(matches!(
            read("br", Vec::new(), 100).await,
            Err(BodyError::Encoding)
        ));
    }

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the time after which a party that moves `bytes` every ten seconds has stalled; `None` if it has not within
    /// an hour.
    async fn stalled_after(bytes: usize) -> Option<Duration> {
        let (start, mut party) = (Instant::now(), StallTimeout::new(1_000, MINUTE));
        while start.elapsed() < 60 * MINUTE {
            if party.wait(sleep(Duration::from_secs(10))).await.is_err() {
                return Some(start.elapsed());
            }
            party.moved(bytes);
            // Others are waited for, too.
            sleep(Duration::from_secs(7)).await;
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_party_without_progress_stalls() {
        assert_eq!(stalled_after(200).await, None);
        assert_eq!(
            stalled_after(5).await,
            Some(Duration::from_secs(60 + 6 * 7))
        );
        assert!(stalled_after(150).await.is_some());
    }
}
