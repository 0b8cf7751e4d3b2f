//! Finds events where their authors keep them (GRASP-03): at the relays that users name in their relay lists.
//!
//! ```text
//!  local relay ──Learnt, Listed──▶ ┌────────┐ ──Fetch──▶ one relay at a time ──events──▶ local relay
//!              ──CaughtUp────────▶ │        │ ──Follow─▶ engine: threads, live, where their authors read
//!  fetches     ──Fetched─────────▶ │ Outbox │ ──Visit──▶ engine: history, where participants and maintainers are
//!  engine      ──Visited─────────▶ │        │
//!  timer       ──Tick────────────▶ └────────┘
//! ```
//!
//! A pure machine beside the [engine](crate::engine). It asks for nobody but the users who take part in served
//! repositories ([`People`]), uses only relay lists that the local relay has stored, and does nothing before the feed has
//! delivered those. Without such users it has no deadline.
//!
//! ```
//! use std::collections::{BTreeSet, VecDeque};
//! use std::sync::Arc;
//! use grasp_sync::core::nostr::event::{EventBuilder, EventId, FinalizeEvent, Kind, Tag};
//! use grasp_sync::core::nostr::key::Keys;
//! use grasp_sync::core::nostr::types::Timestamp;
//! use grasp_sync::core::outbox::Fact;
//! use grasp_sync::core::{Mono, Version};
//! use grasp_sync::outbox::{FetchOutcome, Input, Outbox, OutboxConfig, OutboxStats, Output, TaskId};
//!
//! // A user has a repository here. Other relays have a list of the user's relays.
//! let keys = Keys::generate();
//! let user = keys.public_key();
//! let announced = Fact::Announced {
//!     repo: format!("30617:{user}:x").parse()?,
//!     version: Version { created_at: Timestamp::from_secs(1), id: EventId::from_byte_array([1; 32]) },
//!     maintainers: [user].into(),
//! };
//! let list = EventBuilder::new(Kind::RelayList, "").tag(Tag::parse(["r", "wss://home.example.com"])?);
//! let list = Arc::new(list.finalize(&keys)?);
//!
//! let mut config = OutboxConfig::new("us.example.com".parse()?);
//! config.index_relays.push("wss://index.example.com".parse()?);
//! let mut outbox = Outbox::new(config);
//! let mut now = Mono::ZERO;
//! let mut inputs = VecDeque::from([Input::Learnt(announced), Input::CaughtUp]);
//! let mut fetched: Vec<TaskId> = Vec::new();
//! let mut visited = None;
//! while visited.is_none() {
//!     let input = match inputs.pop_front() {
//!         Some(input) => input,
//!         None => {
//!             now = outbox.next_deadline().expect("a user takes part");
//!             Input::Tick
//!         }
//!     };
//!     for output in outbox.handle(now, input) {
//!         match output {
//!             // The relay sends the list, and the local relay stores it.
//!             Output::Fetch { id, authors, .. } => {
//!                 let found = BTreeSet::from_iter(authors);
//!                 let outcome = FetchOutcome::Complete { accepted: found.clone(), found };
//!                 inputs.extend([Input::Listed(Arc::clone(&list)), Input::Fetched { id, outcome }]);
//!                 fetched.push(id);
//!             }
//!             // The engine fetches history there; its end is `Input::Visited`.
//!             Output::Visit { relay, filters, .. } => visited = Some((relay, filters)),
//!             Output::Follow { .. } | Output::EndVisit { .. } => {}
//!         }
//!     }
//! }
//! let (relay, filters) = visited.expect("the loop ends with it");
//! assert_eq!(relay, "wss://home.example.com".parse()?);
//! assert!(!filters.is_empty() && !fetched.is_empty());
//! let stats: OutboxStats = outbox.stats();
//! assert_eq!((stats.authors, stats.relays, stats.workers), (1, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod authors;
mod cycles;
mod groups;
mod io;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::key::PublicKey;
use grasp_core::outbox::{Fact, People, RelayList};
use grasp_core::{Mono, RelayUrl, Version};

use self::authors::{AuthorRecord, Authors, Standing};
use self::cycles::Cycles;
use self::groups::Scope;
use self::io::TaskIds;
pub use self::io::{FetchOutcome, Input, OutboxConfig, OutboxStats, Output, TaskId};
use self::rounds::{AuthorBatch, MAX_AUTHORS_PER_BATCH, Rounds};

/// Decides whose relays are asked for what and when.
#[derive(Debug)]
pub struct Outbox {
    config: OutboxConfig,
    /// The relays of the operator.
    configured: BTreeSet<RelayUrl>,
    /// The fallback relays as a relay list.
    fallback: RelayList,
    people: People,
    authors: Authors,
    rounds: Rounds,
    cycles: Cycles,
    ids: TaskIds,
    has_caught_up: bool,
    /// The time of the last pass, and that of the next.
    last_pass: Option<Mono>,
    next_pass: Option<Mono>,
    deadline: Option<Mono>,
    out: Vec<Output>,
}

/// The relays that an author is asked for at, by purpose.
#[derive(Debug, Default)]
struct AuthorRelays {
    live: BTreeSet<RelayUrl>,
    history: BTreeSet<RelayUrl>,
}

impl Outbox {
    /// Creates a machine that knows nothing but its settings.
    pub fn new(config: OutboxConfig) -> Self {
        let fallback = config.fallback_relays.iter();
        let fallback: Vec<RelayUrl> = fallback.take(RelayList::MAX_PER_PURPOSE).cloned().collect();
        Self {
            configured: config.configured(),
            fallback: RelayList {
                read: fallback.clone(),
                write: fallback,
            },
            config,
            people: People::default(),
            authors: Authors::default(),
            rounds: Rounds::default(),
            cycles: Cycles::default(),
            ids: TaskIds::default(),
            has_caught_up: false,
            last_pass: None,
            next_pass: None,
            deadline: None,
            out: Vec::new(),
        }
    }

    /// Handles an input.
    #[must_use = "what is not done is lost"]
    pub fn handle(&mut self, now: Mono, input: Input) -> Vec<Output> {
        match input {
            Input::Learnt(fact) => self.learnt(fact),
            Input::Listed(list) => self.listed(now, &list),
            Input::CaughtUp => self.caught_up(),
            Input::Lost => {
                self.authors.forget_asks();
                self.cycles.restart(now);
            }
            Input::Fetched { id, outcome } => {
                if let Some(batch) = self.rounds.answered(now, id) {
                    self.fetched(now, &batch, outcome);
                }
            }
            Input::Visited { id, is_complete } => {
                let scope = Scope {
                    people: &self.people,
                    authors: &self.authors,
                    fallback: &self.fallback,
                };
                let ids = &mut self.ids;
                let out = &mut self.out;
                self.cycles.visited(now, id, is_complete, scope, ids, out);
            }
            Input::Bootstrap(relays) => {
                self.config.bootstrap = relays;
                self.configured = self.config.configured();
            }
            Input::Tick => {}
        }
        self.continue_work(now);
        std::mem::take(&mut self.out)
    }

    /// Returns when to send the next [`Input::Tick`], if ever. Ask again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        self.deadline
    }

    /// Returns figures for metrics and the status.
    pub fn stats(&self) -> OutboxStats {
        OutboxStats {
            authors: self.people.len(),
            relays: self.cycles.len(),
            cursors: self.cycles.cursors(),
            workers: self.cycles.workers(),
        }
    }

    fn learnt(&mut self, fact: Fact) {
        if let Fact::Removed { id } = &fact {
            self.unlisted(id);
        }
        for author in self.people.apply(fact) {
            let before = self.wanted(&author);
            let standing = Standing {
                is_eligible: self.people.is_eligible(&author),
                has_root: self.people.has_root(&author),
                takes_part: self.people.threads_of(&author).next().is_some(),
                maintains: self.people.maintained_by(&author).next().is_some(),
            };
            self.authors.set_standing(author, standing);
            self.update(author, before);
        }
    }

    fn listed(&mut self, now: Mono, list: &Event) {
        if list.kind != Kind::RelayList {
            return;
        }
        let author = list.pubkey;
        let before = self.wanted(&author);
        let config = &self.config;
        let relays = RelayList::parse(list, &config.own, config.outbound, &self.configured);
        self.authors.list(author, Version::of(list), relays);
        self.update(author, before);
        // What the list names is asked in the same round.
        if self.has_caught_up {
            let known = self.authors.get(&author);
            let known = known.filter(|known| known.standing.is_eligible);
            for source in known.map(|known| self.sources(known)).unwrap_or_default() {
                if known.is_some_and(|known| known.is_due(now, &source)) {
                    self.rounds.add(source);
                }
            }
        }
    }

    fn unlisted(&mut self, list: &EventId) {
        let Some(author) = self.authors.author_of(list) else {
            return;
        };
        let before = self.wanted(&author);
        self.authors.unlist(list);
        self.update(author, before);
    }

    fn caught_up(&mut self) {
        if std::mem::replace(&mut self.has_caught_up, true) {
            return;
        }
        let authors: Vec<PublicKey> = self.authors.eligible().map(|(author, _)| *author).collect();
        for author in authors {
            self.update(author, AuthorRelays::default());
        }
    }

    fn fetched(&mut self, now: Mono, batch: &AuthorBatch, outcome: FetchOutcome) {
        let source = &batch.source;
        let FetchOutcome::Complete { found, accepted } = outcome else {
            self.rounds.failed(now, source);
            for author in &batch.authors {
                if let Some(author) = self.authors.get_mut(author) {
                    author.missed(now, source);
                }
            }
            return;
        };
        self.rounds.succeeded(source);
        let is_index = self.config.index_relays.contains(source);
        for key in &batch.authors {
            let before = self.wanted(key);
            let Some(author) = self.authors.get_mut(key) else {
                continue;
            };
            match found.contains(key) {
                true => author.found(now, source, (self.config.seed, *key)),
                false => author.missed(now, source),
            }
            author.uses_fallback |=
                is_index && author.relay_list().is_none() && !accepted.contains(key);
            self.update(*key, before);
        }
    }

    /// Performs what is due.
    fn continue_work(&mut self, now: Mono) {
        if let Some(batch) = self.rounds.expired(now) {
            self.fetched(now, &batch, FetchOutcome::Failed);
        }
        self.cycles.end_expired(now, &mut self.out);
        if self.has_caught_up && !self.people.is_empty() {
            let last = self.last_pass.map(|last| last + self.config.pass);
            let next = *self.next_pass.get_or_insert(last.unwrap_or(now).max(now));
            if now >= next {
                self.begin_pass(now);
            }
        } else {
            self.next_pass = None;
        }
        while self.rounds.is_idle(now) && self.fetch_next(now) {}
        let scope = Scope {
            people: &self.people,
            authors: &self.authors,
            fallback: &self.fallback,
        };
        self.cycles
            .start_due(now, scope, &mut self.ids, &mut self.out);
        let deadlines = [
            self.next_pass,
            self.rounds.deadline(now),
            self.cycles.deadline(),
        ];
        self.deadline = deadlines.into_iter().flatten().min();
    }

    fn begin_pass(&mut self, now: Mono) {
        self.last_pass = Some(now);
        self.next_pass = Some(now + self.config.pass);
        let mut due: BTreeMap<RelayUrl, usize> = BTreeMap::new();
        let mut needed = BTreeSet::new();
        for (_, author) in self.authors.eligible() {
            for source in self.sources(author) {
                if author.is_due(now, &source) {
                    *due.entry(source.clone()).or_default() += 1;
                }
                needed.insert(source);
            }
        }
        self.rounds.begin_pass(now, due, &needed);
        self.cycles.begin_pass();
    }

    /// Sends the next request for relay lists; false if there is none.
    fn fetch_next(&mut self, now: Mono) -> bool {
        let Some(source) = self.rounds.next(now, &self.configured) else {
            return false;
        };
        let mut authors = Vec::new();
        for (key, author) in self.authors.eligible() {
            if authors.len() < MAX_AUTHORS_PER_BATCH
                && author.is_due(now, &source)
                && self.sources(author).contains(&source)
            {
                authors.push(*key);
            }
        }
        if authors.len() < MAX_AUTHORS_PER_BATCH {
            self.rounds.done(&source);
        }
        if authors.is_empty() {
            return true;
        }
        let id = self.ids.next();
        self.rounds.began(now, id, source.clone(), authors.clone());
        self.out.push(Output::Fetch {
            id,
            configured: self.configured.contains(&source),
            source,
            authors,
        });
        true
    }

    /// Returns the relays that are asked for an author's relay list: those that the author writes to, or those that
    /// should know all lists.
    fn sources(&self, author: &AuthorRecord) -> BTreeSet<RelayUrl> {
        let named = author.relay_list().map(|list| &list.write);
        match named {
            Some(relays) if !relays.is_empty() => relays.iter().cloned().collect(),
            _ => {
                let relays = self.config.index_relays.iter();
                relays.chain(&self.config.bootstrap).cloned().collect()
            }
        }
    }

    /// Returns the relays at which an author is asked for.
    fn wanted(&self, key: &PublicKey) -> AuthorRelays {
        let mut wanted = AuthorRelays::default();
        let scope = Scope {
            people: &self.people,
            authors: &self.authors,
            fallback: &self.fallback,
        };
        let known = self.authors.get(key).zip(scope.relay_list(key));
        let Some((author, list)) = known.filter(|_| self.has_caught_up) else {
            return wanted;
        };
        if author.standing.has_root {
            wanted.live.extend(list.read.iter().cloned());
        }
        if author.standing.takes_part {
            wanted.history.extend(list.of_participant().cloned());
        }
        if author.standing.maintains {
            wanted.history.extend(list.read.iter().cloned());
        }
        wanted
    }

    /// Acts on the difference to what was wanted for an author.
    fn update(&mut self, author: PublicKey, before: AuthorRelays) {
        let wanted = self.wanted(&author);
        for relay in before.history.difference(&wanted.history) {
            self.cycles.remove(relay, &mut self.out);
        }
        for relay in wanted.history.difference(&before.history) {
            self.cycles.add(relay);
        }
        if wanted.live != before.live {
            let relays = wanted.live;
            self.out.push(Output::Follow { author, relays });
        }
    }
}
