//! Real mounts on each transport: bytes, order, waiting requests, the end of a connection.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs, reason = "tests")]

mod toy;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::CpuSet;
use toy::Mounted;

/// Tests that count the work of all threads run alone.
static TESTS: RwLock<()> = RwLock::new(());

/// Threads of this process with that name.
fn threads(name: &str) -> usize {
    let all = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    all.filter(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default().trim() == name).count()
}

/// Times that threads with such a name have slept.
fn sleeps(of: impl Fn(&str) -> bool) -> u64 {
    let all = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let read =
        |task: &fs::DirEntry, what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
    all.filter(|task| of(read(task, "comm").trim()))
        .filter_map(|task| {
            let status = read(&task, "status");
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

fn on_each(test: impl Fn(Mounted, bool)) {
    let _beside_others = TESTS.read();
    on_each_of_both(test);
}

fn on_each_of_both(test: impl Fn(Mounted, bool)) {
    for over_rings in [false, true] {
        if let Some(mounted) = Mounted::new(over_rings) {
            assert_eq!(mounted.line.is_over_rings(), over_rings);
            test(mounted, over_rings);
        }
    }
}

#[test]
fn bytes_and_names_come_back_and_rings_carry_them() {
    on_each(|mounted, over_rings| {
        // Lengths around pages, entries' buffers and several requests.
        for (number, len) in [0, 1, 4095, 4096, 4097, 262_144, 262_145, 3_000_000].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + number * 7 + at / 4096) as u8).collect();
            let path = mounted.at().join(format!("{}{number}", "n".repeat(200)));
            fs::write(&path, &bytes).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{len}");
            assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
            fs::remove_file(&path).unwrap();
            assert!(!path.exists());
        }
        mounted.end();
        let answered = mounted.toy.answered.lock();
        assert_eq!(answered.contains_key("fuse-ring"), over_rings, "{answered:?}");
        // Only what the kernel never sends over rings comes over the device.
        let beside = answered.get("fuse").copied().unwrap_or_default();
        assert!(!over_rings || beside < 20, "{answered:?}");
    });
}

#[test]
fn many_writers_and_readers_do_not_mix_their_bytes() {
    on_each(|mounted, _| {
        thread::scope(|scope| {
            for writer in 0..8u8 {
                let path = mounted.at().join(format!("w{writer}"));
                scope.spawn(move || {
                    let file = fs::File::create(&path).unwrap();
                    for round in 0..40u8 {
                        let bytes = vec![writer.wrapping_mul(29) ^ round; 5000 * (1 + usize::from(round))];
                        file.write_all_at(&bytes, 0).unwrap();
                        let mut back = vec![0; bytes.len()];
                        fs::File::open(&path).unwrap().read_exact_at(&mut back, 0).unwrap();
                        assert!(back == bytes);
                    }
                });
            }
        });
        mounted.end();
    });
}

/// Binds this thread to a core; if that is not allowed, it stays where it is.
fn bind(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[test]
fn requests_that_wait_delay_no_other_on_any_core() {
    wait_beside_others(None);
}

/// They are put aside, and the first one waits.
#[test]
fn commits_that_wait_unexpectedly_delay_no_other() {
    wait_beside_others(Some(Duration::from_micros(50)));
}

/// One thread answers those that arrive together, without handing them on.
#[test]
fn quick_commits_are_answered_by_the_thread_of_the_ring() {
    const CALLERS: usize = 16;
    on_each(|mounted, over_rings| {
        mounted.toy.gate.open();
        for (announced, is_quick) in [(50, true), (5000, false)] {
            *mounted.toy.announced.lock() = Some(Duration::from_micros(announced));
            let of_ring = || mounted.toy.answered.lock().get("fuse-ring").copied().unwrap_or(0);
            let all = || mounted.toy.answered.lock().values().sum::<usize>();
            let files: Vec<fs::File> = (0..CALLERS)
                .map(|number| fs::File::create(mounted.at().join(format!("{announced}-{number}"))).unwrap())
                .collect();
            let before = (of_ring(), all());
            thread::scope(|scope| {
                for file in &files {
                    scope.spawn(move || (0..50).for_each(|_| file.sync_all().unwrap()));
                }
            });
            let (by_ring, by_all) = (of_ring() - before.0, all() - before.1);
            assert_eq!(by_all, CALLERS * 50);
            match over_rings && is_quick {
                // A reader that loses its processor for long hands some on.
                true => assert!(by_ring > by_all / 2, "{by_ring} of {by_all}"),
                false => assert_eq!(by_ring, 0),
            }
        }
        mounted.end();
    });
}

fn wait_beside_others(announced: Option<Duration>) {
    // More than a queue of io_uring has entries at first: all may come from one core.
    const WAITING: usize = 300;
    const NAMES: usize = WAITING / 10;
    on_each(|mounted, over_rings| {
        *mounted.toy.announced.lock() = announced;
        let path = &|number: usize| mounted.at().join(format!("file{number}"));
        let cores = thread::available_parallelism().unwrap().get();
        // The kernel lets only one `fsync` of a file and one lookup of a name through.
        let files: Vec<fs::File> =
            (0..WAITING).map(|number| fs::File::create(path(number)).unwrap()).collect();
        thread::scope(|scope| {
            // Opens the gate if this fails, too: the threads could not be joined.
            let _open = mounted.toy.opener();
            for (number, file) in files.iter().enumerate() {
                // Those that are expected to wait, and those that are not.
                match number % 10 {
                    0 => scope.spawn(move || {
                        assert!(fs::metadata(path(number).with_extension("wait")).is_err());
                    }),
                    _ => scope.spawn(|| file.sync_all().unwrap()),
                };
            }
            mounted.toy.gate.wait_for(20);
            let looks: Vec<_> = (0..cores)
                .map(|core| {
                    scope.spawn(move || {
                        bind(core);
                        for number in 0..2 * WAITING {
                            assert_eq!(fs::metadata(path(number % WAITING)).unwrap().len(), 0);
                        }
                    })
                })
                .collect();
            let until = Instant::now() + Duration::from_secs(30);
            while Instant::now() < until && looks.iter().any(|look| !look.is_finished()) {
                thread::sleep(Duration::from_millis(10));
            }
            let behind = looks.iter().filter(|look| !look.is_finished()).count();
            assert_eq!(behind, 0, "looks are behind requests that wait; over rings: {over_rings}");
            // As many as have threads: 32 of the lane of syncs, and the names. What came before the queue had more
            // entries is there, too, because answers have been committed since.
            mounted.toy.gate.wait_for(32 + NAMES);
            assert!(!over_rings || threads("fuse-ring") <= 8 * cores, "{} threads", threads("fuse-ring"));
        });
        drop(files);
        mounted.end();
    });
}

#[test]
fn a_request_that_panics_is_answered() {
    on_each(|mounted, _| {
        let why = fs::metadata(mounted.at().join("panic")).unwrap_err();
        assert_eq!(why.raw_os_error(), Some(libc::EIO));
        fs::write(mounted.at().join("file"), "after").unwrap();
        mounted.end();
    });
}

#[test]
fn an_abort_ends_requests_and_mounts_come_again() {
    on_each(|mounted, over_rings| {
        let path = mounted.at().join("file");
        fs::write(&path, "text").unwrap();
        let file = fs::File::open(&path).unwrap();
        let minor = rustix::fs::minor(rustix::fs::stat(mounted.at()).unwrap().st_dev);
        let waiter = thread::spawn(move || file.sync_all());
        mounted.toy.gate.wait_for(1);
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
        // Where that file system is not mounted, an unmount by force does the same. It also unmounts if the waiter is quick.
        let is_gone = fs::write(&abort, "1").is_err() && unmount(mounted.at(), UnmountFlags::FORCE).is_ok();
        assert!(waiter.join().unwrap().is_err());
        mounted.toy.gate.open();
        assert!(mounted.line.wait(Duration::from_secs(30)));
        if !is_gone {
            unmount(mounted.at(), UnmountFlags::DETACH).unwrap();
        }
        // Entries of ended connections are free again: more mounts in succession than there are entries.
        for round in 0..if over_rings { 200 } else { 3 } {
            let again = Mounted::new(over_rings).unwrap();
            assert_eq!(again.line.is_over_rings(), over_rings, "round {round}");
            fs::write(again.at().join("file"), "text").unwrap();
            again.end();
            assert!(Arc::strong_count(&again.toy) <= 2);
        }
    });
}

#[test]
fn work_per_request_is_bounded() {
    const FILES: usize = 500;
    // Other tests of this process sleep in the same threads.
    let _alone = TESTS.write();
    on_each_of_both(|mounted, over_rings| {
        let requests = || mounted.toy.answered.lock().values().sum::<usize>();
        let path = |number: usize| mounted.at().join(format!("file{number}"));
        let (asked, slept) = (requests(), sleeps(|name| name.starts_with("fuse")));
        for number in 0..FILES {
            fs::write(path(number), "text").unwrap();
        }
        let created = requests() - asked;
        for number in 0..FILES {
            fs::metadata(path(number)).unwrap();
            fs::remove_file(path(number)).unwrap();
        }
        let (asked, slept) = (requests() - asked, sleeps(|name| name.starts_with("fuse")) - slept);
        eprintln!(
            "over rings: {over_rings}: {created} requests for {FILES} files, {slept} sleeps for {asked} requests"
        );
        // A new file: its directory's attributes, lookup, create, capabilities once, write, release. The names and
        // attributes of a toy are not cached, so some come twice.
        assert!(created <= 8 * FILES, "{created} requests for {FILES} files");
        // One sleep for each request that wakes a thread.
        assert!(slept <= 4 * asked as u64 + 2000, "{slept} sleeps for {asked} requests");
        mounted.end();
    });
}
