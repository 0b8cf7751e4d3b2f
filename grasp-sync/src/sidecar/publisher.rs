//! Publishes what was found elsewhere, and reads what the relay makes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::Verified;
use grasp_core::admission::Lasting;
use grasp_core::nostr::event::{Event, EventId};
use tokio::sync::{mpsc, oneshot};

use super::client::{Client, Lost, Place};
use crate::driver::codec::{self, Word};
use crate::local::Taken;

/// Events that may be sent before the relay has answered for the first of them.
const AHEAD: usize = 64;

/// Events to be published, and whom to tell.
pub(super) struct Batch {
    pub(super) events: Vec<Verified<Arc<Event>>>,
    pub(super) reply: oneshot::Sender<Vec<Taken>>,
}

pub(super) async fn publish(place: Arc<Place>, mut waiting: mpsc::Receiver<Batch>) {
    let mut client: Option<Client> = None;
    while let Some(Batch { events, reply }) = waiting.recv().await {
        if client.is_none() {
            client = Client::connect(&place).await.ok();
        }
        let mut answers = BTreeMap::new();
        if let Some(connected) = &mut client {
            if offer(connected, &events, &mut answers).await.is_err() {
                client = None;
            }
        }
        let taken = |event: &Verified<Arc<Event>>| {
            answers.get(&event.id).copied().unwrap_or(Taken::Refused(Lasting::Briefly))
        };
        let _ = reply.send(events.iter().map(taken).collect());
    }
}

/// Sends events a few ahead of their answers. What has no answer when the connection is lost is offered again.
async fn offer(
    client: &mut Client,
    events: &[Verified<Arc<Event>>],
    answers: &mut BTreeMap<EventId, Taken>,
) -> Result<(), Lost> {
    let mut unsent = events.iter();
    let mut owed = std::collections::BTreeSet::new();
    loop {
        while owed.len() < AHEAD {
            let Some(event) = unsent.next() else { break };
            client.say(codec::event(event)).await?;
            owed.insert(event.id);
        }
        if owed.is_empty() {
            return Ok(());
        }
        if let Word::Ok { event, accepted, text } = client.answer().await? {
            if owed.remove(&event) {
                answers.insert(event, read(accepted, &text));
            }
        }
    }
}

/// What an OK means.
///
/// A refusal is taken to be for want of something unless it says otherwise: relays put all sorts of policy into one
/// prefix, and an event is then only kept in mind a little longer than needed.
fn read(accepted: bool, text: &str) -> Taken {
    let prefix = text.split_once(':').map_or("", |(prefix, _)| prefix.trim());
    match (accepted, prefix) {
        (_, "duplicate" | "replaced") => Taken::Known,
        (true, "purgatory") => Taken::Held,
        (true, _) => Taken::Stored,
        (false, "rate-limited" | "error") => Taken::Refused(Lasting::Briefly),
        (false, "pow" | "deleted") => Taken::Refused(Lasting::Forever),
        (false, _) => Taken::Refused(Lasting::UntilDependency),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_relays_mean_by_them() {
        for (accepted, text, taken) in [
            (true, "", Taken::Stored),
            (true, "duplicate: already have this event", Taken::Known),
            (true, "purgatory: won't be served until git data arrives", Taken::Held),
            (false, "duplicate: have this event", Taken::Known),
            (false, "replaced: have newer event", Taken::Known),
            (false, "deleted: user requested deletion", Taken::Refused(Lasting::Forever)),
            (false, "rate-limited: slow down", Taken::Refused(Lasting::Briefly)),
            (false, "error: could not connect to the database", Taken::Refused(Lasting::Briefly)),
            (false, "blocked: not on the list", Taken::Refused(Lasting::UntilDependency)),
            (false, "invalid: no announcement", Taken::Refused(Lasting::UntilDependency)),
            (false, "no", Taken::Refused(Lasting::UntilDependency)),
        ] {
            assert_eq!(read(accepted, text), taken, "{accepted} {text:?}");
        }
    }
}
