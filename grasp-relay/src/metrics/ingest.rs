//! Counts what comes in and what becomes of it.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use grasp_core::Verified;
use grasp_core::admission::{Hold, Known, Origin, Rejection, SyncPath, Verdict};
use nostr::event::Event;

use super::Metrics;
use super::table::{EVENTS, INGEST, REJECTIONS};
use crate::ingest::Ingest;

/// An [`Ingest`] whose verdicts are counted.
pub struct Counted<I> {
    inner: I,
    metrics: Metrics,
}

impl<I> Counted<I> {
    /// Counts what this one decides.
    pub fn new(inner: I, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }

    fn note(&self, source: &str, verdicts: &[Verdict]) {
        for verdict in verdicts {
            self.metrics.add(&EVENTS, &[source, outcome(verdict)], 1);
            if let Verdict::Reject(why) = verdict {
                self.metrics.add(&REJECTIONS, &[reason(why)], 1);
            }
        }
    }
}

impl<I: Ingest> Ingest for Counted<I> {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            let (source, began) = (source(&origin), Instant::now());
            let verdicts = self.inner.ingest_verified(events, origin).await;
            self.metrics.took(&INGEST, &[], began.elapsed());
            self.note(source, &verdicts);
            verdicts
        })
    }

    /// Not by way of the above, which is not shown what is forged.
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            let (source, began) = (source(&origin), Instant::now());
            let verdicts = self.inner.ingest(events, origin).await;
            self.metrics.took(&INGEST, &[], began.elapsed());
            self.note(source, &verdicts);
            verdicts
        })
    }
}

/// Where events came from, as a label.
fn source(origin: &Origin) -> &'static str {
    match origin {
        Origin::Client { .. } => "client",
        Origin::Sync { path: SyncPath::Live, .. } => "live",
        Origin::Sync { path: SyncPath::CatchUp, .. } => "catch_up",
        Origin::Sync { path: SyncPath::Daily, .. } => "daily",
    }
}

fn outcome(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Accept(_) => "stored",
        Verdict::Hold(Hold::Announcement | Hold::State(_) | Hold::Proposal) => "held",
        Verdict::Broadcast => "broadcast",
        Verdict::Known(Known::Superseded) => "superseded",
        Verdict::Known(_) => "known",
        Verdict::Delist { .. } => "delisted",
        Verdict::Reject(_) => "rejected",
    }
}

fn reason(why: &Rejection) -> &'static str {
    match why {
        Rejection::Forged => "forged",
        Rejection::Malformed(_) => "malformed",
        Rejection::Expired => "expired",
        Rejection::TooFarAhead => "too_far_ahead",
        Rejection::Protected => "protected",
        Rejection::ProtectedRepost => "protected_repost",
        Rejection::Deleted => "deleted",
        Rejection::Vanished => "vanished",
        Rejection::Banned => "banned",
        Rejection::NotListed { .. } => "not_listed",
        Rejection::NoAnnouncement => "no_announcement",
        Rejection::NotMaintainer(_) => "not_maintainer",
        Rejection::Unrelated => "unrelated",
        Rejection::UnknownAuthor => "unknown_author",
        Rejection::NeverStored => "never_stored",
        Rejection::ForeignDeletion => "foreign_deletion",
        Rejection::TooManyTargets => "too_many_targets",
        Rejection::Quota => "quota",
        Rejection::Crowded => "crowded",
        Rejection::Busy => "busy",
        Rejection::Internal => "internal",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Always(Verdict);

    impl Ingest for Always {
        fn ingest_verified(
            &self,
            events: Vec<Verified<Arc<Event>>>,
            _: Origin,
        ) -> BoxFuture<'_, Vec<Verdict>> {
            Box::pin(async move { vec![self.0.clone(); events.len()] })
        }
    }

    fn note(text: &str) -> Verified<Arc<Event>> {
        use nostr::event::{EventBuilder, FinalizeEvent, Kind};
        let keys = nostr::key::Keys::generate();
        let event = EventBuilder::new(Kind::from_u16(1), text).finalize(&keys).unwrap();
        Verified::check(event).unwrap().share()
    }

    #[tokio::test]
    async fn each_verdict_is_counted_where_it_came_from() {
        let metrics = Metrics::default();
        let ingest = Counted::new(Always(Verdict::Reject(Rejection::Banned)), metrics.clone());
        let _ = ingest.ingest_verified(vec![note("a"), note("b")], Origin::anonymous()).await;
        let relay = "wss://relay.example.com".parse().unwrap();
        let origin = Origin::Sync { relay, path: SyncPath::Daily };
        let _ = ingest.ingest_verified(vec![note("c")], origin).await;
        assert_eq!(metrics.value(&EVENTS, &["client", "rejected"]), Some(2.0));
        assert_eq!(metrics.value(&EVENTS, &["daily", "rejected"]), Some(1.0));
        assert_eq!(metrics.value(&REJECTIONS, &["banned"]), Some(3.0));
    }
}
