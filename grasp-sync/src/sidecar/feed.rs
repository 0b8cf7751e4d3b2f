//! Streams what the relay has and what comes, for ever, across its restarts and ours.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::limits::BackoffPolicy;
use grasp_core::nip34::Announcement;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RepoId, kinds};
use tokio::sync::mpsc;

use super::Remote;
use crate::driver::codec::RelayMessage;
use crate::driver::{Client, Unanswered};
use crate::engine::Said;
use crate::local::News;

/// Delays before a lost connection is made again.
const RECONNECT: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    cap: Duration::from_secs(60),
    ..BackoffPolicy::RELAY
};
/// Time before a loss that is read again: clocks differ, and events may be late.
const OVERLAP: Duration = Duration::from_secs(15 * 60);

pub(super) async fn follow(
    remote: Arc<Remote>,
    kinds: Vec<Kind>,
    held_events: mpsc::Receiver<Arc<Event>>,
    news_sender: mpsc::Sender<News>,
) {
    let served = BTreeSet::new();
    let mut follower =
        Follower { kinds, news_sender, held_events, served, since: None, caught_up: false };
    let mut failures = 0;
    while !follower.news_sender.is_closed() {
        match remote.connect().await {
            Ok(mut client) => {
                if std::mem::take(&mut failures) > 0 {
                    tracing::info!("connected to the local relay again");
                }
                let Err(error) = follower.listen(&mut client).await;
                tracing::warn!(%error, "the feed of the local relay ended; connecting again");
            }
            Err(_) => failures += 1,
        }
        tokio::time::sleep(RECONNECT.delay_after(failures)).await;
    }
}

struct Follower {
    kinds: Vec<Kind>,
    news_sender: mpsc::Sender<News>,
    /// Announcements that the relay accepted and does not serve.
    held_events: mpsc::Receiver<Arc<Event>>,
    /// Repositories whose announcement it serves.
    served: BTreeSet<RepoId>,
    /// Everything older has been streamed.
    since: Option<Timestamp>,
    caught_up: bool,
}

impl Follower {
    /// Subscribes first and reads afterwards, so that no event is missed in between.
    async fn listen(
        &mut self,
        client: &mut Client,
    ) -> Result<std::convert::Infallible, Unanswered> {
        let began = Timestamp::now();
        let mut filters = self.live_filters().into_iter();
        let mut live = client.subscribe(&filters.next().unwrap_or_default()).await?;
        self.read(client).await?;
        match std::mem::replace(&mut self.caught_up, true) {
            false => self.news(News::CaughtUp).await?,
            true => self.check_for_losses(client).await?,
        }
        self.since = Some(began - OVERLAP);
        loop {
            let message = tokio::select! {
                message = client.receive() => message?,
                Some(event) = self.held_events.recv() => {
                    self.held(event).await?;
                    continue;
                }
            };
            match message {
                RelayMessage::Event(sub, event) if sub == live => {
                    self.accepted(event).await?;
                    self.since = Some(Timestamp::now() - OVERLAP);
                }
                RelayMessage::Said(Said::Closed { sub, text }) if sub == live => {
                    let Some(filter) = filters.next() else {
                        tracing::warn!(text, "the local relay refuses every live subscription");
                        return Err(Unanswered::Closed(text));
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
    fn live_filters(&self) -> [Filter; 3] {
        let narrow = Filter::new().kinds(self.kinds.iter().copied());
        [Filter::new().limit(0), narrow.clone().limit(0), narrow.limit(1)]
    }

    /// Streams what is stored.
    async fn read(&mut self, client: &mut Client) -> Result<(), Unanswered> {
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
    async fn check_for_losses(&mut self, client: &mut Client) -> Result<(), Unanswered> {
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
            "the local relay lost repositories; comparing everything again"
        );
        for repo in gone {
            self.served.remove(&repo);
            self.news(News::Retired(repo)).await?;
        }
        self.news(News::Lost).await
    }

    async fn accepted(&mut self, event: Event) -> Result<(), Unanswered> {
        if let Ok(announcement) = Announcement::parse(&event) {
            self.served.insert(announcement.repo);
        }
        self.news(News::Accepted(Arc::new(event))).await
    }

    /// Streams a held announcement, unless the repository is served: then it is wanted completely already.
    async fn held(&self, event: Arc<Event>) -> Result<(), Unanswered> {
        let repo = Announcement::parse(&event).map(|announcement| announcement.repo);
        match repo {
            Ok(repo) if !self.served.contains(&repo) => self.news(News::Held(event)).await,
            _ => Ok(()),
        }
    }

    async fn news(&self, news: News) -> Result<(), Unanswered> {
        self.news_sender.send(news).await.map_err(|_| Unanswered::Lost)
    }
}
