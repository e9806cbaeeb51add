//! Forged datasets and names.

use engine::Result;

use super::{Case, Forge, case, directory, micro_zap, only_block, set_word};

/// Offsets in `dsl_dir_phys_t` and `dsl_dataset_phys_t`.
const DIR_HEAD: usize = 8;
const DIR_PARENT: usize = 16;
const DIR_ORIGIN: usize = 24;
const DIR_CHILDREN: usize = 32;
const DS_DIR: usize = 0;
const DS_PREV: usize = 8;
const DS_NEXT: usize = 24;
const DS_SNAPNAMES: usize = 32;
const DS_DEADLIST: usize = 64;

pub(super) const CASES: &[Case] = &[
    case("a dataset tree that contains itself", "basic", |f| children(f, 1)),
    case("a thousand children, all of them the root", "basic", |f| children(f, 1000)),
    case("a directory that is its own parent", "basic", |f| dir(f, DIR_PARENT, None)),
    case("a directory whose head is itself", "basic", |f| dir(f, DIR_HEAD, None)),
    case("a directory without a head", "basic", |f| dir(f, DIR_HEAD, Some(0))),
    case("children in an object that is none", "basic", |f| dir(f, DIR_CHILDREN, Some(u64::MAX))),
    case("a clone of its own head", "basic", |f| {
        let head = f.dataset("tank")?.number;
        dir(f, DIR_ORIGIN, Some(head))
    }),
    case("a snapshot before itself", "basic", |f| snapshot(f, DS_PREV)),
    case("a snapshot after itself", "basic", |f| snapshot(f, DS_NEXT)),
    case("a dataset in another's place", "basic", |f| {
        let head = f.dataset("tank")?.number;
        f.edit_bonus(0, head, &mut |bonus| set_word(bonus, DS_DIR, head))
    }),
    case("a thousand names of one snapshot", "basic", |f| {
        let head = f.dataset("tank")?;
        let snap = f.dataset("tank@one")?.number;
        let names: Vec<Vec<u8>> = (0..1000).map(|i| format!("s{i}").into_bytes()).collect();
        let entries: Vec<_> = names.iter().map(|n| (n.as_slice(), snap)).collect();
        only_block(f, 0, head.phys.snapnames_zapobj, &micro_zap(&entries))
    }),
    case("snapshot names that are the head's dataset", "basic", |f| {
        let head = f.dataset("tank")?.number;
        f.edit_bonus(0, head, &mut |bonus| set_word(bonus, DS_SNAPNAMES, head))
    }),
    case("a deadlist that is the head", "basic", |f| {
        let head = f.dataset("tank")?.number;
        f.edit_bonus(0, head, &mut |bonus| set_word(bonus, DS_DEADLIST, head))
    }),
    case("a deadlist whose pieces are itself", "basic", |f| {
        let list = f.dataset("tank")?.phys.deadlist_obj;
        let names: Vec<Vec<u8>> = (0..500).map(|i| format!("{i:x}").into_bytes()).collect();
        let entries: Vec<_> = names.iter().map(|n| (n.as_slice(), list)).collect();
        only_block(f, 0, list, &micro_zap(&entries))
    }),
    case("properties that are the pool's directory", "basic", |f| {
        let object = f.dataset("tank")?.dir()?.phys.props_zapobj;
        only_block(
            f,
            0,
            object,
            &micro_zap(&[(b"a$b$c", 1), (b"$recvd", 2), (b"", 3), (b"compression", u64::MAX)]),
        )
    }),
    case("a root dataset that is nowhere", "basic", |f| {
        let block = micro_zap(&[(b"root_dataset", 1 << 60), (b"config", 2)]);
        only_block(f, 0, ondisk::names::MOS_DIRECTORY_OBJECT, &block)
    }),
    case("a root dataset that is the directory", "basic", |f| {
        let config = directory(f, "config")?;
        let block = micro_zap(&[(b"root_dataset", 1), (b"config", config)]);
        only_block(f, 0, ondisk::names::MOS_DIRECTORY_OBJECT, &block)
    }),
];

fn children(forge: &mut Forge, count: usize) -> Result<()> {
    let root = forge.pool.dsl.root()?;
    let names: Vec<Vec<u8>> = (0..count).map(|i| format!("c{i}").into_bytes()).collect();
    let entries: Vec<_> = names.iter().map(|n| (n.as_slice(), root.number)).collect();
    only_block(forge, 0, root.phys.child_dir_zapobj, &micro_zap(&entries))
}

/// Changes a word of the root directory, by default to its own number.
fn dir(forge: &mut Forge, at: usize, value: Option<u64>) -> Result<()> {
    let root = forge.pool.dsl.root()?;
    forge.edit_bonus(0, root.number, &mut |bonus| set_word(bonus, at, value.unwrap_or(root.number)))
}

fn snapshot(forge: &mut Forge, at: usize) -> Result<()> {
    let snap = forge.dataset("tank@two")?.number;
    forge.edit_bonus(0, snap, &mut |bonus| set_word(bonus, at, snap))
}
