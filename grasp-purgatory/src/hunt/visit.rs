//! One visit to one address: the wanted objects by id; if it refuses those, its advertisement, what that shows, and a
//! guess or two. Its requests come one after the other, each with a permit of the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::{CloneUrl, Host, Mono, Oid, RepoId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::driver::{HuntShared, Hunter};
use super::plan::{HuntNeeds, MissedObjects};
use super::requests::{Admission, QueuedRequest, RequestSlot};
use super::{Advertisement, FetchError, HuntReport, SyncContext};
use crate::git::Fetched;

/// Objects asked for in one visit although the server does not advertise them.
const GUESSES_PER_VISIT: usize = 2;

/// Pause of a server that asks for fewer requests and does not say for how long.
const DEFAULT_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause that a server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Time without an answer after which a request is cancelled.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The progress of a visit, as far as its attempt depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitProgress {
    /// The server is being asked.
    Asked,
    /// The visit waits until the limits of its host allow a request.
    Queued,
    /// The server is slow: its attempt does not wait for it any more.
    Slow,
}

/// The end of a visit before its last request.
enum VisitEnd {
    /// Nothing is wanted from the server any more, or it failed.
    Over,
    /// The server asked for fewer requests: it has not been asked yet.
    RateLimited,
}

/// One address being asked.
pub(super) struct Visit<C> {
    pub(super) shared: Arc<HuntShared<C>>,
    pub(super) repo: RepoId,
    pub(super) url: CloneUrl,
    pub(super) needs: watch::Sender<HuntNeeds>,
    pub(super) progress: mpsc::UnboundedSender<(Host, VisitProgress)>,
}

impl<C: SyncContext> Visit<C> {
    /// Visits the address; from the beginning, at the end of its queue, if it asks for fewer requests.
    pub(super) async fn run(self, first: QueuedRequest) {
        let mut next = Some(first);
        while let Some(request) = next {
            let slot = request.slot().await;
            // On the heap, because few of the visits that wait make requests at the same time.
            let end = Box::pin(self.make_requests(slot)).await;
            let Err(VisitEnd::RateLimited) = end else {
                return;
            };
            self.report_progress(VisitProgress::Queued);
            let hunter = &self.shared.hunter;
            next = QueuedRequest::admit(hunter, &self.url, &self.repo, Admission::Queued).await;
        }
    }

    async fn make_requests(&self, mut slot: RequestSlot) -> Result<(), VisitEnd> {
        let wanted = self.wanted()?;
        // By their ids, unless the server is known to have refused one of them.
        let mut missed = None;
        if self.may_ask_directly(&wanted).await {
            missed = Some(self.fetch(&mut slot, wanted).await?);
            slot = self.next_slot(slot).await?;
        }
        let advertised = self.list(&mut slot).await?;
        // What it advertises, all at once.
        let batch = self.choose_batch(&advertised, missed).await?;
        if !batch.is_empty() {
            slot = self.next_slot(slot).await?;
            self.fetch_rest(&mut slot, batch).await?;
        }
        // What it may have nevertheless, one by one.
        for _ in 0..GUESSES_PER_VISIT {
            let guess = self.choose_guess(&advertised).await?;
            slot = self.next_slot(slot).await?;
            self.fetch_rest(&mut slot, BTreeSet::from([guess])).await?;
        }
        Ok(())
    }

    /// Returns the objects to request from this address, if there are any.
    fn wanted(&self) -> Result<BTreeSet<Oid>, VisitEnd> {
        let wanted = self.needs.borrow().of(&self.url);
        if wanted.is_empty() {
            return Err(VisitEnd::Over);
        }
        Ok(wanted)
    }

    /// Waits for the next request, unless others have brought everything meanwhile.
    async fn next_slot(&self, slot: RequestSlot) -> Result<RequestSlot, VisitEnd> {
        self.wanted()?;
        let request = slot.next().await.ok_or(VisitEnd::Over)?;
        if request.is_throttled {
            self.report_progress(VisitProgress::Queued);
        }
        let slot = request.slot().await;
        self.wanted()?;
        Ok(slot)
    }

    /// Calls a function with the state of the hunt and the address.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Hunter, Mono, &CloneUrl) -> T + Send + 'static,
    ) -> T {
        let url = self.url.clone();
        let hunter = &self.shared.hunter;
        hunter
            .ask(move |hunter, now| question(hunter, now.mono, &url))
            .await
    }

    /// Notes the visit, and returns whether objects may be requested without an advertisement.
    async fn may_ask_directly(&self, wanted: &BTreeSet<Oid>) -> bool {
        let wanted = wanted.clone();
        self.ask(move |hunter, now, url| {
            hunter.memory.visited(now, url);
            hunter.memory.may_ask_directly(url, &wanted)
        })
        .await
    }

    /// Remembers an advertisement, which also tells why objects were not delivered before. Returns the advertised
    /// objects to request together.
    async fn choose_batch(
        &self,
        advertised: &Advertisement,
        missed: Option<MissedObjects>,
    ) -> Result<BTreeSet<Oid>, VisitEnd> {
        let wanted = self.wanted()?;
        let advertised = advertised.clone();
        let plan = self.ask(move |hunter, now, url| {
            let memory = &mut hunter.memory;
            memory.listed(now, url, advertised.fingerprint);
            if let Some(missed) = missed {
                memory.missed(url, missed, Some(&advertised.has));
            }
            memory.plan(url, &wanted, &advertised)
        });
        Ok(plan.await.batch)
    }

    /// Returns an object to request although it is not advertised, within the limit for such requests.
    async fn choose_guess(&self, advertised: &Advertisement) -> Result<Oid, VisitEnd> {
        let wanted = self.wanted()?;
        let advertised = advertised.clone();
        let guess = self.ask(move |hunter, now, url| {
            let plan = hunter.memory.plan(url, &wanted, &advertised);
            let guess = plan.guesses.first().copied()?;
            let hosts = &mut hunter.requests.hosts;
            hosts.may_guess(now, &url.host()).then_some(guess)
        });
        guess.await.ok_or(VisitEnd::Over)
    }

    /// Reads the advertisement.
    async fn list(&self, slot: &mut RequestSlot) -> Result<Advertisement, VisitEnd> {
        let began = self.shared.context.now().mono;
        let wanted = self.wanted()?;
        let result = tokio::select! {
            biased;
            result = self.shared.context.list(&self.url, &wanted) => result,
            () = self.is_silent() => Err(FetchError::Stalled),
            () = slot.is_overdue() => Err(FetchError::Stalled),
        };
        match result {
            Ok(advertised) => Ok(advertised),
            Err(error) => Err(self.note_error(&error, began).await),
        }
    }

    /// Fetches those of these objects that are still wanted, and remembers what the server did not deliver.
    async fn fetch_rest(
        &self,
        slot: &mut RequestSlot,
        oids: BTreeSet<Oid>,
    ) -> Result<(), VisitEnd> {
        let oids: BTreeSet<Oid> = self.wanted()?.intersection(&oids).copied().collect();
        if oids.is_empty() {
            return Err(VisitEnd::Over);
        }
        let missed = self.fetch(slot, oids).await?;
        self.ask(move |hunter, _, url| hunter.memory.missed(url, missed, None))
            .await;
        Ok(())
    }

    /// Fetches objects, and returns those that the server did not deliver.
    async fn fetch(
        &self,
        slot: &mut RequestSlot,
        oids: BTreeSet<Oid>,
    ) -> Result<MissedObjects, VisitEnd> {
        let began = self.shared.context.now().mono;
        let Fetched { got, error, .. } = self.fetch_in_time(slot, &oids).await;
        if !got.is_empty() {
            self.shared.context.report(&HuntReport::Fetched {
                repo: self.repo.clone(),
                url: self.url.clone(),
                oids: got.len(),
            });
        }
        let mut end = None;
        if let Some(error) = &error {
            end = Some(self.note_error(error, began).await);
        }
        // This may end the attempt, and so the visit.
        self.needs.send_modify(|needs| needs.got(&got));
        match (&error, end) {
            (Some(error), Some(end)) if !error.is_about_the_objects() => Err(end),
            _ => Ok(MissedObjects::new(&oids, &got, error.as_ref())),
        }
    }

    /// Makes a request. It ends when the server does not answer, and when it is slow while others wait.
    async fn fetch_in_time(&self, slot: &mut RequestSlot, oids: &BTreeSet<Oid>) -> Fetched {
        let (answered, answer) = oneshot::channel();
        let context = &self.shared.context;
        let mut fetch = Box::pin(context.fetch(&self.repo, &self.url, oids, answered));
        tokio::select! {
            biased;
            fetched = &mut fetch => return fetched,
            Ok(()) = answer => slot.answered(&self.url),
            () = self.is_silent() => return Fetched::nothing(FetchError::Stalled),
            () = slot.is_overdue() => return Fetched::nothing(FetchError::Stalled),
        }
        tokio::select! {
            biased;
            fetched = fetch => fetched,
            () = self.is_slow() => Fetched::nothing(FetchError::Stalled),
            () = slot.is_overdue() => {
                self.ask(|hunter, _, url| hunter.memory.gave_way(url)).await;
                Fetched::nothing(FetchError::Stalled)
            }
        }
    }

    /// Waits until a server without an answer is given up; it is slow before that.
    async fn is_silent(&self) {
        let answer_is_late = self.shared.config.answer_is_late;
        sleep(answer_is_late).await;
        self.report_progress(VisitProgress::Slow);
        sleep(ANSWER_TIMEOUT.saturating_sub(answer_is_late)).await;
    }

    /// Reports a slow transfer. It is never given up for that alone.
    async fn is_slow(&self) {
        sleep(self.shared.config.fetch_is_late).await;
        self.report_progress(VisitProgress::Slow);
        std::future::pending().await
    }

    fn report_progress(&self, progress: VisitProgress) {
        let _ = self.progress.send((self.url.host(), progress));
    }

    /// Draws the consequences of a server's failure, reports it, and returns how it ends the visit.
    async fn note_error(&self, error: &FetchError, began: Mono) -> VisitEnd {
        let mut end = VisitEnd::Over;
        if *error == FetchError::Cancelled {
            return end;
        }
        let context = &self.shared.context;
        if let FetchError::RateLimited { retry_after } = error {
            let length = retry_after.unwrap_or(DEFAULT_PAUSE).min(MAX_PAUSE);
            self.ask(move |hunter, now, url| {
                let hosts = &mut hunter.requests.hosts;
                hosts.limited(now, &url.host(), began, now + length);
            })
            .await;
            let host = self.url.host();
            context.report(&HuntReport::Paused { host, length });
            end = VisitEnd::RateLimited;
        }
        context.report(&HuntReport::Failed {
            repo: self.repo.clone(),
            url: self.url.clone(),
            error: error.clone(),
        });
        end
    }
}
