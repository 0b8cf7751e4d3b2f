//! Streams what the relay has and what comes, for ever, across its restarts and ours.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nip34::Announcement;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RepoId, kinds};
use tokio::sync::mpsc;

use super::client::{Client, Lost, Place};
use crate::driver::codec::RelayMessage;
use crate::local::News;

/// Delay before a lost connection is made again; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time before a loss that is read again: clocks differ, and events may be late.
const OVERLAP: Duration = Duration::from_secs(15 * 60);

pub(super) async fn follow(
    place: Arc<Place>,
    kinds: Vec<Kind>,
    waits: mpsc::Receiver<Arc<Event>>,
    tell: mpsc::Sender<News>,
) {
    let served = BTreeSet::new();
    let mut follower = Follower { kinds, tell, waits, served, since: None, caught_up: false };
    let mut pause = FIRST_PAUSE;
    let mut is_away = false;
    while !follower.tell.is_closed() {
        match Client::connect(&place).await {
            Ok(mut client) => {
                pause = FIRST_PAUSE;
                if std::mem::take(&mut is_away) {
                    tracing::info!("our relay is there again");
                }
                let Err(Lost) = follower.listen(&mut client).await;
            }
            Err(_) if !is_away => {
                is_away = true;
                tracing::warn!("our relay cannot be reached; it is tried again and again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

struct Follower {
    kinds: Vec<Kind>,
    tell: mpsc::Sender<News>,
    /// Announcements that the relay accepted and does not serve.
    waits: mpsc::Receiver<Arc<Event>>,
    /// Repositories whose announcement it serves.
    served: BTreeSet<RepoId>,
    /// Everything older has been streamed.
    since: Option<Timestamp>,
    caught_up: bool,
}

impl Follower {
    /// Subscribes first and reads afterwards, so that no event is missed in between.
    async fn listen(&mut self, client: &mut Client) -> Result<std::convert::Infallible, Lost> {
        let began = Timestamp::now();
        let mut ways = self.standing_filters().into_iter();
        let mut live = client.subscribe(&ways.next().unwrap_or_default()).await?;
        self.read(client).await?;
        match std::mem::replace(&mut self.caught_up, true) {
            false => self.news(News::CaughtUp).await?,
            true => self.look_for_losses(client).await?,
        }
        self.since = Some(began - OVERLAP);
        loop {
            let message = tokio::select! {
                message = client.heard() => message?,
                Some(event) = self.waits.recv() => {
                    self.held(event).await?;
                    continue;
                }
            };
            match message {
                RelayMessage::Event(sub, event) if sub == live => {
                    self.accepted(event).await?;
                    self.since = Some(Timestamp::now() - OVERLAP);
                }
                RelayMessage::Closed(sub, text) if sub == live => {
                    let Some(filter) = ways.next() else {
                        tracing::warn!(text, "our relay does not let us listen");
                        return Err(Lost);
                    };
                    live = client.subscribe(&filter).await?;
                    self.read(client).await?;
                }
                _ => {}
            }
        }
    }

    /// Returns the filters to subscribe to, one after another until the relay accepts one: some relays want a
    /// specific filter, and some refuse a limit of zero. None has a `since`, which relays apply to new events too.
    fn standing_filters(&self) -> [Filter; 3] {
        let narrow = Filter::new().kinds(self.kinds.iter().copied());
        [Filter::new().limit(0), narrow.clone().limit(0), narrow.limit(1)]
    }

    /// Streams what is stored.
    async fn read(&mut self, client: &mut Client) -> Result<(), Lost> {
        let mut filter = Filter::new().kinds(self.kinds.iter().copied());
        filter.since = self.since;
        let mut reading = client.read(filter);
        while let Some(page) = reading.next().await? {
            for event in page {
                self.accepted(event).await?;
            }
        }
        Ok(())
    }

    /// Checks whether the relay came back with less: emptied, or from an older copy.
    async fn look_for_losses(&mut self, client: &mut Client) -> Result<(), Lost> {
        let mut there = BTreeSet::new();
        let mut reading = client.read(Filter::new().kind(kinds::ANNOUNCEMENT));
        while let Some(page) = reading.next().await? {
            let announcements = page.iter().filter_map(|event| Announcement::parse(event).ok());
            there.extend(announcements.map(|announcement| announcement.repo));
        }
        let gone: Vec<RepoId> = self.served.difference(&there).cloned().collect();
        if gone.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            repositories = gone.len(),
            "our relay lacks what it had; all is compared anew"
        );
        for repo in gone {
            self.served.remove(&repo);
            self.news(News::Retired(repo)).await?;
        }
        self.news(News::Lost).await
    }

    async fn accepted(&mut self, event: Event) -> Result<(), Lost> {
        if let Ok(announcement) = Announcement::parse(&event) {
            self.served.insert(announcement.repo);
        }
        self.news(News::Accepted(Arc::new(event))).await
    }

    /// Streams a held announcement, unless the repository is served: then it is wanted completely already.
    async fn held(&self, event: Arc<Event>) -> Result<(), Lost> {
        let repo = Announcement::parse(&event).map(|announcement| announcement.repo);
        match repo {
            Ok(repo) if !self.served.contains(&repo) => self.news(News::Held(event)).await,
            _ => Ok(()),
        }
    }

    async fn news(&self, news: News) -> Result<(), Lost> {
        self.tell.send(news).await.map_err(|_| Lost)
    }
}
