//! Looking for objects, in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use git2::{ObjectType, Odb, OdbLookupFlags};
use grasp_core::{Oid, RefName};

use super::error::GitError;

/// The size of a tag at most.
const MAX_TAG: usize = 1024 * 1024;

/// Limit of tags that point to tags.
const MAX_TAGS: usize = 16;

/// Returns the objects behind tags among these; an error if one is to be a branch and is no commit.
pub(super) fn behind_tags(
    objects: &Path,
    tips: &BTreeMap<RefName, Oid>,
) -> Result<BTreeMap<Oid, Oid>, GitError> {
    let odb = Odb::new()?;
    odb.add_disk_alternate(&objects.to_string_lossy())?;
    let mut behind = BTreeMap::new();
    for (name, tip) in tips {
        let Some(oid) = theirs(tip) else {
            return Err(GitError::Incomplete { count: 1 });
        };
        let (_, kind) = odb.read_header(oid)?;
        if kind != ObjectType::Commit && name.as_str().starts_with("refs/heads/") {
            return Err(GitError::NotACommit(name.clone()));
        }
        behind.extend(peel(&odb, oid)?.map(|peeled| (*tip, ours(peeled))));
    }
    Ok(behind)
}

/// Returns the object behind a tag, or behind tags of tags; `None` if it is no tag.
///
/// A tag is read as a whole, and a few bytes of a pack can be a tag of any size.
fn peel(odb: &Odb<'_>, oid: git2::Oid) -> Result<Option<git2::Oid>, GitError> {
    let mut at = oid;
    for _ in 0..=MAX_TAGS {
        let (size, kind) = odb.read_header(at)?;
        if kind != ObjectType::Tag {
            return Ok((at != oid).then_some(at));
        }
        if size > MAX_TAG {
            return Err(GitError::BadPack(String::from("a tag is too large")));
        }
        let tag = odb.read(at)?;
        at = target_of(tag.data()).ok_or(GitError::BadPack(String::from("a tag has no object")))?;
    }
    Err(GitError::BadPack(String::from("too many tags upon tags")))
}

/// Returns the object that a tag names in its first line.
fn target_of(tag: &[u8]) -> Option<git2::Oid> {
    let line = tag.strip_prefix(b"object ")?.get(..40)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// Returns the objects that are in none of the stores. Misses are expected, so nothing is looked up twice.
pub(super) fn missing(
    stores: &[impl AsRef<Path>],
    wanted: &BTreeSet<Oid>,
) -> Result<BTreeSet<Oid>, GitError> {
    if wanted.is_empty() {
        return Ok(BTreeSet::new());
    }
    let odb = Odb::new()?;
    for store in stores {
        odb.add_disk_alternate(&store.as_ref().to_string_lossy())?;
    }
    let is_here =
        |oid: &Oid| theirs(oid).is_some_and(|oid| odb.exists_ext(oid, OdbLookupFlags::NO_REFRESH));
    Ok(wanted.iter().filter(|oid| !is_here(oid)).copied().collect())
}

/// Returns all objects of a store.
pub(super) fn all(store: &Path) -> Result<BTreeSet<Oid>, GitError> {
    let odb = Odb::new()?;
    odb.add_disk_alternate(&store.to_string_lossy())?;
    let mut all = BTreeSet::new();
    odb.foreach(|oid| {
        all.insert(ours(*oid));
        true
    })?;
    Ok(all)
}

fn ours(oid: git2::Oid) -> Oid {
    // libgit2 is linked with the older hash alone.
    oid.as_bytes().try_into().map_or(Oid::ZERO, Oid::Sha1)
}

/// `None` for the newer hash, of which no repository here has objects.
fn theirs(oid: &Oid) -> Option<git2::Oid> {
    match oid {
        Oid::Sha1(bytes) => git2::Oid::from_bytes(bytes).ok(),
        Oid::Sha256(_) => None,
    }
}
