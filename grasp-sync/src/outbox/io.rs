//! The settings, inputs and outputs of the machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::outbound::OutboundPolicy;
use grasp_core::outbox::Fact;
use grasp_core::{RelayUrl, ServiceIdentity, nostr};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;

/// The settings of an [`Outbox`](super::Outbox).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutboxConfig {
    /// Our own service; never a relay of a user.
    pub own: ServiceIdentity,
    /// Addresses that relays of users may have. Default: none that is private.
    pub outbound: OutboundPolicy,
    /// Relays that collect the relay lists of all users. Default: none.
    pub index_relays: Vec<RelayUrl>,
    /// Relays that serve as the relays of users without a relay list. Default: none.
    pub fallback_relays: Vec<RelayUrl>,
    /// Relays that are asked for relay lists like the index relays. Default: none.
    pub bootstrap: Vec<RelayUrl>,
    /// The seed of randomness. The same seed and the same inputs give the same outputs. Default: 0.
    pub seed: u64,
    /// Time between two passes, each of which may begin with one relay that was never asked before. Default: 1 minute.
    pub pass: Duration,
}

impl OutboxConfig {
    /// Returns the defaults for this service.
    pub fn new(own: ServiceIdentity) -> Self {
        Self {
            own,
            outbound: OutboundPolicy::default(),
            index_relays: Vec::new(),
            fallback_relays: Vec::new(),
            bootstrap: Vec::new(),
            seed: 0,
            pass: Duration::from_secs(60),
        }
    }

    /// Returns the relays of the operator.
    pub(super) fn configured(&self) -> BTreeSet<RelayUrl> {
        let relays = self.index_relays.iter().chain(&self.bootstrap);
        relays.chain(&self.fallback_relays).cloned().collect()
    }
}

/// An input of the machine.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Input {
    /// What the local relay serves, or serves no longer.
    Learnt(Fact),
    /// A relay list that the local relay has stored.
    Listed(Arc<Event>),
    /// The local relay's feed has delivered everything that was stored.
    CaughtUp,
    /// The local relay has lost some of what it had.
    Lost,
    /// The answer to an [`Output::Fetch`], once what it brought is judged.
    Fetched { id: TaskId, outcome: FetchOutcome },
    /// The end of an [`Output::Visit`].
    Visited { id: TaskId, is_complete: bool },
    /// The bootstrap relays are to be these from now on.
    Bootstrap(Vec<RelayUrl>),
    /// Time has passed.
    Tick,
}

/// The answer to an [`Output::Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The source has sent all that it has.
    Complete {
        /// The authors whose relay list it sent.
        found: BTreeSet<PublicKey>,
        /// Those of them for whom the local relay has that list now, or a newer one.
        accepted: BTreeSet<PublicKey>,
    },
    /// It did not, so that nothing is known of any author.
    Failed,
}

/// Something to be done. Never blocks: the result comes back as an [`Input`].
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Output {
    /// Ask a relay for the profiles and relay lists (kinds 0 and 10002) of these authors, and offer the newest of each
    /// author and kind to the local relay.
    Fetch {
        id: TaskId,
        source: RelayUrl,
        authors: Vec<PublicKey>,
        /// True if the operator configured this relay, rather than an event naming it.
        configured: bool,
    },
    /// Fetch all history that a relay has for these filters.
    Visit {
        id: TaskId,
        relay: RelayUrl,
        filters: Vec<Filter>,
    },
    /// End a visit. No [`Input::Visited`] follows.
    EndVisit { id: TaskId },
    /// Follow the threads that an author has begun at these relays, and at no others for its sake.
    Follow {
        author: PublicKey,
        relays: BTreeSet<RelayUrl>,
    },
}

/// A fetch or a visit. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// The source of [`TaskId`]s.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskIds(u64);

impl TaskIds {
    pub(super) fn next(&mut self) -> TaskId {
        self.0 += 1;
        TaskId(self.0)
    }
}

/// Figures for metrics and the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxStats {
    /// Users who take part in served repositories.
    pub authors: usize,
    /// Relays that are asked for history because a user names them.
    pub relays: usize,
    /// Those of them whose cycle of history has begun and not ended.
    pub cursors: usize,
    /// Those of them that are asked at the moment.
    pub workers: usize,
}
