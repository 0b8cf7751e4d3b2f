//! Classifies any bytes as a refusal text; the kept text is bounded and without control characters.

use grasp_core::limits::PeerText;
use grasp_sync::limits::{Heard, Refusal};

const MESSAGE_TYPES: [Heard; 4] = [
    Heard::Closed,
    Heard::LiveClosed,
    Heard::NegErr,
    Heard::Notice,
];

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for heard in MESSAGE_TYPES {
        let refusal = Refusal::read(heard, &text);
        assert_eq!(
            refusal,
            Refusal::read(heard, &text),
            "two classifications of one text"
        );
        assert_ne!(refusal, Refusal::Silent, "silence was read from a text");
    }
    let kept = PeerText::new(&text);
    assert!(kept.as_str().chars().count() <= PeerText::MAX_CHARS);
    assert!(!kept.as_str().chars().any(char::is_control));
}
