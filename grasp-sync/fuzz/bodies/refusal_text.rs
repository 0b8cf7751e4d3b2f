//! Refusals: any bytes from a peer have a meaning, and what is kept of them is harmless.

use grasp_core::limits::PeerText;
use grasp_sync::limits::{Heard, Refusal};

const EVERYWHERE: [Heard; 4] = [Heard::Closed, Heard::LiveClosed, Heard::NegErr, Heard::Notice];

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for heard in EVERYWHERE {
        let refusal = Refusal::read(heard, &text);
        assert_eq!(refusal, Refusal::read(heard, &text), "two meanings");
        assert_ne!(refusal, Refusal::Silent, "silence was read from a text");
    }
    let kept = PeerText::new(&text);
    assert!(kept.as_str().chars().count() <= PeerText::MAX_CHARS);
    assert!(!kept.as_str().chars().any(char::is_control));
}
