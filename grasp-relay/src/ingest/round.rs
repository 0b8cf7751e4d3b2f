//! One round of a batch: facts, verdicts, one transaction, and the news.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use grasp_core::admission::{Acceptance, Hold, Known, Needs, Origin, Rejection, Verdict, judge};
use grasp_core::deletion::coordinate;
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, Verified, Version};
use nostr::event::Event;
use nostr::types::Timestamp;

use super::git_side::Kept;
use super::{Pipeline, lookup};
use crate::store::{Commit, Refusal, Saved, StoreError};

/// Events that are handed over to wait at the same time.
const HOLDS_AT_ONCE: usize = 16;

/// An event of a batch that has no final verdict yet.
#[derive(Clone)]
pub(super) struct Pending {
    /// Where its verdict goes.
    pub(super) position: usize,
    pub(super) event: Verified<Arc<Event>>,
}

/// Splits off what can be judged together: at most one announcement or state per repository name, for each may
/// change what the next one is judged by.
pub(super) fn next_round(pending: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let mut names: BTreeSet<Identifier> = BTreeSet::new();
    pending.into_iter().partition(|pending| match Needs::of(&pending.event).identifier {
        Some(identifier) => names.insert(identifier),
        None => true,
    })
}

impl Pipeline {
    /// Judges a round and keeps what is to be kept; one verdict per event, in order.
    pub(super) async fn judge_and_keep(&self, round: &[Pending], origin: &Origin) -> Vec<Verdict> {
        // Every round looks everything up again, so every round is paid for.
        let mut paid = Vec::with_capacity(round.len());
        for pending in round {
            paid.push(self.pay_lookups(&pending.event, origin).await);
        }
        let round: Vec<Pending> = round
            .iter()
            .zip(&paid)
            .filter(|(_, paid)| **paid)
            .map(|(event, _)| event.clone())
            .collect();
        let mut judged = match self.try_round(&round, origin).await {
            Ok(verdicts) => verdicts.into_iter(),
            Err(error) => {
                tracing::error!(%error, cause = ?error.source(), "events could not be taken in");
                Vec::new().into_iter()
            }
        };
        let verdict = |paid: bool| match paid {
            true => judged.next().unwrap_or(Verdict::Reject(Rejection::Internal)),
            false => Verdict::Reject(Rejection::Busy),
        };
        paid.into_iter().map(verdict).collect()
    }

    async fn try_round(
        &self,
        round: &[Pending],
        origin: &Origin,
    ) -> Result<Vec<Verdict>, StoreError> {
        let now = self.clock.now().unix;
        let has_authority = round.iter().any(|one| self.is_known_authority(&one.event.pubkey));
        let Ok(turn) = self.budgets.turn(origin, has_authority).await else {
            return Ok(vec![Verdict::Reject(Rejection::Busy); round.len()]);
        };
        let facts = lookup::facts(&*self.store, &*self.git, round, now).await?;
        drop(turn);
        let read = facts.iter().map(|facts| facts.announcement_bytes).sum();
        self.budgets.charge_reading(self.clock.now().mono, read, origin);
        let mut judged = Vec::with_capacity(round.len());
        for (pending, facts) in round.iter().zip(&facts) {
            let verdict = judge(&self.policy, now, origin, pending.event.as_ref(), facts);
            judged
                .push((pending, self.within_bounds(&pending.event, facts, origin, verdict).await?));
        }
        // None of a round changes what another is judged by, so they may be handed over side by side.
        let kept = judged.into_iter().map(|(pending, verdict)| async move {
            match verdict {
                Verdict::Hold(hold) => self.hold(pending, hold, origin, now).await,
                other => Ok(other),
            }
        });
        let kept: Vec<_> = kept.collect();
        let kept = stream::iter(kept).buffered(HOLDS_AT_ONCE);
        let mut verdicts: Vec<Verdict> = kept.try_collect().await?;
        let affected = self.save(round, &mut verdicts, now).await?;
        self.take_out_of_service(round, &verdicts, now).await?;
        self.tell(round, &verdicts).await;
        self.git.affected(affected).await;
        self.note_authorities(round, &verdicts).await;
        Ok(verdicts)
    }

    /// Hands over what must wait; what need not wait after all is to be stored.
    async fn hold(
        &self,
        pending: &Pending,
        hold: Hold,
        origin: &Origin,
        now: Timestamp,
    ) -> Result<Verdict, StoreError> {
        let event = Arc::clone(&pending.event);
        if let Some(refusal) = self.store.refusal(Arc::clone(&event), now).await? {
            return Ok(Verdict::Reject(refusal.into()));
        }
        Ok(match self.git.hold(event, hold.clone(), origin.clone()).await? {
            Kept::Held => Verdict::Hold(hold),
            Kept::Superseded => Verdict::Known(Known::Superseded),
            Kept::Full => Verdict::Reject(Rejection::Quota),
            Kept::Servable => Verdict::Accept(Acceptance::Promoted),
            Kept::Released => Verdict::Accept(Acceptance::Released),
        })
    }

    /// Stores everything that is to be served, in one transaction, and corrects verdicts by what the store says.
    /// Returns the names of repositories of which that took events out of service.
    async fn save(
        &self,
        round: &[Pending],
        verdicts: &mut [Verdict],
        now: Timestamp,
    ) -> Result<BTreeSet<Identifier>, StoreError> {
        let mut chosen: Vec<(&Pending, &mut Verdict)> =
            round.iter().zip(verdicts).filter(|(_, verdict)| is_stored(verdict)).collect();
        if chosen.is_empty() {
            return Ok(BTreeSet::new());
        }
        let events = chosen.iter().map(|(pending, _)| Arc::clone(&pending.event)).collect();
        let Commit { saved, affected } = self.store.commit(events, now).await?;
        for ((_, verdict), saved) in chosen.iter_mut().zip(saved) {
            match saved {
                Saved::Stored => {}
                Saved::Duplicate => **verdict = Verdict::Known(Known::Stored),
                Saved::Superseded => **verdict = Verdict::Known(Known::Superseded),
                Saved::Refused(refusal) => **verdict = Verdict::Reject(refusal.into()),
            }
        }
        Ok(affected)
    }

    /// Takes repositories out of service whose owner took us off the list. Anybody can send an older announcement
    /// again: it must not bring the repository back, nor the maintainers that it named.
    async fn take_out_of_service(
        &self,
        round: &[Pending],
        verdicts: &[Verdict],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let delisting = |verdict: &Verdict| matches!(verdict, Verdict::Delist { .. });
        for (pending, verdict) in round.iter().zip(verdicts) {
            if let Some(at) = coordinate(&pending.event).filter(|_| delisting(verdict)) {
                self.store.delist(at, Version::of(&pending.event), now).await?;
            }
        }
        // Told after it is so: whoever looks, looks at once.
        for (pending, verdict) in round.iter().zip(verdicts) {
            if delisting(verdict) {
                self.delist(&pending.event).await;
            }
        }
        Ok(())
    }

    async fn delist(&self, event: &Event) {
        if let Ok(announcement) = Announcement::parse(event) {
            self.git.delisted(announcement.repo, announcement.version).await;
        }
    }

    /// Tells whoever listens, once everything is durable.
    async fn tell(&self, round: &[Pending], verdicts: &[Verdict]) {
        for (pending, verdict) in round.iter().zip(verdicts) {
            if is_stored(verdict) {
                self.git.stored(Arc::clone(&pending.event)).await;
            }
            if is_stored(verdict) || *verdict == Verdict::Broadcast {
                self.hub.publish(Arc::clone(&pending.event)).await;
            }
        }
    }
}

/// Whether a verdict means that the event is ours to store and to tell.
fn is_stored(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Accept(acceptance) => *acceptance != Acceptance::Released,
        Verdict::Delist { keep } => *keep,
        _ => false,
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Deleted => Self::Deleted,
            Refusal::Vanished => Self::Vanished,
            Refusal::Expired => Self::Expired,
            Refusal::ForeignDeletion => Self::ForeignDeletion,
            Refusal::TooManyTargets => Self::TooManyTargets,
            Refusal::Ephemeral => Self::NeverStored,
        }
    }
}
