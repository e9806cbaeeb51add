#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| testkit::targets::sa_edit(bytes));
