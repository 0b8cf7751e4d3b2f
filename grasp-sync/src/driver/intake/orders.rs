//! Announcements lead to the same targets in whichever order a relay streams their versions.

use std::sync::{Arc, LazyLock, Mutex};

use grasp_core::Version;
use grasp_core::nostr::event::{Event, EventBuilder, FinalizeEvent as _, Tag};
use grasp_core::nostr::key::Keys;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{RepoSyncIndex, SyncIndex};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::{Following, Input, News, kinds, to_input};

static OWNER: LazyLock<Keys> = LazyLock::new(Keys::generate);

/// A version of an announcement, and how it is streamed.
#[derive(Clone, Debug)]
struct StreamedVersion {
    second: u64,
    relays: Vec<&'static str>,
    is_held: bool,
}

fn any_announced() -> impl Strategy<Value = StreamedVersion> {
    let relays = subsequence(
        vec!["wss://a.example", "wss://b.example", "wss://us.example/"],
        0..=3,
    );
    (0..3_u64, relays, any::<bool>()).prop_map(|(second, relays, is_held)| StreamedVersion {
        second,
        relays,
        is_held,
    })
}

/// Signs versions, whose ids differ by their content.
fn signed(number: usize, announced: &StreamedVersion) -> News {
    let mut relays = vec!["relays"];
    relays.extend(&announced.relays);
    let event: Event = EventBuilder::new(kinds::ANNOUNCEMENT, number.to_string())
        .tags([Tag::identifier("x"), Tag::parse(relays).unwrap()])
        .custom_created_at(Timestamp::from_secs(announced.second))
        .finalize(&*OWNER)
        .unwrap();
    match announced.is_held {
        true => News::Held(Arc::new(event)),
        false => News::Accepted(Arc::new(event)),
    }
}

/// Held versions come first, since any served one wins over them; the greatest last.
fn place(news: &News) -> (bool, Version) {
    match news {
        News::Accepted(event) => (true, Version::of(event)),
        News::Held(event) => (false, Version::of(event)),
        other => unreachable!("{other:?} is no version"),
    }
}

fn wanted_after(stream: impl IntoIterator<Item = News>) -> RepoSyncIndex {
    let following = Following {
        own: "us.example".parse().unwrap(),
        follows_unlisted: false,
    };
    let mut index = SyncIndex::new(following.own.clone(), []);
    for news in stream {
        if let Some(Input::Accepted(accepted)) = to_input(news, true, &following, &Mutex::default())
        {
            index.apply(accepted.change);
        }
    }
    index.repos().clone()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_order_of_versions_is_like_the_newest_last(
        (versions, order) in vec(any_announced(), 1..6).prop_flat_map(|versions| {
            let order: Vec<usize> = (0..versions.len()).chain(0..versions.len()).collect();
            (Just(versions), Just(order).prop_shuffle())
        }),
    ) {
        let stream: Vec<News> = versions.iter().enumerate().map(|(n, one)| signed(n, one)).collect();
        let mut newest_last = stream.clone();
        newest_last.sort_by_key(place);
        let in_any_order = order.into_iter().map(|n| stream[n].clone());
        prop_assert_eq!(wanted_after(in_any_order), wanted_after(newest_last));
    }
}
