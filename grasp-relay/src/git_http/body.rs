//! The body of a git request as a stream: inflated as it comes, and never more than its bounds.

use std::io::Write;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

/// How much is inflated before the result is looked at: a bomb gets at most about a thousand times this.
const SIP: usize = 4 * 1024;

/// How many times its size a body may become. Text deflates tenfold; packs hardly at all.
const MAX_EXPANSION: u64 = 100;

/// What a small body may become in any case, so that short and very regular ones pass.
const FREE_EXPANSION: u64 = 1024 * 1024;

/// What must come within the time that a body may stall: a byte now and then is no progress, and keeps a git process.
/// At the default it is 2 KB a second.
const STEP: u64 = 128 * 1024;

/// Why a body cannot be read to its end. The client's fault, each with its status.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The connection ended inside the body.
    #[error("the request was cut off")]
    CutOff(#[source] axum::Error),
    /// The body is not what its encoding says.
    #[error("the request body is not valid gzip")]
    Broken,
    /// More than is taken in one request.
    #[error("the request body is too large")]
    TooLarge,
    /// An encoding that we do not know.
    #[error("unknown content encoding")]
    Encoding,
    /// Hardly anything came for as long as we wait.
    #[error("nothing more was sent for {0:?}")]
    Stalled(Duration),
}

/// A request body, decoded.
pub(super) struct GitBody {
    source: BodyDataStream,
    decoder: Option<MultiGzDecoder<Vec<u8>>>,
    /// What was received and not yet inflated.
    pending: Bytes,
    received: u64,
    produced: u64,
    most: u64,
    ended: bool,
    stall: Duration,
    /// When the next step must have come, counted from `stepped` bytes.
    due: Instant,
    stepped: u64,
}

impl GitBody {
    /// Reads a body of at most so many bytes, as its headers say that it is encoded, from a client that keeps sending.
    pub(super) fn new(
        headers: &HeaderMap,
        body: Body,
        most: u64,
        stall: Duration,
    ) -> Result<Self, BodyError> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes());
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
            most,
            ended: false,
            stall,
            due: Instant::now() + stall,
            stepped: 0,
        })
    }

    /// The next bytes; `None` at the end of a body that was whole.
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

    /// Adds what comes to these bytes until they are so many, or all.
    pub(super) async fn gather(
        &mut self,
        mut bytes: Vec<u8>,
        enough: usize,
    ) -> Result<Vec<u8>, BodyError> {
        while bytes.len() < enough {
            let Some(next) = self.next_or_drain().await? else { break };
            bytes.extend_from_slice(&next);
        }
        Ok(bytes)
    }

    /// The next bytes. Whoever is to hear that something is wrong with them has sent the rest by then.
    pub(super) async fn next_or_drain(&mut self) -> Result<Option<Bytes>, BodyError> {
        let next = self.next().await;
        if matches!(next, Err(BodyError::Broken | BodyError::TooLarge)) {
            self.drain().await;
        }
        next
    }

    /// Takes what is still being sent and keeps nothing of it, for a client that should hear why it was refused: one
    /// that sends reads no answer. Nothing is inflated, and as much again as was allowed is the end.
    pub(super) async fn drain(&mut self) {
        let most = self.received.saturating_add(self.most);
        while !self.ended && self.received <= most {
            self.ended = !matches!(self.receive().await, Ok(Some(_)));
        }
        self.pending.clear();
        self.ended = true;
    }

    /// The next bytes as they were sent. The time between two steps is bounded, not that of the whole body.
    async fn receive(&mut self) -> Result<Option<Bytes>, BodyError> {
        let next = timeout_at(self.due, self.source.next()).await;
        let chunk = match next.map_err(|_| BodyError::Stalled(self.stall))? {
            Some(chunk) => chunk.map_err(BodyError::CutOff)?,
            None => return Ok(None),
        };
        self.received += chunk.len() as u64;
        if self.received - self.stepped >= STEP {
            self.stepped = self.received;
            self.due = Instant::now() + self.stall;
        }
        Ok(Some(chunk))
    }

    fn decode(&mut self) -> Result<Bytes, BodyError> {
        let Some(decoder) = &mut self.decoder else {
            let bytes = std::mem::take(&mut self.pending);
            return self.counted(bytes);
        };
        let sip = self.pending.split_to(self.pending.len().min(SIP));
        decoder.write_all(&sip).map_err(|_| BodyError::Broken)?;
        decoder.flush().map_err(|_| BodyError::Broken)?;
        let bytes = Bytes::from(std::mem::take(decoder.get_mut()));
        self.counted(bytes)
    }

    fn finish(&mut self) -> Result<Bytes, BodyError> {
        self.ended = true;
        let Some(decoder) = self.decoder.take() else { return Ok(Bytes::new()) };
        let rest = decoder.finish().map_err(|_| BodyError::Broken)?;
        self.counted(rest.into())
    }

    fn counted(&mut self, bytes: Bytes) -> Result<Bytes, BodyError> {
        self.produced += bytes.len() as u64;
        let allowed = self.received.saturating_mul(MAX_EXPANSION).max(FREE_EXPANSION);
        if self.produced > self.most || self.produced > allowed {
            return Err(BodyError::TooLarge);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream;

    use super::*;

    const STALL: Duration = Duration::from_secs(60);

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    async fn read(encoding: &'static str, body: Vec<u8>, most: u64) -> Result<Vec<u8>, BodyError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
        let chunks: Vec<_> = body.chunks(1_000).map(|c| Ok::<_, axum::Error>(c.to_vec())).collect();
        let mut body =
            GitBody::new(&headers, Body::from_stream(stream::iter(chunks)), most, STALL)?;
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
        assert!(matches!(read("gzip", b"0032want".to_vec(), 100).await, Err(BodyError::Broken)));
        let mut cut = gzip(&[7; 5_000]);
        cut.truncate(cut.len() - 9);
        assert!(matches!(read("gzip", cut, 10_000).await, Err(BodyError::Broken)));
    }

    #[tokio::test]
    async fn bombs_and_floods_meet_their_bounds() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert!(matches!(read("gzip", bomb, u64::MAX).await, Err(BodyError::TooLarge)));
        assert!(matches!(read("identity", vec![0; 101], 100).await, Err(BodyError::TooLarge)));
        assert!(matches!(read("br", Vec::new(), 100).await, Err(BodyError::Encoding)));
    }
}
