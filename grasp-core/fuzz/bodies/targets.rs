//! Every fuzz target, by name.
//!
//! A new one is a file beside this with `pub(crate) fn run(data: &[u8])`, a line in the list, a
//! folder of seeds in `corpus/`, and its four lines in `fuzz_targets/` and `Cargo.toml`.

pub(crate) mod event_tags;
pub(crate) mod pkt_lines;

/// Runs one fuzz target on one input.
pub(crate) type Body = fn(&[u8]);

/// The targets by name; the test that replays the corpus runs each on its seeds.
#[allow(
    dead_code,
    reason = "each fuzz target is built alone and calls its own body"
)]
pub(crate) const TARGETS: &[(&str, Body)] = &[
    ("event_tags", event_tags::run),
    ("pkt_lines", pkt_lines::run),
];
