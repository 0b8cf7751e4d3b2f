//! Translates the local relay's feed into inputs of the engine.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::index::{IndexChange, SyncLevel};
use futures_util::StreamExt as _;
use grasp_core::nostr::event::Event;
use grasp_core::{RelayUrl, ServiceIdentity, kinds};
use tokio::sync::mpsc;

use super::intake::Recent;
use crate::engine::{Accepted, Input, index_change};
use crate::local::{LocalRelay, News};

/// Delay before a feed that ended is started again.
const FEED_RESTART_DELAY: Duration = Duration::from_secs(5);

/// Rule for the repositories of the local relay that are followed.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    /// The relay's address, as announcements name it.
    pub(crate) own: ServiceIdentity,
    /// True if repositories that do not list it are followed too.
    pub(crate) unlisted: bool,
}

impl Following {
    /// Returns the change that an event makes to what is wanted. An announcement that does not list the relay
    /// withdraws what an earlier version wanted.
    fn change(&self, event: &Event, level: SyncLevel) -> Option<IndexChange> {
        let change = index_change(event, level)?;
        match change {
            IndexChange::Announced { repo, relays, .. } if !self.lists_us(&relays) => {
                tracing::debug!(%repo, "not followed: its announcement does not list this relay");
                Some(IndexChange::Retired { repo })
            }
            change => Some(change),
        }
    }

    fn lists_us(&self, relays: &BTreeSet<RelayUrl>) -> bool {
        self.unlisted || relays.iter().any(|relay| self.own.is_own_url(relay.as_str()))
    }
}

/// Passes the feed to the engine, for ever.
pub(crate) async fn listen(
    local: Arc<dyn LocalRelay>,
    following: Following,
    recent: Arc<Mutex<Recent>>,
    inputs: mpsc::Sender<Input>,
) {
    loop {
        let mut feed = local.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
        let mut is_live = false;
        while let Some(news) = feed.next().await {
            is_live |= news == News::CaughtUp;
            let Some(input) = to_input(news, is_live, &following, &recent) else { continue };
            if inputs.send(input).await.is_err() {
                return;
            }
        }
        tracing::warn!("the local relay's feed ended; restarting it");
        tokio::time::sleep(FEED_RESTART_DELAY).await;
    }
}

fn to_input(
    news: News,
    is_live: bool,
    following: &Following,
    recent: &Mutex<Recent>,
) -> Option<Input> {
    let accepted = match news {
        News::CaughtUp => return Some(Input::FeedCaughtUp),
        News::Lost => {
            *recent.lock().unwrap_or_else(PoisonError::into_inner) = Recent::default();
            return Some(Input::FeedLost);
        }
        News::Accepted(event) => {
            let recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            let direct = is_live && !recent.was_delivered(&event.id);
            let change = following.change(&event, SyncLevel::Full);
            Accepted { event: Some(event.id), direct, change }
        }
        // Nothing that depends on other held events may be asked for.
        News::Held(event) if event.kind != kinds::ANNOUNCEMENT => return None,
        News::Held(event) => changed(following.change(&event, SyncLevel::StateOnly)?),
        News::Retired(repo) => changed(IndexChange::Retired { repo }),
        News::Removed(event) => changed(IndexChange::RootRemoved { root: event.into() }),
    };
    Some(Input::Accepted(accepted))
}

fn changed(change: IndexChange) -> Accepted {
    Accepted { event: None, direct: false, change: Some(change) }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent as _, Tag};
    use grasp_core::nostr::key::Keys;

    use super::*;

    #[test]
    fn follows_only_repositories_that_list_the_relay_by_default() {
        let keys = Keys::generate();
        let announced = |relays: &[&str]| {
            let relays = ["relays"].iter().chain(relays).map(|text| (*text).to_owned());
            let tags = [Tag::identifier("x"), Tag::parse(relays).unwrap()];
            EventBuilder::new(kinds::ANNOUNCEMENT, "").tags(tags).finalize(&keys).unwrap()
        };
        let both = announced(&["wss://other.example", "wss://us.example/"]);
        let other = announced(&["wss://other.example"]);
        let change = |unlisted, news| {
            let following = Following { own: "us.example".parse().unwrap(), unlisted };
            match to_input(news, true, &following, &Mutex::default()) {
                Some(Input::Accepted(accepted)) => accepted.change.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        for news in [News::Accepted, News::Held] {
            let listed = change(false, news(Arc::new(both.clone())));
            assert!(matches!(listed, IndexChange::Announced { .. }));
            let unlisted = change(false, news(Arc::new(other.clone())));
            assert!(matches!(unlisted, IndexChange::Retired { .. }), "what was followed is left");
            let unlisted = change(true, news(Arc::new(other.clone())));
            assert!(matches!(unlisted, IndexChange::Announced { .. }));
        }
    }
}
