//! Replays the fuzzing corpus, so that fixed faults stay fixed.

use std::fs;

#[path = "../../fuzz/bodies/refusal_text.rs"]
mod refusal_text;

#[test]
fn every_seed_passes_through_its_target() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/refusal_text");
    let mut seeds = 0;
    for seed in fs::read_dir(corpus).unwrap() {
        refusal_text::run(&fs::read(seed.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds > 0, "no seeds in {corpus}");
}
