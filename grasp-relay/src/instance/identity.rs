//! Who the service is, in events of its own key: a profile (kind 0) and a relay list (kind 10002).

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::Origin;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{RelayUrl, Version};
use grasp_sync::driver::Outbound;
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::Keys;
use nostr::types::Timestamp;
use serde_json::{Map, Value};
use tokio::time::sleep;

use crate::Clock;
use crate::ingest::Ingest;
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::settings::Settings;
use crate::publish::RelayClient;
use crate::store::{self, EventStore};

/// The pause after the first failure to publish; each further one doubles it, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const MAX_PAUSE: Duration = Duration::from_secs(6 * 60 * 60);

/// Rounds in which relays are tried that could not be reached; with these pauses, more than a day.
const MAX_ROUNDS: usize = 14;

/// What the events of a service say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    name: String,
    about: String,
    picture: Option<String>,
    nip05: Option<String>,
    relay: RelayUrl,
}

impl Identity {
    /// Returns that of a server. A private service has none, nor has one without a public address, which nobody could look
    /// up.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        if settings.private.enabled {
            return None;
        }
        let service = &settings.policy.service;
        let relay = service.relay_url(settings.git.secure).ok()?;
        OutboundPolicy::default()
            .judge_host(Provenance::Event, &relay.host())
            .ok()?;
        let info = settings.public_info();
        // Names are looked up at the root of a host.
        let is_at_root = service.mount_path().is_empty();
        Some(Self {
            name: info.name,
            about: info.description,
            picture: info.icon,
            nip05: is_at_root.then(|| format!("_@{}", service.authority())),
            relay,
        })
    }

    /// Returns the kind, the content and the tags of each event.
    fn contents(&self) -> Result<[(Kind, String, Vec<Tag>); 2]> {
        let fields = [
            ("name", Some(&self.name)),
            ("about", Some(&self.about)),
            ("picture", self.picture.as_ref()),
            ("nip05", self.nip05.as_ref()),
        ];
        let mut profile = Map::new();
        for (field, value) in fields {
            if let Some(value) = value {
                profile.insert(field.to_owned(), Value::from(value.as_str()));
            }
        }
        let relay = Tag::parse(["r", self.relay.as_str()])?;
        Ok([
            (Kind::Metadata, Value::from(profile).to_string(), Vec::new()),
            (Kind::RelayList, String::new(), vec![relay]),
        ])
    }

    /// Returns the events. One of which the stored version says the same is that version.
    fn events(&self, keys: &Keys, stored: &[Event], now: Timestamp) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for (kind, content, tags) in self.contents()? {
            let versions = stored.iter().filter(|event| event.kind == kind);
            let newest = versions.max_by_key(|event| Version::of(event));
            if let Some(newest) = newest {
                if newest.content == content && newest.tags.as_slice() == tags {
                    events.push(newest.clone());
                    continue;
                }
            }
            let after = newest.map_or(Timestamp::zero(), |newest| {
                newest.created_at + Duration::from_secs(1)
            });
            let event = EventBuilder::new(kind, content)
                .tags(tags)
                .custom_created_at(now.max(after));
            events.push(event.finalize(keys)?);
        }
        Ok(events)
    }
}

/// The own relay and the way to others.
pub(crate) struct Publisher {
    pub(crate) keys: Keys,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) ingest: Arc<dyn Ingest>,
    pub(crate) clock: Clock,
    pub(crate) outbound: Outbound,
}

impl Publisher {
    /// Stores the events of the service in its own relay, then publishes them to index relays, each until it has them.
    pub(crate) async fn announce(self, identity: Identity, index_relays: Vec<RelayUrl>) {
        let events = match self.store_own(&identity).await {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(
                    error = error.in_one_line(),
                    "could not store who the service is"
                );
                return;
            }
        };
        let mut relays = index_relays;
        let mut pause = FIRST_PAUSE;
        for _ in 0..MAX_ROUNDS {
            let mut unreached = Vec::new();
            for relay in relays {
                if let Err(error) = self.publish(&relay, &events).await {
                    tracing::warn!(%relay, error = error.in_one_line(), "could not publish who the service is");
                    unreached.push(relay);
                }
            }
            if unreached.is_empty() {
                return;
            }
            relays = unreached;
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn store_own(&self, identity: &Identity) -> Result<Vec<Event>> {
        let now = self.clock.now().unix;
        let filter = Filter::new()
            .author(self.keys.public_key())
            .kinds([Kind::Metadata, Kind::RelayList]);
        let stored = store::events(&*self.store, filter, now).await?;
        let events = identity.events(&self.keys, &stored, now)?;
        let new: Vec<_> = events
            .iter()
            .filter(|event| !stored.contains(event))
            .cloned()
            .collect();
        for outcome in self.ingest.ingest(new, Origin::anonymous()).await {
            let answer = outcome.answer();
            if !answer.is_accepted {
                return Err(InstanceError::machine(answer.message));
            }
        }
        Ok(events)
    }

    async fn publish(&self, relay: &RelayUrl, events: &[Event]) -> Result<()> {
        let client = RelayClient::connect_by(relay, &self.outbound).await;
        let mut client = client.context("could not connect")?.with_keys(&self.keys);
        for event in events {
            client.publish(event).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::net::TcpListener;
    use tokio::sync::oneshot;

    use super::*;
    use crate::instance::Server;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn settings(domain: &str, dir: &Path) -> Settings {
        let mut settings = Settings::new(domain.parse().unwrap(), dir);
        settings.git.secure = true;
        settings
    }

    fn identity() -> Identity {
        Identity::of(&settings("git.example.com", Path::new("/nonexistent"))).unwrap()
    }

    #[test]
    fn the_profile_and_the_relay_list_name_the_service() {
        let keys = Keys::generate();
        let events = identity().events(&keys, &[], NOW).unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.kind.as_u16()).collect();
        assert_eq!(kinds, [0, 10_002]);
        let profile: Value = serde_json::from_str(&events[0].content).unwrap();
        assert_eq!(profile["name"], "git.example.com");
        assert_eq!(profile["nip05"], "_@git.example.com");
        assert!(profile["about"].is_string() && profile["picture"].is_null());
        let relays: Vec<_> = events[1].tags.iter().map(|tag| tag.as_slice()).collect();
        assert_eq!(relays, [["r", "wss://git.example.com"]]);
        assert!(events.iter().all(|event| event.verify().is_ok()));
    }

    #[test]
    fn a_new_version_is_made_only_if_something_changed() {
        let keys = Keys::generate();
        let first = identity().events(&keys, &[], NOW).unwrap();
        let later = NOW + Duration::from_secs(9);
        assert_eq!(identity().events(&keys, &first, later).unwrap(), first);
        let renamed = Identity {
            name: "Example".into(),
            ..identity()
        };
        let second = renamed.events(&keys, &first, NOW).unwrap();
        assert!(Version::of(&second[0]) > Version::of(&first[0]));
        assert_eq!(second[1], first[1]);
    }

    #[test]
    fn private_services_and_those_without_a_public_address_have_none() {
        let dir = Path::new("/nonexistent");
        for domain in [
            "127.0.0.1:7334",
            "localhost:7334",
            "192.168.1.5",
            "[::1]:7334",
        ] {
            assert_eq!(Identity::of(&settings(domain, dir)), None, "{domain}");
        }
        let mut private = settings("git.example.com", dir);
        private.private.enabled = true;
        assert_eq!(Identity::of(&private), None);
        let mounted = Identity::of(&settings("git.example.com/x", dir)).unwrap();
        assert_eq!(mounted.nip05, None);
    }

    async fn stored(server: &Server, author: &Keys) -> Vec<Event> {
        let filter = Filter::new().author(author.public_key());
        let store = &*server.parts().store;
        store::events(store, filter, Timestamp::now())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn the_events_are_stored_here_and_published_to_index_relays() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let own = settings("127.0.0.1:7334", dirs[0].path());
        let keys = crate::instance::files::service_key(&own.service_key()).unwrap();
        let store = crate::instance::open_store(&own).await.unwrap();
        let own = Server::open_on(&own, store, Clock::system()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut index = Settings::new(address.to_string().parse().unwrap(), dirs[1].path());
        // An index relay takes profiles of everybody; this one those of its operator.
        index.policy.operator = Some(keys.public_key());
        let store = crate::instance::open_store(&index).await.unwrap();
        let index = Server::open_on(&index, store, Clock::system())
            .await
            .unwrap();
        let publisher = Publisher {
            keys: keys.clone(),
            store: Arc::clone(&own.parts().store),
            ingest: Arc::clone(&own.parts().ingest),
            clock: Clock::system(),
            outbound: Outbound::new(OutboundPolicy::default(), &grasp_sync::Roots::default()),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let relay = format!("ws://{address}").parse().unwrap();
        let serving = index.serve(listener, async {
            let _ = stopped.await;
        });
        let announcing = async {
            publisher.announce(identity(), vec![relay]).await;
            let _ = stop.send(());
        };
        let (served, ()) = tokio::join!(serving, announcing);
        served.unwrap();
        let here = stored(&own, &keys).await;
        assert_eq!(here.len(), 2);
        assert_eq!(stored(&index, &keys).await, here);
    }
}
