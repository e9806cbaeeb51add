//! Changes of a golden stream, received into a pool: the first byte chooses the stream, the rest tells the changes, and the
//! checksums are made right.
#![no_main]

use std::sync::Mutex;

use testkit::golden;
use testkit::hostile::streams::{Victim, head};

/// Receives of one pool; what they leave fills it.
const RUNS: u32 = 200;
/// The streams: pool, full stream that one builds on, stream.
const STREAMS: [(&str, Option<&str>, &str); 4] = [
    ("streams", Some("full-a"), "incr-a-b"),
    ("streams", None, "full-b-Lec"),
    ("raw-received", None, "raw-a"),
    ("raw-received", Some("raw-a"), "raw-a-b"),
];

static POOLS: Mutex<[Option<(Victim, u32)>; STREAMS.len()]> = Mutex::new([const { None }; STREAMS.len()]);

fn victim((pool, base, file): (&str, Option<&str>, &str)) -> Victim {
    let golden = golden::get(pool).expect("the golden pool is needed");
    let stream = |name: &str| std::fs::read(golden.dir.join(format!("{name}.zstream"))).expect("a golden stream");
    Victim::new(base.map(stream).as_deref(), head(&stream(file), 100))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, changes)) = bytes.split_first() else { return };
    let which = usize::from(*first) % STREAMS.len();
    let mut pools = POOLS.lock().expect("no run panicked");
    let (mut used, runs) = pools[which].take().unwrap_or_else(|| (victim(STREAMS[which]), 0));
    used.attack(changes).expect("a promise is kept");
    pools[which] = (runs < RUNS).then_some((used, runs + 1));
});
