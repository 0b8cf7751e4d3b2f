//! Relay lists of any shape lead to few relays, and to none that must not be asked.

use std::collections::BTreeSet;

use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::outbox::RelayList;
use grasp_core::{RelayUrl, ServiceIdentity};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::events::{event, value};

fn any_host() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-f]\\.example\\.com",
        1 => "us\\.example\\.com",
        1 => "(127|10|192\\.168)\\.0\\.0?\\.?[0-9]{1,2}",
        1 => "\\[(::1|fe80::1|2606:4700::1)\\]",
        1 => "[a-z]{1,8}\\.(onion|local|test|org)",
    ]
}

fn any_url() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        3 => Just(String::new()),
        1 => "/(alpha|zulu|titan|inbox)(-(bravo|xray|x)){0,3}",
        1 => "/[0-9a-f]{64}",
        1 => "/[a-f]\\.example\\.com/x",
    ];
    let address = ("wss?", any_host(), path)
        .prop_map(|(scheme, host, path)| format!("{scheme}://{host}{path}"));
    prop_oneof![6 => address, 1 => value()]
}

fn any_tag() -> impl Strategy<Value = Vec<String>> {
    let marker = prop::sample::select(vec!["read", "write", "", "other"]);
    (any_url(), prop::option::of(marker)).prop_map(|(url, marker)| {
        let marker = marker.map(str::to_owned);
        ["r".to_owned(), url].into_iter().chain(marker).collect()
    })
}

proptest! {
    #[test]
    fn lists_lead_to_few_relays_that_may_be_asked(tags in vec(any_tag(), 0..40)) {
        let own: ServiceIdentity = "us.example.com".parse().unwrap();
        let list = event(10_002, 1, 1, 1, &tags);
        let policy = OutboundPolicy::default();
        let parsed = RelayList::parse(&list, &own, policy, &BTreeSet::new());
        for relays in [&parsed.read, &parsed.write] {
            prop_assert!(relays.len() <= RelayList::MAX_PER_PURPOSE);
            let unique: BTreeSet<&RelayUrl> = relays.iter().collect();
            prop_assert_eq!(unique.len(), relays.len());
            for relay in relays {
                prop_assert!(!own.is_own_url(relay.as_str()));
                prop_assert_eq!(policy.judge_host(Provenance::Event, &relay.host()), Ok(()));
                let host = relay.host();
                let mut path = relay.as_str().split('/').skip(3);
                prop_assert!(path.all(|segment| segment.len() != 64 && segment != host.name()));
            }
        }
        // The relays of the operator may be anywhere, and this service is never one.
        let named = tags.iter().filter_map(|tag| tag[1].parse::<RelayUrl>().ok());
        let operator: BTreeSet<RelayUrl> = named.collect();
        let parsed = RelayList::parse(&list, &own, policy, &operator);
        let usable = operator.iter().filter(|relay| !own.is_own_url(relay.as_str())).count();
        prop_assert!(parsed.all().len() <= usable);
        prop_assert!(parsed.all().iter().all(|relay| operator.contains(*relay)));
    }
}
