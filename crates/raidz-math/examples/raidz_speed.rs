//! Prints how fast parity is made and columns are rebuilt: one thread, eight data columns of 16 KiB, GB of
//! data a second of processor time.

use std::hint::black_box;

use raidz_math::{generate, reconstruct};
use rustix::time::{ClockId, clock_gettime};

const COLUMN: usize = 16 << 10;
const DATA: usize = 8;

fn main() {
    let data: Vec<Vec<u8>> = (0..DATA as u8).map(|i| vec![i.wrapping_mul(83) ^ 0x35; COLUMN]).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    for (nparity, name) in [(1, "P"), (2, "PQ"), (3, "PQR")] {
        let mut parity = vec![vec![0; COLUMN]; nparity];
        let rate = gigabytes_a_second(|| {
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            let made = generate(black_box(&data), black_box(&mut targets));
            assert_eq!(made, Ok(()));
        });
        println!("raidz generate {name:<24} {rate:>8.2} GB/s");
    }
    for (nparity, missing) in
        [(1, vec![3]), (2, vec![3]), (2, vec![3, 5]), (3, vec![5, 6]), (3, vec![4, 6, 9])]
    {
        let mut row = vec![vec![0x5a; COLUMN]; nparity + DATA];
        let rate = gigabytes_a_second(|| {
            let mut columns: Vec<&mut [u8]> = row.iter_mut().map(Vec::as_mut_slice).collect();
            let rebuilt = reconstruct(nparity, black_box(&mut columns), &missing);
            assert_eq!(rebuilt, Ok(()));
        });
        let name = format!("{} data of raidz{nparity}", missing.len());
        println!("raidz rebuild {name:<25} {rate:>8.2} GB/s");
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
            f64::from(rounds) * (DATA * COLUMN) as f64 / (processor_seconds() - start) / 1e9
        })
        .fold(0.0, f64::max)
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
