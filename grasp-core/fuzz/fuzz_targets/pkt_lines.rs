#![no_main]

#[path = "../bodies/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::pkt_lines::run(data));
