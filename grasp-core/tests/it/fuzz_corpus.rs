//! Replays the fuzzing corpus, so that fixed faults stay fixed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/bodies/targets.rs"]
mod targets;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_passes_through_its_target() {
    for (name, body) in targets::TARGETS {
        let seeds = entries(&corpus().join(name));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            // Printed only if the body panics.
            println!("{}", seed.display());
            body(&fs::read(&seed).unwrap());
        }
    }
}

#[test]
fn every_corpus_has_its_target() {
    let listed: BTreeSet<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    let dirs = entries(&corpus());
    let kept = dirs
        .iter()
        .map(|dir| dir.file_name().unwrap().to_str().unwrap());
    assert_eq!(kept.collect::<BTreeSet<_>>(), listed);
}
