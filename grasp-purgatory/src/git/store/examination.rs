//! The state of packs on disk, compared with what was committed.

use std::path::Path;
use std::time::Duration;

use crate::database::Pack;
use crate::git::check::Objects;
use crate::git::error::GitError;

/// Timeout of reading one pack.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A fault of a pack on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PackFault {
    /// Its file is missing, or has another size than the one that was committed.
    Lost,
    /// Its index is missing. The server makes a new one at its start.
    Unindexed,
    /// Not all of it can be read.
    Damaged,
}

/// Returns the fault of a pack that is seen without reading it.
pub(super) fn visible_fault(file: &Path, pack: &Pack) -> Option<PackFault> {
    if !is_as_committed(file, pack) {
        return Some(PackFault::Lost);
    }
    let is_indexed = file.with_extension("idx").exists();
    (!is_indexed).then_some(PackFault::Unindexed)
}

/// Returns whether the file of a pack is there, with the size that was committed.
pub(super) fn is_as_committed(file: &Path, pack: &Pack) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.len() == pack.bytes)
}

/// Returns the fault of a pack, which is read as a whole if none is seen before.
pub(super) async fn fault_of(
    objects: &Objects,
    pack: &Pack,
) -> Result<Option<PackFault>, GitError> {
    const COMMAND: &str = "index-pack";
    let file = objects.dir.pack(&pack.name);
    let fault = visible_fault(&file, pack);
    if fault.is_some() {
        return Ok(fault);
    }
    let command = match objects.dir.path().join("HEAD").exists() {
        true => objects.command(COMMAND),
        false => objects.git.command(COMMAND).claimed_by(objects.claimant),
    };
    let command = command.arg("--verify").arg(&file);
    let finished = command.limit(READ_TIMEOUT).run(Vec::new()).await?;
    Ok((!finished.status.success()).then_some(PackFault::Damaged))
}
