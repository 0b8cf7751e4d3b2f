//! Doing what the session says.

use std::sync::Arc;

use futures_util::stream::{self, AbortHandle, StreamExt as _};
use grasp_core::Now;
use grasp_core::resources::Claimant;
use grasp_purgatory::resources::Holding;
use nostr::event::Event;

use super::super::codec::{Asked, SubId, event_prefix};
use super::super::completeness::Completeness;
use super::super::hub::Published;
use super::super::query;
use super::super::reads::ReadFailure;
use super::{
    Connection, Delivery, Done, Ending, Input, Live, Output, Page, Stop, Subscription, Token,
};
use crate::ingest::Answer;

impl Connection {
    /// Tells the session what happened and does what it says.
    pub(super) async fn tell(&mut self, now: Now, input: Input<'_>) -> Result<(), Stop> {
        self.orders.extend(self.session.handle(now, input));
        while let Some(order) = self.orders.pop_front() {
            self.perform(now, order).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, now: Now, order: Output) -> Result<(), Stop> {
        match order {
            Output::Send(reply) => self.writer.text(reply.to_json()).await?,
            Output::Ping => self.writer.ping().await?,
            Output::Ingest(event) => self.ingest(now, *event),
            Output::Subscribe { token, id, asked } => {
                self.subscribe(now, token, &id, asked).await?
            }
            Output::Unsubscribe(token) => self.unsubscribe(token).await,
            Output::Count { token, asked } => self.count(now, token, asked),
            Output::OpenNeg { token, filter, message } => {
                let (store, workshop) = (self.shared.store.clone(), self.shared.workshop.clone());
                let open = workshop.open(self.network, store, *filter, now.unix, message);
                self.jobs.push(Box::pin(async move { Done::NegOpened(token, open.await) }));
            }
            Output::AnswerNeg { token, message } => self.answer_neg(token, message),
            Output::DropNeg(token) => {
                self.snapshots.remove(&token);
            }
            Output::Hangup(hangup) => return Err(Stop::Hangup(hangup)),
        }
        Ok(())
    }

    /// Takes an event in, unless others at the same address have sent too many already.
    fn ingest(&mut self, now: Now, event: Event) {
        let claimant = Claimant::at(self.network);
        let taken = match self.shared.shares.take(self.network, now.mono) {
            true => self.intake.push(event, &self.shared.intake_room, &claimant),
            false => Err(event.id),
        };
        if let Err(id) = taken {
            let message = "rate-limited: too many events from this address".into();
            let answer = Answer { accepted: false, message };
            self.orders.extend(self.session.handle(now, Input::Judged(id, answer)));
        }
    }

    /// Listens first and reads history then, so that nothing falls between the two.
    async fn subscribe(
        &mut self,
        now: Now,
        token: Token,
        id: &SubId,
        asked: Asked,
    ) -> Result<(), Stop> {
        let Some(room) = self.room(now, token, asked.weight()) else {
            return Ok(());
        };
        let limits = &self.shared.rules.limits;
        let mut wanted = query::history(&asked.filters, limits);
        let answer = Completeness::begin(&asked.filters, &mut wanted);
        let delivery = Delivery::new(event_prefix(id), limits);
        let (history, registration) = AbortHandle::new_pair();
        self.subscriptions.insert(token, Subscription { delivery, answer, history, _room: room });
        self.listener.subscribe(token.0, asked.filters.into()).await;
        if wanted.is_empty() {
            return self.catch_up(now, token).await;
        }
        let pages = self.reads.paged(self.shared.store.query(wanted, now.unix));
        let pages = pages.map(move |chunk| match chunk {
            Ok(events) => Page::Events(token, events),
            Err(ReadFailure::Busy) => Page::Busy(token),
            Err(ReadFailure::Store(error)) => Page::Failed(token, error),
        });
        let pages = pages.chain(stream::iter([Page::End(token)]));
        self.histories.push(stream::Abortable::new(pages, registration).boxed());
        Ok(())
    }

    fn count(&mut self, now: Now, token: Token, asked: Asked) {
        let Some(room) = self.room(now, token, asked.weight()) else {
            return;
        };
        let (store, reads, unix) = (self.shared.store.clone(), self.reads.clone(), now.unix);
        self.jobs.push(Box::pin(async move {
            let _room = room;
            let Some(_turn) = reads.turn().await else {
                return Done::Counted(token, Err(ReadFailure::Busy));
            };
            let counted = store.count(asked.filters, unix).await;
            Done::Counted(token, counted.map_err(ReadFailure::Store))
        }));
    }

    /// Room for filters among those of all connections; without it the session is told so.
    fn room(&mut self, now: Now, token: Token, bytes: usize) -> Option<Holding> {
        let claimant = Claimant::at(self.network);
        let room = self.shared.filter_room.try_take(&claimant, bytes as u64).ok();
        if room.is_none() {
            self.orders.extend(self.session.handle(now, Input::Ended(token, Ending::NoRoom)));
        }
        room
    }

    async fn unsubscribe(&mut self, token: Token) {
        if self.subscriptions.remove(&token).is_some() {
            self.listener.unsubscribe(token.0).await;
        }
    }

    /// Ends a history: EOSE, then whatever was published while it was read.
    pub(super) async fn catch_up(&mut self, now: Now, token: Token) -> Result<(), Stop> {
        let Some(subscription) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        let early = subscription.delivery.caught_up(now.mono, &self.shared.rules.limits);
        let hint = subscription.answer.hint();
        for output in self.session.handle(now, Input::CaughtUp(token, hint)) {
            if let Output::Send(reply) = output {
                self.writer.text(reply.to_json()).await?;
            }
        }
        for published in early {
            self.writer.event(&subscription.delivery, &published.json).await?;
        }
        Ok(())
    }

    pub(super) async fn take_live(
        &mut self,
        now: Now,
        token: Token,
        published: &Arc<Published>,
    ) -> Result<(), Stop> {
        let Some(subscription) = self.subscriptions.get_mut(&token) else {
            return Ok(());
        };
        match subscription.delivery.live(now.mono, published) {
            Live::Send => {
                self.writer.event(&subscription.delivery, &published.json).await?;
                Ok(())
            }
            Live::Kept | Live::Known => Ok(()),
            Live::Overflow => self.tell(now, Input::Ended(token, Ending::Overflow)).await,
        }
    }

    fn answer_neg(&mut self, token: Token, message: Vec<u8>) {
        if let Some(snapshot) = self.snapshots.get(&token).cloned() {
            let answer = self.shared.workshop.clone().answer(self.network, snapshot, message);
            self.jobs.push(Box::pin(async move { Done::NegAnswered(token, answer.await) }));
        }
    }
}
