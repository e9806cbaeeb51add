//! Prints how fast each checksum is: one thread, 128 KiB blocks, GB a second of processor time.

use std::hint::black_box;

use checksum::{Algorithm, Salted};
use rustix::time::{ClockId, clock_gettime};

const BLOCK: usize = 128 << 10;

fn main() {
    let block: Vec<u8> = (0..BLOCK as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let salted = Salted::new(&[7; 32]);
    let cases = [
        ("fletcher2", Algorithm::Fletcher2, false),
        ("fletcher2 (other byte order)", Algorithm::Fletcher2, true),
        ("fletcher4", Algorithm::Fletcher4, false),
        ("fletcher4 (other byte order)", Algorithm::Fletcher4, true),
        ("sha256", Algorithm::Sha256, false),
        ("sha512", Algorithm::Sha512, false),
        ("skein", Algorithm::Skein, false),
        ("edonr", Algorithm::Edonr, false),
        ("blake3", Algorithm::Blake3, false),
    ];
    for (name, algorithm, swap) in cases {
        let rate = gigabytes_a_second(|| {
            black_box(salted.digest(algorithm, black_box(&block), swap));
        });
        println!("checksum {name:<30} {rate:>8.2} GB/s");
    }
}

/// The best of five runs of 50 ms: other load on the machine only ever slows a run down.
fn gigabytes_a_second(mut work: impl FnMut()) -> f64 {
    (0..5)
        .map(|_| {
            let start = processor_seconds();
            let mut rounds = 0u32;
            while processor_seconds() - start < 0.05 {
                work();
                rounds += 1;
            }
            f64::from(rounds) * BLOCK as f64 / (processor_seconds() - start) / 1e9
        })
        .fold(0.0, f64::max)
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
