//! Pull requests: served once their tip is in a view that they are addressed to, and from there in all of them.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::nip34::Proposal;
use grasp_core::{Identifier, Oid, RefName, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;

use super::Scene;
use crate::purgatory::entry::{Entry, MOST_IDENTIFIERS};
use crate::purgatory::family::Family;
use crate::purgatory::output::ProposalRef;
use crate::purgatory::staging::PushTarget;

/// Pull requests that one author may have in a view.
const MAX_PER_AUTHOR: usize = 200;

/// Pull requests that a view may show: each is a line of every advertisement.
const MAX_SHOWN: usize = 5_000;

/// How many more pull requests the views of a name may show. Those of its maintainers are not bounded.
struct Room<'a> {
    /// What is stored already, by author.
    authors: BTreeMap<PublicKey, BTreeSet<EventId>>,
    /// What the fullest view shows.
    shown: usize,
    family: Option<&'a Family>,
}

impl Room<'_> {
    fn admit(&mut self, proposal: &ProposalRef) -> bool {
        if self.family.is_some_and(|family| family.is_ruled_by(&proposal.author)) {
            return true;
        }
        let of_author = self.authors.entry(proposal.author).or_default();
        let is_counted = of_author.contains(&proposal.id);
        let fits = (is_counted || of_author.len() < MAX_PER_AUTHOR) && self.shown < MAX_SHOWN;
        if fits {
            of_author.insert(proposal.id);
            self.shown += 1;
        }
        fits
    }
}

impl Scene<'_> {
    /// Refs to be set: for those that can be released, and for stored ones where a view lacks them.
    pub(super) fn proposals(&self) -> Vec<ProposalRef> {
        let kept = self.ledger.family(self.identifier).filter_map(|entry| self.release(entry));
        let spread = self.stored.proposals.iter().filter_map(|proposal| self.spread(proposal));
        let mut room = self.room();
        kept.chain(spread).filter(|proposal| room.admit(proposal)).collect()
    }

    fn room(&self) -> Room<'_> {
        let mut authors: BTreeMap<PublicKey, BTreeSet<EventId>> = BTreeMap::new();
        for proposal in &self.stored.proposals {
            authors.entry(proposal.author).or_default().insert(proposal.id);
        }
        let shown = |refs: &BTreeMap<RefName, Oid>| refs.keys().filter_map(RefName::event).count();
        let shown = self.survey.views.values().map(shown).max().unwrap_or(0);
        Room { authors, shown, family: self.family() }
    }

    fn release(&self, entry: &Entry) -> Option<ProposalRef> {
        let proposal = entry.proposal()?;
        let (id, tip) = (proposal.id, proposal.tip);
        let staged = self.staged(proposal);
        let here = !staged.is_empty() || self.survey.complete.contains(&id);
        if !here || self.settles(entry).is_some() {
            return None;
        }
        let repos = self.served_and_addressed(proposal);
        // At a contributor's place is only what was brought there.
        let has_place = !repos.is_empty()
            || staged.iter().any(|came| matches!(came, PushTarget::Contributor(_)));
        let families = entry.identifiers().into_iter().cloned().collect();
        let author = proposal.author;
        has_place.then_some(ProposalRef { id, author, tip, repos, families, staged })
    }

    /// Where the tip waits in staging, by every way that is right for its author.
    fn staged(&self, proposal: &Proposal) -> Vec<PushTarget> {
        let placeholder = self.ledger.staging().of(&proposal.id).into_iter();
        placeholder.flat_map(|uploads| uploads.came_by(self.policy, proposal)).cloned().collect()
    }

    /// A stored pull request goes to every view that has become relevant since.
    fn spread(&self, proposal: &Proposal) -> Option<ProposalRef> {
        let (id, tip) = (proposal.id, proposal.tip);
        let mut repos = self.served_and_addressed(proposal);
        repos.retain(|repo| {
            let view = self.survey.views.get(repo);
            repo.identifier == *self.identifier
                && view.is_none_or(|refs| tip_of(refs, id) != Some(tip))
        });
        let (author, families, staged) = (proposal.author, self.families_of(proposal), Vec::new());
        (!repos.is_empty()).then_some(ProposalRef { id, author, tip, repos, families, staged })
    }

    /// Where the objects of a pull request may be: here, and in a bounded number of other families.
    fn families_of(&self, proposal: &Proposal) -> BTreeSet<Identifier> {
        let named = proposal.repos.iter().map(|repo| &repo.identifier).take(MOST_IDENTIFIERS);
        named.chain([self.identifier]).cloned().collect()
    }

    /// The repositories that a pull request is addressed to and that are served, or will be with this plan.
    fn served_and_addressed(&self, proposal: &Proposal) -> BTreeSet<RepoId> {
        let families = self.families.iter();
        let addressed = families.flat_map(|(name, family)| family.addressed_by(name, proposal));
        addressed
            .filter(|(repo, place)| match repo.identifier == *self.identifier {
                true => self.winners.contains_key(repo),
                false => place.presence == Presence::Stored,
            })
            .map(|(repo, _)| repo.clone())
            .collect()
    }
}

/// Where a view has the tip of a pull request.
fn tip_of(refs: &BTreeMap<RefName, Oid>, id: EventId) -> Option<Oid> {
    let (_, tip) = refs.iter().find(|(name, _)| name.event() == Some(id))?;
    Some(*tip)
}
