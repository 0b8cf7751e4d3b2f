//! What the relay has, and what comes: told for ever, across its restarts and ours.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::nostr::event::Kind;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use tokio::sync::mpsc;

use super::client::{Client, Lost, Place};
use crate::driver::codec::Word;
use crate::local::News;

/// Pause before a lost connection is made anew; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How far back is read after a loss, beyond the moment of it: clocks differ, and events may be late.
const OVERLAP: Duration = Duration::from_secs(15 * 60);

pub(super) async fn follow(place: Arc<Place>, kinds: Vec<Kind>, tell: mpsc::Sender<News>) {
    let mut follower = Follower { kinds, tell, since: None, caught_up: false };
    let mut pause = FIRST_PAUSE;
    while !follower.tell.is_closed() {
        if let Ok(mut client) = Client::connect(&place).await {
            pause = FIRST_PAUSE;
            let Err(Lost) = follower.listen(&mut client).await;
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

struct Follower {
    kinds: Vec<Kind>,
    tell: mpsc::Sender<News>,
    /// Everything older has been told.
    since: Option<Timestamp>,
    caught_up: bool,
}

impl Follower {
    /// Listens first and reads then, so that nothing falls between the two.
    async fn listen(&mut self, client: &mut Client) -> Result<std::convert::Infallible, Lost> {
        let began = Timestamp::now();
        let mut live = client.subscribe(&Filter::new().limit(0)).await?;
        let mut is_narrow = false;
        self.read(client).await?;
        if !std::mem::replace(&mut self.caught_up, true) {
            self.news(News::CaughtUp).await?;
        }
        self.since = Some(began - OVERLAP);
        loop {
            match client.heard().await? {
                Word::Event(sub, event) if sub == live => {
                    self.news(News::Accepted(Arc::new(event))).await?;
                    self.since = Some(Timestamp::now() - OVERLAP);
                }
                // Some relays want to be asked for something in particular.
                Word::Closed(sub, _) if sub == live && !is_narrow => {
                    let kinds = self.kinds.iter().copied();
                    live = client.subscribe(&Filter::new().kinds(kinds).limit(0)).await?;
                    is_narrow = true;
                    self.read(client).await?;
                }
                Word::Closed(sub, text) if sub == live => {
                    tracing::warn!(text, "our relay does not let us listen");
                    return Err(Lost);
                }
                _ => {}
            }
        }
    }

    /// Tells what is stored.
    async fn read(&mut self, client: &mut Client) -> Result<(), Lost> {
        let mut filter = Filter::new().kinds(self.kinds.iter().copied());
        filter.since = self.since;
        let mut reading = client.read(filter);
        while let Some(page) = reading.next().await? {
            for event in page {
                self.news(News::Accepted(Arc::new(event))).await?;
            }
        }
        Ok(())
    }

    async fn news(&self, news: News) -> Result<(), Lost> {
        self.tell.send(news).await.map_err(|_| Lost)
    }
}
