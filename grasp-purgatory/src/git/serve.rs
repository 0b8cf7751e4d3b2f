//! Git's side of a conversation with a client, as a process to be fed and read.

use grasp_core::RepoId;
use grasp_core::resources::Claimant;

use super::command::GitCommand;
use super::error::GitError;
use super::limits::ProcessLimits;
use super::process::GitProcess;
use super::store::RepoStore;

/// The operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Fetch or clone.
    UploadPack,
    /// Push.
    ReceivePack,
}

impl Service {
    /// Reads the value of `service=`.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack].into_iter().find(|service| service.name() == name)
    }

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }
}

/// A version of git's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Refs first, no version line.
    #[default]
    V0,
    /// As before, with a version line.
    V1,
    /// Commands first. For fetching only.
    V2,
}

impl Protocol {
    /// The highest version that a `Git-Protocol` header asks for. Nothing else of it reaches git.
    ///
    /// ```
    /// use grasp_purgatory::git::Protocol;
    ///
    /// assert_eq!(Protocol::from_header("version=2"), Protocol::V2);
    /// assert_eq!(Protocol::from_header("version=1:agent=x; rm -rf"), Protocol::V1);
    /// assert_eq!(Protocol::from_header("version=22"), Protocol::V0);
    /// ```
    pub fn from_header(value: &str) -> Self {
        let versions = value.split(':').map(|token| match token {
            "version=2" => Self::V2,
            "version=1" => Self::V1,
            _ => Self::V0,
        });
        versions.max().unwrap_or_default()
    }

    fn value(self) -> &'static str {
        match self {
            Self::V0 => "version=0",
            Self::V1 => "version=1",
            Self::V2 => "version=2",
        }
    }
}

impl RepoStore {
    /// Starts git's answer to `info/refs`, without the line that HTTP puts before it. Nothing is to be fed.
    pub async fn advertise(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
        claimant: Claimant,
    ) -> Result<GitProcess, GitError> {
        let arguments = ["--http-backend-info-refs"];
        let mut process = self.serve(repo, (service, protocol), claimant, &arguments).await?;
        drop(process.take_stdin());
        Ok(process)
    }

    /// Starts one round of fetching: the client's request is fed, git's answer read, both at once.
    pub async fn upload_pack(
        &self,
        repo: &RepoId,
        protocol: Protocol,
        claimant: Claimant,
    ) -> Result<GitProcess, GitError> {
        let service = (Service::UploadPack, protocol);
        self.serve(repo, service, claimant, &["--stateless-rpc"]).await
    }

    async fn serve(
        &self,
        repo: &RepoId,
        (service, protocol): (Service, Protocol),
        claimant: Claimant,
        arguments: &[&str],
    ) -> Result<GitProcess, GitError> {
        let (view, present) = self.readable(repo).await?;
        let mut command = self.serving_command((service, protocol), arguments).arg(view);
        let bytes = match present {
            Some(present) => {
                command = command.keeping(present.in_use.clone());
                present.bytes()
            }
            None => self.family_bytes(&repo.identifier).await?,
        };
        command
            .limited(ProcessLimits::for_data(&claimant, bytes))
            .claimed_by(claimant)
            .paced_by_client()
            .spawn()
            .await
    }

    /// Returns the command that serves a client, without the repository.
    pub(super) fn serving_command(
        &self,
        (service, protocol): (Service, Protocol),
        arguments: &[&str],
    ) -> GitCommand {
        let subcommand = match service {
            Service::UploadPack => "upload-pack",
            Service::ReceivePack => "receive-pack",
        };
        self.git().command(subcommand).args(arguments).protocol(protocol.value())
    }
}
