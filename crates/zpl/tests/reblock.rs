//! `zfs rewrite --recordsize`: files get other block sizes while they are used, judged by the real zdb and by streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Kind;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::recv::{Input, Wish, begin};
use engine::send::{From, SendFlags, send};
use engine::spa::Spa;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use ondisk::drr::DrrBody;
use stdx::rng::Rng;
use testkit::pools;
use testkit::zdb::Judge;
use zpl::FileKind;
use zpl::write::{CloneFrom, Finish, FsWriter, NewNode, Overrides, Settings, XattrMode, create_fs, mount};

const POOL: &str = "wpool";
const K: u64 = 1024;

struct Bed {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
}

impl Bed {
    fn new(size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(64 << 20).unwrap();
        let vdev = VdevSpec::Leaf(pools::leaf(&dir.path().join("disk1"), size));
        let top = TopSpec { vdev, class: AllocBias::Normal, ashift: None };
        let fs = pools::new_fs(&env);
        let spa = pools::create_pool(&env, POOL, vec![top], &|o, tx| create_fs(o, tx, &fs)).unwrap();
        let bed = Self { dir, spa };
        bed.set("compression", 2);
        bed.set("recordsize", 4 * K);
        bed
    }

    fn set(&self, name: &'static str, value: u64) {
        let all = [(name, Some(PropValue::Number(value)))];
        self.spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    }

    fn mount(&self, name: &str) -> Arc<FsWriter> {
        mount(&self.spa, name, Overrides::default()).unwrap()
    }

    fn snapshot(&self, name: &str) {
        let name = name.to_owned();
        self.spa.dsl_task(move |tasks| tasks.snapshot(&[&name], &[])).unwrap();
    }

    fn destroy(&self, name: &str) {
        let name = name.to_owned();
        self.spa.dsl_task(move |tasks| tasks.destroy(&name, false)).unwrap();
    }

    fn settle(&self) {
        (0..4).for_each(|_| self.spa.sync().unwrap());
    }

    /// The images as a power cut would leave them, judged by the newest zdb.
    fn judge(&self, what: &str) {
        let copy = tempfile::tempdir().unwrap();
        pools::copy(self.dir.path(), copy.path());
        if Judge::NEWEST.installed() {
            Judge::NEWEST.verify(copy.path(), POOL).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }
}

fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn make(fs: &FsWriter, name: &str, bytes: &[u8]) -> u64 {
    let file =
        fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(FileKind::Regular, 0o644, 7, 8)).unwrap();
    fs.data().write(file, 0, bytes, true).unwrap();
    file
}

fn is(fs: &FsWriter, file: u64, bytes: &[u8]) {
    let mut have = vec![0xee; bytes.len() + 5];
    assert_eq!(fs.data().read(file, 0, &mut have).unwrap(), bytes.len());
    let at = have.iter().zip(bytes).position(|(a, b)| a != b);
    assert!(at.is_none(), "file {file} differs at {at:?}");
}

fn block(fs: &FsWriter, file: u64) -> u64 {
    fs.objset.handle(file).unwrap().block_size()
}

fn hidden(fs: &FsWriter) -> u64 {
    fs.dirs().create_unnamed(fs.root, &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap()
}

#[test]
fn short_files_change_at_once_and_keep_what_they_are() {
    let bed = Bed::new(256 << 20);
    let fs = bed.mount(POOL);
    let sizes = [0, 1, 700, 4096, 4097, 5000, 300_000, (1 << 20) + 1];
    let all: Vec<_> = sizes.iter().map(|&size| (content(size, size), size)).collect();
    let files: Vec<_> = all.iter().map(|(bytes, size)| make(&fs, &format!("f{size}"), bytes)).collect();
    fs.xattrs().set(files[5], b"user.long", Some(&content(1, 3000)), XattrMode::Set).unwrap();
    bed.spa.sync().unwrap();
    let value = fs.xattrs().get(files[5], b"user.long").unwrap();
    let before: Vec<_> = files.iter().map(|f| fs.attrs().get(*f).unwrap()).collect();
    for record in [128 * K, 1024 * K, 512, 16 * K] {
        for (file, (bytes, size)) in files.iter().zip(&all) {
            fs.reblocking().reblock(*file, record).unwrap();
            is(&fs, *file, bytes);
            let got = block(&fs, *file);
            assert!(got == record || got <= record && got >= (*size).min(512), "{size} {record}: {got}");
            assert_eq!(
                fs.reblocking().reblock(*file, record).unwrap(),
                0,
                "a second run finds nothing to do"
            );
        }
        bed.settle();
        all.iter().zip(&files).for_each(|((bytes, _), file)| is(&fs, *file, bytes));
        bed.judge(&format!("records of {record}"));
    }
    for (file, before) in files.iter().zip(&before) {
        let now = fs.attrs().get(*file).unwrap();
        assert_eq!(
            (now.mtime, now.ctime, now.uid, now.links),
            (before.mtime, before.ctime, before.uid, before.links)
        );
    }
    assert_eq!(fs.xattrs().get(files[5], b"user.long").unwrap(), value);
    assert!(fs.reblocking().record_of(3000).is_err() && fs.reblocking().record_of(32 << 20).is_err());
    assert_eq!(fs.reblocking().record_of(0).unwrap(), 4 * K);
    fs.unmount().unwrap();
}

#[test]
fn a_long_file_changes_in_one_txg_and_its_snapshots_and_clones_stay() {
    let bed = Bed::new(512 << 20);
    let fs = bed.mount(POOL);
    let bytes = content(3, (20 << 20) + 777);
    let file = make(&fs, "file", &bytes);
    bed.spa.sync().unwrap();
    let clone = make(&fs, "clone", b"");
    fs.clones().clone_range((CloneFrom::File(&fs, file), 0), (clone, 0), 4 << 20, true).unwrap();
    bed.snapshot("wpool@a");
    let written = fs.reblocking().reblock(file, 1024 * K).unwrap();
    assert!(written >= bytes.len() as u64, "{written}");
    assert_eq!(block(&fs, file), 1024 * K);
    is(&fs, file, &bytes);
    bed.settle();
    is(&fs, file, &bytes);
    is(&fs, clone, &bytes[..4 << 20]);
    bed.judge("records of 1M");
    // A file in use: the file's writes before the exchange and after it.
    fs.data().write(file, 123, b"written", true).unwrap();
    fs.reblocking().reblock(file, 8 * K).unwrap();
    fs.data().write(file, 5 << 20, b"again", true).unwrap();
    let mut now = bytes.clone();
    now[123..130].copy_from_slice(b"written");
    now[5 << 20..(5 << 20) + 5].copy_from_slice(b"again");
    is(&fs, file, &now);
    bed.settle();
    bed.judge("records of 8K");
    bed.destroy("wpool@a");
    bed.settle();
    bed.judge("without the snapshot");
    is(&fs, file, &now);
    // Nothing is left of the hidden files: the root, and two files.
    let used = fs.space().unwrap().referenced;
    assert!(used < 28 << 20, "{used} bytes are in use");
    fs.unmount().unwrap();
}

/// The state of a receiver after a full and an incremental stream.
fn received(bed: &Bed, n: u32, from: Option<&str>, to: &str, flags: SendFlags) {
    let open = |name: &str| bed.spa.pool.dsl.dataset(name).unwrap();
    let mut stream = Vec::new();
    let base = from.map(|from| From::snapshot(&open(from)).unwrap());
    send(&open(to), base, flags, &mut stream).unwrap();
    let mut bytes = stream.as_slice();
    let mut input = Input::new(&mut bytes);
    let item = input.record().unwrap().unwrap();
    let DrrBody::Begin(first) = item.drr.body else { panic!("no BEGIN") };
    let snapshot = to.rsplit('@').next().unwrap();
    let wish = Wish::of(&first, &item.payload, &format!("wpool/copy{n}"), snapshot).unwrap();
    let mut receiver = begin(&bed.spa, wish, input.endian()).unwrap();
    receiver.fill(&mut input, &mut |_| true).unwrap();
    receiver.end().unwrap();
}

#[test]
fn incremental_streams_have_all_of_a_changed_file() {
    for (n, large) in [(0, false), (1, true)] {
        let bed = Bed::new(512 << 20);
        bed.set("recordsize", 128 * K);
        let fs = bed.mount(POOL);
        let mut bytes = content(5, 12 << 20);
        let file = make(&fs, "file", &bytes);
        bed.snapshot("wpool@a");
        // A hole that was there before the change begins, and one that comes while it goes on.
        fs.data().punch(file, 2 << 20, 1 << 20).unwrap();
        bed.spa.sync().unwrap();
        let help = hidden(&fs);
        let as_of = fs.reblocking().begin(file, help, 1024 * K).unwrap().unwrap();
        fs.reblocking().copy(file, help, 0..u64::MAX).unwrap();
        fs.data().punch(file, 6 << 20, 1 << 20).unwrap();
        bed.spa.sync().unwrap();
        // The hidden file's blocks are older than this snapshot: all are copied again.
        bed.snapshot("wpool@b");
        assert_eq!(fs.reblocking().finish(file, help, as_of, false).unwrap(), Finish::Done);
        fs.close_file(help).unwrap();
        bed.snapshot("wpool@c");
        for hole in [2, 6] {
            bytes[hole << 20..(hole + 1) << 20].fill(0);
        }
        is(&fs, file, &bytes);
        let flags = SendFlags { large_blocks: large, ..SendFlags::default() };
        received(&bed, n, None, "wpool@a", flags);
        received(&bed, n, Some("wpool@a"), "wpool@b", flags);
        received(&bed, n, Some("wpool@b"), "wpool@c", flags);
        let copy = bed.mount(&format!("wpool/copy{n}"));
        let there = copy.dirs().lookup(copy.root, b"file").unwrap().unwrap().object;
        is(&copy, there, &bytes);
        received(&bed, n + 10, None, "wpool@a", flags);
        received(&bed, n + 10, Some("wpool@a"), "wpool@c", flags);
        let copy2 = bed.mount(&format!("wpool/copy{}", n + 10));
        let there = copy2.dirs().lookup(copy2.root, b"file").unwrap().unwrap().object;
        is(&copy2, there, &bytes);
        bed.settle();
        bed.judge("streams");
        [fs, copy, copy2].iter().for_each(|fs| fs.unmount().unwrap());
    }
}

#[test]
fn a_full_pool_refuses_with_a_reason_and_keeps_the_file() {
    let bed = Bed::new(128 << 20);
    let fs = bed.mount(POOL);
    let bytes = content(9, 40 << 20);
    let file = make(&fs, "file", &bytes);
    bed.settle();
    let refused = fs.reblocking().reblock(file, 128 * K).unwrap_err();
    assert_eq!(refused.kind(), Kind::NoSpace);
    assert!(refused.to_string().contains("beside the old ones"), "{refused}");
    is(&fs, file, &bytes);
    assert_eq!(block(&fs, file), 4 * K);
    bed.settle();
    bed.judge("refused");
    fs.unmount().unwrap();
}

#[test]
fn a_hidden_file_takes_nothing_else_and_goes_with_its_user() {
    let bed = Bed::new(256 << 20);
    let fs = bed.mount(POOL);
    let bytes = content(4, 10 << 20);
    let (file, other) = (make(&fs, "file", &bytes), make(&fs, "other", b"x"));
    assert_eq!(fs.reblocking().begin(file, other, 8 * K).unwrap_err().kind(), Kind::Invalid);
    let help = hidden(&fs);
    fs.attrs().set(help, &Settings { mode: Some(0o4755), ..Settings::default() }).unwrap();
    fs.attrs().set(file, &Settings { uid: Some(7), ..Settings::default() }).unwrap();
    assert!(fs.reblocking().copy(file, help, 0..1 << 20).is_err(), "it has not begun");
    let as_of = fs.reblocking().begin(file, help, 8 * K).unwrap().unwrap();
    assert_eq!(fs.data().write(help, 0, b"x", true).unwrap_err().kind(), Kind::Busy);
    assert_eq!(fs.data().truncate(help, 4).unwrap_err().kind(), Kind::Busy);
    assert_eq!(
        (fs.attrs().get(help).unwrap().uid, fs.attrs().get(help).unwrap().mode() & 0o7777),
        (7, 0o755)
    );
    // It belongs to the owner of the file now: it gets no name, no rights, no reader, and no other file's content.
    assert_eq!(fs.dirs().link(help, fs.root, b"named").unwrap_err().kind(), Kind::Busy);
    assert_eq!(fs.data().read(help, 0, &mut [0; 10]).unwrap_err().kind(), Kind::Busy);
    let mode = Settings { mode: Some(0o4755), ..Settings::default() };
    assert_eq!(fs.attrs().set(help, &mode).unwrap_err().kind(), Kind::Busy);
    assert_eq!(fs.xattrs().set(help, b"user.a", Some(b"x"), XattrMode::Set).unwrap_err().kind(), Kind::Busy);
    assert_eq!(fs.reblocking().finish(other, help, as_of, true).unwrap_err().kind(), Kind::Invalid);
    fs.reblocking().copy(file, help, 0..4 << 20).unwrap();
    fs.close_file(help).unwrap();
    assert!(fs.reblocking().finish(file, help, as_of, true).is_err());
    bed.settle();
    is(&fs, file, &bytes);
    bed.judge("given up");
    fs.unmount().unwrap();
}

/// One random change of the file, and the same of its model.
fn change(fs: &FsWriter, file: u64, model: &mut Vec<u8>, rng: &mut Rng) {
    let len = model.len() as u64;
    let at = rng.below(len + (1 << 20));
    match rng.below(10) {
        0..6 => {
            let bytes = content(rng.next_u64(), 1 + rng.below(300_000));
            fs.data().write(file, at, &bytes, true).unwrap();
            let end = at as usize + bytes.len();
            model.resize(model.len().max(end), 0);
            model[at as usize..end].copy_from_slice(&bytes);
        }
        6..8 => {
            let (from, to) = (at.min(len), (at + rng.below(3 << 20)).min(len));
            fs.data().punch(file, from, to - from).unwrap();
            model[from as usize..to as usize].fill(0);
        }
        _ => {
            fs.data().truncate(file, at).unwrap();
            model.resize(at as usize, 0);
        }
    }
}

#[test]
fn changes_between_all_steps_are_kept() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let bed = Bed::new(768 << 20);
        if seed % 2 == 1 {
            // Unchanged blocks are not written again under a strong checksum and compression.
            bed.set("checksum", 8);
            bed.set("compression", 15);
        }
        let fs = bed.mount(POOL);
        let mut model = content(seed, 9 << 20);
        let file = make(&fs, "file", &model);
        for round in 0..6 {
            let record = 512 << rng.below(12);
            let help = hidden(&fs);
            let begun = fs.reblocking().begin(file, help, record).unwrap();
            if let Some(mut as_of) = begun {
                let mut at = 0;
                while at < model.len() as u64 + (1 << 20) {
                    let step = 1 + rng.below(4 << 20);
                    fs.reblocking().copy(file, help, at..at + step).unwrap();
                    at += step;
                    if rng.below(2) == 0 {
                        change(&fs, file, &mut model, &mut rng);
                    }
                    if rng.below(8) == 0 {
                        bed.snapshot(&format!("wpool@{round}-{at}"));
                    }
                }
                for _ in 0..20 {
                    match fs.reblocking().finish(file, help, as_of, rng.below(3) > 0).unwrap() {
                        Finish::Done => break,
                        Finish::Again(ranges, txg) => {
                            for (start, end) in ranges {
                                fs.reblocking().copy(file, help, start..end).unwrap();
                            }
                            as_of = txg;
                        }
                    }
                }
                assert!(model.len() as u64 <= record || block(&fs, file) == record || model.is_empty());
            }
            fs.close_file(help).unwrap();
            is(&fs, file, &model);
            change(&fs, file, &mut model, &mut rng);
            is(&fs, file, &model);
        }
        bed.settle();
        is(&fs, file, &model);
        bed.judge(&format!("seed {seed}"));
        fs.unmount().unwrap();
        let again = bed.mount(POOL);
        is(&again, file, &model);
        again.unmount().unwrap();
    }
}

#[test]
fn writers_beside_it_lose_nothing() {
    const WRITERS: u64 = 3;
    const PART: u64 = 4 << 20;
    let bed = Bed::new(768 << 20);
    bed.spa.start_thread().unwrap();
    let fs = bed.mount(POOL);
    let file = make(&fs, "file", &content(1, WRITERS * PART));
    let stop = AtomicBool::new(false);
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let (fs, stop) = (&fs, &stop);
        let writer = |n: u64| {
            move || {
                let mut rng = Rng::new(n);
                let mut model = content(1, WRITERS * PART)[(n * PART) as usize..][..PART as usize].to_vec();
                while !stop.load(Ordering::Relaxed) {
                    let at = rng.below(PART - 1);
                    let bytes = content(rng.next_u64(), 1 + rng.below((PART - at).min(70_000)));
                    fs.data().write(file, n * PART + at, &bytes, true).unwrap();
                    model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    if rng.below(40) == 0 {
                        fs.fsync(file).unwrap();
                    }
                    let mut back = vec![0; 5000];
                    let from = rng.below(PART - 5000);
                    fs.data().read(file, n * PART + from, &mut back).unwrap();
                    assert!(back == model[from as usize..][..5000], "writer {n} at {from}");
                }
                model
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(writer(n))).collect();
        for record in [64 * K, 1024 * K, 2 * K, 128 * K] {
            fs.reblocking().reblock(file, record).unwrap();
            assert_eq!(block(fs, file), record);
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    is(&fs, file, &parts.concat());
    bed.settle();
    bed.judge("writers");
    fs.unmount().unwrap();
}

/// The user of the hidden file closes it while its blocks go to the file: they are not freed meanwhile.
#[test]
fn a_hidden_file_is_kept_until_the_exchange_has_ended() {
    let bed = Bed::new(512 << 20);
    bed.spa.start_thread().unwrap();
    let fs = bed.mount(POOL);
    // In blocks of 512 bytes it is freed in pieces.
    let bytes = content(5, (8 << 20) + (64 << 10));
    let file = make(&fs, "file", &bytes);
    let help = hidden(&fs);
    let as_of = fs.reblocking().begin(file, help, 512).unwrap().unwrap();
    fs.reblocking().copy(file, help, 0..u64::MAX).unwrap();
    std::thread::scope(|scope| {
        let finish = scope.spawn(|| fs.reblocking().finish(file, help, as_of, false));
        fs.close_file(help).unwrap();
        let _ = finish.join().unwrap();
    });
    is(&fs, file, &bytes);
    bed.settle();
    fs.unmount().unwrap();
    bed.judge("closed early");
}
