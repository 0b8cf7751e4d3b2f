//! What comes in: events that must wait, uploads that nobody has signed for, and signs that somebody is at it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::Presence;
use grasp_core::admission::{Hold, Origin};
use grasp_core::resources::{Claimant, ClientNetwork, Shortage};
use grasp_core::{Identifier, Oid, RepoId};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use super::books::Room;
use super::entry::{Entry, Phase, What, Why};
use super::output::{Chore, Kept, Output, Report, Thing, Turn};
use super::staging::{Placeholder, PushTarget, Uploading};
use super::{Config, Ledger, Purgatory};
use crate::journal::Record;

/// Whether an entry has a place, and which one it takes over.
pub(super) enum Admission {
    /// There is room, if the older one goes.
    Admitted {
        displaces: Option<EventId>,
    },
    /// Its author's newer ones have the place.
    Superseded,
    Full,
}

impl Admission {
    /// Judges by what is kept; nothing is changed.
    pub(super) fn of(config: &Config, ledger: &Ledger, new: &Entry, presence: Presence) -> Self {
        let Ok(displaced) = displaced(config, ledger, new) else {
            return Self::Superseded;
        };
        match ledger.books().room(config, new, displaced, presence) {
            Room::Free => Self::Admitted { displaces: displaced.map(Entry::id) },
            Room::Full => Self::Full,
        }
    }
}

/// Things that make room for one newcomer, at most.
const MAX_EVICTIONS: usize = 16;

/// Whom the memory of an entry is accounted to. What another relay brought is its author's alone.
fn claimant(new: &Entry, presence: Presence, origin: &Origin) -> Claimant {
    let network = origin.claimant().network;
    let claimant = Claimant::maybe_at(network).signed_by(new.author());
    if presence == Presence::Stored { claimant.with_authority() } else { claimant }
}

/// Its author has made it obsolete.
struct Obsolete;

/// The entry that a new one takes the place of.
fn displaced<'a>(
    config: &Config,
    ledger: &'a Ledger,
    new: &Entry,
) -> Result<Option<&'a Entry>, Obsolete> {
    match &new.what {
        What::Announcement(announcement) => match ledger.announcement(&announcement.repo) {
            Some(kept) if kept.version() > new.version() => Err(Obsolete),
            kept => Ok(kept.filter(|kept| kept.id() != new.id())),
        },
        What::State(state) => {
            let states = ledger.states_by(&state.repo.identifier, new.author());
            let others: Vec<_> = states
                .filter(|kept| kept.phase == Phase::Waiting && kept.id() != new.id())
                .collect();
            if others.len() < config.states_per_author {
                return Ok(None);
            }
            match others.into_iter().min_by_key(|kept| kept.version()) {
                Some(oldest) if oldest.version() > new.version() => Err(Obsolete),
                oldest => Ok(oldest),
            }
        }
        What::Proposal(_) => Ok(None),
    }
}

impl Purgatory {
    pub(super) fn on_held(
        &mut self,
        out: &mut Turn,
        event: Arc<Event>,
        hold: &Hold,
        origin: &Origin,
    ) {
        let id = event.id;
        let kept = match Entry::new(event, Phase::Waiting, self.now.unix, self.end_of_wait()) {
            Some(_) if self.needs_no_place(&id, origin) => Kept::Held,
            Some(entry) => self.admit(out, entry, hold, origin),
            None => Kept::Unreadable,
        };
        out.act(Output::Answer { id, kept });
    }

    /// Whether the event is kept already and stays as it is. What another relay offers again and again is not
    /// thereby taken off the shelf.
    fn needs_no_place(&self, id: &EventId, origin: &Origin) -> bool {
        let kept = self.ledger.entry(id);
        kept.is_some_and(|entry| entry.phase == Phase::Waiting || origin.is_sync())
    }

    fn admit(&mut self, out: &mut Turn, new: Entry, hold: &Hold, origin: &Origin) -> Kept {
        let presence = self.presence_behind(hold);
        let displaces = match Admission::of(&self.config, &self.ledger, &new, presence) {
            Admission::Admitted { displaces } => displaces,
            Admission::Superseded => return Kept::Superseded,
            Admission::Full => return self.turn_away(out, &new),
        };
        let claimant = claimant(&new, presence, origin);
        if !self.make_room(out, &new, claimant, displaces) {
            return self.turn_away(out, &new);
        }
        let had_view = new.announcement().is_some_and(|a| self.has_view(&a.repo));
        if let Some(id) = displaces {
            self.record(out, Record::Gone { id, why: Why::Superseded });
        }
        let (event, phase, until) = (new.event.clone(), new.phase, new.until);
        self.record(out, Record::Held { event, phase, since: new.since, until });
        match &new.what {
            What::Announcement(_) if had_view => {}
            What::Announcement(a) => {
                self.owe(out, Chore::CreateView { repo: a.repo.clone() });
            }
            What::State(_) => self.renew_announcements(out, hold),
            What::Proposal(proposal) => self.keep_only(out, new.id(), proposal.tip),
        }
        self.look_after(out, &new, origin);
        Kept::Held
    }

    fn turn_away(&self, out: &mut Turn, new: &Entry) -> Kept {
        out.act(Output::Report(Report::TurnedAway { id: new.id() }));
        Kept::Full
    }

    /// Takes room for an entry, whose author's older one makes place for it; whoever has most waiting makes room for
    /// whoever has less.
    fn make_room(
        &mut self,
        out: &mut Turn,
        new: &Entry,
        claimant: Claimant,
        displaces: Option<EventId>,
    ) -> bool {
        if let Some(id) = displaces {
            self.room.give_back(&id);
        }
        for _ in 0..MAX_EVICTIONS {
            match self.room.take(new.id(), claimant, new.bytes) {
                Ok(()) => return true,
                Err(Shortage::Total) => {}
                Err(Shortage::Network(_) | Shortage::Author) => break,
            }
            let spared = |id: &EventId| Some(*id) == displaces;
            let victim = self.room.to_evict(&claimant, new.bytes, |one| one.author, spared);
            let Some(victim) = victim else { break };
            self.evict(out, victim);
        }
        if let Some(id) = displaces {
            self.follow(&id);
        }
        false
    }

    /// Lets go of what waits, and of the view that only it asked for.
    fn evict(&mut self, out: &mut Turn, id: EventId) {
        let entry = self.ledger.entry(&id);
        let repo = entry.and_then(Entry::announcement).map(|a| a.repo.clone());
        self.forget(out, id, Why::Evicted);
        if let Some(repo) = repo {
            self.owe(out, Chore::RemoveView { repo, at_once: true });
        }
    }

    /// Whether an event is about something that is served: a repository that it rules does not wait here.
    fn presence_behind(&self, hold: &Hold) -> Presence {
        match hold {
            Hold::State(ruled) if ruled.iter().any(|r| self.ledger.announcement(r).is_none()) => {
                Presence::Stored
            }
            _ => Presence::Held,
        }
    }

    /// A new state shows that its repositories are alive: their announcements wait anew, with a view.
    fn renew_announcements(&mut self, out: &mut Turn, hold: &Hold) {
        let Hold::State(ruled) = hold else { return };
        ruled.iter().for_each(|repo| self.renew_announcement(out, repo));
    }

    fn renew_announcement(&mut self, out: &mut Turn, repo: &RepoId) {
        let Some(entry) = self.ledger.announcement(repo) else { return };
        let (id, was_shelved) = (entry.id(), entry.phase == Phase::Shelved);
        self.renew(out, id);
        if was_shelved {
            self.owe(out, Chore::CreateView { repo: repo.clone() });
        }
    }

    /// Gives an entry its full time again, or leaves it the longer one that it has.
    fn renew(&mut self, out: &mut Turn, id: EventId) {
        let waiting = self.ledger.entry(&id).filter(|entry| entry.phase == Phase::Waiting);
        // Whatever servers answered before, it is alive now.
        for name in waiting.into_iter().flat_map(Entry::identifiers) {
            self.desks.get_mut(name).map(|desk| desk.first_answer.take());
        }
        let until = waiting.map_or(self.end_of_wait(), |entry| entry.until.max(self.end_of_wait()));
        self.record(out, Record::Moved { id, phase: Phase::Waiting, until });
    }

    /// The signed word is here: other tips for it are nobody's, and neither are refs that say otherwise.
    fn keep_only(&mut self, out: &mut Turn, id: EventId, tip: Oid) {
        let entry = self.ledger.entry(&id).and_then(Entry::proposal);
        let staged = entry.zip(self.ledger.staging().of(&id));
        let fits = staged.is_some_and(|(p, s)| s.came_by(&self.policy, p).next().is_some());
        let names = self.names_of(&id);
        if self.ledger.staging().of(&id).is_some() {
            self.record(out, Record::Unstaged { id, keep: fits.then_some(tip) });
        }
        self.clear(out, id, BTreeSet::from([tip]), names);
    }

    /// The names under which there may be anything of a pull request.
    pub(super) fn names_of(&self, id: &EventId) -> BTreeSet<Identifier> {
        let entry = self.ledger.entry(id).map(Entry::identifiers).unwrap_or_default();
        let uploads = self.ledger.staging().of(id).into_iter().flat_map(Placeholder::names);
        entry.into_iter().chain(uploads).cloned().collect()
    }

    /// Has everything of a pull request cleared away but the tips to keep, also where that was owed before.
    pub(super) fn clear(
        &mut self,
        out: &mut Turn,
        id: EventId,
        keep: BTreeSet<Oid>,
        mut names: BTreeSet<Identifier>,
    ) {
        if let Some(Chore::ClearProposal { names: more, .. }) =
            self.ledger.owed_to(&Thing::Proposal(id))
        {
            names.extend(more.iter().cloned());
        }
        self.owe(out, Chore::ClearProposal { id, keep, names });
    }

    /// Looks whether it can be released at once, and has its data hunted for if not.
    fn look_after(&mut self, out: &mut Turn, new: &Entry, origin: &Origin) {
        // What another relay has, other servers have too; a user is about to push.
        let after = (!origin.is_sync()).then_some(self.config.user_delay);
        for identifier in new.identifiers() {
            self.ask(out, identifier);
            self.hunt(out, identifier, after);
        }
    }

    /// Has an identifier hunted for, if anything there waits for objects.
    pub(super) fn hunt(&self, out: &mut Turn, identifier: &Identifier, after: Option<Duration>) {
        let waits = |entry: &Entry| entry.phase == Phase::Waiting && entry.announcement().is_none();
        if self.ledger.family(identifier).any(waits) {
            out.act(Output::Hunt { identifier: identifier.clone(), after });
        }
    }

    /// Somebody is pushing what was signed: give them time.
    pub(super) fn on_push(&mut self, out: &mut Turn, repo: &RepoId, events: &BTreeSet<EventId>) {
        self.renew_announcement(out, repo);
        for id in events {
            if self.ledger.entry(id).is_some() {
                self.renew(out, *id);
            }
        }
    }

    pub(super) fn on_staged(
        &mut self,
        out: &mut Turn,
        id: EventId,
        tip: Oid,
        (target, bytes): (PushTarget, u64),
        network: Option<ClientNetwork>,
    ) {
        let room = self.ledger.staging().room(&self.config, &id, &tip, &target);
        let has_room = match room {
            Uploading::Again => true,
            Uploading::New => self.make_room_for_upload(out, id, bytes, network),
            Uploading::TooMany => false,
        };
        if !has_room {
            // What waits under other names has directories of its own.
            let waiting = self.ledger.staging().of(&id);
            let keep = waiting.map(|staged| staged.tips_under(target.name())).unwrap_or_default();
            return self.clear(out, id, keep, BTreeSet::from([target.name().clone()]));
        }
        self.settle_conflicting(out, &Thing::Proposal(id));
        let until = self.now.unix + self.config.placeholder;
        self.record(out, Record::Staged { id, tip, target, bytes, until });
        // The event may have come in while the push was under way.
        let Some(entry) = self.ledger.entry(&id) else { return };
        let Some(wanted) = entry.proposal().map(|proposal| proposal.tip) else { return };
        let identifiers: Vec<_> = entry.identifiers().into_iter().cloned().collect();
        self.keep_only(out, id, wanted);
        identifiers.iter().for_each(|identifier| self.ask(out, identifier));
    }

    /// Takes room for an upload; the network that has most waiting makes room for one that has less. What the event
    /// has come for stays.
    fn make_room_for_upload(
        &mut self,
        out: &mut Turn,
        id: EventId,
        bytes: u64,
        network: Option<ClientNetwork>,
    ) -> bool {
        let claimant = Claimant::maybe_at(network);
        let before = self.ledger.staging().of(&id).map_or(0, Placeholder::bytes);
        let all = before.saturating_add(bytes);
        for _ in 0..MAX_EVICTIONS {
            match self.uploads.take(id, claimant, all) {
                Ok(()) => return true,
                Err(Shortage::Total) => {}
                Err(Shortage::Network(_) | Shortage::Author) => return false,
            }
            let spared = |other: &EventId| *other == id || self.ledger.entry(other).is_some();
            let victim = self.uploads.to_evict(&claimant, all, |one| one.network, spared);
            let Some(victim) = victim else { return false };
            let names = self.names_of(&victim);
            self.record(out, Record::Unstaged { id: victim, keep: None });
            self.clear(out, victim, BTreeSet::new(), names);
        }
        false
    }

    /// The tips that wait for an event.
    pub(super) fn staged_tips(&self, id: &EventId) -> BTreeSet<Oid> {
        let placeholder = self.ledger.staging().of(id);
        placeholder.map(|p| p.tips.keys().copied().collect()).unwrap_or_default()
    }

    pub(super) fn end_of_wait(&self) -> Timestamp {
        self.now.unix + self.config.wait
    }
}
