//! Measures the cost of compression, checksums and parity of given bytes on one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sim::world::Shape;

const BLOCK: usize = 128 << 10;
const ROUNDS: usize = 256;

/// Seconds of one core per byte.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// lz4, on compressible and on incompressible bytes: (compressible, random).
    pub lz4: (f64, f64),
    /// fletcher4.
    pub checksum: f64,
    /// Parity, per byte of data.
    pub parity: f64,
}

fn per_byte(mut work: impl FnMut(&[u8]), block: &[u8]) -> f64 {
    let start = Instant::now();
    (0..ROUNDS).for_each(|_| work(black_box(block)));
    start.elapsed().as_secs_f64() / (ROUNDS * block.len()) as f64
}

impl Costs {
    /// Measures for a shape.
    pub fn measure(shape: Shape, random: &[u8], text: &[u8]) -> Self {
        let lz4 = |block: &[u8]| {
            black_box(compress::compress(compress::Algorithm::Lz4, 0, block, block.len() - block.len() / 8));
        };
        let digest = |block: &[u8]| {
            black_box(checksum::digest(checksum::Algorithm::Fletcher4, block, None, false));
        };
        let (random, text) = (random.get(..BLOCK).unwrap_or(random), text.get(..BLOCK).unwrap_or(text));
        Self {
            lz4: (per_byte(lz4, text), per_byte(lz4, random)),
            checksum: per_byte(digest, random),
            parity: parity(shape, random),
        }
    }
}

fn parity(shape: Shape, block: &[u8]) -> f64 {
    let Shape::Raidz(level) = shape else { return 0.0 };
    let parity = usize::try_from(level).unwrap_or(1);
    let columns = shape.disks() - parity;
    let column = block.len() / columns;
    let data: Vec<&[u8]> = block.chunks_exact(column).take(columns).collect();
    let mut out = vec![vec![0; column]; parity];
    let generate = |_: &[u8]| {
        let mut views: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
        // Columns of equal length, at least one of them: generation cannot fail.
        let _ = black_box(raidz_math::generate(&data, &mut views));
    };
    per_byte(generate, block)
}

/// Processor time of this whole process.
pub fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
