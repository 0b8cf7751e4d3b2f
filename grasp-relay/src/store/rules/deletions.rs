//! Deletion requests and requests to vanish: which events they gate, which they remove, and for how long they count.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::Identifier;
use grasp_core::deletion::{self, DeletionRequest, VanishScope};
use nostr::event::{Event, EventId, Kind};
use nostr::types::Timestamp;

use super::{Rows, Rules, STEP_EVENTS};
use crate::store::Refusal;
use crate::store::keys::{Digest, newest, seconds};

/// Deletion requests of a vanishing author that one transaction erases; each may have thousands of targets.
const MAX_ERASED_REQUESTS: usize = 10;

/// Carrying out requests, and refusing what they gate.
pub(crate) trait Deletions: Rows + Sized {
    /// Applies a stored event that is a request. Its gates hold at once; erasing its targets may take further
    /// transactions.
    fn handle_request(&self, event: &Arc<Event>, now: Timestamp) -> Result<(), Self::Error> {
        match event.kind {
            Kind::EventDeletion => self.gate_targets(event, now)?,
            Kind::RequestToVanish => self.gate_author(event)?,
            _ => return Ok(()),
        }
        if !self.apply_request(event)? {
            self.put_unfinished(&event.id)?;
            self.progress().unfinished.borrow_mut().push(Arc::clone(event));
        }
        Ok(())
    }

    /// Continues a request in a transaction of its own. Returns whether it is done, and the names of repositories of
    /// which something was removed.
    fn continue_request(
        &self,
        request: &Event,
    ) -> Result<(bool, BTreeSet<Identifier>), Self::Error> {
        let is_done = self.apply_request(request)?;
        if is_done {
            self.delete_unfinished(&request.id)?;
        }
        Ok((is_done, self.progress().take_affected()))
    }

    /// Erases targets of a request within the limit of one transaction; returns whether none is left.
    fn apply_request(&self, request: &Event) -> Result<bool, Self::Error> {
        match request.kind {
            Kind::EventDeletion => self.delete_targets(request),
            _ => self.vanish(request),
        }
    }

    /// Returns the reason for which a deletion request cannot be honoured; `None` for other kinds.
    fn deletion_refusal(
        &self,
        event: &Event,
        now: Timestamp,
    ) -> Result<Option<Refusal>, Self::Error> {
        if event.kind != Kind::EventDeletion {
            return Ok(None);
        }
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(Some(Refusal::TooManyTargets));
        };
        for id in &request.ids {
            if self.is_foreign(id, &event.pubkey, seconds(now.as_secs()))? {
                return Ok(Some(Refusal::ForeignDeletion));
            }
        }
        Ok(None)
    }

    /// Returns the request of its author that deletes this event; one of them, if there are several.
    fn blocking_request(&self, event: &Event) -> Result<Option<i64>, Self::Error> {
        if !deletion::is_deletable(event.kind) {
            return Ok(None);
        }
        if let Some(gate) = self.gate(&self.keys().own_event(&event.pubkey, &event.id))? {
            return Ok(Some(gate.request));
        }
        let Some(coordinate) = deletion::coordinate(event) else { return Ok(None) };
        let gate = self.gate(&self.keys().coordinate(&coordinate))?;
        let covering = gate.filter(|gate| gate.newest <= newest(event.created_at));
        Ok(covering.map(|gate| gate.request))
    }

    /// Returns whether the author asked to vanish up to a time that includes this event.
    ///
    /// Requests to vanish are exempt: they prove the author's wish.
    fn has_vanished(&self, event: &Event) -> Result<bool, Self::Error> {
        if event.kind == Kind::RequestToVanish {
            return Ok(false);
        }
        let until = self.vanished(&event.pubkey)?;
        Ok(until.is_some_and(|until| until <= newest(event.created_at)))
    }

    /// Records the gates of a deletion request.
    fn gate_targets(&self, event: &Event, now: Timestamp) -> Result<(), Self::Error> {
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(());
        };
        let now = seconds(now.as_secs());
        let number = self.record_request(event, now)?;
        for id in &request.ids {
            self.replace_gate(&self.keys().own_event(&event.pubkey, id), number)?;
        }
        for coordinate in &request.coordinates {
            let key = self.keys().coordinate(coordinate);
            match self.gate(&key)? {
                // The gate deletes more than this request would. It is still wanted, so its term restarts.
                Some(gate) if gate.newest < newest(event.created_at) => {
                    self.use_request(gate.request, now, now)?;
                }
                _ => self.replace_gate(&key, number)?,
            }
        }
        Ok(())
    }

    /// Erases targets of a deletion request; returns whether none is left.
    fn delete_targets(&self, event: &Event) -> Result<bool, Self::Error> {
        let request = DeletionRequest::parse(event).unwrap_or_default();
        for id in &request.ids {
            if self.progress().is_spent() {
                return Ok(false);
            }
            self.delete_id(id, event)?;
        }
        for coordinate in &request.coordinates {
            if self.progress().is_spent() {
                return Ok(false);
            }
            self.delete_versions(&self.keys().coordinate(coordinate), event)?;
        }
        Ok(true)
    }

    fn delete_id(&self, id: &EventId, request: &Event) -> Result<(), Self::Error> {
        if let Some(seq) = self.deletable(id, &request.pubkey)? {
            self.remove_served(seq)?;
        }
        self.delete_copy(id, Some(&request.pubkey))?;
        Ok(())
    }

    /// Removes every version of a coordinate that is not newer than the request.
    fn delete_versions(&self, coordinate: &Digest, request: &Event) -> Result<(), Self::Error> {
        let until = newest(request.created_at);
        if let Some(head) = self.head(coordinate)?.filter(|head| head.at.newest() >= until) {
            self.remove_served(head.seq)?;
        }
        self.delete_copies(coordinate, until)
    }

    /// Records that an author vanished up to the request, if the request includes this service.
    fn gate_author(&self, request: &Event) -> Result<(), Self::Error> {
        match self.includes_this_service(request) {
            true => self.vanish_author(&request.pubkey, newest(request.created_at)),
            false => Ok(()),
        }
    }

    fn includes_this_service(&self, request: &Event) -> bool {
        VanishScope::parse(request).includes(self.rules().service.as_ref())
    }

    /// Erases an author's events, kept versions, deletion requests and gates up to the request, if it includes this
    /// service. Returns whether nothing is left.
    fn vanish(&self, request: &Event) -> Result<bool, Self::Error> {
        if !self.includes_this_service(request) {
            return Ok(true);
        }
        let (author, until) = (&request.pubkey, newest(request.created_at));
        let written = self.written_by(author, until)?;
        for seq in &written {
            if self.progress().is_spent() {
                return Ok(false);
            }
            self.remove_served(*seq)?;
        }
        let copies = self.copies_by(author, until)?;
        copies.iter().try_for_each(|seq| self.erase_copy(*seq))?;
        let requests = self.requests_by(author, until)?;
        for seq in requests.iter().take(MAX_ERASED_REQUESTS) {
            self.forget_request(*seq)?;
        }
        Ok(written.len().max(copies.len()) < STEP_EVENTS && requests.len() <= MAX_ERASED_REQUESTS)
    }
}
