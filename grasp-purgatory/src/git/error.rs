//! Errors of git.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use grasp_core::RefName;
use grasp_core::resources::Shortage;

use super::binary::GitVersion;
use super::packs::PackStorageError;
use crate::database::DatabaseError;

/// The reason why the installed git cannot be used. Each is for the operator, at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BinaryError {
    /// No such program.
    #[error("git was not found ({0}); install git {min} or newer and have it first in PATH", min = GitVersion::OLDEST)]
    NotFound(String),
    /// It is there but could not be run.
    #[error("could not run {program}")]
    Run {
        /// The command.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It ran, and did not answer like git.
    #[error("{program} did not print its version: {said:?}")]
    NotGit {
        /// The command.
        program: PathBuf,
        /// The beginning of what it said.
        said: String,
    },
    /// A git without what is needed here.
    #[error("git {0} is too old; install git {min} or newer and have it first in PATH", min = GitVersion::OLDEST)]
    TooOld(GitVersion),
}

/// The reason why an operation on a repository failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// A file or directory could not be read or written.
    #[error("could not {doing} {path}")]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The disk, or our quota of it, is full.
    #[error("no space left on disk")]
    DiskFull,
    /// A repository of ours could not be read.
    #[error("could not read a repository")]
    Read(#[from] git2::Error),
    /// A git process could not be started or talked to.
    #[error("could not run git {command}")]
    Spawn {
        /// The subcommand.
        command: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A git process failed for a reason that is not the peer's.
    #[error("git {command} failed: {said}")]
    Failed {
        /// The subcommand.
        command: &'static str,
        /// The end of what it said.
        said: String,
    },
    /// Another process works in the same directory.
    #[error("{0} is used by another process")]
    InUse(PathBuf),
    /// The directory was written by another version of this program.
    #[error("{path} has layout {found:?}, and this version knows only {known:?}")]
    Layout {
        /// The directory.
        path: PathBuf,
        /// The version that it declares.
        found: String,
        /// The known version.
        known: &'static str,
    },
    /// There is no such repository here.
    #[error("no such repository")]
    NoView,
    /// The ref has moved since the caller looked.
    #[error("{0} has moved meanwhile")]
    Moved(RefName),
    /// The repository has changed since the caller looked.
    #[error("the repository has changed meanwhile")]
    Outdated,
    /// The repository cannot change while work on it is in progress.
    #[error("work on the repository is in progress")]
    InProgress,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Packs could not be stored in the pack storage, or read from it.
    #[error(transparent)]
    PackStorage(#[from] PackStorageError),
    /// Two refs that cannot both exist, one being a directory of the other.
    #[error("{0} and {1} cannot both exist")]
    Conflict(RefName, RefName),
    /// A branch may point at commits only.
    #[error("{0} does not point at a commit")]
    NotACommit(RefName),
    /// The objects came, but some that they need did not.
    #[error("the history of {count} tips is incomplete")]
    Incomplete {
        /// The number of incomplete tips.
        count: usize,
    },
    /// The data is no pack, or contains objects that git's own checks refuse.
    #[error("the pack was refused: {0}")]
    BadPack(String),
    /// More was sent than may be.
    #[error("the pack is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// More objects were sent than may be.
    #[error("the pack has more than {limit} objects")]
    TooMany {
        /// The limit.
        limit: u64,
    },
    /// A chain of deltas is longer than git makes any.
    #[error(
        "the pack has a chain of more than {limit} deltas; repack with `git repack -adF` and push again"
    )]
    LongChain {
        /// The limit of deltas in a chain.
        limit: u16,
    },
    /// The data took more CPU time than data of its size may.
    #[error(
        "git {command} took more CPU time than data of this size may; repack with `git repack -adF` and try again"
    )]
    TooExpensive {
        /// The subcommand.
        command: &'static str,
    },
    /// No slot or memory became free in time.
    #[error("{0}; try again later")]
    Busy(Shortage),
    /// The limit of staged uploads is reached.
    #[error("too many uploads wait for their events, try again later")]
    StagingFull,
    /// The work took longer than it may.
    #[error("git {command} was stopped after {after:?}")]
    Timeout {
        /// The subcommand.
        command: &'static str,
        /// The time that it ran.
        after: Duration,
    },
    /// The work was given up because the server ends.
    #[error("the server is stopping")]
    Stopping,
}

impl GitError {
    /// Returns whether this server or its operator must act, rather than the sender of the data or the request.
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Self::Io { .. }
                | Self::DiskFull
                | Self::Read(_)
                | Self::Spawn { .. }
                | Self::Failed { .. }
                | Self::InUse(_)
                | Self::Database(_)
                | Self::PackStorage(_)
                | Self::Layout { .. }
        )
    }

    /// Returns whether the work was ended at its limit of time.
    pub fn is_too_expensive(&self) -> bool {
        matches!(self, Self::TooExpensive { .. } | Self::Timeout { .. })
    }

    /// Returns whether the operator must free disk space.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull)
    }

    /// An error of the file system, with the one kind apart that operators must tell at a glance.
    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::DiskFull,
            _ => Self::Io {
                doing,
                path: path.into(),
                source,
            },
        }
    }

    /// A git process that failed through no fault of a peer, as far as its last words tell.
    pub(super) fn failed(command: &'static str, said: &str) -> Self {
        if says_disk_full(said) {
            return Self::DiskFull;
        }
        Self::Failed {
            command,
            said: said.trim().to_owned(),
        }
    }
}

/// Returns whether git's error output is that of a full disk.
pub(super) fn says_disk_full(said: &str) -> bool {
    const WORDS: [&str; 3] = [
        "No space left on device",
        "Disk quota exceeded",
        "File too large",
    ];
    WORDS.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_recognised_in_every_form() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(GitError::io("write", "x", full).is_disk_full());
        let said = "fatal: sha1 file 'x' write error: No space left on device";
        assert!(GitError::failed("index-pack", said).is_disk_full());
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!GitError::io("write", "x", other).is_disk_full());
    }

    #[test]
    fn a_peer_is_blamed_for_its_pack_and_not_for_our_disk() {
        assert!(GitError::DiskFull.is_ours());
        assert!(!GitError::BadPack(String::new()).is_ours());
        assert!(!GitError::Moved("refs/heads/x".parse().unwrap()).is_ours());
    }
}
