use grasp_core::limits::PeerText;
use grasp_sync::limits::{Heard, Refusal};
use proptest::prelude::*;

fn heard() -> impl Strategy<Value = Heard> {
    prop::sample::select(vec![
        Heard::Closed,
        Heard::LiveClosed,
        Heard::NegErr,
        Heard::Notice,
    ])
}

/// Phrases that decide independent of the text after them.
fn phrases() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "rate-limited: too many queries",
        "rate-limited: too many negentropy items",
        "blocked: too many subscriptions",
        "ERROR: bad req: filter item too large",
        "ERROR: too many concurrent REQs",
        "invalid: Filter 'limit' must be a positive integer, got 0",
        "error: live event buffer overflow",
        "auth-required: sign in",
        "rate-limited: active subscriptions exceed max size 77 bytes",
    ])
}

proptest! {
    #![proptest_config(super::config(1_024))]

    #[test]
    fn any_text_is_classified_and_sanitised(heard in heard(), text in any::<String>()) {
        let refusal = Refusal::read(heard, &text);
        prop_assert_eq!(refusal, Refusal::read(heard, &text));
        prop_assert_ne!(refusal, Refusal::Silent);

        let kept = PeerText::new(&text);
        prop_assert!(kept.as_str().chars().count() <= PeerText::MAX_CHARS);
        prop_assert!(!kept.as_str().chars().any(char::is_control));
        prop_assert_eq!(PeerText::new(kept.as_str()), kept);
    }

    #[test]
    fn text_after_a_known_phrase_is_ignored(
        heard in heard(),
        known in phrases(),
        tail in "[ ,;/].{0,80}",
    ) {
        let alone = Refusal::read(heard, known);
        prop_assert_eq!(Refusal::read(heard, &format!("{known}{tail}")), alone);
    }

    #[test]
    fn a_name_in_a_text_is_ignored(
        heard in heard(),
        name in "(throttle|[a-z]{1,9})[-_./0-9][a-z]{1,9}|'[a-z ]{1,20}'|openssl-(test|throttle|disabled)",
        word in "repository|ref|host",
    ) {
        let text = format!("error: {word} {} is broken", name.replace(' ', "-"));
        prop_assert_eq!(Refusal::read(heard, &text), Refusal::Transient);
    }

    #[test]
    fn the_prefix_error_in_capitals_is_ignored(heard in heard(), known in phrases()) {
        prop_assume!(!known.starts_with("ERROR"));
        let shouted = format!("ERROR: {known}");
        prop_assert_eq!(Refusal::read(heard, &shouted), Refusal::read(heard, known));
    }
}
