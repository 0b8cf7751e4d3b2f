//! What the local relay tells about itself, in the engine's words.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use grasp_core::kinds;
use grasp_core::sync::{IndexChange, SyncLevel};
use tokio::sync::mpsc;

use super::recent::Recent;
use crate::engine::{Accepted, Input, index_change};
use crate::local::{LocalRelay, News};

/// Pause before a feed that ended is begun anew.
const AGAIN: Duration = Duration::from_secs(5);

/// Tells the engine everything, for ever.
pub(crate) async fn listen(
    local: Arc<dyn LocalRelay>,
    recent: Arc<Mutex<Recent>>,
    told: mpsc::Sender<Input>,
) {
    loop {
        let mut feed = local.accepted(&kinds::SELF_SUBSCRIPTION);
        let mut is_live = false;
        while let Some(news) = feed.next().await {
            is_live |= news == News::CaughtUp;
            let Some(input) = read(news, is_live, &recent) else { continue };
            if told.send(input).await.is_err() {
                return;
            }
        }
        tracing::warn!("the local relay's feed ended; beginning anew");
        tokio::time::sleep(AGAIN).await;
    }
}

fn read(news: News, is_live: bool, recent: &Mutex<Recent>) -> Option<Input> {
    let accepted = match news {
        News::CaughtUp => return Some(Input::FeedCaughtUp),
        News::Lost => {
            *recent.lock().unwrap_or_else(PoisonError::into_inner) = Recent::default();
            return Some(Input::FeedLost);
        }
        News::Accepted(event) => {
            let recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            let direct = is_live && !recent.was_brought(&event.id);
            let change = index_change(&event, SyncLevel::Full);
            Accepted { event: Some(event.id), direct, change }
        }
        // Of what else waits nothing may be asked that depends on it.
        News::Held(event) if event.kind != kinds::ANNOUNCEMENT => return None,
        News::Held(event) => changed(index_change(&event, SyncLevel::StateOnly)?),
        News::Retired(repo) => changed(IndexChange::Retired { repo }),
        News::Removed(event) => changed(IndexChange::RootRemoved { root: event.into() }),
    };
    Some(Input::Accepted(accepted))
}

fn changed(change: IndexChange) -> Accepted {
    Accepted { event: None, direct: false, change: Some(change) }
}
