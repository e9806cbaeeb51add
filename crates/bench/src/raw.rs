//! The same devices without a pool: as many bytes and flushes, one thread per device, sequentially.

use std::time::{Duration, Instant};

use blkdev::{Device, flush, write_at};
use engine::Result;

use crate::device::Counts;

const PIECE: usize = 1 << 20;

/// Writes to each device as many bytes as the pool did, with a flush after every equal part. Returns the time.
pub fn twin(devices: &[Device], counts: &[Counts], block: &[u8]) -> Result<Duration> {
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let all: Vec<_> = devices
            .iter()
            .zip(counts)
            .map(|(device, counts)| scope.spawn(|| one(device, counts, block)))
            .collect();
        all.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread ended")))
        })?;
        Ok(())
    })?;
    Ok(start.elapsed())
}

fn one(device: &Device, counts: &Counts, block: &[u8]) -> std::io::Result<()> {
    let parts = counts.flushes.max(1);
    let each = counts.written.div_ceil(parts);
    let mut at = 0;
    for _ in 0..parts {
        let end = (at + each).min(counts.written);
        while at < end {
            let len = PIECE.min(usize::try_from(end - at).unwrap_or(PIECE));
            write_at(&**device, at, block.get(..len).unwrap_or(block))?;
            at += len as u64;
        }
        flush(&**device)?;
    }
    Ok(())
}
