//! Reading a view and asking for objects, in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use git2::{ErrorCode, ObjectType, Odb, OdbLookupFlags, Reference, Repository};
use grasp_core::{Oid, RefName};

use super::error::GitError;
use super::layout;
use super::refs::{Snapshot, Target};

/// The size of a tag at most.
const MAX_TAG: usize = 1024 * 1024;

/// Limit of tags that point to tags.
const MAX_TAGS: usize = 16;

/// Opens a view, or says that there is none.
fn open(view: &Path) -> Result<Repository, GitError> {
    match Repository::open_bare(view) {
        Err(error) if error.code() == ErrorCode::NotFound => Err(GitError::NoView),
        opened => Ok(opened?),
    }
}

/// All refs of a view and its HEAD. Symbolic refs other than HEAD, and names that GRASP cannot say, are passed over.
pub(super) fn snapshot(view: &Path) -> Result<Snapshot, GitError> {
    let repository = open(view)?;
    // Only packed refs tell the object behind a tag; an operator may have made others by hand.
    let all_packed = layout::list(&view.join("refs"))?.is_empty();
    let mut refs = BTreeMap::new();
    for reference in repository.references()? {
        let reference = reference?;
        let Some((name, oid)) = direct(&reference) else {
            continue;
        };
        let peeled = match reference.target_peel() {
            None if !all_packed => peel(&repository, oid)?,
            peeled => peeled,
        };
        refs.insert(name, Target { oid: ours(oid), peeled: peeled.map(ours) });
    }
    Ok(Snapshot { refs, head: head(&repository)? })
}

fn direct(reference: &Reference<'_>) -> Option<(RefName, git2::Oid)> {
    let name = RefName::new(reference.name().ok()?).ok()?;
    Some((name, reference.target()?))
}

fn head(repository: &Repository) -> Result<Option<RefName>, GitError> {
    let head = repository.find_reference("HEAD")?;
    let target = head.symbolic_target().ok().flatten();
    Ok(target.and_then(|name| RefName::new(name).ok()))
}

/// Returns the objects behind tags among these; an error if one is to be a branch and is no commit.
pub(super) fn behind_tags(
    view: &Path,
    tips: &BTreeMap<RefName, Oid>,
) -> Result<BTreeMap<Oid, Oid>, GitError> {
    let repository = open(view)?;
    let mut behind = BTreeMap::new();
    for (name, tip) in tips {
        let Some(oid) = theirs(tip) else {
            return Err(GitError::Incomplete { count: 1 });
        };
        let (_, kind) = repository.odb()?.read_header(oid)?;
        if kind != ObjectType::Commit && name.as_str().starts_with("refs/heads/") {
            return Err(GitError::NotACommit(name.clone()));
        }
        behind.extend(peel(&repository, oid)?.map(|peeled| (*tip, ours(peeled))));
    }
    Ok(behind)
}

/// Returns the object behind a tag, or behind tags of tags; `None` if it is no tag.
///
/// A tag is read as a whole, and a few bytes of a pack can be a tag of any size.
fn peel(repository: &Repository, oid: git2::Oid) -> Result<Option<git2::Oid>, GitError> {
    let odb = repository.odb()?;
    let mut at = oid;
    for _ in 0..=MAX_TAGS {
        let (size, kind) = odb.read_header(at)?;
        if kind != ObjectType::Tag {
            return Ok((at != oid).then_some(at));
        }
        if size > MAX_TAG {
            return Err(GitError::BadPack(String::from("a tag is too large")));
        }
        at = repository.find_tag(at)?.target_id();
    }
    Err(GitError::BadPack(String::from("too many tags upon tags")))
}

/// Returns the objects that are in none of the stores. Misses are expected, so nothing is looked up twice.
pub(super) fn missing(
    stores: &[impl AsRef<Path>],
    wanted: &BTreeSet<Oid>,
) -> Result<BTreeSet<Oid>, GitError> {
    let odb = Odb::new()?;
    for store in stores {
        odb.add_disk_alternate(&store.as_ref().to_string_lossy())?;
    }
    let is_here =
        |oid: &Oid| theirs(oid).is_some_and(|oid| odb.exists_ext(oid, OdbLookupFlags::NO_REFRESH));
    Ok(wanted.iter().filter(|oid| !is_here(oid)).copied().collect())
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
