//! Why a server could not be opened, or work at it could not be done, and who must act.

use std::error::Error;
use std::fmt::{self, Display};

use super::operations::DATABASE_REMEDY;
use crate::store::sqlite;

/// The party that can remove the cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MustAct {
    /// The operator: a setting, or a file that a setting names, cannot be used.
    Operator,
    /// The operator, with a backup: stored data is missing or damaged.
    Restore,
    /// The administrator of the machine: its disk, network, database or git failed.
    Machine,
    /// The caller: what was asked for cannot be done as things are.
    Caller,
    /// The operator of another server, or that of the network to it.
    OtherServer,
}

/// Why a server could not be opened, or work at it could not be done. Its causes are its sources.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// An explained error.
    #[error("{what}")]
    Explained {
        /// What could not be done, and what to do about it.
        what: String,
        /// Who can do that.
        must_act: MustAct,
        /// Why it could not be done.
        #[source]
        cause: Option<Box<dyn Error + Send + Sync>>,
    },
    /// An error that explains itself.
    #[error(transparent)]
    Plain(Box<dyn Error + Send + Sync>),
}

impl InstanceError {
    /// Creates an error without a cause.
    pub(crate) fn new(must_act: MustAct, what: impl Into<String>) -> Self {
        Self::Explained {
            what: what.into(),
            must_act,
            cause: None,
        }
    }

    /// Creates the error that a setting cannot be used.
    pub(crate) fn operator(what: impl Into<String>) -> Self {
        Self::new(MustAct::Operator, what)
    }

    /// Creates the error that stored data is damaged.
    pub(crate) fn damage(what: impl Into<String>) -> Self {
        Self::new(MustAct::Restore, what)
    }

    /// Creates the error that what was asked for cannot be done.
    pub(crate) fn caller(what: impl Into<String>) -> Self {
        Self::new(MustAct::Caller, what)
    }

    /// Creates the error that the machine failed.
    pub(crate) fn machine(what: impl Into<String>) -> Self {
        Self::new(MustAct::Machine, what)
    }

    /// Creates the error that another server failed or refused.
    pub(crate) fn other_server(what: impl Into<String>) -> Self {
        Self::new(MustAct::OtherServer, what)
    }

    /// Adds what could not be done because of it.
    pub(crate) fn explained(self, what: String) -> Self {
        Self::Explained {
            what,
            must_act: self.must_act(),
            cause: Some(Box::new(self)),
        }
    }

    /// Returns who must act.
    pub fn must_act(&self) -> MustAct {
        if sqlite::is_damage(self) {
            return MustAct::Restore;
        }
        match self {
            Self::Explained { must_act, .. } => *must_act,
            Self::Plain(_) => MustAct::Machine,
        }
    }

    /// Returns the remedy if a damaged database has caused the error.
    pub fn database_remedy(&self) -> Option<&'static str> {
        sqlite::is_damage(self).then_some(DATABASE_REMEDY)
    }

    /// Returns the first cause of a type, the error itself included.
    pub(crate) fn find<E: Error + 'static>(&self) -> Option<&E> {
        if let Self::Plain(error) = self {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
        }
        causes(self).find_map(|error| error.downcast_ref())
    }

    /// Returns the error with all its causes in one line.
    pub fn in_one_line(&self) -> String {
        one_line(self)
    }
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns an error with all its causes in one line.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
    }
    text
}

/// The result of work at a server.
pub(crate) type Result<T, E = InstanceError> = std::result::Result<T, E>;

/// Adds to an error what could not be done because of it.
pub(crate) trait Explain<T>: Sized {
    /// Adds a text. Who must act is taken from the cause, and is the machine's administrator if that does not say so.
    fn context(self, what: impl Display) -> Result<T, InstanceError> {
        self.with_context(|| what)
    }

    /// Adds a text that is made only for an error.
    fn with_context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, InstanceError>;

    /// Adds a text, and says who must act.
    fn or_ask<D: Display>(
        self,
        must_act: MustAct,
        what: impl FnOnce() -> D,
    ) -> Result<T, InstanceError> {
        self.with_context(what).map_err(|error| match error {
            InstanceError::Explained { what, cause, .. } => InstanceError::Explained {
                what,
                must_act,
                cause,
            },
            plain @ InstanceError::Plain(_) => plain,
        })
    }
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Explain<T> for Result<T, E> {
    fn with_context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, InstanceError> {
        let error = match self {
            Ok(value) => return Ok(value),
            Err(error) => error.into(),
        };
        let inner = error.downcast_ref::<InstanceError>();
        Err(InstanceError::Explained {
            what: what().to_string(),
            must_act: inner.map_or(MustAct::Machine, InstanceError::must_act),
            cause: Some(error),
        })
    }
}

impl<T> Explain<T> for Option<T> {
    fn with_context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T, InstanceError> {
        self.ok_or_else(|| InstanceError::caller(what().to_string()))
    }
}

/// Errors of other crates and modules, which explain themselves.
macro_rules! plain {
    ($($error:ty),* $(,)?) => { $(
        impl From<$error> for InstanceError {
            fn from(error: $error) -> Self {
                Self::Plain(Box::new(error))
            }
        }
    )* };
}

plain!(
    axum::http::Error,
    crate::nodes::ClockDrift,
    crate::publish::Refused,
    crate::store::StoreError,
    fmt::Error,
    grasp_core::ParseError,
    grasp_purgatory::database::DatabaseError,
    grasp_purgatory::git::GitError,
    grasp_sync::driver::Unanswered,
    nostr::error::Error,
    serde_json::Error,
    std::io::Error,
    tempfile::PersistError,
    tokio::task::JoinError,
);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn who_must_act_is_kept_through_explanations() {
        let settings: Result<(), _> = Err(InstanceError::operator("tls.key is not set"));
        let error = settings.context("could not open").unwrap_err();
        assert_eq!(error.must_act(), MustAct::Operator);
        assert_eq!(error.in_one_line(), "could not open: tls.key is not set");
        let disk: Result<(), io::Error> = Err(io::ErrorKind::StorageFull.into());
        assert_eq!(
            disk.context("could not write").unwrap_err().must_act(),
            MustAct::Machine
        );
    }

    #[test]
    fn a_damaged_database_is_found_below_explanations() {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        let damage: Result<(), _> = Err(rusqlite::Error::SqliteFailure(code, None));
        let error = damage.context("could not read").context("could not open");
        let error = error.unwrap_err();
        assert_eq!(error.must_act(), MustAct::Restore);
        assert!(error.database_remedy().is_some());
    }
}
