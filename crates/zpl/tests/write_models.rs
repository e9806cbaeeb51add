//! Random operations against models: bytes of a file, and a tree of names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::Bench;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, RenameKind, Seek, Settings};

fn file() -> NewNode<'static> {
    NewNode::new(FileKind::Regular, 0o644, 0, 0)
}

fn cut(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if model.len() < at + bytes.len() {
        model.resize(at + bytes.len(), 0);
    }
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Bytes of one file under random writes, cuts, holes and appends, with txgs written in between.
fn bytes_of_a_file(seed: u64, recordsize: u64, (span, most): (u64, u64), steps: u64) {
    let bench = Bench::new(512 << 20, |_| {});
    let fs = bench.writer(Options { recordsize, ..Options::default() });
    let number = fs.dirs().create(fs.root, b"f", &file()).unwrap();
    let mut rng = Rng::new(seed);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..steps {
        let (at, len) = (rng.below(span), rng.below(most) + 1);
        let (from, size) = (at as usize, len as usize);
        match rng.below(13) {
            0..4 => {
                let mut bytes = vec![0; size];
                rng.fill(&mut bytes);
                fs.data().write(number, at, &bytes, true).unwrap();
                cut(&mut model, from, &bytes);
            }
            4 => {
                let mut bytes = vec![0; size];
                rng.fill(&mut bytes);
                assert_eq!(fs.data().append(number, &bytes, true).unwrap(), model.len() as u64);
                if model.len() < 4 * span as usize {
                    model.extend(bytes);
                } else {
                    fs.data().truncate(number, model.len() as u64).unwrap();
                }
            }
            5 => {
                fs.data().truncate(number, at).unwrap();
                model.resize(from, 0);
            }
            6..8 => {
                fs.data().punch(number, at, len).unwrap();
                let end = (from + size).min(model.len());
                model[from.min(end)..end].fill(0);
            }
            8 => bench.spa.sync().unwrap(),
            9 => {
                fs.data().allocate(number, at, len).unwrap();
                let end = (from + size).max(model.len());
                model.resize(end, 0);
            }
            10 => {
                fs.data().zero_range(number, at, len).unwrap();
                let end = (from + size).max(model.len());
                model.resize(end, 0);
                model[from..from + size].fill(0);
            }
            11 => {
                let data = fs.data().seek(number, at, Seek::Data).unwrap();
                let skipped = model.get(from..data.map_or(model.len(), |d| d as usize)).unwrap_or_default();
                assert!(skipped.iter().all(|b| *b == 0), "seed {seed} step {step}: data in what is no data");
            }
            _ => {
                let mut out = vec![1; size];
                let got = fs.data().read(number, at, &mut out).unwrap();
                let want = model.get(from..(from + size).min(model.len())).unwrap_or_default();
                assert!(&out[..got] == want, "seed {seed} step {step}: read at {at} of {len}");
            }
        }
        assert_eq!(fs.attrs().get(number).unwrap().size, model.len() as u64, "seed {seed} step {step}");
    }
    for _ in 0..2 {
        bench.spa.sync().unwrap();
    }
    let found = bench.reader().resolve(b"f", true).unwrap();
    let mut out = vec![0; model.len()];
    assert_eq!(found.read_at(0, &mut out).unwrap(), model.len());
    assert!(out == model, "seed {seed}: what is on disk differs");
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

#[test]
fn bytes_of_small_records() {
    bytes_of_a_file(1, 4096, (60_000, 15_000), 300);
    bytes_of_a_file(2, 512, (5_000, 1_250), 300);
}

/// An indirect block has the pointers of 1024 records.
#[test]
fn bytes_of_files_with_several_indirect_blocks() {
    bytes_of_a_file(5, 512, (3 << 20, 40_000), 400);
    bytes_of_a_file(6, 1024, (8 << 20, 20_000), 400);
    bytes_of_a_file(7, 4096, (40 << 20, 200_000), 200);
}

/// The walk over one freed range looks past it, into an indirect block that the next range does not have.
#[test]
fn several_holes_in_one_txg() {
    let bench = Bench::new(512 << 20, |_| {});
    let fs = bench.writer(Options { recordsize: 512, ..Options::default() });
    let number = fs.dirs().create(fs.root, b"f", &file()).unwrap();
    fs.data().write(number, 0, &[1; 4096], true).unwrap();
    fs.data().write(number, 800 << 10, &[1; 512], true).unwrap();
    bench.spa.sync().unwrap();
    for at in 1..6 {
        fs.data().punch(number, at * 40_000, 4096).unwrap();
    }
    bench.spa.sync().unwrap();
    let mut out = [0; 512];
    assert_eq!(fs.data().read(number, 800 << 10, &mut out).unwrap(), 512);
    assert_eq!(out, [1; 512]);
}

#[test]
fn bytes_of_usual_records() {
    bytes_of_a_file(3, 128 << 10, (900_000, 225_000), 200);
    bytes_of_a_file(4, 128 << 10, (100_000, 25_000), 200);
}

/// A file or directory of the model.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    dir: bool,
    links: u64,
    mode: u32,
    content: Vec<u8>,
}

#[derive(Default)]
struct Model {
    /// Objects by number; names by directory.
    items: BTreeMap<u64, Item>,
    names: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
}

impl Model {
    fn dirs(&self) -> Vec<u64> {
        self.names.keys().copied().collect()
    }

    fn below(&self, top: u64, number: u64) -> bool {
        top == number || self.names.get(&top).is_some_and(|n| n.values().any(|&c| self.below(c, number)))
    }

    fn unlink(&mut self, dir: u64, name: &[u8]) {
        let number = self.names.get_mut(&dir).unwrap().remove(name).unwrap();
        let item = self.items.get_mut(&number).unwrap();
        item.links -= 1;
        if item.dir || item.links == 0 {
            self.items.remove(&number);
            self.names.remove(&number);
        }
    }
}

fn step(fs: &FsWriter, model: &mut Model, rng: &mut Rng) {
    let dirs = model.dirs();
    let dir = dirs[rng.below(dirs.len() as u64) as usize];
    let long = if rng.below(10) == 0 { "x".repeat(60) } else { String::new() };
    let name = format!("n{}{long}", rng.below(12)).into_bytes();
    let there = model.names[&dir].get(&name).copied();
    match rng.below(10) {
        0..3 => {
            let made = fs.dirs().create(dir, &name, &file());
            assert_eq!(made.is_err(), there.is_some());
            if let Ok(number) = made {
                let mut content = vec![0; rng.below(3000) as usize];
                rng.fill(&mut content);
                fs.data().write(number, 0, &content, true).unwrap();
                model.items.insert(number, Item { dir: false, links: 1, mode: 0o644, content });
                model.names.get_mut(&dir).unwrap().insert(name, number);
            }
        }
        3 => {
            let made = fs.dirs().create(dir, &name, &NewNode::new(FileKind::Directory, 0o755, 0, 0));
            assert_eq!(made.is_err(), there.is_some());
            if let Ok(number) = made {
                model.items.insert(number, Item { dir: true, links: 1, mode: 0o755, content: Vec::new() });
                model.names.get_mut(&dir).unwrap().insert(name, number);
                model.names.insert(number, BTreeMap::new());
            }
        }
        4 => {
            let files: Vec<u64> = model.items.iter().filter(|(_, i)| !i.dir).map(|(&n, _)| n).collect();
            let Some(&number) = files.get(rng.below(files.len() as u64) as usize) else { return };
            let done = fs.dirs().link(number, dir, &name);
            assert_eq!(done.is_err(), there.is_some());
            if done.is_ok() {
                model.items.get_mut(&number).unwrap().links += 1;
                model.names.get_mut(&dir).unwrap().insert(name, number);
            }
        }
        5 => {
            let is_file = there.is_some_and(|n| !model.items[&n].dir);
            assert_eq!(fs.dirs().unlink(dir, &name).is_ok(), is_file);
            if is_file {
                model.unlink(dir, &name);
            }
        }
        6 => {
            let empty = there.is_some_and(|n| model.items[&n].dir && model.names[&n].is_empty());
            assert_eq!(fs.dirs().rmdir(dir, &name).is_ok(), empty);
            if empty {
                model.unlink(dir, &name);
            }
        }
        7 => {
            let Some(number) = there else { return };
            let mode = rng.below(0o1000);
            fs.attrs().set(number, &Settings { mode: Some(mode), ..Settings::default() }).unwrap();
            model.items.get_mut(&number).unwrap().mode = mode as u32;
        }
        _ => rename(fs, model, rng, (dir, name)),
    }
}

fn rename(fs: &FsWriter, model: &mut Model, rng: &mut Rng, (dir, name): (u64, Vec<u8>)) {
    let dirs = model.dirs();
    let to = dirs[rng.below(dirs.len() as u64) as usize];
    let target = format!("n{}", rng.below(12)).into_bytes();
    let kind = [RenameKind::Plain, RenameKind::NoReplace, RenameKind::Exchange][rng.below(3) as usize];
    let (from, old) = (model.names[&dir].get(&name).copied(), model.names[&to].get(&target).copied());
    let is_dir = |n: u64| model.items[&n].dir;
    let allowed = from.is_some_and(|from| {
        let loops = is_dir(from) && model.below(from, to);
        !loops
            && match (kind, old) {
                (RenameKind::Exchange, None) => false,
                (RenameKind::Exchange, Some(old)) => !(is_dir(old) && model.below(old, dir)),
                (_, None) => true,
                (RenameKind::NoReplace, Some(old)) => old == from && (dir, &name) == (to, &target),
                (_, Some(old)) => {
                    old == from
                        || (is_dir(old) == is_dir(from) && (!is_dir(old) || model.names[&old].is_empty()))
                }
            }
    });
    let done = fs.dirs().rename((dir, &name), (to, &target), kind, (0, 0));
    assert_eq!(done.is_ok(), allowed, "{kind:?} {from:?} {old:?} {done:?}");
    let Some(from) = from.filter(|_| allowed) else { return };
    if old == Some(from) {
        return;
    }
    if kind == RenameKind::Exchange {
        model.names.get_mut(&dir).unwrap().insert(name, old.unwrap());
        model.names.get_mut(&to).unwrap().insert(target, from);
        return;
    }
    if old.is_some() {
        model.unlink(to, &target);
    }
    model.names.get_mut(&dir).unwrap().remove(&name);
    model.names.get_mut(&to).unwrap().insert(target, from);
}

fn compare(model: &Model, dir: &zpl::Inode) {
    let names = &model.names[&dir.number()];
    let subdirs = names.values().filter(|n| model.items[n].dir).count() as u64;
    assert_eq!((dir.attr().size, dir.attr().links), (names.len() as u64 + 2, subdirs + 2));
    let mut found: Vec<_> = dir.entries().unwrap().map(|e| e.unwrap()).map(|e| (e.name, e.object)).collect();
    found.sort();
    assert_eq!(found, names.iter().map(|(n, &o)| (n.clone(), o)).collect::<Vec<_>>());
    for (name, number) in names {
        let (inode, item) = (dir.child(name).unwrap(), &model.items[number]);
        assert_eq!((inode.is_dir(), inode.attr().perm), (item.dir, item.mode));
        if item.dir {
            assert_eq!(inode.parent().unwrap().number(), dir.number());
            compare(model, &inode);
            continue;
        }
        assert_eq!((inode.attr().links, inode.attr().size), (item.links, item.content.len() as u64));
        let mut out = vec![0; item.content.len()];
        inode.read_at(0, &mut out).unwrap();
        assert!(out == item.content);
    }
}

#[test]
fn names_in_a_tree() {
    for seed in 1..4 {
        let bench = Bench::new(256 << 20, |_| {});
        let fs = bench.writer(Options::default());
        let mut model = Model::default();
        model.names.insert(fs.root, BTreeMap::new());
        let mut rng = Rng::new(seed);
        for _ in 0..6 {
            for _ in 0..150 {
                step(&fs, &mut model, &mut rng);
            }
            bench.spa.sync().unwrap();
        }
        bench.spa.sync().unwrap();
        compare(&model, &bench.reader().root().unwrap());
        let text = bench.zdb(&["-bcc", "wpool"]);
        assert!(text.is_empty() || text.contains("No leaks"), "{text}");
        let text = bench.zdb(&["-dddd", "wpool/"]);
        assert!(!text.contains("leaked") && !text.contains("???"), "{text}");
    }
}

#[test]
fn many_threads_at_once() {
    let bench = Bench::new(512 << 20, |_| {});
    bench.spa.start_thread().unwrap();
    let fs = bench.writer(Options::default());
    let shared = fs.dirs().create(fs.root, b"shared", &file()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let fs = &fs;
            scope.spawn(move || {
                let name = |i: u64| format!("t{thread}-{i}").into_bytes();
                let dir = fs
                    .dirs()
                    .create(fs.root, &name(99), &NewNode::new(FileKind::Directory, 0o755, 0, 0))
                    .unwrap();
                for i in 0..60 {
                    let number = fs.dirs().create(dir, &name(i), &file()).unwrap();
                    fs.data().write(number, 0, &vec![thread as u8; 5000], true).unwrap();
                    fs.data().write(shared, (thread * 60 + i) * 1000, &[thread as u8; 1000], true).unwrap();
                    if i % 3 == 0 {
                        fs.dirs()
                            .rename((dir, &name(i)), (fs.root, &name(i)), RenameKind::Plain, (0, 0))
                            .unwrap();
                    } else if i % 3 == 1 {
                        fs.dirs().unlink(dir, &name(i)).unwrap();
                    }
                }
            });
        }
    });
    bench.spa.sync().unwrap();
    bench.spa.sync().unwrap();
    let read = bench.reader();
    assert_eq!(read.root().unwrap().entries().unwrap().count(), 1 + 4 + 80);
    let mut out = vec![9; 240_000];
    assert_eq!(read.resolve(b"shared", true).unwrap().read_at(0, &mut out).unwrap(), out.len());
    assert!(out.chunks(60_000).enumerate().all(|(t, part)| part.iter().all(|b| *b == t as u8)));
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

#[test]
fn parts_of_one_block_are_written_at_once() {
    const BLOCK: u64 = 128 << 10;
    const ROUNDS: u64 = 300;
    let bench = Bench::new(512 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let number = fs.dirs().create(fs.root, b"file", &file()).unwrap();
    fs.data().write(number, ROUNDS * BLOCK, b"end", true).unwrap();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fs, barrier) = (&fs, &barrier);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    barrier.wait();
                    let part = vec![thread as u8 + 1; 32 << 10];
                    fs.data().write(number, round * BLOCK + thread * (32 << 10), &part, true).unwrap();
                }
            });
        }
    });
    let mut out = vec![0; (ROUNDS * BLOCK) as usize];
    fs.data().read(number, 0, &mut out).unwrap();
    let parts = out.chunks(32 << 10).enumerate();
    let lost = parts.filter(|(i, part)| part.iter().any(|b| *b != (i % 4) as u8 + 1)).count();
    assert_eq!(lost, 0);
}

#[test]
fn an_object_set_can_be_marked_in_the_open_txg_while_the_txg_before_is_written() {
    let bench = Bench::new(128 << 20, |_| {});
    let fs = bench.writer(Options::default());
    fs.dirs().create(fs.root, b"file", &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    bench.spa.txgs.close();
    bench.objset.touch(&bench.spa.begin().unwrap()).unwrap();
    bench.spa.sync().unwrap();
}
