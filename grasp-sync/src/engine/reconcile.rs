//! One NIP-77 session from our side, pure. Finds what a relay has and we lack; uploads nothing.

use std::collections::BTreeSet;

use grasp_core::neg;
use grasp_core::nostr::event::EventId;
use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::io::Row;
use super::missing::MAX_IDS;

/// The longest message that is read, in bytes. Known relays send up to half a megabyte.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Messages of one session. Honest ones take a few, plus one for each frame that a large difference fills.
const MAX_ROUNDS: u32 = 400;
/// Ids that one session may offer; a larger difference is compared in parts.
pub(super) const MAX_NEEDED: usize = 100_000;

/// A session under way.
#[derive(Debug)]
pub(super) struct Reconciliation {
    negentropy: Negentropy<'static, NegentropyStorageVector>,
    rounds: u32,
    max_needed: usize,
    found: Comparison,
}

/// The next step after a message.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReconcileStep {
    /// Send this and wait.
    Reply(Vec<u8>),
    /// The sets are compared.
    Done(Comparison),
    /// More ids differ than the session may offer.
    TooMuch,
    /// The message cannot be read, or the session does not end.
    Broken,
}

/// The difference of two sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Ids that the relay has and we lack.
    pub(super) needed: BTreeSet<EventId>,
    /// Number of our events that were compared.
    pub(super) items: usize,
    /// Number of our events that the relay lacks.
    pub(super) lacking: usize,
    /// Ids of some of these.
    pub(super) lacking_ids: BTreeSet<EventId>,
}

impl Reconciliation {
    /// Opens a session over our items that may find up to `max_needed` missing ids; `None` if it cannot be encoded.
    pub(super) fn open(
        items: impl IntoIterator<Item = Row>,
        frame: u64,
        max_needed: usize,
    ) -> Option<(Self, Vec<u8>)> {
        let mut storage = NegentropyStorageVector::new();
        for row in items {
            storage
                .insert(row.at.as_secs(), Id::from_byte_array(*row.id.as_bytes()))
                .ok()?;
        }
        storage.seal().ok()?;
        let items = negentropy::NegentropyStorageBase::size(&storage).ok()?;
        let mut negentropy = Negentropy::owned(storage, frame).ok()?;
        let first = negentropy.initiate().ok()?;
        let found = Comparison {
            items,
            ..Comparison::default()
        };
        Some((
            Self {
                negentropy,
                rounds: 0,
                max_needed,
                found,
            },
            first,
        ))
    }

    /// Returns the number of items that the session holds in memory.
    pub(super) fn items(&self) -> usize {
        self.found.items
    }

    /// Reads a message of the relay.
    pub(super) fn receive(&mut self, message: &[u8]) -> ReconcileStep {
        self.rounds += 1;
        if message.len() > MAX_MESSAGE || self.rounds > MAX_ROUNDS || !neg::is_well_formed(message)
        {
            return ReconcileStep::Broken;
        }
        let mut have = Vec::new();
        let mut need = Vec::new();
        let Ok(next) = self
            .negentropy
            .reconcile_with_ids(message, &mut have, &mut need)
        else {
            return ReconcileStep::Broken;
        };
        let found = &mut self.found;
        found.lacking = found.lacking.saturating_add(have.len()).min(found.items);
        let room = MAX_IDS.saturating_sub(found.lacking_ids.len());
        let id = |id: &Id| EventId::from_byte_array(id.to_bytes());
        found.lacking_ids.extend(have.iter().take(room).map(id));
        found.needed.extend(need.iter().map(id));
        if found.needed.len() > self.max_needed {
            return ReconcileStep::TooMuch;
        }
        match next {
            Some(reply) => ReconcileStep::Reply(reply),
            None => ReconcileStep::Done(std::mem::take(found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::types::Timestamp;
    use proptest::prelude::*;

    use super::*;

    const FRAME: u64 = 60_000;

    /// Returns a row with an id like a hash: fingerprints are sums, and consecutive ids would have equal sums.
    fn row(n: u32) -> Row {
        let mut id = [0; 32];
        let mut word = u64::from(n) + 1;
        for chunk in id.chunks_mut(8) {
            word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        Row {
            at: Timestamp::from_secs(u64::from(n / 3)),
            id: EventId::from_byte_array(id),
        }
    }

    fn server(rows: &[Row], frame: u64) -> Negentropy<'static, NegentropyStorageVector> {
        let mut storage = NegentropyStorageVector::new();
        for row in rows {
            storage
                .insert(row.at.as_secs(), Id::from_byte_array(*row.id.as_bytes()))
                .unwrap();
        }
        storage.seal().unwrap();
        Negentropy::owned(storage, frame).unwrap()
    }

    /// Reconciles; returns the ids that we need, those that they lack, and the number of rounds.
    fn compare(ours: &[Row], theirs: &[Row]) -> (BTreeSet<EventId>, usize, usize) {
        let (mut session, mut message) =
            Reconciliation::open(ours.to_vec(), FRAME, MAX_NEEDED).unwrap();
        let mut peer = server(theirs, FRAME);
        for round in 1.. {
            match session.receive(&peer.reconcile(&message).unwrap()) {
                ReconcileStep::Reply(reply) => message = reply,
                ReconcileStep::Done(found) => return (found.needed, found.lacking, round),
                step => panic!("{step:?}"),
            }
        }
        unreachable!()
    }

    #[test]
    fn equal_sets_take_one_round() {
        let rows: Vec<_> = (0..5_000).map(row).collect();
        assert_eq!(compare(&rows, &rows), (BTreeSet::new(), 0, 1));
    }

    #[test]
    fn an_empty_set_needs_everything() {
        let rows: Vec<_> = (0..10_000).map(row).collect();
        let (needed, lacking, rounds) = compare(&[], &rows);
        assert_eq!((needed.len(), lacking), (10_000, 0));
        assert!(rounds < 10, "{rounds}");
    }

    #[test]
    fn a_large_difference_is_too_much_for_a_session() {
        let rows: Vec<_> = (0..MAX_NEEDED as u32 + 1).map(row).collect();
        let (mut session, mut message) = Reconciliation::open([], FRAME, MAX_NEEDED).unwrap();
        let mut peer = server(&rows, 500_000);
        loop {
            match session.receive(&peer.reconcile(&message).unwrap()) {
                ReconcileStep::Reply(reply) => message = reply,
                step => return assert_eq!(step, ReconcileStep::TooMuch),
            }
        }
    }

    #[test]
    fn an_endless_session_is_cancelled() {
        let ours: Vec<_> = (0..1_000).map(row).collect();
        let (mut session, _) = Reconciliation::open(ours, FRAME, MAX_NEEDED).unwrap();
        // A fingerprint of everything that never matches.
        let mut message = vec![0x61, 0, 0, 1];
        message.extend([7; 16]);
        let steps = (0..).map(|_| session.receive(&message));
        let replies = steps
            .take_while(|step| matches!(step, ReconcileStep::Reply(_)))
            .count();
        assert_eq!(replies, MAX_ROUNDS as usize);
    }

    #[test]
    fn an_oversized_message_is_not_read() {
        let (mut session, _) = Reconciliation::open([], FRAME, MAX_NEEDED).unwrap();
        assert_eq!(
            session.receive(&vec![0x61; MAX_MESSAGE + 1]),
            ReconcileStep::Broken
        );
    }

    #[test]
    fn malformed_numbers_are_not_agreement() {
        let ours: Vec<_> = (0..10).map(row).collect();
        for message in [
            // A time of fourteen digits, then nothing; a truncated time; a bound without a mode.
            [vec![0x61], vec![0xff; 13], vec![0x7f]].concat(),
            vec![0x61, 0xff],
            vec![0x61, 0, 0],
            // Fewer ids than counted; a prefix longer than an id; an unknown protocol mode.
            vec![
                0x61, 0, 0, 2, 0x85, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
            ],
            [vec![0x61, 0, 33], vec![0; 34]].concat(),
            vec![0x61, 0, 0, 3],
            vec![],
        ] {
            let (mut session, _) = Reconciliation::open(ours.clone(), FRAME, MAX_NEEDED).unwrap();
            assert_eq!(
                session.receive(&message),
                ReconcileStep::Broken,
                "{message:?}"
            );
        }
        let (mut session, _) = Reconciliation::open(ours, FRAME, MAX_NEEDED).unwrap();
        let agrees = ReconcileStep::Done(Comparison {
            items: 10,
            ..Comparison::default()
        });
        assert_eq!(session.receive(&[0x61, 0, 0, 0]), agrees);
    }

    proptest! {
        #[test]
        fn the_difference_is_found_exactly(
            ours in prop::collection::btree_set(0u32..3_000, 0..400),
            theirs in prop::collection::btree_set(0u32..3_000, 0..400),
        ) {
            let rows = |set: &BTreeSet<u32>| set.iter().copied().map(row).collect::<Vec<_>>();
            let (needed, lacking, _) = compare(&rows(&ours), &rows(&theirs));
            let wanted = theirs.difference(&ours).map(|n| row(*n).id).collect();
            prop_assert_eq!(needed, wanted);
            prop_assert_eq!(lacking, ours.difference(&theirs).count());
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(
            ours in 0u32..200,
            mut bytes in prop::collection::vec(any::<u8>(), 0..2_000),
            starts_well in any::<bool>(),
        ) {
            if starts_well && !bytes.is_empty() {
                bytes[0] = 0x61;
            }
            let (mut session, _) = Reconciliation::open((0..ours).map(row), FRAME, MAX_NEEDED).unwrap();
            match session.receive(&bytes) {
                ReconcileStep::Reply(reply) => prop_assert!(reply.len() <= FRAME as usize),
                ReconcileStep::Done(found) => prop_assert!(found.needed.len() * 32 <= bytes.len()),
                ReconcileStep::TooMuch | ReconcileStep::Broken => {}
            }
        }
    }
}
