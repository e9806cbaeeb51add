//! Reads the metadata that a change of a dataset needs, before the change begins.
//!
//! Damage that a task meets after its first change, and damage that is met while a dataset is written, suspends the pool: half
//! of a change must not be committed. These checks refuse the change instead, and the pool stays in use. Nearly all they read
//! is in the dnodes or in the cache, or is read by the change itself.

use std::collections::BTreeSet;

use ondisk::Byteswap;
use ondisk::bpobj::Bpobj;

use super::lists::free_bpobj;
use super::mos_tx::{MosTx, MosView};
use super::{bookmarks, livelist, remap};
use crate::dmu::Object;
use crate::error::{Error, Result};

/// Blocks of an object that are read at most: of larger ones, the first.
const MAX_BLOCKS: u64 = 64;
/// Block lists of one deadlist that are read before its dataset is written: those of the newest snapshots.
const NEWEST: usize = 16;
/// Bytes of a pointer in a block list.
const BLKPTR: u64 = 128;

/// A reader that reads no object twice.
pub(super) struct Readable<'a> {
    at: MosView<'a>,
    seen: BTreeSet<u64>,
}

impl<'a> Readable<'a> {
    pub(super) fn new(at: &MosView<'a>) -> Self {
        Self { at: *at, seen: BTreeSet::new() }
    }

    /// Reads the metadata that each write of a head needs.
    pub(super) fn written(&mut self, head: u64) -> Result<()> {
        self.own(head)?;
        let (at, phys) = (self.at, self.at.dataset(head)?);
        self.deadlist("deadlist", phys.deadlist_obj, NEWEST)?;
        let live = livelist::of(&at, phys.dir_obj)?.unwrap_or(0);
        self.deadlist("livelist", live, 1)
    }

    /// Reads the metadata that a task needs to change a head.
    pub(super) fn changed(&mut self, head: u64) -> Result<()> {
        self.written(head)?;
        let (at, phys) = (self.at, self.at.dataset(head)?);
        let dir = at.dir(phys.dir_obj)?;
        self.object("names of snapshots", phys.snapnames_zapobj)?;
        self.object("properties", dir.props_zapobj)?;
        self.object("permissions", dir.deleg_zapobj)?;
        self.object("names of children", dir.child_dir_zapobj)?;
        self.deadlist("remap deadlist", remap::list(&at, head)?.unwrap_or(0), usize::MAX)?;
        let mut before = Vec::new();
        if phys.prev_snap_obj != 0 {
            let previous = at.dataset(phys.prev_snap_obj)?;
            self.object("clones of its snapshot", previous.next_clones_obj)?;
            before.push(at.dir(previous.dir_obj)?);
        }
        for dir in before.iter().chain([&dir]) {
            self.object("clones", dir.clones)?;
        }
        for above in at.ancestors(phys.dir_obj) {
            self.extra(above?.0)?;
        }
        Ok(())
    }

    /// Reads the metadata that the destruction of a snapshot needs.
    pub(super) fn ended(&mut self, at: &MosTx<'_>, number: u64) -> Result<()> {
        let snap = at.dataset(number)?;
        self.changed(at.dir(snap.dir_obj)?.head_dataset_obj)?;
        self.own(number)?;
        self.object("clones", snap.next_clones_obj)?;
        let next = at.dataset(snap.next_snap_obj)?;
        for (dataset, list) in [(number, snap.deadlist_obj), (snap.next_snap_obj, next.deadlist_obj)] {
            self.deadlist("deadlist", list, usize::MAX)?;
            self.deadlist("remap deadlist", remap::list(at, dataset)?.unwrap_or(0), usize::MAX)?;
        }
        if at.since(super::version::DEADLISTS) {
            self.list("blocks to be freed", free_bpobj(at)?)?;
        }
        Ok(())
    }

    /// Entries of the dataset and its directory, and its bookmarks.
    fn own(&mut self, number: u64) -> Result<()> {
        let at = self.at;
        self.extra(at.dataset(number)?.dir_obj)?;
        self.extra(number)?;
        self.object("bookmarks", bookmarks::list(&at, number)?.unwrap_or(0))
    }

    fn extra(&mut self, number: u64) -> Result<()> {
        if self.at.is_zapified(number)? { self.object("entries", number) } else { Ok(()) }
    }

    /// Reads an object; 0 is none.
    fn object(&mut self, what: &str, number: u64) -> Result<()> {
        if number == 0 || !self.seen.insert(number) {
            return Ok(());
        }
        let read = || {
            let object = self.at.mos.object(&self.at.mos.view(), number)?;
            (0..=object.dnode.maxblkid.min(MAX_BLOCKS)).try_for_each(|blkid| object.block(blkid).map(drop))
        };
        read().map_err(|e| unreadable(what, number, &e))
    }

    /// Reads a deadlist or livelist, and the ends of the `most` lists of the newest keys.
    fn deadlist(&mut self, what: &str, number: u64, most: usize) -> Result<()> {
        if number == 0 {
            return Ok(());
        }
        if self.at.handle(number)?.dnode().object_type.byteswap() != Some(Byteswap::Zap) {
            return self.list(what, number);
        }
        self.object(what, number)?;
        // Most keys have the empty list that they share, and there may be one for each snapshot.
        let (mut lists, seen) = (Vec::new(), &self.seen);
        let key =
            |name: &[u8]| std::str::from_utf8(name).ok().and_then(|key| u64::from_str_radix(key, 16).ok());
        let mut note = |name: &[u8], list| {
            if !seen.contains(&list) {
                lists.push((key(name).unwrap_or(0), list));
            }
            Ok(())
        };
        let read = self.at.read_zap(number).and_then(|zap| zap.visit_words(&mut note));
        read.map_err(|e| unreadable(what, number, &e))?;
        lists.sort_unstable();
        lists.iter().rev().take(most).try_for_each(|(_, list)| self.list(what, *list))
    }

    /// Reads the last block of a block list: appended pointers go there.
    fn list(&mut self, what: &str, number: u64) -> Result<()> {
        if !self.seen.insert(number) {
            return Ok(());
        }
        let read = || {
            let view = self.at.mos.view();
            let object = self.at.mos.object(&view, number)?;
            let head = Bpobj::from_bonus(object.dnode.bonus())
                .map_err(|e| self.at.corrupt(number, &e.to_string()))?;
            last(&object, head.phys.num_blkptrs, BLKPTR)?;
            match head.have_subobj && head.phys.subobjs != 0 {
                true => last(&self.at.mos.object(&view, head.phys.subobjs)?, head.phys.num_subobjs, 8),
                false => Ok(()),
            }
        };
        read().map_err(|e| unreadable(what, number, &e))
    }
}

/// Reads the last of the blocks that hold `count` entries of `size` bytes.
fn last(object: &Object, count: u64, size: u64) -> Result<()> {
    match count.checked_mul(size).and_then(|bytes| bytes.checked_sub(1)) {
        Some(end) => object.block(end / object.dnode.datablksz().max(1)).map(drop),
        None => Ok(()),
    }
}

fn unreadable(what: &str, number: u64, why: &Error) -> Error {
    let what = format!(
        "{what} of the dataset (object {number} of the pool's metadata) cannot be read, so nothing was changed; the pool can be \
         read with 'zpool import -o readonly=on'"
    );
    Error::new(why.kind(), what).because(why.clone())
}

/// Refuses a change of a head whose metadata cannot be read, before it begins.
pub(super) fn check_changed(at: &MosView<'_>, head: u64) -> Result<()> {
    Readable::new(at).changed(head)
}

/// Refuses to open a head for writing that could not be written.
pub(super) fn check_written(at: &MosView<'_>, head: u64) -> Result<()> {
    Readable::new(at).written(head)
}
