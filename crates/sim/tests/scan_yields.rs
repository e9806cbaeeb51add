//! A scan's requests of a device yield to those of others: by counts of what is on the device, not by time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use engine::vdev::queue::Queue;
use engine::vdev::stats::IoClass;
use parking_lot::Mutex;
use stdx::Buf;

const STEP: u64 = 4 << 20;
const PIECE: usize = 64 << 10;
/// Requests of a scan begin here, others end before.
const SCAN: u64 = 1 << 40;

/// A device that ends requests when it is told.
#[derive(Debug, Default)]
struct Gate(Mutex<Vec<Io>>);

impl BlockDevice for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: 1 << 50,
            logical_sector: 512,
            physical_sector: 512,
            rotational: false,
            read_only: false,
        }
    }

    fn submit(&self, io: Io) {
        self.0.lock().push(io);
    }
}

struct Bench {
    gate: Arc<Gate>,
    queue: Arc<Queue>,
    /// Classes of the scan's reads and writes.
    classes: [IoClass; 2],
}

impl Bench {
    fn new() -> Self {
        Self::of([IoClass::Scrub, IoClass::Repair])
    }

    fn of(classes: [IoClass; 2]) -> Self {
        let gate = Arc::<Gate>::default();
        let queue = Queue::new(Arc::clone(&gate) as Device, Arc::default());
        Self { gate, queue, classes }
    }

    /// Requests on the device of which this is so.
    fn count(&self, is: impl Fn(&Io) -> bool) -> usize {
        self.gate.0.lock().iter().filter(|io| is(io)).count()
    }

    fn scans(&self) -> usize {
        self.count(|io| io.kind != IoKind::Flush && io.offset >= SCAN)
    }

    fn flushes(&self) -> usize {
        self.count(|io| io.kind == IoKind::Flush)
    }

    /// Ends the first request on the device of which this is so; returns whether there is one.
    fn end(&self, is: impl Fn(&Io) -> bool, result: io::Result<()>) -> bool {
        let mut pending = self.gate.0.lock();
        let Some(at) = pending.iter().position(is) else { return false };
        let io = pending.remove(at);
        drop(pending);
        (io.done)(result, io.buf);
        true
    }

    fn end_scan(&self) -> bool {
        self.end(|io| io.kind != IoKind::Flush && io.offset >= SCAN, Ok(()))
    }

    fn end_other(&self) -> bool {
        self.end(|io| io.kind != IoKind::Flush && io.offset < SCAN, Ok(()))
    }

    fn end_flush(&self, result: io::Result<()>) -> bool {
        self.end(|io| io.kind == IoKind::Flush, result)
    }

    fn scan_reads(&self, count: u64) {
        for n in 0..count {
            self.queue.read_as(SCAN + n * STEP, PIECE as u64, self.classes[0], Box::new(|_| {}));
        }
    }

    fn scan_writes(&self, count: u64) {
        for n in 0..count {
            let data = vec![Buf::from(&vec![0u8; PIECE][..])];
            self.queue.write(SCAN + n * STEP, data, self.classes[1], Box::new(|_| {}));
        }
    }
}

#[test]
fn reads_of_a_scan_wait_for_others_and_have_an_idle_device_to_themselves() {
    reads_wait_for_others(&Bench::new());
    // Likewise those of reconstructions, removals and expansions.
    for reads in [IoClass::RebuildRead, IoClass::RemovalRead] {
        reads_wait_for_others(&Bench::of([reads, IoClass::RemovalWrite]));
    }
}

fn reads_wait_for_others(bench: &Bench) {
    bench.scan_reads(400);
    assert_eq!(bench.scans(), 3, "nothing else wants the device");
    let read = Arc::<AtomicUsize>::default();
    for round in 0..50_u64 {
        let theirs = Arc::clone(&read);
        let done = Box::new(move |_: io::Result<Buf>| {
            theirs.fetch_add(1, Ordering::Relaxed);
        });
        bench.queue.read(round * STEP, 4096, done);
        assert_eq!(bench.count(|io| io.offset < SCAN), 1, "it does not wait for the scan");
        assert!(bench.end_other());
        // Of the scan at most one request is on the device when the next one comes.
        while bench.scans() > 1 {
            bench.end_scan();
        }
        assert!(bench.end_scan(), "the scan goes on");
        assert_eq!(bench.scans(), 1);
    }
    assert_eq!(read.load(Ordering::Relaxed), 50);
    let mut ended = 0;
    while bench.scans() < 3 {
        assert!(bench.end_scan());
        ended += 1;
    }
    assert!((16..=64).contains(&ended), "{ended} requests after the last of others");
    while bench.end_scan() {}
}

#[test]
fn a_scan_has_its_turn_among_requests_without_end() {
    let bench = Bench::new();
    (0..60).for_each(|n| bench.queue.read(n * STEP, 4096, Box::new(|_| {})));
    bench.scan_reads(40);
    assert_eq!((bench.count(|io| io.offset < SCAN), bench.scans()), (3, 0));
    let mut others = Vec::new();
    // As long as others wait behind the three on the device.
    for _ in 0..56 {
        assert!(bench.end_other());
        if bench.end_scan() {
            others.push(0);
        } else if let Some(last) = others.last_mut() {
            *last += 1;
        }
    }
    others.pop();
    assert!((10..=20).contains(&others.len()) && others.iter().all(|n| (1..=4).contains(n)), "{others:?}");
}

#[test]
fn a_scan_has_its_turn_among_flushes_without_end() {
    let bench = Bench::new();
    // Each flush is on the device before the one before it has ended.
    let flush = |round: u64| {
        bench.queue.write(
            round * STEP,
            vec![Buf::from(&[1; 4096][..])],
            IoClass::SyncWrite,
            Box::new(|_| {}),
        );
        assert!(bench.end_other());
        bench.queue.flush(Box::new(|_| {}));
        assert_eq!(bench.flushes(), 1);
    };
    flush(0);
    bench.scan_writes(40);
    let mut written = 0;
    for round in 1..=40 {
        flush(round);
        written += usize::from(bench.end_scan());
        assert!(bench.end_flush(Ok(())));
    }
    // A write and a flush pass in each round.
    assert!((15..=20).contains(&written), "{written}");
}

#[test]
fn a_flush_covers_few_bytes_of_a_scan() {
    for writes in [IoClass::Repair, IoClass::RebuildWrite, IoClass::RemovalWrite, IoClass::Initialize] {
        flushes_cover_few_bytes(&Bench::of([IoClass::Scrub, writes]));
    }
}

fn flushes_cover_few_bytes(bench: &Bench) {
    let flushed = Arc::<AtomicUsize>::default();
    for round in 0..20_usize {
        if round == 1 {
            bench.scan_writes(400);
        }
        let (theirs, queue) = (Arc::clone(&flushed), Arc::clone(&bench.queue));
        let written = Box::new(move |_: io::Result<()>| {
            queue.flush(Box::new(move |result| {
                theirs.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
            }));
        });
        let data = vec![Buf::from(&vec![1u8; 4096][..])];
        bench.queue.write(round as u64 * STEP, data, IoClass::SyncWrite, written);
        assert!(bench.end_other() && bench.flushes() == 1);
        while bench.scans() > 0 {
            assert!(bench.end_scan(), "no request of the scan follows during the flush");
        }
        assert!(bench.end_flush(Ok(())));
        assert_eq!(flushed.load(Ordering::Relaxed), round + 1);
        let mut bytes = 0;
        while bench.end_scan() {
            bytes += PIECE;
        }
        assert!(bytes <= 256 << 10, "{bytes} bytes of the scan between two flushes");
        assert_eq!(bench.flushes(), usize::from(round > 0), "the scan goes on with a flush of its own");
        bench.end_flush(Ok(()));
    }
    // Alone on the device it needs no flushes.
    let mut own = 0;
    while bench.scans() < 4 {
        assert!(bench.end_scan() || bench.end_flush(Ok(())), "it does not stop");
        own += 1;
        assert!(own < 100);
    }
    while bench.end_scan() {
        assert_eq!(bench.flushes(), 0);
    }
}

#[test]
fn the_failure_of_a_flush_that_no_caller_waits_for_is_the_next_ones() {
    let bench = Bench::new();
    let results = Arc::<Mutex<Vec<bool>>>::default();
    let flush = || {
        let theirs = Arc::clone(&results);
        bench.queue.flush(Box::new(move |result| theirs.lock().push(result.is_ok())));
    };
    flush();
    assert!(bench.end_flush(Ok(())));
    bench.scan_writes(20);
    while bench.end_scan() {}
    assert!(bench.end_flush(Err(io::Error::other("lost"))), "a flush of the scan's own");
    flush();
    while bench.end_scan() || bench.end_flush(Ok(())) {}
    flush();
    while bench.end_scan() || bench.end_flush(Ok(())) {}
    assert_eq!(*results.lock(), [true, false, true]);
}
