//! Lists of refs on their way to clients. Those that many clients want are encoded once for each generation of a view.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::push::encode_pkt;
use grasp_core::resources::Claimant;
use parking_lot::Mutex;

use super::{Encoder, Form, LsRefs, Refs};
use crate::database::Generation;
use crate::git::binary::{Git, MAX_LIST_CLAIM_BYTES};
use crate::git::cache::BoundedCache;
use crate::git::command::CLIENT_WAIT;
use crate::git::error::GitError;
use crate::git::store::RepoStore;
use crate::resources::Holding;

/// Bytes of encoded lists that are kept.
const LIST_CACHE_BYTES: u64 = 16 * 1024 * 1024;

/// Largest list that is kept, by the memory of its refs.
const MAX_CACHED_BYTES: u64 = 4 * 1024 * 1024;

/// Prefixes up to which the answer to a request in version 2 is kept. Clients ask for branches, tags and HEAD.
const MAX_CACHED_PREFIXES: usize = 4;

/// CPU time for sending one piece.
const CPU_PER_PIECE: Duration = Duration::from_micros(30);

/// A piece of a list. Clients that want the same list share it.
type Piece = Arc<[u8]>;

/// Lists of refs that were encoded lately.
#[derive(Debug)]
pub(in crate::git) struct ListCache(Mutex<BoundedCache<ListKey, Arc<EncodedList>>>);

impl Default for ListCache {
    fn default() -> Self {
        Self(Mutex::new(BoundedCache::new(LIST_CACHE_BYTES)))
    }
}

/// What a list is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListKey {
    /// The key of the repository.
    repo: String,
    kind: ListKind,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListKind {
    Fetch,
    Push,
    Listed(LsRefs),
    /// A list that few clients want, and that is not kept.
    Rare,
}

impl ListKey {
    pub(super) fn fetch(repo: &str) -> Self {
        Self {
            repo: repo.to_owned(),
            kind: ListKind::Fetch,
        }
    }

    pub(super) fn push(repo: &str) -> Self {
        Self {
            repo: repo.to_owned(),
            kind: ListKind::Push,
        }
    }

    pub(super) fn listed(repo: &str, request: &LsRefs) -> Self {
        let is_usual = request.prefixes.len() <= MAX_CACHED_PREFIXES;
        let kind = if is_usual {
            ListKind::Listed(request.clone())
        } else {
            ListKind::Rare
        };
        Self {
            repo: repo.to_owned(),
            kind,
        }
    }
}

/// What a list was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) generation: Generation,
    /// The files of the packs, where the list depends on them.
    pub(super) packs: Vec<PathBuf>,
}

#[derive(Debug)]
struct EncodedList {
    version: Version,
    pieces: Vec<Piece>,
}

/// A list of refs for a client, encoded piece by piece while it is sent, unless it is known already.
#[derive(Debug)]
pub struct RefList {
    /// A line before the list.
    start: Option<Piece>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Encoded {
        list: Arc<EncodedList>,
        /// The number of pieces that were sent.
        sent: usize,
        _memory: Holding,
    },
    Encoding(Encoding),
    Ended,
}

/// A list that is being encoded for one client.
#[derive(Debug)]
struct Encoding {
    encoder: Encoder,
    git: Git,
    claimant: Claimant,
    /// The memory of the refs.
    memory: Holding,
}

/// A step of [`Encoding`].
struct Next {
    encoding: Encoding,
    /// The next piece; `None` after the end.
    piece: Option<Piece>,
}

impl Encoding {
    /// Encodes the next piece.
    async fn next_piece(mut self) -> Result<Next, GitError> {
        loop {
            let Self {
                mut encoder,
                git,
                claimant,
                memory,
            } = self;
            let encode = move || {
                let piece = encoder.next_piece();
                (encoder, piece)
            };
            let (encoder, piece) = git.work(claimant, encode).await?;
            self = Self {
                encoder,
                git,
                claimant,
                memory,
            };
            // None of the refs that were considered may be part of the list.
            if piece.as_ref().is_none_or(|piece| !piece.is_empty()) {
                return Ok(Next {
                    encoding: self,
                    piece: piece.map(Piece::from),
                });
            }
        }
    }
}

impl EncodedList {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

impl RefList {
    fn of(list: Arc<EncodedList>, memory: Holding) -> Self {
        Self {
            start: None,
            rest: Rest::Encoded {
                list,
                sent: 0,
                _memory: memory,
            },
        }
    }

    /// Returns a text without refs.
    pub(super) fn text(text: &[u8]) -> Self {
        Self {
            start: Some(text.into()),
            rest: Rest::Ended,
        }
    }

    /// Puts a line before the list.
    pub(super) fn with_start(self, line: &[u8]) -> Self {
        let mut start = Vec::new();
        encode_pkt(line, &mut start);
        Self {
            start: Some(start.into()),
            ..self
        }
    }

    /// Returns the next piece; `None` at the end.
    pub async fn next_piece(&mut self) -> Result<Option<Piece>, GitError> {
        if let Some(start) = self.start.take() {
            return Ok(Some(start));
        }
        match std::mem::replace(&mut self.rest, Rest::Ended) {
            Rest::Ended => Ok(None),
            Rest::Encoded {
                list,
                sent,
                _memory,
            } => {
                let piece = list.pieces.get(sent).cloned();
                if piece.is_some() {
                    self.rest = Rest::Encoded {
                        list,
                        sent: sent + 1,
                        _memory,
                    };
                }
                Ok(piece)
            }
            Rest::Encoding(encoding) => {
                let Next { encoding, piece } = encoding.next_piece().await?;
                if piece.is_some() {
                    self.rest = Rest::Encoding(encoding);
                }
                Ok(piece)
            }
        }
    }
}

impl RepoStore {
    /// Returns a list from memory, if it is still as it would be made now. Sending it counts as CPU time.
    pub(super) async fn cached_list(
        &self,
        key: &ListKey,
        version: &Version,
        claimant: Claimant,
    ) -> Result<Option<RefList>, GitError> {
        let list = self.lists().0.lock().get(key);
        let Some(list) = list.filter(|list| list.version == *version) else {
            return Ok(None);
        };
        let count = u32::try_from(list.pieces.len()).unwrap_or(u32::MAX);
        self.git()
            .spend(claimant, CPU_PER_PIECE.saturating_mul(count))?;
        let memory = self.list_memory(list.bytes(), claimant).await?;
        Ok(Some(RefList::of(list, memory)))
    }

    /// Returns a list. If many clients want it, it is encoded as a whole, and kept.
    pub(super) async fn list(
        &self,
        key: ListKey,
        version: Version,
        refs: Arc<Refs>,
        form: Form,
        claimant: Claimant,
    ) -> Result<RefList, GitError> {
        if let Some(list) = self.cached_list(&key, &version, claimant).await? {
            return Ok(list);
        }
        let bytes = refs.memory();
        let memory = self.list_memory(bytes, claimant).await?;
        // Another request may have encoded it meanwhile.
        let known = self
            .lists()
            .0
            .lock()
            .get(&key)
            .filter(|list| list.version == version);
        if let Some(list) = known {
            return Ok(RefList::of(list, memory));
        }
        let encoder = Encoder::of(refs, form);
        let git = self.git().clone();
        let mut encoding = Encoding {
            encoder,
            git,
            claimant,
            memory,
        };
        if key.kind == ListKind::Rare || bytes > MAX_CACHED_BYTES {
            return Ok(RefList {
                start: None,
                rest: Rest::Encoding(encoding),
            });
        }
        let mut pieces = Vec::new();
        let memory = loop {
            let Next {
                encoding: rest,
                piece,
            } = encoding.next_piece().await?;
            encoding = rest;
            match piece {
                Some(piece) => pieces.push(piece),
                None => break encoding.memory,
            }
        };
        let list = Arc::new(EncodedList { version, pieces });
        self.lists()
            .0
            .lock()
            .insert(key, Arc::clone(&list), list.bytes());
        Ok(RefList::of(list, memory))
    }

    async fn list_memory(&self, bytes: u64, claimant: Claimant) -> Result<Holding, GitError> {
        let pool = &self.git().pools.list_memory;
        let memory = pool
            .wait(&claimant, bytes.min(MAX_LIST_CLAIM_BYTES), CLIENT_WAIT)
            .await;
        memory.map_err(GitError::Busy)
    }
}
