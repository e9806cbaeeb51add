//! Bytes from one command to another: counted, limited, stopped.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are moved at a time.
const BLOCK: usize = 256 << 10;
/// Longest sleep of a limited copy, so that a stop is seen.
const NAP: Duration = Duration::from_millis(100);

/// How a copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The source has ended.
    Whole,
    /// The reader went away.
    NoReader,
    /// The source could not be read.
    NoSource,
    /// The user stopped it.
    Stopped,
}

/// Copies until the source ends. `rate` is the maximum in bytes per second; `done` counts the copied bytes.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    rate: Option<u64>,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> End {
    // With a limit, pieces of a tenth of a second at most.
    let most = rate.and_then(|rate| usize::try_from(rate / 10).ok()).unwrap_or(BLOCK);
    let mut block = vec![0; most.clamp(512, BLOCK)];
    let (began, mut copied) = (Instant::now(), 0_u64);
    loop {
        if stop.load(Ordering::Relaxed) {
            return End::Stopped;
        }
        let bytes = match from.read(&mut block) {
            Ok(0) => return End::Whole,
            Ok(len) => block.get(..len).unwrap_or_default(),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return End::NoSource,
        };
        if to.write_all(bytes).is_err() {
            return End::NoReader;
        }
        let len = u64::try_from(bytes.len()).unwrap_or(0);
        done.fetch_add(len, Ordering::Relaxed);
        copied += len;
        if let Some(rate) = rate.filter(|&rate| rate > 0) {
            let due = Duration::from_secs_f64(copied as f64 / rate as f64);
            while let Some(early) = due.checked_sub(began.elapsed()).filter(|early| !early.is_zero()) {
                if stop.load(Ordering::Relaxed) {
                    return End::Stopped;
                }
                thread::sleep(early.min(NAP));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_copy_takes_its_time_and_can_be_stopped() {
        let bytes = vec![7_u8; 100_000];
        let (mut out, done, stop) = (Vec::new(), AtomicU64::new(0), AtomicBool::new(false));
        let began = Instant::now();
        assert_eq!(copy(&mut bytes.as_slice(), &mut out, Some(400_000), &done, &stop), End::Whole);
        assert!(began.elapsed() >= Duration::from_millis(240), "{:?}", began.elapsed());
        assert!(out == bytes && done.load(Ordering::Relaxed) == 100_000);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(copy(&mut bytes.as_slice(), &mut out, None, &done, &stop), End::Stopped);
    }
}
