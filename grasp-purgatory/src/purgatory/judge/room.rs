//! Limits of one identifier. Anyone may announce a repository under the identifier of another, so its views share them.
//!
//! Small additions come first. The oldest views and their maintainers have a reserve as large as the limit, and each of
//! these views its part of the limit in any case, so that newcomers cannot use up the room of an established repository.
//! Others have another reserve, for parts that are not larger than an equal share of the limit.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::nip34::Proposal;
use grasp_core::{Oid, RefName, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;

use super::{CompleteState, HostedRepo};
use crate::purgatory::io::{MAX_OLDEST, ProposalRef, Survey};
use crate::purgatory::staging::PushTarget;

/// Pull requests of one author in the views of an identifier.
const MAX_PROPOSALS_PER_AUTHOR: usize = 200;

/// Pull requests in a view, but for those of its maintainers: each is a line of every advertisement.
const MAX_PROPOSALS_PER_VIEW: usize = 5_000;

/// The use of a limit, of which each holder has a part.
struct Room {
    limit: u64,
    used: u64,
    /// The use by established holders.
    used_by_established: u64,
    /// The limit, divided by the number of holders.
    equal_share: u64,
}

/// The standing of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Newcomer,
    /// A maintainer of one of the oldest views.
    Established,
    /// One of the oldest views, or its owner.
    Oldest,
}

impl Room {
    /// Counts the present parts, each with the standing of its holder, for this number of holders.
    fn new(limit: u64, parts: impl Iterator<Item = (u64, Standing)>, holders: usize) -> Self {
        let holders = u64::try_from(holders).unwrap_or(u64::MAX);
        let equal_share = limit.checked_div(holders).unwrap_or(limit);
        let mut room = Self { limit, used: 0, used_by_established: 0, equal_share };
        parts.for_each(|(size, standing)| room.add(size, standing));
        room
    }

    fn add(&mut self, growth: u64, standing: Standing) {
        self.used = self.used.saturating_add(growth);
        if standing != Standing::Newcomer {
            self.used_by_established = self.used_by_established.saturating_add(growth);
        }
    }

    fn remove(&mut self, size: u64, standing: Standing) {
        self.used = self.used.saturating_sub(size);
        if standing != Standing::Newcomer {
            self.used_by_established = self.used_by_established.saturating_sub(size);
        }
    }

    /// Returns whether a part may grow from one size to another, and counts that.
    fn grow(&mut self, before: u64, after: u64, standing: Standing) -> bool {
        let growth = after.saturating_sub(before);
        let has_room = |used: u64, limit: u64| used.saturating_add(growth) <= limit;
        let used_by_others = self.used.saturating_sub(self.used_by_established);
        let has_reserve = match standing {
            Standing::Newcomer => {
                after <= self.equal_share && has_room(used_by_others, self.limit.saturating_mul(2))
            }
            Standing::Established => has_room(self.used_by_established, self.limit),
            Standing::Oldest => {
                has_room(self.used_by_established, self.limit)
                    || after <= self.limit / MAX_OLDEST as u64
            }
        };
        let fits = growth == 0 || has_room(self.used, self.limit) || has_reserve;
        if fits {
            self.add(growth, standing);
        }
        fits
    }
}

/// Returns the held states that do not fit beside the stored ones.
pub(super) fn oversized_states(
    limit: u64,
    complete: &[CompleteState<'_>],
    repos: &BTreeMap<RepoId, HostedRepo>,
    oldest: &BTreeSet<RepoId>,
) -> BTreeSet<EventId> {
    let owners: BTreeSet<PublicKey> = oldest.iter().map(|repo| repo.owner).collect();
    let established = oldest.iter().filter_map(|repo| repos.get(repo));
    let established: BTreeSet<&PublicKey> =
        established.flat_map(|repo| &repo.maintainers).collect();
    let standing = |author: &PublicKey| match (owners.contains(author), established.get(author)) {
        (true, _) => Standing::Oldest,
        (false, Some(_)) => Standing::Established,
        (false, None) => Standing::Newcomer,
    };
    let author = |signed: &CompleteState<'_>| signed.state.repo.owner;
    let authors: BTreeSet<PublicKey> = complete.iter().map(author).collect();
    let is_stored = |signed: &&CompleteState<'_>| signed.presence == Presence::Stored;
    let stored = complete.iter().filter(is_stored);
    let mut sizes: BTreeMap<PublicKey, u64> =
        stored.map(|signed| (author(signed), signed.bytes)).collect();
    let parts = sizes.iter().map(|(author, size)| (*size, standing(author)));
    let mut room = Room::new(limit, parts, authors.len());
    let mut held: Vec<_> = complete.iter().filter(|signed| !is_stored(signed)).collect();
    held.sort_by_key(|signed| (signed.bytes, signed.state.version));
    let mut oversized = BTreeSet::new();
    for signed in held {
        let size = sizes.entry(author(signed)).or_default();
        match room.grow(*size, signed.bytes, standing(&author(signed))) {
            true => *size = signed.bytes.max(*size),
            false => _ = oversized.insert(signed.state.version.id),
        }
    }
    oversized
}

/// Returns the views that would show more branches and tags than there is room for.
///
/// A view that shows a state of its own owner is not counted: the size of states is limited. One that shows a state of
/// another author costs its owner nothing. Views of maintainers come first.
pub(super) fn oversized_views(
    limit: usize,
    winners: &BTreeMap<RepoId, CompleteState<'_>>,
    repos: &BTreeMap<RepoId, HostedRepo>,
    survey: &Survey,
) -> BTreeSet<RepoId> {
    let count = |id: &RepoId| {
        let refs = survey.views.get(id).into_iter().flat_map(BTreeMap::keys);
        refs.filter(|name| name.is_branch_or_tag()).count() as u64
    };
    let others = winners.iter().filter(|(id, signed)| signed.state.repo.owner != id.owner);
    let wanted = others.map(|(id, signed)| {
        let is_maintainer = repos.get(id).is_some_and(|repo| repo.maintainers.contains(&id.owner));
        let (before, after) = (count(id), signed.state.refs.len() as u64);
        (!is_maintainer, after.saturating_sub(before), id, before, after)
    });
    let mut wanted: Vec<_> = wanted.collect();
    wanted.sort();
    let standing = |id: &RepoId| standing(&survey.oldest, id);
    // What a view will no longer show is room for others.
    let kept = |before: &u64, after: &u64| *before.min(after);
    let parts = wanted.iter().map(|(_, _, id, before, after)| (kept(before, after), standing(id)));
    let mut room = Room::new(limit as u64, parts, wanted.len());
    let mut beyond = BTreeSet::new();
    for (_, _, id, before, after) in wanted {
        if !room.grow(before, after, standing(id)) {
            room.remove(before, standing(id));
            beyond.insert(id.clone());
        }
    }
    beyond
}

/// Returns the standing of a view.
fn standing(oldest: &BTreeSet<RepoId>, view: &RepoId) -> Standing {
    if oldest.contains(view) { Standing::Oldest } else { Standing::Newcomer }
}

/// The refs of pull requests in the views of an identifier.
pub(super) struct ProposalRoom<'a> {
    repos: &'a BTreeMap<RepoId, HostedRepo>,
    oldest: &'a BTreeSet<RepoId>,
    /// The number of refs by view.
    views: BTreeMap<&'a RepoId, u64>,
    room: Room,
    by_author: BTreeMap<PublicKey, BTreeSet<EventId>>,
}

impl<'a> ProposalRoom<'a> {
    pub(super) fn new(
        limit: usize,
        repos: &'a BTreeMap<RepoId, HostedRepo>,
        survey: &'a Survey,
        stored: &[Proposal],
    ) -> Self {
        let count = |refs: &BTreeMap<RefName, Oid>| {
            refs.keys().filter(|name| name.event().is_some()).count() as u64
        };
        let (views, oldest) = (survey.views.iter(), &survey.oldest);
        let views: BTreeMap<_, _> = views.map(|(id, refs)| (id, count(refs))).collect();
        let parts = views.iter().map(|(id, size)| (*size, standing(oldest, id)));
        let room = Room::new(limit as u64, parts, repos.len());
        let mut by_author: BTreeMap<PublicKey, BTreeSet<EventId>> = BTreeMap::new();
        for proposal in stored {
            by_author.entry(proposal.author).or_default().insert(proposal.id);
        }
        Self { repos, oldest, views, room, by_author }
    }

    /// Returns a pull request without the views that have no room for it; `None` if it has no place left. Views of other
    /// identifiers are not among those of the survey; [`FamilyRow::has_room_for_proposals`] limits these.
    ///
    /// [`FamilyRow::has_room_for_proposals`]: crate::database::FamilyRow::has_room_for_proposals
    pub(super) fn limited(&mut self, mut proposal: ProposalRef) -> Option<ProposalRef> {
        let of_author = self.by_author.entry(proposal.author).or_default();
        let is_author_limited =
            !of_author.contains(&proposal.id) && of_author.len() >= MAX_PROPOSALS_PER_AUTHOR;
        let (author, repos, oldest) = (proposal.author, self.repos, self.oldest);
        let (views, room) = (&mut self.views, &mut self.room);
        proposal.repos.retain(|repo| {
            let Some((id, hosted)) = repos.get_key_value(repo) else { return !is_author_limited };
            let is_maintainer = hosted.maintainers.contains(&author);
            let count = views.entry(id).or_default();
            let has_room =
                is_maintainer || (!is_author_limited && *count < MAX_PROPOSALS_PER_VIEW as u64);
            let fits = has_room && room.grow(*count, *count + 1, standing(oldest, repo));
            *count += u64::from(fits);
            fits
        });
        let is_contributors = |target: &PushTarget| matches!(target, PushTarget::Contributor(_));
        let is_contributed = !is_author_limited && proposal.staged.iter().any(is_contributors);
        if proposal.repos.is_empty() && !is_contributed {
            return None;
        }
        of_author.insert(proposal.id);
        Some(proposal)
    }
}
