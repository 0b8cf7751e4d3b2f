//! Fetches objects from other git servers.
//!
//! A URL in an event is untrusted: its host is checked, resolved by this process, every address is checked, and git may
//! connect to these addresses only. Git follows no redirects, has no credentials and no prompts, runs within limits of
//! memory, disk and time, and its objects stay in a separate directory until their history is known to be complete.

mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::resources::Claimant;
use grasp_core::{CloneUrl, Oid, RefName, RepoId};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::command::{FLAWS, GitCommand, Signer};
use super::error::GitError;
use super::limits::ProcessLimits;
use super::process::{Finished, OutputWatch};
use super::store::RepoStore;
use crate::hunt::{Advertisement, FetchError};
use crate::resources::{Holding, SharedPool};

use self::error::{ours, theirs};

/// Timeout of a name lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of one name that are given to git.
const MAX_PINNED_ADDRESSES: usize = 8;

/// A transfer that is slower than this for [`FetchLimits::silence`] is cancelled.
const MIN_BYTES_PER_SECOND: &str = "64";

const MIB: u64 = 1024 * 1024;

/// Memory of each process until a server has told its refs, which bounds how many it may tell: 16 MiB for some 40,000,
/// and if that is too little once more with 64 MiB for some 200,000. TLS takes 10 MiB of it.
const LISTING_PROCESS_BYTES: u64 = 16 * MIB;
const LONG_LISTING_PROCESS_BYTES: u64 = 64 * MIB;

/// Stack of each thread of git, which counts as memory.
const THREAD_STACK_BYTES: u64 = 2 * MIB;

/// CPU time of each process that lists refs.
const LISTING_CPU: Duration = Duration::from_secs(30);

/// Memory of each process that fetches, once the server sends objects. A fetch for which that is too little is done again with more, of which a few
/// run at once: each then counts as this part of all memory for other servers.
const FETCH_MEMORY: u64 = 96 * MIB;
const LARGE_FETCHES: u64 = 4;

/// Memory of each process that fetches large objects: two of 100 MiB, one a delta of the other.
const LARGE_OBJECTS_MEMORY: u64 = 256 * MIB;

/// Objects that fit into [`FETCH_MEMORY`] unless they are large.
const FETCH_MEMORY_OBJECTS: u64 = 100_000;

/// CPU time of each process that fetches. Git indexes some 25,000 objects in a second.
const FETCH_CPU: Duration = Duration::from_secs(10 * 60);

/// Time that a fetch may wait for memory that others use.
const FETCH_MEMORY_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Limits of a fetch from another server.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// Bytes of one fetch on disk. Default: 2 GiB.
    pub bytes: u64,
    /// Objects of one fetch. Default: 10 million.
    pub objects: u64,
    /// Memory of one git process that fetches many objects. Default: 768 MiB.
    pub memory: u64,
    /// Timeout of an advertisement. Default: 1 minute.
    pub listing: Duration,
    /// Time without data after which a transfer is cancelled; servers compute for minutes. Default: 5 minutes.
    pub silence: Duration,
    /// Timeout of a transfer. Default: 6 hours.
    pub longest: Duration,
}

impl Default for FetchLimits {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            bytes: 2_048 * MIB,
            objects: 10_000_000,
            memory: 768 * MIB,
            listing: MINUTE,
            silence: MINUTE * 5,
            longest: MINUTE * 360,
        }
    }
}

/// Returns all addresses of a name.
type LookUp = Arc<dyn Fn(&str) -> Vec<IpAddr> + Send + Sync>;

/// Returns what authorizes requests to a URL, if they need to be authorized: that of a private service (GRASP-08).
pub type Authorize =
    Arc<dyn Fn(CloneUrl) -> Pin<Box<dyn Future<Output = Option<Signer>> + Send>> + Send + Sync>;

/// Gets objects from other servers into a store.
#[derive(Clone)]
pub struct Fetcher {
    store: RepoStore,
    policy: OutboundPolicy,
    limits: FetchLimits,
    /// Used instead of the machine's own way to look up names.
    look_up: Option<LookUp>,
    roots: Option<PathBuf>,
    authorize: Option<Authorize>,
}

/// The result of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Objects that are here now, with their whole history.
    pub got: BTreeSet<Oid>,
    /// The reason why that is not everything.
    pub error: Option<FetchError>,
    /// The number of bytes that came.
    pub bytes: u64,
}

impl Fetched {
    /// Returns the result of a fetch that brought nothing.
    pub fn nothing(error: FetchError) -> Self {
        Self {
            got: BTreeSet::new(),
            error: Some(error),
            bytes: 0,
        }
    }
}

impl Fetcher {
    /// Creates a fetcher into this store that connects as the policy allows.
    pub fn new(store: RepoStore, policy: OutboundPolicy, limits: FetchLimits) -> Self {
        Self {
            store,
            policy,
            limits,
            look_up: None,
            roots: None,
            authorize: None,
        }
    }

    /// Looks up names in another way.
    #[must_use]
    pub fn resolving(self, look_up: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self {
            look_up: Some(Arc::new(look_up)),
            ..self
        }
    }

    /// Trusts only the certificate authorities of this PEM file; without one, those of git.
    #[must_use]
    pub fn trusting(self, roots: Option<PathBuf>) -> Self {
        Self { roots, ..self }
    }

    /// Authorizes the requests to private services. Without this, none is authorized.
    #[must_use]
    pub fn authorizing(self, authorize: Option<Authorize>) -> Self {
        Self { authorize, ..self }
    }

    /// Returns the store that is fetched into.
    pub(crate) fn store(&self) -> &RepoStore {
        &self.store
    }

    /// Asks a server what it has; which of the wanted objects are among it is what matters.
    pub async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        let text = self.list_text(url).await?;
        let refs = text.lines().filter_map(|line| {
            let (oid, name) = line.split_once('\t')?;
            Some((name, oid.parse().ok()?))
        });
        Ok(Advertisement::read(refs, wanted))
    }

    /// Asks a server for its branches and tags.
    pub async fn refs(&self, url: &CloneUrl) -> Result<BTreeMap<RefName, Oid>, FetchError> {
        let text = self.list_text(url).await?;
        let mut refs = BTreeMap::new();
        for line in text.lines() {
            let Some((oid, name)) = line.split_once('\t') else {
                continue;
            };
            let (Ok(oid), Ok(name)) = (oid.parse(), RefName::new(name)) else {
                continue;
            };
            if name.is_branch_or_tag() {
                refs.insert(name, oid);
            }
        }
        Ok(refs)
    }

    /// Returns the list of refs that a server writes, a line each.
    async fn list_text(&self, url: &CloneUrl) -> Result<String, FetchError> {
        let pin = self.pin(url).await?;
        let mut finished = self
            .run_list(url, pin.clone(), LISTING_PROCESS_BYTES)
            .await?;
        if is_short(&finished) {
            finished = self.run_list(url, pin, LONG_LISTING_PROCESS_BYTES).await?;
        }
        if is_short(&finished) {
            return Err(FetchError::TooManyRefs);
        }
        accepted(finished)
    }

    /// Runs `git ls-remote` with so much memory for each of its processes.
    async fn run_list(
        &self,
        url: &CloneUrl,
        pin: Option<String>,
        memory: u64,
    ) -> Result<Finished, FetchError> {
        let listing = self.listing_memory(memory).await?;
        let limits = ProcessLimits {
            memory: Some(memory),
            file: Some(memory),
            cpu: Some(LISTING_CPU),
            stack: Some(THREAD_STACK_BYTES),
        };
        let command = self
            .store
            .git()
            .command("ls-remote")
            .args(["--quiet", "--refs"]);
        let command = self
            .guarded(command, pin)
            .authorized_by(self.signer(url).await)
            .limited(limits)
            .keeping(Arc::new(listing));
        let command = command.limit(self.limits.listing).arg(url.as_str());
        command.run(Vec::new()).await.map_err(ours)
    }

    /// The same within fewer bytes.
    #[must_use]
    pub fn within(mut self, bytes: u64) -> Self {
        self.limits.bytes = self.limits.bytes.min(bytes);
        self
    }

    /// Gets objects with their whole history into a repository.
    ///
    /// Says on `answered` that the server has begun to answer. Dropping the future stops git and everything it
    /// started, and forgets what came.
    pub async fn fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Fetched {
        self.try_fetch(repo, url, oids, answered)
            .await
            .unwrap_or_else(Fetched::nothing)
    }

    async fn try_fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Result<Fetched, FetchError> {
        let pin = self.pin(url).await?;
        let incoming = self
            .store
            .repository(repo)
            .incoming_for()
            .await
            .map_err(ours)?;
        let mut memory = Memory::AtFirst {
            listing: LISTING_PROCESS_BYTES,
        };
        let mut answered = Some(answered);
        let ran = loop {
            let command = self
                .guarded(incoming.command("fetch"), pin.clone())
                .authorized_by(self.signer(url).await);
            let ran = self
                .run(command, url, oids, (memory, answered.take()))
                .await;
            match ran
                .as_ref()
                .ok()
                .and_then(|finished| self.memory_needed(finished, memory))
            {
                Some(more) => memory = more?,
                None => break ran,
            }
        };
        let said = ran.and_then(accepted).err();
        // What a thin pack leans on comes beside each of its objects at most. Counting again makes the bound hold
        // in spite of git's own status messages.
        let limit = self.limits.objects;
        if incoming.count().await.map_err(ours)? > limit.saturating_mul(2) {
            self.store
                .repository(repo)
                .take_in(incoming, &BTreeSet::new())
                .await
                .map_err(ours)?;
            return Err(FetchError::TooManyObjects { limit });
        }
        let bytes = incoming.bytes().await.map_err(ours)?;
        // Complete histories count in spite of errors: a server that breaks one history may send others.
        let got = self
            .store
            .repository(repo)
            .take_in(incoming, oids)
            .await
            .map_err(ours)?;
        let lacks = got.len() < oids.len();
        let error = lacks.then(|| said.unwrap_or_else(error::incomplete));
        Ok(Fetched { got, error, bytes })
    }

    /// Returns the memory to try a fetch with again that had too little, if more may help.
    fn memory_needed(
        &self,
        finished: &Finished,
        had: Memory,
    ) -> Option<Result<Memory, FetchError>> {
        if !is_short(finished) {
            return None;
        }
        match (finished.claimed_objects, had) {
            // Without a pack it was the list of refs that was too long.
            (
                None,
                Memory::AtFirst {
                    listing: LISTING_PROCESS_BYTES,
                },
            ) => Some(Ok(Memory::AtFirst {
                listing: LONG_LISTING_PROCESS_BYTES,
            })),
            (None, _) => Some(Err(FetchError::TooManyRefs)),
            (Some(claimed), Memory::AtFirst { .. }) => {
                let has_many = claimed > FETCH_MEMORY_OBJECTS;
                let most = if has_many {
                    u64::MAX
                } else {
                    LARGE_OBJECTS_MEMORY
                };
                let memory = self.limits.memory.min(most);
                (memory > FETCH_MEMORY).then_some(Ok(Memory::Large(memory)))
            }
            (Some(_), Memory::Large(_)) => None,
        }
    }

    /// Runs `git fetch` with so much memory for each of its processes.
    async fn run(
        &self,
        command: GitCommand,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        (memory, answered): (Memory, Option<oneshot::Sender<()>>),
    ) -> Result<Finished, FetchError> {
        let (command, until_pack) = self.with_memory(command, memory).await?;
        let most_objects = Some(self.limits.objects);
        let wants: String = oids.iter().map(|oid| format!("{oid}\n")).collect();
        command
            .args([
                "--quiet",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-auto-maintenance",
            ])
            .args([
                "--no-recurse-submodules",
                "--no-show-forced-updates",
                "--stdin",
            ])
            .arg(url.as_str())
            .settings([("pack.threads", "2"), ("core.deltaBaseCacheLimit", "8m")])
            .settings(FLAWS.map(|flaw| (format!("fetch.fsck.{flaw}"), "ignore")))
            .limit(self.limits.longest)
            .watched(OutputWatch {
                most_objects,
                answered,
                until_pack,
            })
            .run(wants.into_bytes())
            .await
            .map_err(ours)
    }

    /// Takes the memory of a fetch, and limits its processes to it. Until objects come, that is the memory of a list:
    /// returns the limits from then on, and what is held until then.
    async fn with_memory(
        &self,
        command: GitCommand,
        memory: Memory,
    ) -> Result<(GitCommand, Option<(ProcessLimits, Holding)>), FetchError> {
        let pool = &self.store.git().pools.remote_memory;
        let total = pool.bounds().total;
        let (fetching, charged) = match memory {
            Memory::AtFirst { .. } => (FETCH_MEMORY.min(self.limits.memory), FETCH_MEMORY),
            Memory::Large(memory) => (memory.min(total), memory.max(total / LARGE_FETCHES)),
        };
        let holding = hold(pool, charged.min(total)).await?;
        let limits = ProcessLimits {
            memory: Some(fetching),
            file: Some(self.limits.bytes),
            cpu: Some(FETCH_CPU),
            stack: Some(THREAD_STACK_BYTES),
        };
        let command = command.keeping(Arc::new(holding));
        match memory {
            // Where limits cannot be raised later they are as high as they may become.
            Memory::AtFirst { listing } if cfg!(target_os = "linux") => {
                let raise = ProcessLimits {
                    memory: Some(fetching),
                    ..Default::default()
                };
                let held = self.listing_memory(listing).await?;
                let limits = ProcessLimits {
                    memory: Some(listing.min(fetching)),
                    ..limits
                };
                Ok((command.limited(limits), Some((raise, held))))
            }
            _ => Ok((command.limited(limits), None)),
        }
    }

    /// Takes the memory of the processes that read a list: all for the one that talks to the server, half for the one
    /// that is handed what the first has read.
    async fn listing_memory(&self, memory: u64) -> Result<Holding, FetchError> {
        hold(&self.store.git().pools.listing_memory, memory / 2 * 3).await
    }

    async fn signer(&self, url: &CloneUrl) -> Option<Signer> {
        let authorize = self.authorize.as_ref()?;
        authorize(url.clone()).await
    }

    /// Returns the command in the sandbox of every request.
    fn guarded(&self, command: GitCommand, pin: Option<String>) -> GitCommand {
        let roots = self
            .roots
            .as_ref()
            .map(|roots| roots.to_string_lossy().into_owned());
        let silence = self.limits.silence.as_secs().to_string();
        command
            .talking_to_servers()
            .claimed_by(Claimant::default())
            .settings(pin.map(|pin| ("http.curloptResolve", pin)))
            .settings(roots.map(|roots| ("http.sslCAInfo", roots)))
            .settings([
                ("protocol.version", "2"),
                ("http.lowSpeedLimit", MIN_BYTES_PER_SECOND),
            ])
            .settings([("http.lowSpeedTime", silence)])
    }

    /// Judges where a URL leads, and makes git go there and nowhere else. A literal address needs no pin.
    async fn pin(&self, url: &CloneUrl) -> Result<Option<String>, FetchError> {
        let host = url.host();
        let from = Provenance::Event;
        self.policy.judge_host(from, &host)?;
        let name = host.name();
        if name.parse::<IpAddr>().is_ok() {
            return Ok(None);
        }
        let addresses = match &self.look_up {
            Some(look_up) => Ok(look_up(name)),
            None => look_up_by_system(name).await,
        };
        let addresses = addresses.map_err(|error| error::unresolved(&error))?;
        if addresses.is_empty() {
            return Err(error::unresolved(&io::ErrorKind::NotFound.into()));
        }
        for address in &addresses {
            self.policy.judge_address(from, *address)?;
        }
        let addresses = addresses
            .iter()
            .take(MAX_PINNED_ADDRESSES)
            .map(|address| match address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            });
        let addresses: Vec<_> = addresses.collect();
        Ok(Some(format!(
            "{name}:{}:{}",
            port(url),
            addresses.join(",")
        )))
    }
}

/// The memory that a fetch is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// This much until objects come, and [`FETCH_MEMORY`] after that.
    AtFirst { listing: u64 },
    /// This much from the start: the server has sent objects before.
    Large(u64),
}

/// Waits for memory.
async fn hold(pool: &SharedPool, bytes: u64) -> Result<Holding, FetchError> {
    let holding = pool
        .wait(&Claimant::default(), bytes, FETCH_MEMORY_TIMEOUT)
        .await;
    holding.map_err(|shortage| ours(GitError::Busy(shortage)))
}

/// Returns whether a fetch ended because a process had too little memory.
fn is_short(finished: &Finished) -> bool {
    let words = ["ut of memory", "unable to create thread"];
    !finished.status.success() && words.iter().any(|word| finished.words.contains(word))
}

/// Returns the output of a successful git.
fn accepted(finished: Finished) -> Result<String, FetchError> {
    if !finished.status.success() {
        return Err(theirs(&finished.words));
    }
    Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
}

fn port(url: &CloneUrl) -> u16 {
    let host = url.host();
    let (_, after) = host.as_str().rsplit_once(':').unwrap_or_default();
    let default = if url.as_str().starts_with("https:") {
        443
    } else {
        80
    };
    after.parse().unwrap_or(default)
}

async fn look_up_by_system(name: &str) -> io::Result<Vec<IpAddr>> {
    let addresses = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name, 0))).await??;
    Ok(addresses.map(|address| address.ip()).collect())
}
