//! Who the service is, in events of its own key.

use grasp_relay::store;
use grasp_tests::{Instance, Settings, eventually_async};
use nostr::event::{Event, Kind};
use nostr::filter::Filter;
use nostr::types::Timestamp;

const KINDS: [Kind; 2] = [Kind::Metadata, Kind::RelayList];

async fn identity(instance: &Instance) -> Vec<Event> {
    let store = &*instance.server().parts().store;
    let filter = Filter::new().kinds(KINDS);
    store::events(store, filter, Timestamp::now())
        .await
        .unwrap()
}

async fn until_identified(instance: &Instance) -> Vec<Event> {
    eventually_async(|| async {
        let events = identity(instance).await;
        (events.len() == KINDS.len()).then_some(events)
    })
    .await
}

fn public(settings: &mut grasp_relay::instance::Settings) {
    *settings = settings
        .clone()
        .reached_at("git.example.com".parse().unwrap());
}

#[tokio::test]
async fn a_public_service_tells_who_it_is() {
    let instance = Instance::with_settings_and(Settings::one_process(), public).await;
    let events = until_identified(&instance).await;
    let key = instance.server().parts().config.info.now().service_key;
    assert!(events.iter().all(|event| Some(event.pubkey) == key));
}
