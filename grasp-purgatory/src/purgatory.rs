//! Holds events until their git data is here. Opens nothing, reads no clock.
//!
//! ```text
//!   Held ──▶ journal ──▶ Survey ──▶ Surveyed ──▶ Apply ──▶ Applied ──▶ Store ──▶ Stored ──▶ Publish
//!             + answer     ▲          │ not complete: waits          refs and HEAD   events      gone from here
//!   Changed ───────────────┤          ▼
//!   (push, fetch, store)   │    expired ──▶ shelved ──▶ forgotten
//!   Started, retry ────────┘              (still released if the data appears)
//! ```
//!
//! Whatever happens under an identifier leads to a survey, and every survey to the same judgement: how things should
//! be, compared with how they are. One release per identifier runs at a time; git first, then the event store.

mod books;
mod config;
mod desk;
mod endings;
mod entry;
mod expiry;
mod family;
mod hold;
mod input;
mod judge;
mod ledger;
mod output;
mod places;
mod query;
mod release;
mod removal;
mod shares;
mod staging;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::admission::Policy;
use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Mono, Now};
use nostr::event::EventId;
use nostr::types::Timestamp;

pub use self::books::Room;
pub use self::config::{Bound, Config};
pub use self::desk::Pass;
pub use self::entry::{Phase, Why};
pub use self::input::{Input, Survey};
pub use self::output::{Chore, Kept, Output, ProposalRef, Report, Stage, ViewTarget};
pub use self::places::some_places;
pub use self::query::{Counts, KeptProposal, Want};
pub use self::staging::PushTarget;

use self::desk::Desk;
use self::endings::Endings;
use self::entry::Entry;
use self::ledger::Ledger;
use self::output::{Thing, Turn};
use self::shares::Shares;
use crate::journal::Record;

/// Memory that the largest event takes: any network may have that much waiting, while it is free.
const LARGEST_EVENT: u64 = 5 * 1024 * 1024;

/// How soon after looking for what is overdue that is done again.
const SWEEP: Duration = Duration::from_secs(1);

/// Everything that waits for git data, and what must happen for it to be served.
///
/// ```
/// use std::sync::Arc;
/// use grasp_core::admission::{Hold, Origin, Policy};
/// use grasp_core::{Mono, Now};
/// use grasp_purgatory::{Config, Input, Kept, Output, Purgatory};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
/// use nostr::{key::Keys, types::Timestamp};
///
/// let policy = Policy::new("grasp.example".parse().unwrap());
/// let now = Now::new(Mono::ZERO, Timestamp::from_secs(1_800_000_000));
/// let mut purgatory = Purgatory::restore(Config::default(), policy, [], now);
///
/// let event = EventBuilder::new(Kind::GitRepoAnnouncement, "")
///     .tag(Tag::identifier("grasp"))
///     .finalize(&Keys::generate())
///     .unwrap();
/// let held = Input::Held {
///     event: Arc::new(event.clone()),
///     hold: Hold::Announcement,
///     origin: Origin::anonymous(),
/// };
/// let outputs = purgatory.handle(now, held);
/// assert!(matches!(outputs[0], Output::Journal(_)), "written down first");
/// assert!(outputs.iter().any(|o| matches!(o, Output::Answer { kept: Kept::Held, .. })));
/// assert!(purgatory.holds(&event.id));
/// ```
#[derive(Debug)]
pub struct Purgatory {
    config: Config,
    policy: Policy,
    ledger: Ledger,
    /// Who has how much of the memory for waiting events.
    room: Shares<EventId>,
    /// Who has how much of the disk for uploads that wait for their event.
    uploads: Shares<EventId>,
    desks: BTreeMap<Identifier, Desk>,
    /// Identifiers of pull requests under which nothing is here.
    vacant: BTreeSet<Identifier>,
    /// When served events end by themselves.
    endings: Endings,
    /// Passes that were numbered.
    passes: u64,
    /// When chores that failed are tried again.
    chores_again: Option<Mono>,
    /// When ends were last looked for.
    swept: Mono,
    /// The last reading of the clocks, by which deadlines on the calendar become points of the monotonic clock.
    now: Now,
}

impl Purgatory {
    /// Takes up where the records of an earlier run end; without any, begins empty.
    ///
    /// Deadlines are on the calendar, so the time between the runs counts.
    pub fn restore(
        config: Config,
        policy: Policy,
        records: impl IntoIterator<Item = Record>,
        now: Now,
    ) -> Self {
        let mut ledger = Ledger::default();
        records.into_iter().for_each(|record| ledger.apply(&record));
        let mut purgatory = Self {
            room: Shares::new(config.in_all, config.in_all.bytes / 4, LARGEST_EVENT),
            uploads: Shares::new(config.staged, 0, config.staged.bytes / 8),
            config,
            policy,
            ledger,
            desks: BTreeMap::new(),
            vacant: BTreeSet::new(),
            endings: Endings::default(),
            passes: 0,
            chores_again: None,
            swept: now.mono,
            now,
        };
        purgatory.book_all();
        purgatory
    }

    /// Books what an earlier run left. Who brought it is not known any more; who signed it is.
    fn book_all(&mut self) {
        let entries: Vec<EventId> = self.ledger.entries().map(Entry::id).collect();
        let uploads: Vec<EventId> = self.ledger.staging().iter().map(|(id, _)| *id).collect();
        entries.iter().chain(&uploads).for_each(|id| self.follow(id));
    }

    /// Tells what happened, and learns what to do about it.
    #[must_use = "what is not done was promised nevertheless"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        self.now = now;
        let mut turn = Turn::default();
        let out = &mut turn;
        match input {
            Input::Started => self.on_started(out),
            Input::Held { event, hold, origin } => self.on_held(out, event, &hold, &origin),
            Input::Changed { identifier } => self.ask(out, &identifier),
            Input::Surveyed { identifier, survey } => self.on_surveyed(out, &identifier, &survey),
            Input::SurveyFailed { identifier } => self.on_failed(out, &identifier, Stage::Survey),
            Input::Applied { identifier } => self.on_applied(out, &identifier),
            Input::ApplyFailed { identifier } => self.on_failed(out, &identifier, Stage::Apply),
            Input::Stored { identifier, stored } => self.on_stored(out, &identifier, &stored),
            Input::StoreFailed { identifier } => self.on_failed(out, &identifier, Stage::Store),
            Input::PushAuthorised { repo, events } => self.on_push(out, &repo, &events),
            Input::PushStaged { id, tip, target, bytes, network } => {
                self.on_staged(out, id, tip, (target, bytes), network);
            }
            Input::FetchStarted { identifier } => self.on_fetch_started(identifier),
            Input::FetchEnded { identifier } => self.on_fetch_ended(out, &identifier),
            Input::HuntInLine { identifier } => self.on_hunt_in_line(out, &identifier),
            Input::HuntAnswered { identifier } => self.on_hunt_answered(&identifier),
            Input::HuntEnded { identifier } => self.on_hunt_ended(out, &identifier),
            Input::Deleted { request } => self.on_deleted(out, &request),
            Input::Vanished { author, until } => self.on_vanished(out, author, until),
            Input::Delisted { repo, by } => self.on_delisted(out, &repo, by),
            Input::Done(chore) => self.settle(out, chore),
            Input::ChoreFailed(chore) => self.on_chore_failed(out, chore),
            Input::Tick => self.on_tick(out),
        }
        turn.into_outputs()
    }

    /// When to send the next [`Input::Tick`], if ever. To be asked again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let retries = self.desks.values().filter_map(|desk| desk.retry);
        // Whatever is overdue and still here waits for somebody who is at it, and is looked at now and then.
        let ends = self.next_end().map(|end| self.mono(end).max(self.swept + SWEEP));
        let endings = self.endings.next().map(|end| self.mono(end));
        retries.chain(self.chores_again).chain(ends).chain(endings).min()
    }

    /// The records from which [`restore`](Self::restore) makes this very purgatory: a journal made short.
    pub fn snapshot(&self) -> Vec<Record> {
        self.ledger.snapshot()
    }

    /// After a start everything is looked at, before any of it can expire: what was complete at the time of a crash
    /// is released however long ago that was.
    fn on_started(&mut self, out: &mut Turn) {
        for chore in self.ledger.owed() {
            out.act(Output::Do(chore.clone()));
        }
        let identifiers: Vec<_> = self.ledger.identifiers().cloned().collect();
        for identifier in identifiers {
            self.ask(out, &identifier);
            self.hunt(out, &identifier, None);
        }
    }

    /// Changes what is kept: the one way to do so.
    fn record(&mut self, out: &mut Turn, record: Record) {
        self.ledger.apply(&record);
        if let Some(id) = record.event() {
            self.follow(&id);
        }
        out.write(record);
    }

    /// Makes the accounts say what the ledger says of an event and of what was uploaded for it.
    fn follow(&mut self, id: &EventId) {
        match self.ledger.entry(id).filter(|entry| entry.phase == Phase::Waiting) {
            Some(entry) => {
                let claimant = Claimant::default().signed_by(entry.author());
                self.room.book(*id, claimant, entry.bytes);
            }
            None => self.room.give_back(id),
        }
        match self.ledger.staging().of(id) {
            Some(staged) => self.uploads.book(*id, Claimant::default(), staged.bytes()),
            None => self.uploads.give_back(id),
        }
    }

    /// Takes on a chore, in place of whatever was owed to the same thing before.
    fn owe(&mut self, out: &mut Turn, chore: Chore) {
        if !self.ledger.owes(&chore) {
            self.settle_conflicting(out, &chore.thing());
            self.record(out, Record::Owed { chore: chore.clone() });
        }
        out.act(Output::Do(chore));
    }

    /// Lets go of what is owed to a thing: it would undo what is done about it now if it were tried again after that.
    fn settle_conflicting(&mut self, out: &mut Turn, thing: &Thing) {
        let conflicting = self.ledger.owed_to(thing).cloned();
        conflicting.into_iter().for_each(|chore| self.settle(out, chore));
    }

    fn settle(&mut self, out: &mut Turn, chore: Chore) {
        if self.ledger.owes(&chore) {
            self.record(out, Record::Settled { chore });
        }
    }

    fn on_chore_failed(&mut self, out: &mut Turn, chore: Chore) {
        self.chores_again = Some(self.now.mono + self.config.retry);
        out.act(Output::Report(Report::ChoreFailed { chore }));
    }

    /// A point of the calendar on the monotonic clock. Never early: a second of the calendar has begun earlier.
    fn mono(&self, end: Timestamp) -> Mono {
        let left = end.as_secs().saturating_sub(self.now.unix.as_secs());
        self.now.mono + Duration::from_secs(left)
    }
}
