//! The REQs and COUNTs of one socket.

use std::collections::BTreeMap;

use super::super::codec::{Asked, Reply, SubId};
use super::super::limits::Limits;
use super::{Ending, Output, Token};
use grasp_core::limits::EoseHint;

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    open: BTreeMap<SubId, Open>,
    ids: BTreeMap<Token, SubId>,
    /// Bytes of all open filters.
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    token: Token,
    bytes: usize,
}

impl Subscriptions {
    /// Begins a subscription, or a COUNT, which holds a slot until it is answered; one of the same id gives way first.
    pub(super) fn begin(
        &mut self,
        token: Token,
        id: SubId,
        asked: Asked,
        limits: &Limits,
        begun: impl FnOnce(SubId, Asked) -> Output,
    ) -> Vec<Output> {
        let mut outputs = self.close(&id);
        outputs.push(match self.admit(token, &id, asked.bytes, limits) {
            Ok(()) => begun(id, asked),
            Err(refusal) => Output::Send(refusal),
        });
        outputs
    }

    /// Ends a subscription, if it is open.
    pub(super) fn close(&mut self, id: &SubId) -> Vec<Output> {
        self.forget(id).map(Output::Unsubscribe).into_iter().collect()
    }

    pub(super) fn caught_up(&self, token: Token, hint: EoseHint) -> Vec<Output> {
        let id = self.ids.get(&token);
        id.map(|id| Output::Send(Reply::Eose(id.clone(), hint))).into_iter().collect()
    }

    pub(super) fn counted(&mut self, token: Token, count: u64) -> Vec<Output> {
        self.finish(token, |id| Reply::Count(id.clone(), count))
    }

    pub(super) fn ended(&mut self, token: Token, why: Ending) -> Vec<Output> {
        self.finish(token, |id| Reply::closed(id, reason(why)))
    }

    fn finish(&mut self, token: Token, reply: impl FnOnce(&SubId) -> Reply) -> Vec<Output> {
        let Some(id) = self.ids.get(&token).cloned() else {
            return Vec::new();
        };
        let mut outputs = self.close(&id);
        outputs.push(Output::Send(reply(&id)));
        outputs
    }

    fn admit(
        &mut self,
        token: Token,
        id: &SubId,
        bytes: usize,
        limits: &Limits,
    ) -> Result<(), Reply> {
        if self.open.len() >= limits.subscriptions {
            let most = limits.subscriptions;
            let reason = format!("rate-limited: too many REQs: {most} subscriptions may be open");
            return Err(Reply::closed(id, reason));
        }
        let total = self.bytes.saturating_add(bytes);
        if total > limits.subscription_bytes {
            let most = limits.subscription_bytes;
            let reason = format!("rate-limited: active subscriptions exceed max size {most} bytes");
            return Err(Reply::closed(id, reason));
        }
        self.bytes = total;
        self.open.insert(id.clone(), Open { token, bytes });
        self.ids.insert(token, id.clone());
        Ok(())
    }

    fn forget(&mut self, id: &SubId) -> Option<Token> {
        let open = self.open.remove(id)?;
        self.bytes = self.bytes.saturating_sub(open.bytes);
        self.ids.remove(&open.token);
        Some(open.token)
    }
}

const fn reason(why: Ending) -> &'static str {
    match why {
        Ending::Overflow => "error: live event buffer overflow, ask again from the last event seen",
        Ending::StoreFailed => "error: the event store failed",
        Ending::Busy => "rate-limited: this network uses its share of this relay, try again later",
        Ending::NoRoom => "rate-limited: this relay holds as many subscriptions as it can",
    }
}
