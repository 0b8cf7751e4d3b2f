//! The layout of 0.2.0, in which all repositories of an identifier (a *family*) shared their objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bitcoin_hashes::sha256;
use grasp_core::{Identifier, RepoId};

use crate::database::Pack;
use crate::git::error::GitError;
use crate::git::layout::{self, Layout};
use crate::git::packs::KINDS;

/// The content of `<root>/version` then.
const VERSION: &str = "grasp repositories 2\n";

/// Where a family had packs; the second place was for objects of replaced refs.
const PLACES: [&str; 2] = ["objects/pack", "attic/pack"];

/// Returns whether a directory has that layout.
pub(super) fn are_in(layout: &Layout) -> bool {
    fs::read_to_string(layout.version()).is_ok_and(|found| found == VERSION)
}

/// Links the packs that the database names into their repositories, and removes uploads, which it names no more. After a
/// crash it is begun again.
pub(super) fn divide(
    layout: &Layout,
    named: &BTreeMap<RepoId, BTreeSet<Pack>>,
) -> Result<(), GitError> {
    layout::remove(&layout.staging())?;
    for (repo, packs) in named {
        let dir = layout.dir(repo);
        let scratch = layout.incoming().join("divided");
        layout::remove(&scratch)?;
        dir.create(repo, &scratch)?;
        let family = family(layout, &repo.identifier);
        let target = dir.objects().join("pack");
        layout::create_dir(&target)?;
        for pack in packs {
            link(&family, &pack.name, &target)?;
        }
        layout::sync(&target)?;
    }
    Ok(())
}

/// Removes what a directory with the new layout has no use for.
pub(super) fn remove(layout: &Layout) -> Result<(), GitError> {
    layout::remove(&families(layout))
}

fn families(layout: &Layout) -> PathBuf {
    layout.repositories().with_file_name("families")
}

fn family(layout: &Layout, identifier: &Identifier) -> PathBuf {
    let key = sha256::Hash::hash(identifier.as_str().as_bytes()).to_string();
    let (shard, rest) = key.split_at_checked(2).unwrap_or((&key, ""));
    families(layout).join(shard).join(rest)
}

/// Links the files of a pack, which never change. One that was lost before is found to be missing later.
fn link(family: &Path, pack: &str, target: &Path) -> Result<(), GitError> {
    for place in PLACES {
        for kind in KINDS {
            let name = format!("{pack}.{kind}");
            let from = family.join(place).join(&name);
            match fs::hard_link(&from, target.join(&name)) {
                Err(error) if is_done_or_absent(&error) => {}
                linked => linked.map_err(|source| GitError::io("link", from, source))?,
            }
        }
    }
    Ok(())
}

fn is_done_or_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
    )
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    #[test]
    fn every_owner_gets_all_packs_that_the_database_names() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let name: Identifier = "hello".parse().unwrap();
        let family = family(&layout, &name);
        for place in PLACES {
            fs::create_dir_all(family.join(place)).unwrap();
        }
        for file in [
            "objects/pack/pack-a.pack",
            "objects/pack/pack-a.idx",
            "attic/pack/pack-b.pack",
        ] {
            fs::write(family.join(file), file).unwrap();
        }
        fs::write(layout.version(), VERSION).unwrap();
        assert!(are_in(&layout));
        let repos =
            [1, 2].map(|key| RepoId::new(PublicKey::from_byte_array([key; 32]), name.clone()));
        let packs: BTreeSet<_> = ["pack-a", "pack-b", "pack-lost"]
            .map(|name| Pack {
                name: name.into(),
                bytes: 1,
            })
            .into();
        let named = repos
            .iter()
            .map(|repo| (repo.clone(), packs.clone()))
            .collect();
        // A crash in between costs nothing.
        divide(&layout, &named).unwrap();
        divide(&layout, &named).unwrap();
        remove(&layout).unwrap();
        for repo in repos {
            let files = layout.dir(&repo).objects().join("pack");
            let found: Vec<_> = layout::list(&files).unwrap();
            let found: Vec<_> = found.iter().map(|path| layout::name(path)).collect();
            assert_eq!(found, ["pack-a.idx", "pack-a.pack", "pack-b.pack"]);
        }
        assert!(!families(&layout).exists());
    }
}
