//! Large files, sent in pieces as git reads them.
//!
//! A download holds the slot of its page, and a turn among few, so that slow clients leave slots for pages. It ends after a
//! time, whatever the client does.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt as _, stream};
use grasp_core::resources::Bounds;
use grasp_purgatory::git::{GitError, ObjectPieces};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::sync::mpsc;

use super::{PageError, Site, Work};

/// Time that a download may take: at 1 MiB in a second the largest file takes that long.
const MAX_TIME: Duration = Duration::from_secs(64);

/// Downloads at the same time, unless there are fewer slots for pages than twice as many.
const MAX_AT_ONCE: u64 = 4;

/// Returns the turns of downloads: half of the slots for pages, which other pages need.
pub(super) fn turns(slots: u64) -> SharedPool {
    let total = (slots / 2).clamp(1, MAX_AT_ONCE);
    SharedPool::new(Bounds {
        reserve: 0,
        ..Bounds::of(total)
    })
}

impl Site {
    /// Takes a turn for a download; refuses if there is none.
    pub(super) fn begin_download(&self, work: &Work) -> Result<Holding, PageError> {
        let turn = self.downloads.try_take(&work.claimant(), 1);
        Ok(turn.map_err(GitError::Busy)?)
    }
}

/// Starts to send an object, and returns the body. What is held is given back at the end, or when the time is over.
pub(super) fn start(first: Vec<u8>, rest: ObjectPieces, held: impl Send + 'static) -> Body {
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        // The client sees that a file which breaks off is not whole.
        _ = tokio::time::timeout(MAX_TIME, send_all(read_all(first, rest), sender)).await;
        drop(held);
    });
    body(pieces)
}

/// Reads an object to its end, and then ends the process.
fn read_all(first: Vec<u8>, rest: ObjectPieces) -> impl Stream<Item = Read> + Send {
    stream::try_unfold((Some(first), rest), |(first, mut rest)| async move {
        let piece = match first {
            Some(first) => Some(first),
            None => rest.next().await?,
        };
        match piece {
            Some(piece) => Ok(Some((piece, (None, rest)))),
            None => {
                rest.finish().await?;
                Ok(None)
            }
        }
    })
}

/// A piece of an object, or why there is none.
type Read = Result<Vec<u8>, GitError>;

/// Sends all pieces, unless the client goes or one cannot be read.
async fn send_all(pieces: impl Stream<Item = Read>, sender: mpsc::Sender<Piece>) {
    let mut pieces = std::pin::pin!(pieces);
    while let Some(read) = pieces.next().await {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(%error, "a download ended early");
                return;
            }
        };
        if sender.send(Piece::Bytes(bytes)).await.is_err() {
            return;
        }
    }
    _ = sender.send(Piece::End).await;
}

/// What a client is sent.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// Returns the pieces as a body, which fails if they break off.
fn body(pieces: mpsc::Receiver<Piece>) -> Body {
    Body::from_stream(stream::try_unfold(
        pieces,
        async |mut pieces| match pieces.recv().await {
            Some(Piece::Bytes(bytes)) => Ok(Some((Bytes::from(bytes), pieces))),
            Some(Piece::End) => Ok(None),
            None => Err(io::Error::from(io::ErrorKind::TimedOut)),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_ends_with_the_time() {
        let (sender, pieces) = mpsc::channel(1);
        let endless = stream::repeat_with(|| Ok(vec![1]));
        let sent = send_all(endless, sender);
        assert!(tokio::time::timeout(MAX_TIME, sent).await.is_err());
        let read = axum::body::to_bytes(body(pieces), 1_000).await;
        assert!(read.is_err(), "what broke off is not whole");
    }

    #[tokio::test]
    async fn pieces_are_sent_in_their_order() {
        let (sender, pieces) = mpsc::channel(8);
        send_all(stream::iter([Ok(vec![1]), Ok(vec![2, 3])]), sender).await;
        let read = axum::body::to_bytes(body(pieces), 1_000).await.unwrap();
        assert_eq!(read.as_ref(), [1, 2, 3]);
    }

    #[tokio::test]
    async fn an_object_that_breaks_off_is_not_sent_as_if_it_were_whole() {
        let (sender, pieces) = mpsc::channel(8);
        let error = GitError::TooExpensive {
            command: "cat-file",
        };
        send_all(stream::iter([Ok(vec![1]), Err(error)]), sender).await;
        assert!(axum::body::to_bytes(body(pieces), 1_000).await.is_err());
    }

    #[tokio::test]
    async fn a_client_that_has_gone_ends_the_download() {
        let (sender, pieces) = mpsc::channel(1);
        drop(pieces);
        send_all(stream::repeat_with(|| Ok(vec![1])), sender).await;
    }

    #[test]
    fn downloads_leave_half_of_the_slots() {
        let total = |slots| turns(slots).bounds().total;
        assert_eq!([total(1), total(2), total(4), total(64)], [1, 1, 2, 4]);
    }
}
