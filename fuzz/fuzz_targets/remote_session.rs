#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onefold_fuzz_targets::remote_session::run(data));
