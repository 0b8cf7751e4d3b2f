//! What others may ask of purgatory.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::{KnownAnnouncement, Presence};
use grasp_core::maintainers::{MaintainerSets, maintainer_lists};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::push::Candidate;
use grasp_core::resources::Claimant;
use grasp_core::{CloneUrl, Identifier, Oid, RepoId};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::Purgatory;
use super::books::Room;
use super::desk::Pass;
use super::entry::{Entry, Phase, What};
use super::hold::Admission;
use super::places::some_places;

/// One event in want of objects, and where they may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The event.
    pub id: EventId,
    /// Whether it is hunted for or only looked for once an hour.
    pub phase: Phase,
    /// Its tips; for a pull request the one that others have under `refs/nostr/<id>`.
    pub tips: Vec<Oid>,
    /// Git servers that the repository's keepers name: its author's first, each once, never ourselves.
    pub trusted: Vec<CloneUrl>,
    /// Git servers that only the author of a pull request names.
    pub untrusted: Vec<CloneUrl>,
}

/// A pull request that waits for its tip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptProposal {
    /// The pull request.
    pub id: EventId,
    /// The tip.
    pub tip: Oid,
    /// It is complete once the tip is in one of these families, with its whole history.
    pub families: BTreeSet<Identifier>,
}

/// How much of what is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Announcements that wait.
    pub announcements: usize,
    /// States that wait.
    pub states: usize,
    /// Pull requests and updates that wait.
    pub proposals: usize,
    /// Whatever expired and is remembered.
    pub shelved: usize,
    /// Uploads that wait for their event.
    pub staged: usize,
    /// What the waiting events take in memory, roughly.
    pub bytes: u64,
    /// What the uploads take on disk.
    pub staged_bytes: u64,
    /// Chores that are owed.
    pub owed: usize,
}

/// For admission.
/// Whose places are looked at for one event, counted with repetitions; far more than keep any repository together.
const MOST_FELLOWS: usize = 4_096;

impl Purgatory {
    /// Whether an event is known here, so that it need not be offered again.
    ///
    /// States and pull requests on the shelf are not: whoever brings one again has a reason.
    pub fn holds(&self, id: &EventId) -> bool {
        let known = |entry: &Entry| entry.phase == Phase::Waiting || entry.announcement().is_some();
        self.ledger.entry(id).is_some_and(known)
    }

    /// Whether an event is kept here, in whatever phase.
    pub fn keeps(&self, id: &EventId) -> bool {
        self.ledger.entry(id).is_some()
    }

    /// The announcements kept under an identifier. Expired ones still count: a new state revives them.
    pub fn announcements(&self, identifier: &Identifier) -> Vec<KnownAnnouncement> {
        let kept = self.ledger.family(identifier).filter_map(Entry::announcement);
        let known = |announcement: &Announcement| KnownAnnouncement {
            announcement: announcement.clone(),
            presence: Presence::Held,
        };
        kept.map(known).collect()
    }

    /// Whether an event could wait here that is about nothing served yet.
    pub fn room_for(&self, event: &Arc<Event>) -> Room {
        let entry = Entry::new(event.clone(), Phase::Waiting, self.now.unix, self.now.unix);
        let admission = |entry| Admission::of(&self.config, &self.ledger, &entry, Presence::Held);
        match entry.map(admission) {
            Some(Admission::Full) => Room::Full,
            _ => Room::Free,
        }
    }
}

/// For pushes.
impl Purgatory {
    /// The states kept under an identifier, each of which a push may realise and a survey may find complete.
    pub fn candidates(&self, identifier: &Identifier) -> Vec<Candidate> {
        let kept = self.ledger.family(identifier).filter_map(Entry::state);
        let candidate =
            |state: &_| Candidate { state: Clone::clone(state), presence: Presence::Held };
        kept.map(candidate).collect()
    }

    /// The pull requests kept under an identifier.
    pub fn proposals(&self, identifier: &Identifier) -> Vec<KeptProposal> {
        let kept = self.ledger.family(identifier).filter_map(|entry| {
            let tip = entry.proposal()?.tip;
            let families = entry.identifiers().into_iter();
            let families = families.filter(|name| !self.vacant.contains(*name)).cloned().collect();
            Some(KeptProposal { id: entry.id(), tip, families })
        });
        kept.collect()
    }

    /// The tips of all states and pull requests that are kept under an identifier.
    pub fn wanted_tips(&self, identifier: &Identifier) -> BTreeSet<Oid> {
        let states = self.ledger.family(identifier).filter_map(Entry::state);
        let states = states.filter_map(State::tips).flatten();
        let proposals = self.ledger.family(identifier).filter_map(Entry::proposal);
        states.chain(proposals.map(|proposal| proposal.tip)).collect()
    }

    /// The tip of a pull request that is kept here.
    pub fn tip_of(&self, id: &EventId) -> Option<Oid> {
        self.ledger.entry(id)?.proposal().map(|proposal| proposal.tip)
    }

    /// A pull request that is kept here.
    pub fn proposal(&self, id: &EventId) -> Option<&Proposal> {
        self.ledger.entry(id)?.proposal()
    }

    /// Whether an event that waits here asks for the view of a repository.
    pub fn has_view(&self, repo: &RepoId) -> bool {
        self.ledger.announcement(repo).is_some_and(|entry| entry.phase == Phase::Waiting)
    }

    /// Whether an upload that was pushed for an event is accounted for: it waits here, or its event does.
    pub fn keeps_upload(&self, id: &EventId, tip: &Oid) -> bool {
        let staged = self.ledger.staging().of(id);
        staged.is_some_and(|staged| staged.tips.contains_key(tip)) || self.tip_of(id) == Some(*tip)
    }

    /// The passes after which it is clear what becomes of an event for now, each with the identifier that it is about.
    /// None if it is gone from here, or nothing is going on that could release it.
    pub fn passes_for(&self, id: &EventId) -> Vec<(Identifier, Pass)> {
        let names = self.ledger.entry(id).map(Entry::identifiers).unwrap_or_default();
        names.into_iter().filter_map(|name| Some((name.clone(), self.awaited(name)?))).collect()
    }

    /// The pass that sees all that has happened under an identifier so far, if one runs or follows. Once it has ended,
    /// what a push brought is served, if it can be. Whatever happens later does not delay that.
    pub fn awaited(&self, identifier: &Identifier) -> Option<Pass> {
        self.desks.get(identifier)?.awaited()
    }

    /// Whether a pass under an identifier has ended, however it did.
    pub fn has_ended(&self, identifier: &Identifier, pass: Pass) -> bool {
        self.desks.get(identifier).is_none_or(|desk| desk.has_ended(pass))
    }
}

/// For the driver and the hunter.
impl Purgatory {
    /// The identifiers whose stored announcements a survey of one must show: those that its pull requests are
    /// addressed to.
    pub fn scope(&self, identifier: &Identifier) -> BTreeSet<Identifier> {
        let proposals = self.ledger.family(identifier).filter(|entry| entry.proposal().is_some());
        let others = proposals.flat_map(Entry::identifiers);
        let others = others.filter(|name| !self.vacant.contains(*name)).cloned();
        others.chain([identifier.clone()]).collect()
    }

    /// Everything that is kept under an identifier, for the store to say what it would refuse.
    pub fn kept(&self, identifier: &Identifier) -> Vec<Arc<Event>> {
        self.ledger.family(identifier).map(|entry| entry.event.clone()).collect()
    }

    /// The announcement of a repository that waits for git data.
    pub fn held_announcement(&self, repo: &RepoId) -> Option<Arc<Event>> {
        let entry = self.ledger.announcement(repo)?;
        (entry.phase == Phase::Waiting).then(|| entry.event.clone())
    }

    /// Every announcement that waits for git data.
    pub fn held_announcements(&self) -> Vec<Arc<Event>> {
        let waiting =
            |entry: &&Entry| entry.phase == Phase::Waiting && entry.announcement().is_some();
        self.ledger.entries().filter(waiting).map(|entry| entry.event.clone()).collect()
    }

    /// Every upload that waits for its event. Whatever else is in staging at a start was never accounted for.
    pub fn staged(&self) -> BTreeSet<(EventId, Oid)> {
        let staged = self.ledger.staging().iter();
        staged.flat_map(|(id, uploads)| uploads.tips.keys().map(|tip| (*id, *tip))).collect()
    }

    /// For whom some objects are wanted under an identifier, and whether it is a pull request. States come first;
    /// `None` if nothing that is kept wants them.
    pub fn wanted_for(
        &self,
        identifier: &Identifier,
        oids: &BTreeSet<Oid>,
    ) -> Option<(Claimant, bool)> {
        let wants = |entry: &&Entry| match &entry.what {
            What::Announcement(_) => false,
            What::State(state) => state.tips().is_some_and(|t| t.iter().any(|o| oids.contains(o))),
            What::Proposal(proposal) => oids.contains(&proposal.tip),
        };
        let wanting = self.ledger.family(identifier).filter(wants);
        let entry = wanting.min_by_key(|entry| entry.proposal().is_some())?;
        let claimant = Claimant::default().signed_by(entry.author());
        let has_authority = self.room.has_authority(&entry.id());
        let claimant = if has_authority { claimant.with_authority() } else { claimant };
        Some((claimant, entry.proposal().is_some()))
    }

    /// Every identifier with something that wants objects in a phase.
    pub fn wanting(&self, phase: Phase) -> BTreeSet<Identifier> {
        let wanting = |entry: &&Entry| entry.phase == phase && entry.announcement().is_none();
        let entries = self.ledger.entries().filter(wanting);
        entries.flat_map(Entry::identifiers).cloned().collect()
    }

    /// What is wanted under an identifier, and where to look. `stored` are its stored announcements.
    pub fn wants(&self, identifier: &Identifier, stored: &[Announcement]) -> Vec<Want> {
        let kept = self.ledger.family(identifier).filter_map(Entry::announcement);
        let known: Vec<&Announcement> = stored.iter().chain(kept).collect();
        let maintainer_lists = maintainer_lists(known.iter().copied());
        let circles = MaintainerSets::new(self.policy.model, &maintainer_lists);
        let circles: Vec<_> = maintainer_lists.keys().map(|owner| circles.of(owner)).collect();
        let entries = self.ledger.family(identifier);
        entries.filter_map(|entry| self.want(entry, &known, &circles)).collect()
    }

    fn want(
        &self,
        entry: &Entry,
        known: &[&Announcement],
        circles: &[BTreeSet<PublicKey>],
    ) -> Option<Want> {
        let (keepers, tips, untrusted) = match &entry.what {
            What::Announcement(_) => return None,
            What::State(state) => (BTreeSet::from([entry.author()]), state.tips()?, &[][..]),
            What::Proposal(proposal) => {
                let keepers = proposal.repos.iter().map(|repo| repo.owner).collect();
                (keepers, vec![proposal.tip], &proposal.clone[..])
            }
        };
        // Where the keepers, and those they keep repositories with, say that the repository is.
        let shared = circles.iter().filter(|circle| !circle.is_disjoint(&keepers));
        let fellows: BTreeSet<_> = shared.flatten().take(MOST_FELLOWS).collect();
        let own = known.iter().filter(|a| keepers.contains(&a.repo.owner));
        let of_fellows = known.iter().filter(|a| fellows.contains(&a.repo.owner));
        let (service, now) = (&self.policy.service, self.now.unix);
        let trusted = some_places(own.chain(of_fellows).flat_map(|a| &a.clone), service, now);
        let mut untrusted = some_places(untrusted.iter(), service, now);
        untrusted.retain(|url| !trusted.contains(url));
        Some(Want { id: entry.id(), phase: entry.phase, tips, trusted, untrusted })
    }

    /// When the first of what waits under an identifier expires, if anything waits.
    pub fn expires(&self, identifier: &Identifier) -> Option<Timestamp> {
        let waiting = |entry: &&Entry| entry.phase == Phase::Waiting;
        self.ledger.family(identifier).filter(waiting).map(|entry| entry.until).min()
    }

    /// How many of those that wait expire by then.
    pub fn expiring(&self, by: Timestamp) -> usize {
        self.ledger.deadlines(Phase::Waiting).take_while(|(end, _)| *end <= by).count()
    }

    /// How much of what is here.
    pub fn counts(&self) -> Counts {
        let (books, staged) = (self.ledger.books(), self.ledger.staging().usage());
        let mut counts = Counts {
            shelved: books.shelved().count,
            bytes: books.waiting().bytes,
            staged: staged.count,
            staged_bytes: staged.bytes,
            owed: self.ledger.owed().len(),
            ..Counts::default()
        };
        for entry in self.ledger.entries().filter(|entry| entry.phase == Phase::Waiting) {
            *match entry.what {
                What::Announcement(_) => &mut counts.announcements,
                What::State(_) => &mut counts.states,
                What::Proposal(_) => &mut counts.proposals,
            } += 1;
        }
        counts
    }
}
