//! Publishes events that were found elsewhere, and reads the relay's answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::Verified;
use grasp_core::admission::Retry;
use grasp_core::kinds;
use grasp_core::limits::PeerText;
use grasp_core::nostr::event::{Event, EventId};
use tokio::sync::{mpsc, oneshot, watch};

use super::Remote;
use crate::driver::codec::{self, RelayMessage};
use crate::driver::{Client, Unanswered};
use crate::local::Taken;

/// Events that may be sent before the relay has answered the first of them.
const MAX_UNANSWERED: usize = 64;

/// Events to be published, and the receiver of the answers.
pub(super) struct Publication {
    pub(super) events: Vec<Verified<Arc<Event>>>,
    pub(super) reply: oneshot::Sender<Vec<Taken>>,
}

pub(super) async fn publish(
    remote: Arc<Remote>,
    mut batches: mpsc::Receiver<Publication>,
    held: watch::Receiver<Option<mpsc::Sender<Arc<Event>>>>,
) {
    let mut client: Option<Client> = None;
    let mut logged = LoggedRefusals::default();
    while let Some(Publication { events, reply }) = batches.recv().await {
        if client.is_none() {
            client = remote.connect().await.ok();
        }
        let mut answers = BTreeMap::new();
        if let Some(connected) = &mut client {
            if offer(connected, &events, &mut answers, &mut logged).await.is_err() {
                client = None;
            }
        }
        let taken = |event: &Verified<Arc<Event>>| {
            answers.get(&event.id).map_or(Taken::Refused(Retry::Soon), |one| one.taken)
        };
        let _ = reply.send(events.iter().map(taken).collect());
        // The feed brings what the relay serves, but not what it holds.
        let Some(follower) = held.borrow().clone() else { continue };
        let is_held = |event: &&Verified<Arc<Event>>| {
            event.kind == kinds::ANNOUNCEMENT
                && answers.get(&event.id).is_some_and(|one| one.is_held)
        };
        for event in events.iter().filter(is_held) {
            let _ = follower.send(Arc::clone(event)).await;
        }
    }
}

/// The relay's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    taken: Taken,
    /// True if it is held there until its git data arrives.
    is_held: bool,
}

/// Sends events ahead of their answers. Events without an answer when the connection is lost are offered again.
async fn offer(
    client: &mut Client,
    events: &[Verified<Arc<Event>>],
    answers: &mut BTreeMap<EventId, Answer>,
    logged: &mut LoggedRefusals,
) -> Result<(), Unanswered> {
    let mut unsent = events.iter();
    let mut unanswered = BTreeSet::new();
    loop {
        while unanswered.len() < MAX_UNANSWERED {
            let Some(event) = unsent.next() else { break };
            client.send(codec::event(event)).await?;
            unanswered.insert(event.id);
        }
        if unanswered.is_empty() {
            return Ok(());
        }
        if let RelayMessage::Ok { event, accepted, text } = client.receive_answer().await? {
            if unanswered.remove(&event) {
                let answer = read(accepted, &text);
                if matches!(answer.taken, Taken::Refused(_)) {
                    logged.refused(event, &text);
                }
                answers.insert(event, answer);
            }
        }
    }
}

/// The prefixes of refusals that were logged as warnings.
#[derive(Default)]
struct LoggedRefusals(BTreeSet<String>);

const MAX_LOGGED: usize = 16;

impl LoggedRefusals {
    /// Logs the first refusal of each prefix as a warning, and further ones for debugging.
    fn refused(&mut self, event: EventId, text: &str) {
        let is_new = self.is_new_prefix(text);
        let text = PeerText::new(text);
        let text = text.as_str();
        if is_new {
            tracing::warn!(%event, text, "the local relay refused an event; more with this prefix are logged at debug level");
        } else {
            tracing::debug!(%event, text, "the local relay refused an event");
        }
    }

    fn is_new_prefix(&mut self, text: &str) -> bool {
        let prefix = text.split(':').next().unwrap_or_default();
        self.0.len() < MAX_LOGGED && self.0.insert(PeerText::new(prefix).as_str().to_owned())
    }
}

/// Reads an OK.
///
/// A refusal counts as being for want of a dependency unless it says otherwise: relays put all sorts of policy into
/// one prefix, and the event is then only remembered a little longer than needed.
fn read(accepted: bool, text: &str) -> Answer {
    let (prefix, rest) = text.split_once(':').unwrap_or_default();
    let (prefix, is_held) = (prefix.trim(), rest.trim() == "in purgatory");
    let taken = match (accepted, prefix) {
        (_, "duplicate" | "replaced") => Taken::Known,
        (true, "purgatory") => Taken::Held,
        (true, _) => Taken::Stored,
        (false, "rate-limited" | "error") => Taken::Refused(Retry::Soon),
        (false, "pow" | "deleted") => Taken::Refused(Retry::Never),
        (false, _) => Taken::Refused(Retry::AfterDependency),
    };
    Answer { taken, is_held: accepted && (is_held || taken == Taken::Held) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_answers_of_relays() {
        for (accepted, text, taken) in [
            (true, "", Taken::Stored),
            (true, "duplicate: already have this event", Taken::Known),
            (true, "purgatory: won't be served until git data arrives", Taken::Held),
            (false, "duplicate: have this event", Taken::Known),
            (false, "replaced: have newer event", Taken::Known),
            (false, "deleted: user requested deletion", Taken::Refused(Retry::Never)),
            (false, "rate-limited: slow down", Taken::Refused(Retry::Soon)),
            (false, "error: could not connect to the database", Taken::Refused(Retry::Soon)),
            (false, "blocked: not on the list", Taken::Refused(Retry::AfterDependency)),
            (false, "invalid: no announcement", Taken::Refused(Retry::AfterDependency)),
            (false, "no", Taken::Refused(Retry::AfterDependency)),
        ] {
            assert_eq!(read(accepted, text).taken, taken, "{accepted} {text:?}");
        }
    }

    #[test]
    fn each_prefix_is_logged_once_up_to_a_limit() {
        let mut logged = LoggedRefusals::default();
        let news = ["blocked: a", "blocked: b", "no"].map(|text| logged.is_new_prefix(text));
        assert_eq!(news, [true, false, true]);
        let more = (0..100).filter(|n| logged.is_new_prefix(&format!("sort {n}: x"))).count();
        assert_eq!(more, MAX_LOGGED - 2);
    }

    #[test]
    fn held_answers_are_recognized() {
        for (accepted, text, is_held) in [
            (true, "purgatory: won't be served until git data arrives", true),
            (true, "duplicate: in purgatory", true),
            (true, "duplicate: already have this event", false),
            (false, "duplicate: in purgatory", false),
            (true, "", false),
        ] {
            assert_eq!(read(accepted, text).is_held, is_held, "{accepted} {text:?}");
        }
    }
}
