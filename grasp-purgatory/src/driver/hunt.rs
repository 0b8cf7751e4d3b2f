//! The relay as the hunt for git data sees it.

use std::error::Error;
use std::sync::Arc;

use crate::database::Source;
use crate::git::GitError;
use crate::hunt::LocalServer;
use crate::{Input, Purgatory};
use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Now, RepoId, ServiceIdentity};
use nostr::event::Event;
use nostr::filter::Filter;
use tokio::sync::{mpsc, oneshot};

use super::Order;
use super::lane::LaneExecutor;
use super::survey::addressed_to;

/// Does not keep the driver alive: the hunt ends with it.
pub(super) struct HuntServer {
    executor: LaneExecutor,
    orders: mpsc::WeakSender<Order>,
    /// Inputs for purgatory, in their order.
    inputs: mpsc::UnboundedSender<Input>,
}

impl HuntServer {
    pub(super) fn new(executor: LaneExecutor, orders: mpsc::WeakSender<Order>) -> Self {
        let (inputs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(forward(inbox, orders.clone()));
        Self { executor, orders, inputs }
    }
}

impl LocalServer for HuntServer {
    fn now(&self) -> Now {
        self.executor.parts.relay.now()
    }

    fn service(&self) -> &ServiceIdentity {
        &self.executor.parts.policy.service
    }

    async fn events(
        &self,
        filter: Filter,
    ) -> Result<Vec<Arc<Event>>, Box<dyn Error + Send + Sync>> {
        Ok(self.executor.events(filter).await?)
    }

    async fn proposals(
        &self,
        repos: Vec<RepoId>,
    ) -> Result<Vec<Arc<Event>>, Box<dyn Error + Send + Sync>> {
        self.events(addressed_to(repos.into_iter())).await
    }

    fn is_damaged(&self, identifier: &Identifier) -> bool {
        self.executor.damage.is_damaged(identifier)
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Purgatory) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let question = move |purgatory: &Purgatory| _ = reply.send(question(purgatory));
        self.orders.upgrade()?.send(Order::Ask(Box::new(question))).await.ok()?;
        answer.await.ok()
    }

    fn tell(&self, input: Input) {
        let _ = self.inputs.send(input);
    }

    async fn room(&self, identifier: &Identifier, claimant: &Claimant) -> Result<u64, GitError> {
        let disk = &self.executor.disk;
        let today = disk.room(self.now().mono, identifier, claimant, Source::Hunted);
        let repos = &self.executor.parts.repos;
        Ok(today.min(disk.family_room(repos, identifier, claimant).await?))
    }

    fn charge(&self, identifier: &Identifier, claimant: &Claimant, bytes: u64) {
        self.executor.disk.charge(self.now(), identifier, claimant, (Source::Hunted, bytes));
    }
}

/// Forwards inputs in their order; the hunt does not wait for that.
async fn forward(mut inbox: mpsc::UnboundedReceiver<Input>, orders: mpsc::WeakSender<Order>) {
    while let Some(input) = inbox.recv().await {
        let Some(orders) = orders.upgrade() else { return };
        let _ = orders.send(Order::Tell(input)).await;
    }
}
