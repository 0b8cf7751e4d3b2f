//! Limits of one identifier. Anyone may announce a repository under the identifier of another, so its views share them.
//!
//! A view or an author whose part is at most an equal share is never refused. Beyond that, small additions come first, and
//! what is shown or served stays.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::nip34::Proposal;
use grasp_core::{Oid, RefName, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;

use super::{CompleteState, HostedRepo};
use crate::purgatory::io::ProposalRef;
use crate::purgatory::staging::PushTarget;

/// Pull requests of one author in the views of an identifier.
const MAX_PROPOSALS_PER_AUTHOR: usize = 200;

/// Pull requests in a view, but for those of its maintainers: each is a line of every advertisement.
const MAX_PROPOSALS_PER_VIEW: usize = 5_000;

/// The part of a limit that is in use.
struct Room {
    limit: u64,
    used: u64,
    /// Parts of this size are never refused.
    equal_share: u64,
}

impl Room {
    fn new(limit: u64, used: u64, parts: usize) -> Self {
        let parts = u64::try_from(parts).unwrap_or(u64::MAX);
        Self { limit, used, equal_share: limit.checked_div(parts).unwrap_or(limit) }
    }

    /// Returns whether a part may grow from one size to another, and counts that.
    fn grow(&mut self, before: u64, after: u64) -> bool {
        let growth = after.saturating_sub(before);
        let fits = growth == 0
            || after <= self.equal_share
            || self.used.saturating_add(growth) <= self.limit;
        if fits {
            self.used = self.used.saturating_add(growth);
        }
        fits
    }
}

/// Returns the held states that do not fit beside the stored ones.
pub(super) fn oversized_states(limit: u64, complete: &[CompleteState<'_>]) -> BTreeSet<EventId> {
    let author = |signed: &CompleteState<'_>| signed.state.repo.owner;
    let authors: BTreeSet<PublicKey> = complete.iter().map(author).collect();
    let is_stored = |signed: &&CompleteState<'_>| signed.presence == Presence::Stored;
    let stored = complete.iter().filter(is_stored);
    let mut sizes: BTreeMap<PublicKey, u64> =
        stored.map(|signed| (author(signed), signed.bytes)).collect();
    let mut room = Room::new(limit, sizes.values().sum(), authors.len());
    let mut held: Vec<_> = complete.iter().filter(|signed| !is_stored(signed)).collect();
    held.sort_by_key(|signed| (signed.bytes, signed.state.version));
    let mut oversized = BTreeSet::new();
    for signed in held {
        let size = sizes.entry(author(signed)).or_default();
        match room.grow(*size, signed.bytes) {
            true => *size = signed.bytes.max(*size),
            false => _ = oversized.insert(signed.state.version.id),
        }
    }
    oversized
}

/// Returns the views that would show more branches and tags than there is room for.
pub(super) fn oversized_views(
    limit: usize,
    winners: &BTreeMap<RepoId, CompleteState<'_>>,
    views: &BTreeMap<RepoId, BTreeMap<RefName, Oid>>,
) -> BTreeSet<RepoId> {
    let count = |refs: &BTreeMap<RefName, Oid>| {
        refs.keys().filter(|name| name.is_branch_or_tag()).count() as u64
    };
    let shown: BTreeMap<&RepoId, u64> = views.iter().map(|(id, refs)| (id, count(refs))).collect();
    let wanted = winners.iter().map(|(id, signed)| {
        let (before, after) = (shown.get(id).copied().unwrap_or(0), signed.state.refs.len() as u64);
        (after.saturating_sub(before), id, before, after)
    });
    let mut wanted: Vec<_> = wanted.collect();
    wanted.sort();
    let mut room = Room::new(limit as u64, shown.values().sum(), winners.len());
    let beyond = wanted.into_iter().filter(|(_, _, before, after)| !room.grow(*before, *after));
    beyond.map(|(_, id, ..)| id.clone()).collect()
}

/// The refs of pull requests in the views of an identifier.
pub(super) struct ProposalRoom<'a> {
    repos: &'a BTreeMap<RepoId, HostedRepo>,
    /// The number of refs by view.
    views: BTreeMap<&'a RepoId, u64>,
    room: Room,
    by_author: BTreeMap<PublicKey, BTreeSet<EventId>>,
}

impl<'a> ProposalRoom<'a> {
    pub(super) fn new(
        limit: usize,
        repos: &'a BTreeMap<RepoId, HostedRepo>,
        views: &'a BTreeMap<RepoId, BTreeMap<RefName, Oid>>,
        stored: &[Proposal],
    ) -> Self {
        let count = |refs: &BTreeMap<RefName, Oid>| {
            refs.keys().filter(|name| name.event().is_some()).count() as u64
        };
        let views: BTreeMap<_, _> = views.iter().map(|(id, refs)| (id, count(refs))).collect();
        let room = Room::new(limit as u64, views.values().sum(), repos.len());
        let mut by_author: BTreeMap<PublicKey, BTreeSet<EventId>> = BTreeMap::new();
        for proposal in stored {
            by_author.entry(proposal.author).or_default().insert(proposal.id);
        }
        Self { repos, views, room, by_author }
    }

    /// Returns a pull request without the views that have no room for it; `None` if it has no place left. Views of other
    /// identifiers are limited in their own surveys.
    pub(super) fn limited(&mut self, mut proposal: ProposalRef) -> Option<ProposalRef> {
        let of_author = self.by_author.entry(proposal.author).or_default();
        let is_author_limited =
            !of_author.contains(&proposal.id) && of_author.len() >= MAX_PROPOSALS_PER_AUTHOR;
        let (author, repos, views, room) =
            (proposal.author, self.repos, &mut self.views, &mut self.room);
        proposal.repos.retain(|repo| {
            let Some((id, hosted)) = repos.get_key_value(repo) else { return !is_author_limited };
            let is_maintainer = hosted.maintainers.contains(&author);
            let count = views.entry(id).or_default();
            let has_room =
                is_maintainer || (!is_author_limited && *count < MAX_PROPOSALS_PER_VIEW as u64);
            let fits = has_room && room.grow(*count, *count + 1);
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
