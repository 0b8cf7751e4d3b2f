//! Tips whose whole history was seen to be here, remembered as refs of the family.
//!
//! As refs they serve thrice: a walk stops at them, a client that pushes is told of them and sends only what is new
//! even to a view that is empty, and nothing behind them is collected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use grasp_core::Oid;

use crate::git::error::GitError;
use crate::git::layout::{self, Family};

/// Number of remembered tips, the latest. A forgotten one costs a walk to the next that is not.
const MAX_PROOFS: usize = 1024;

/// The remembered tips in the order in which they were proven.
#[derive(Clone, Debug, Default)]
pub(in crate::git) struct Proofs {
    by_age: BTreeMap<u64, Oid>,
    tips: BTreeSet<Oid>,
}

impl Proofs {
    pub(in crate::git) fn load(family: &Family) -> Result<Self, GitError> {
        let path = family.proofs();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(GitError::io("read", path, error)),
        }
    }

    pub(in crate::git) fn contains(&self, tip: &Oid) -> bool {
        self.tips.contains(tip)
    }

    pub(in crate::git) fn tips(&self) -> &BTreeSet<Oid> {
        &self.tips
    }

    /// Remembers more tips; the caller holds the family's lock.
    pub(in crate::git) fn add(
        family: &Family,
        tips: impl IntoIterator<Item = Oid>,
        scratch: &Path,
    ) -> Result<(), GitError> {
        let mut proofs = Self::load(family)?;
        let new: Vec<_> = tips.into_iter().filter(|tip| proofs.tips.insert(*tip)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let next = proofs.by_age.keys().next_back().map_or(0, |last| last + 1);
        proofs.by_age.extend((next..).zip(new));
        while proofs.by_age.len() > MAX_PROOFS {
            proofs.by_age.pop_first();
        }
        layout::write_synced(scratch, proofs.encode().as_bytes())?;
        layout::rename(scratch, &family.proofs())?;
        layout::sync(family.path())
    }

    /// Forgets all tips but these; the caller holds the family's lock.
    pub(in crate::git) fn retain(
        family: &Family,
        tips: &BTreeSet<Oid>,
        scratch: &Path,
    ) -> Result<(), GitError> {
        let mut proofs = Self::load(family)?;
        proofs.by_age.retain(|_, tip| tips.contains(tip));
        layout::write_synced(scratch, proofs.encode().as_bytes())?;
        layout::rename(scratch, &family.proofs())?;
        layout::sync(family.path())
    }

    fn parse(text: &str) -> Self {
        let by_age: BTreeMap<_, _> = text.lines().filter_map(parse_line).collect();
        let tips = by_age.values().copied().collect();
        Self { by_age, tips }
    }

    fn encode(&self) -> String {
        let mut text = String::from("# pack-refs with: sorted \n");
        for (age, oid) in &self.by_age {
            _ = writeln!(text, "{oid} refs/proven/{age:016x}");
        }
        text
    }
}

fn parse_line(line: &str) -> Option<(u64, Oid)> {
    let (oid, name) = line.split_once(' ')?;
    let age = u64::from_str_radix(name.strip_prefix("refs/proven/")?, 16).ok()?;
    Some((age, oid.parse().ok()?))
}
