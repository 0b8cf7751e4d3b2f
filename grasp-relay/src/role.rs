//! The role of this process among the nodes of a server: one node writes, all of them serve.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::ingest::Ingest;
use grasp_purgatory::driver::PurgatoryDriver;

/// The parts that only the writer has.
#[derive(Clone)]
pub struct Writer {
    /// Judges and stores events.
    pub ingest: Arc<dyn Ingest>,
    /// Holds events until their git data is here, and serves both.
    pub purgatory: PurgatoryDriver,
}

/// The role of a node.
#[derive(Clone)]
pub enum Role {
    /// It admits events and pushes.
    Writer(Writer),
    /// It serves what is committed, and passes events and pushes to the writer.
    Reader {
        /// The address of the writer; `None` while there is none.
        writer: Option<Arc<str>>,
    },
}

/// Shows the present role of this process. Cheap to clone.
#[derive(Clone)]
pub struct RoleWatch(watch::Receiver<Role>);

impl RoleWatch {
    /// Watches the roles that are sent.
    pub fn new(roles: watch::Receiver<Role>) -> Self {
        Self(roles)
    }

    /// Returns the present role.
    pub fn current(&self) -> Role {
        self.0.borrow().clone()
    }

    /// Returns the parts of the writer, if this process is it.
    pub fn writer(&self) -> Option<Writer> {
        match &*self.0.borrow() {
            Role::Writer(writer) => Some(writer.clone()),
            Role::Reader { .. } => None,
        }
    }

    /// Returns purgatory, if this process is the writer.
    pub fn purgatory(&self) -> Option<PurgatoryDriver> {
        Some(self.writer()?.purgatory)
    }

    /// Waits until there is a writer, this process or another one, and returns the role; `None` after this time.
    pub async fn with_writer(&self, within: Duration) -> Option<Role> {
        let has_writer = |role: &Role| !matches!(role, Role::Reader { writer: None });
        let mut roles = self.0.clone();
        let role = tokio::time::timeout(within, roles.wait_for(has_writer))
            .await
            .ok()?;
        role.ok().map(|role| role.clone())
    }

    /// Waits until this process is the writer; `false` after this time.
    pub async fn until_writer(&self, within: Duration) -> bool {
        let is_writer = |role: &Role| matches!(role, Role::Writer(_));
        let mut roles = self.0.clone();
        matches!(
            tokio::time::timeout(within, roles.wait_for(is_writer)).await,
            Ok(Ok(_))
        )
    }

    /// Waits until the role is another one than this; `false` after this time.
    pub async fn changed_from(&self, old: &Role, within: Duration) -> bool {
        let is_other = |role: &Role| match (old, role) {
            (Role::Reader { writer: old }, Role::Reader { writer }) => old != writer,
            (Role::Writer(_), Role::Writer(_)) => false,
            _ => true,
        };
        tokio::time::timeout(within, self.0.clone().wait_for(is_other))
            .await
            .is_ok()
    }
}
