#![no_main]

#[path = "../bodies/refusal_text.rs"]
mod refusal_text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| refusal_text::run(data));
