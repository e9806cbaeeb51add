//! Prints how fast each compression is, both ways: one thread, 128 KiB blocks of text-like data, GB of plain
//! data a second of processor time.

use std::hint::black_box;

use compress::{Algorithm, compress, decompress};
use rustix::time::{ClockId, clock_gettime};

const BLOCK: usize = 128 << 10;

fn main() {
    let plain = text();
    let cases = [
        ("lzjb", Algorithm::Lzjb, 0),
        ("zle", Algorithm::Zle, 0),
        ("lz4", Algorithm::Lz4, 0),
        ("gzip-1", Algorithm::Gzip, 1),
        ("gzip-6", Algorithm::Gzip, 6),
        ("gzip-9", Algorithm::Gzip, 9),
        ("zstd-fast-10", Algorithm::Zstd, 112),
        ("zstd-1", Algorithm::Zstd, 1),
        ("zstd-3", Algorithm::Zstd, 3),
        ("zstd-9", Algorithm::Zstd, 9),
        ("zstd-19", Algorithm::Zstd, 19),
    ];
    for (name, algorithm, level) in cases {
        let mut out = vec![0; BLOCK];
        let Some(packed) = compress(algorithm, level, &plain, 2 * BLOCK) else { continue };
        let packing = gigabytes_a_second(|| {
            black_box(compress(algorithm, level, black_box(&plain), 2 * BLOCK));
        });
        let unpacking = gigabytes_a_second(|| {
            assert_eq!(decompress(algorithm, black_box(&packed), &mut out), Ok(()));
        });
        let ratio = BLOCK as f64 / packed.len() as f64;
        println!(
            "compress {name:<14} {packing:>8.3} GB/s  decompress {unpacking:>8.2} GB/s  ratio {ratio:>5.2}"
        );
    }
}

/// Words drawn with a bias from a small vocabulary, numbers between them, and a gap of zeros.
fn text() -> Vec<u8> {
    let words: Vec<&str> = include_str!("compress_speed.rs").split_whitespace().collect();
    let mut out = Vec::with_capacity(BLOCK + 64);
    let mut x = 1u64;
    while out.len() < BLOCK {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (a, b) = ((x >> 33) as usize, (x >> 48) as usize);
        let word = words.get((a % words.len()) * (b % words.len()) / words.len()).copied().unwrap_or("");
        out.extend(word.bytes());
        match x >> 59 {
            0 => out.extend((x >> 20).to_string().bytes()),
            1 => out.extend([0; 24]),
            _ => out.push(b' '),
        }
    }
    out.truncate(BLOCK);
    out
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
