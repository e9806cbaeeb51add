//! Reads that are served on the thread that starts them.
#![expect(clippy::disallowed_methods, reason = "tests of threads")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blkdev::{BlockDevice, Geometry, Io, MemDevice};
use parking_lot::Mutex;
use stdx::Buf;

use super::queue::Queue;
use super::stats::{IoClass, LeafStats};
use crate::taskq::{start_and_wait, start_reads};

/// A device whose bytes are in memory; requests that may wait are kept.
#[derive(Debug)]
struct Cached {
    bytes: MemDevice,
    kept: Mutex<Vec<Io>>,
    served: AtomicUsize,
}

impl BlockDevice for Cached {
    fn name(&self) -> &str {
        "cached"
    }

    fn geometry(&self) -> Geometry {
        self.bytes.geometry()
    }

    fn submit(&self, io: Io) {
        self.kept.lock().push(io);
    }

    fn serve_if_cached(&self, io: Io) -> Option<Io> {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.bytes.submit(io);
        None
    }
}

fn queue() -> (Arc<Cached>, Arc<Queue>) {
    let bytes = MemDevice::new("memory", vec![7; 1 << 20]);
    let device = Arc::new(Cached { bytes, kept: Mutex::default(), served: AtomicUsize::new(0) });
    let queue = Queue::new(Arc::clone(&device) as _, Arc::new(LeafStats::default()));
    (device, queue)
}

/// Reads `left` times, each once the one before has arrived.
fn chain(queue: &Arc<Queue>, left: u64, count: &Arc<AtomicUsize>) {
    let (again, counted) = (Arc::clone(queue), Arc::clone(count));
    let done = Box::new(move |read: io::Result<Buf>| {
        assert!(read.unwrap().iter().all(|byte| *byte == 7));
        counted.fetch_add(1, Ordering::Relaxed);
        if left > 1 {
            chain(&again, left - 1, &counted);
        }
    });
    queue.read_as(left % 100 * 4096, 4096, IoClass::AsyncRead, done);
}

#[test]
fn a_thread_that_waits_serves_its_own_reads() {
    let (_, queue) = queue();
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&count);
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let reads = move || start_and_wait(|| (0..20_000).for_each(|_| chain(&queue, 1, &theirs)));
    small.spawn(reads).unwrap().join().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 20_000);
}

#[test]
fn a_thread_does_not_serve_all_that_waits() {
    let (device, queue) = queue();
    let count = Arc::new(AtomicUsize::new(0));
    // More than a device gets at once, and too far from each other to be read together.
    for number in 0..20 {
        let counted = Arc::clone(&count);
        let done = Box::new(move |_: io::Result<Buf>| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        queue.read_as(number * (48 << 10), 512, IoClass::AsyncRead, done);
    }
    let started = std::mem::take(&mut *device.kept.lock());
    assert!(!started.is_empty() && started.len() < 20 && device.served.load(Ordering::Relaxed) == 0);
    let completed = started.len();
    // Each completion makes room for another one; the thread that serves one of these does not go on with the rest.
    started.into_iter().for_each(|io| start_and_wait(|| device.bytes.submit(io)));
    assert!((1..=completed).contains(&device.served.load(Ordering::Relaxed)));
    assert!(count.load(Ordering::Relaxed) < 20);
    let mut left = device.kept.lock().pop();
    while let Some(io) = left {
        device.bytes.submit(io);
        left = device.kept.lock().pop();
    }
    assert_eq!(count.load(Ordering::Relaxed), 20);
}

#[test]
fn a_long_queue_that_is_served_on_one_thread_takes_little_stack() {
    let (device, queue) = queue();
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&count);
    let small = std::thread::Builder::new().stack_size(256 << 10);
    small.spawn(move || start_reads(|| chain(&queue, 50_000, &theirs))).unwrap().join().unwrap();
    // The first is served; the next, started by its completion, goes to the device.
    let mut turns = 0;
    while count.load(Ordering::Relaxed) < 50_000 && turns < 200_000 {
        let io = device.kept.lock().pop();
        io.into_iter().for_each(|io| device.bytes.submit(io));
        turns += 1;
    }
    assert_eq!(count.load(Ordering::Relaxed), 50_000);
}
