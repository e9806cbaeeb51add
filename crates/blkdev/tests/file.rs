//! Files as devices: bytes, bounds, modes, both cache modes, many requests at once.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{ErrorKind, Write};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use blkdev::{
    BlockDevice, CacheMode, Fault, FaultyDevice, FileDevice, Io, IoKind, OpenMode, OpenOptions, flush,
    read_at, trim, write_at,
};
use stdx::AlignedBuf;
use stdx::rng::Rng;

fn file(len: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let mut bytes = vec![0; len];
    Rng::new(5).fill(&mut bytes);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    (file, bytes)
}

fn options(mode: OpenMode, cache: CacheMode) -> OpenOptions {
    OpenOptions { mode, cache, ..OpenOptions::default() }
}

#[test]
fn reads_any_range_with_and_without_page_cache() {
    let (file, bytes) = file(100_003);
    for cache in [CacheMode::Auto, CacheMode::Always, CacheMode::Never] {
        let dev = FileDevice::open(file.path(), options(OpenMode::ReadOnly, cache)).unwrap();
        assert_eq!(dev.geometry().size, 100_003);
        for (offset, len) in
            [(0, 4096), (4096, 8192), (1, 1), (4095, 2), (0, 100_003), (99_999, 4), (100_003, 0)]
        {
            let got = read_at(&dev, offset, len).unwrap();
            let start = usize::try_from(offset).unwrap();
            assert_eq!(*got, bytes[start..start + len], "{offset}+{len} {cache:?}");
        }
        assert_eq!(read_at(&dev, 100_000, 4).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_at(&dev, u64::MAX - 1, 4).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn read_only_changes_nothing() {
    let (file, bytes) = file(8192);
    let dev = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    assert_eq!(write_at(&dev, 0, &[1; 512]).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(trim(&dev, 0, 4096).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
}

#[test]
fn writes_flushes_and_trims() {
    let (file, _) = file(16384);
    let dev = FileDevice::open(file.path(), options(OpenMode::ReadWrite, CacheMode::Auto)).unwrap();
    write_at(&dev, 10, b"abc").unwrap();
    flush(&dev).unwrap();
    assert_eq!(&std::fs::read(file.path()).unwrap()[10..13], b"abc");
    trim(&dev, 4096, 4096).unwrap();
    assert!(read_at(&dev, 4096, 4096).unwrap().iter().all(|b| *b == 0));
}

#[test]
fn exclusive_excludes() {
    let (file, _) = file(512);
    let first = FileDevice::open(file.path(), options(OpenMode::Exclusive, CacheMode::Auto)).unwrap();
    assert!(FileDevice::open(file.path(), options(OpenMode::Exclusive, CacheMode::Auto)).is_err());
    assert!(FileDevice::open(file.path(), OpenOptions::default()).is_ok(), "reading stays possible");
    assert!(!first.geometry().read_only);
}

#[test]
fn refuses_what_is_no_device() {
    let dir = tempfile::tempdir().unwrap();
    assert!(FileDevice::open(dir.path(), OpenOptions::default()).is_err());
    assert!(FileDevice::open("/dev/null", OpenOptions::default()).is_err());
    assert!(FileDevice::open(dir.path().join("none"), OpenOptions::default()).is_err());
}

#[test]
fn same_file_by_two_names_has_one_identity() {
    let (file, _) = file(512);
    let link = file.path().with_extension("link");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    let a = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    let b = FileDevice::open(&link, OpenOptions::default()).unwrap();
    std::fs::remove_file(link).unwrap();
    assert_eq!(a.identity(), b.identity());
}

#[test]
fn many_requests_at_once() {
    let (file, bytes) = file(1 << 20);
    let dev = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    let (tx, rx) = mpsc::channel();
    let mut rng = Rng::new(11);
    for _ in 0..3000 {
        let tx = tx.clone();
        let offset = rng.below((1 << 20) - 4096);
        let done = Box::new(move |result: std::io::Result<()>, buf| tx.send((offset, result, buf)).unwrap());
        dev.submit(Io { kind: IoKind::Read, offset, buf: AlignedBuf::zeroed(4096), done });
    }
    drop(tx);
    let mut count = 0;
    for (offset, result, buf) in rx {
        result.unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_eq!(*buf, bytes[start..start + 4096]);
        count += 1;
    }
    assert_eq!(count, 3000);
}

#[test]
fn large_reads_past_the_cache_at_any_offset() {
    let (file, bytes) = file(3 << 20);
    rustix::fs::fsync(file.as_file()).unwrap();
    let dev = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    dev.advise_range(0, 3 << 20, false);
    for (offset, len) in [(0, 1 << 20), (512, 1 << 20), (4097, 70_000), ((3 << 20) - 65_537, 65_537)] {
        let start = usize::try_from(offset).unwrap();
        assert_eq!(*read_at(&dev, offset, len).unwrap(), bytes[start..start + len], "{offset}+{len}");
    }
}

#[test]
fn a_file_that_shrinks_gives_errors_and_no_old_bytes() {
    let (file, _) = file(1 << 20);
    for cache in [CacheMode::Auto, CacheMode::Always, CacheMode::Never] {
        file.as_file().set_len(1 << 20).unwrap();
        let dev = FileDevice::open(file.path(), options(OpenMode::ReadOnly, cache)).unwrap();
        file.as_file().set_len(300_000).unwrap();
        for (offset, len) in [(0, 1 << 20), (262_144, 131_072), (262_145, 100_000), (500_000, 7)] {
            assert!(read_at(&dev, offset, len).is_err(), "{offset}+{len} {cache:?}");
        }
        assert!(read_at(&dev, 1000, 200_000).is_ok());
    }
}

#[test]
fn parts_are_written_one_after_the_other() {
    let (file, mut bytes) = file(1 << 20);
    let dev = FileDevice::open(file.path(), options(OpenMode::ReadWrite, CacheMode::Auto)).unwrap();
    let write = |offset: u64, parts: Vec<stdx::Buf>| {
        let (tx, rx) = mpsc::channel();
        dev.write_parts(offset, parts, Box::new(move |result| tx.send(result).unwrap()));
        rx.recv().unwrap()
    };
    let whole = stdx::Buf::from(&vec![7u8; 5000][..]);
    let parts: Vec<_> = (0..3000usize).map(|i| whole.slice(i..i + i % 3)).collect();
    let len: usize = parts.iter().map(|part| part.len()).sum();
    write(1000, parts).unwrap();
    bytes[1000..1000 + len].fill(7);
    assert!(write((1 << 20) - 10, vec![whole.slice(0..5), whole.slice(0..6)]).is_err());
    assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
}

#[test]
fn a_caller_that_waits_is_served_on_its_own_thread() {
    let (file, bytes) = file(100_000);
    let dev = FileDevice::open(file.path(), options(OpenMode::ReadOnly, CacheMode::Auto)).unwrap();
    let me = std::thread::current().id();
    for (offset, good) in [(5, true), (100_000, false)] {
        let (tx, rx) = mpsc::channel();
        let done = Box::new(move |result: std::io::Result<()>, buf: AlignedBuf| {
            tx.send((std::thread::current().id(), result.is_ok(), buf.to_vec())).unwrap();
        });
        dev.serve(Io { kind: IoKind::Read, offset, buf: AlignedBuf::zeroed(700), done });
        let (thread, ok, read) = rx.try_recv().unwrap();
        assert_eq!((thread, ok), (me, good));
        assert!(!good || read == bytes[5..705]);
    }
}

#[test]
fn bytes_in_memory_are_read_at_once_and_bytes_past_the_end_are_not() {
    let (file, bytes) = file(200_000);
    let dev = FileDevice::open(file.path(), options(OpenMode::ReadOnly, CacheMode::Auto)).unwrap();
    let me = std::thread::current().id();
    let ask = |offset: u64, len: usize| {
        let (tx, rx) = mpsc::channel();
        let done = Box::new(move |result: std::io::Result<()>, buf: AlignedBuf| {
            tx.send((std::thread::current().id(), result.is_ok(), buf.to_vec())).unwrap();
        });
        let left = dev.serve_if_cached(Io { kind: IoKind::Read, offset, buf: AlignedBuf::zeroed(len), done });
        (left, rx)
    };
    for (offset, len) in [(0, 512), (5, 700), (1000, 150_000)] {
        // The system may have dropped the pages meanwhile, or may not be able to tell.
        if let (None, rx) = ask(offset, len) {
            let (thread, ok, read) = rx.try_recv().unwrap();
            assert!(thread == me && ok && read == bytes[offset as usize..offset as usize + len]);
        }
    }
    assert!(ask(199_999, 2).0.is_some(), "the request is returned, to fail in the ordinary way");
    dev.read_past_caches(true);
    assert!(ask(0, 512).0.is_some());
}

/// A completion may wait for another request of its device: the caller serves that itself, so that as many completions as the
/// device has threads do not wait for each other.
#[test]
fn completions_may_wait_for_their_device() {
    let (file, bytes) = file(1 << 20);
    let options = options(OpenMode::ReadWrite, CacheMode::Auto);
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(file.path(), options).unwrap());
    let faulty = Arc::new(FaultyDevice::new(device, 1));
    // Each write reads what it overwrites.
    faulty.inject(Fault::FlushErrors { count: 1, lost: 1000 });
    let (told, heard) = mpsc::channel();
    for at in (0..bytes.len()).step_by(4096) {
        let (dev, told) = (Arc::clone(&faulty), told.clone());
        let offset = u64::try_from(at).unwrap();
        let done = Box::new(move |result: std::io::Result<()>, buf| {
            result.unwrap();
            let done = Box::new(move |result: std::io::Result<()>, _| told.send(result).unwrap());
            dev.submit(Io { kind: IoKind::Write, offset, buf, done });
        });
        faulty.submit(Io { kind: IoKind::Read, offset, buf: AlignedBuf::zeroed(4096), done });
    }
    drop(told);
    for _ in 0..bytes.len() / 4096 {
        heard.recv_timeout(Duration::from_secs(30)).expect("all threads of the device wait").unwrap();
    }
}
