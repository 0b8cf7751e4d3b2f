//! HTTP/2 connections, which exist over TLS only.
//!
//! The limits of HTTP/1.1 act on sockets: a head must arrive in time, and a write must make progress. With HTTP/2 a client
//! can leave a stream without a window while the socket works, and answer pings without requesting anything. So the
//! streams of a connection are watched, and the connection ends if one makes no progress, or if it has had none for long.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, interval};

use super::stream::SLOW_READER_FACTOR;
use super::{MAX_HEAD_BYTES, PeerService};
use crate::nostr::Limits;

/// Requests of one connection at the same time. Browsers and git need few; a client network has many connections.
const MAX_STREAMS: u32 = 32;

/// The time that a client may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of answers that wait for one stream's window.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// The interval between looks at the streams of a connection.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// Serves one connection until it ends, or its streams make no progress.
pub(super) async fn serve<S>(
    stream: S,
    service: PeerService,
    limits: &Limits,
    watcher: Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(Some(limits.ping_after))
        .keep_alive_timeout(PING_TIMEOUT);
    let streams = Streams::new();
    let service = WatchedService {
        inner: service,
        streams: streams.clone(),
    };
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let mut connection = std::pin::pin!(watcher.watch(connection));
    let mut looks = interval(WATCH_INTERVAL.min(limits.header_timeout));
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = looks.tick() => {
                let now = Instant::now();
                if streams.is_idle(now, limits.header_timeout) {
                    return Ok(());
                }
                if streams.is_stuck(now, limits.write_timeout * SLOW_READER_FACTOR) {
                    return Err("a stream made no progress".into());
                }
            }
        }
    }
}

/// The streams of one connection.
#[derive(Clone)]
struct Streams(Arc<Mutex<StreamsState>>);

struct StreamsState {
    next_id: u64,
    open: usize,
    /// The time at which the last stream ended, or the connection began.
    idle_since: Instant,
    /// Streams whose client has not taken the last piece of the answer yet, and since when.
    unread: BTreeMap<u64, Instant>,
}

impl Streams {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(StreamsState {
            next_id: 0,
            open: 0,
            idle_since: Instant::now(),
            unread: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, StreamsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> OpenStream {
        let mut state = self.lock();
        state.open += 1;
        state.next_id += 1;
        OpenStream {
            streams: self.clone(),
            id: state.next_id,
        }
    }

    fn is_idle(&self, now: Instant, timeout: Duration) -> bool {
        let state = self.lock();
        state.open == 0 && now.saturating_duration_since(state.idle_since) >= timeout
    }

    fn is_stuck(&self, now: Instant, timeout: Duration) -> bool {
        let state = self.lock();
        state
            .unread
            .values()
            .any(|since| now.saturating_duration_since(*since) >= timeout)
    }
}

/// A stream from its request to the end of its answer.
struct OpenStream {
    streams: Streams,
    id: u64,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.streams.lock();
        state.unread.remove(&self.id);
        state.open = state.open.saturating_sub(1);
        state.idle_since = Instant::now();
    }
}

/// The service of a connection, which counts its streams.
struct WatchedService {
    inner: PeerService,
    streams: Streams,
}

impl Service<Request<Incoming>> for WatchedService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let stream = self.streams.open();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Body::new(WatchedBody { body, stream })))
        })
    }
}

/// The body of an answer, whose stream is unread from when a piece is handed out until the next one is asked for.
struct WatchedBody {
    body: Body,
    stream: OpenStream,
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let id = self.stream.id;
        self.stream.streams.lock().unread.remove(&id);
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            let mut state = self.stream.streams.lock();
            state.unread.insert(id, Instant::now());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_connection_is_idle_only_without_streams() {
        let streams = Streams::new();
        let later = Instant::now() + 2 * LIMIT;
        assert!(streams.is_idle(later, LIMIT));
        let stream = streams.open();
        assert!(!streams.is_idle(later, LIMIT));
        drop(stream);
        assert!(streams.is_idle(later, LIMIT));
        assert!(!streams.is_idle(Instant::now(), LIMIT));
    }

    #[tokio::test]
    async fn a_stream_is_stuck_while_its_client_takes_nothing() {
        let streams = Streams::new();
        let mut body = WatchedBody {
            body: Body::from("piece"),
            stream: streams.open(),
        };
        let later = Instant::now() + 2 * LIMIT;
        assert!(!streams.is_stuck(later, LIMIT), "nothing was handed out");
        body.frame().await.unwrap().unwrap();
        assert!(streams.is_stuck(later, LIMIT));
        assert!(!streams.is_stuck(Instant::now(), LIMIT));
        assert!(body.frame().await.is_none());
        assert!(!streams.is_stuck(later, LIMIT));
    }
}
