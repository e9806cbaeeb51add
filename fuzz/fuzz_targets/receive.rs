//! Changes of a golden stream, received into a pool: the input tells the changes, the checksums are made right.
#![no_main]

use std::sync::Mutex;

use testkit::golden;
use testkit::hostile::streams::{Victim, head};

/// Receives of one pool; what they leave fills it.
const RUNS: u32 = 200;

static POOL: Mutex<Option<(Victim, u32)>> = Mutex::new(None);

fn victim() -> Victim {
    let golden = golden::get("streams").expect("the golden pool is needed");
    let stream = |name: &str| std::fs::read(golden.dir.join(format!("{name}.zstream"))).expect("a golden stream");
    match std::env::var("AQUIFER_FUZZ_FULL").is_ok() {
        true => Victim::new(None, head(&stream("full-b-Lec"), 100)),
        false => Victim::new(Some(&stream("full-a")), head(&stream("incr-a-b"), 100)),
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut pool = POOL.lock().expect("no run panicked");
    let (mut used, runs) = pool.take().unwrap_or_else(|| (victim(), 0));
    used.attack(bytes).expect("a promise is kept");
    *pool = (runs < RUNS).then_some((used, runs + 1));
});
