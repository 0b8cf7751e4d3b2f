use grasp_core::limits::{Heard, PeerText, Refusal};
use proptest::prelude::*;

fn heard() -> impl Strategy<Value = Heard> {
    prop::sample::select(vec![Heard::Closed, Heard::LiveClosed, Heard::NegErr, Heard::Notice])
}

/// Openings that decide by themselves, whatever follows them.
fn openings() -> impl Strategy<Value = &'static str> {
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
    #![proptest_config(crate::config(1_024))]

    #[test]
    fn any_text_has_one_meaning_and_can_be_kept(heard in heard(), text in any::<String>()) {
        let refusal = Refusal::read(heard, &text);
        prop_assert_eq!(refusal, Refusal::read(heard, &text));
        prop_assert_ne!(refusal, Refusal::Silent);

        let kept = PeerText::new(&text);
        prop_assert!(kept.as_str().chars().count() <= PeerText::MAX_CHARS);
        prop_assert!(!kept.as_str().chars().any(char::is_control));
        prop_assert_eq!(PeerText::new(kept.as_str()), kept);
    }

    #[test]
    fn what_follows_known_words_does_not_change_their_meaning(
        heard in heard(),
        known in openings(),
        tail in "[ ,;/].{0,80}",
    ) {
        let alone = Refusal::read(heard, known);
        prop_assert_eq!(Refusal::read(heard, &format!("{known}{tail}")), alone);
    }

    #[test]
    fn a_name_in_a_text_decides_nothing(
        heard in heard(),
        name in "(throttle|[a-z]{1,9})[-_./0-9][a-z]{1,9}|'[a-z ]{1,20}'|openssl-(test|throttle|disabled)",
        word in "repository|ref|host",
    ) {
        let text = format!("error: {word} {} is broken", name.replace(' ', "-"));
        prop_assert_eq!(Refusal::read(heard, &text), Refusal::Transient);
    }

    #[test]
    fn the_capital_error_in_front_changes_nothing(heard in heard(), known in openings()) {
        prop_assume!(!known.starts_with("ERROR"));
        let shouted = format!("ERROR: {known}");
        prop_assert_eq!(Refusal::read(heard, &shouted), Refusal::read(heard, known));
    }
}
