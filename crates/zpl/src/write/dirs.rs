//! Entries of directories. Source: zfs_dir.c, OpenZFS 2.3.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::dsl::write::Hooks;
use engine::memory::Limit;
use engine::zap::{Match, TOUPPER, Zap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::znode::{dirent_object, dirent_type};
use zcommon::features::Feature;

use super::fs::{Directories, FsWriter};
use super::node::Node;
use super::steps::Steps;
use crate::attr::FileKind;
use crate::dir::{Dirent, is_sound};
use crate::filesystem::{CaseSensitivity, VERSION_DIRENT_TYPE};

/// Longest name that needs no feature.
const OLD_MAX_NAME: usize = 255;
/// Largest block that needs no feature.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const MAX_OLD_BLOCK: u64 = 128 << 10;

impl Directories<'_> {
    /// Whether `name` can be created.
    pub(super) fn check_name(self, name: &[u8]) -> Result<()> {
        if name.len() > self.fs.options.read().max_name {
            return Err(Error::new(Kind::TooLong, "the name is too long"));
        }
        if !is_sound(name) {
            return Err(Error::new(Kind::Invalid, "not a name that a file can have"));
        }
        if (self.fs.utf8only || self.fs.normalization != 0) && std::str::from_utf8(name).is_err() {
            return Err(Error::new(Kind::NotUtf8, "names in this file system must be UTF-8"));
        }
        Ok(())
    }

    /// The entry that `name` means in a directory.
    pub(super) fn find(self, dir: &Node, name: &[u8]) -> Result<Option<Dirent>> {
        if dir.handle.is_free() {
            return Err(Error::not_found("the directory was removed"));
        }
        let zap = Zap::open(&&dir.handle)?;
        let (name, value) = match self.matching() {
            Match::Exact => match zap.first(name)? {
                Some(value) => (name.to_vec(), value),
                None => return Ok(None),
            },
            how => match zap.lookup_norm(name, how)? {
                Some(found) => {
                    let value = found.value.first();
                    (found.name, value.ok_or_else(|| Error::corrupt("directory entry without an object"))?)
                }
                None => return Ok(None),
            },
        };
        let kind = FileKind::from_dirent_type(dirent_type(value));
        Ok(Some(Dirent { name, object: dirent_object(value), kind }))
    }

    pub(super) fn need(self, dir: &Node, name: &[u8]) -> Result<Dirent> {
        self.find(dir, name)?.ok_or_else(|| Error::not_found("no such file or directory"))
    }

    /// The entry that `name` means; `None` when there is none.
    pub fn lookup(self, dir: u64, name: &[u8]) -> Result<Option<Dirent>> {
        let dir = self.fs.dir(dir)?;
        self.find(&dir, name)
    }

    /// All entries of a directory, without `.` and `..`.
    pub fn entries(self, dir: u64) -> Result<Vec<Dirent>> {
        self.entries_from(dir, 0)?.map(|entry| entry.map(|(_, entry)| entry)).collect()
    }

    /// Entries of a directory from the place of a cookie on, each with the cookie behind it; 0 is the beginning, and all
    /// others are at least 2^28 and below 2^63. An entry that stays is met once, however the others change.
    pub fn entries_from(
        self,
        dir: u64,
        cookie: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, Dirent)>> + use<>> {
        let dir = self.fs.dir(dir)?;
        let mut cursor = Zap::open(&self.fs.object(&dir)?)?.entries_from(cookie);
        let mut next = move || -> Result<Option<(u64, Dirent)>> {
            let Some(entry) = cursor.next().transpose()? else { return Ok(None) };
            let value = entry.value.first().unwrap_or(0);
            let kind = FileKind::from_dirent_type(dirent_type(value));
            let behind = cursor.cookie_after(&entry);
            Ok(Some((behind, Dirent { name: entry.name().to_vec(), object: dirent_object(value), kind })))
        };
        Ok(std::iter::from_fn(move || next().transpose()))
    }

    /// Adds an entry and updates the directory's attributes; the caller updates the file.
    #[doc(alias = "zfs_link_create")]
    pub(super) fn add_entry(
        self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        name: &[u8],
        to: (u64, FileKind),
    ) -> Result<()> {
        self.fs.may_fail()?;
        if name.len() > OLD_MAX_NAME {
            self.fs.txs.use_feature(Feature::Longname, steps)?;
        }
        let mut edit = dir.handle.edit(steps);
        ZapEdit::unread(&mut edit).micro_max(micro_max(self.fs)).insert(name, dirent(self.fs, to.0, to.1))?;
        drop(edit);
        if dir.handle.block_size() > MAX_OLD_BLOCK {
            self.fs.txs.use_feature(Feature::LargeMicrozap, steps)?;
        }
        let (of, name) = (Arc::clone(dir), name.to_vec());
        steps.inverse(move |_, tx| ZapEdit::open(&mut of.handle.edit(tx))?.remove(&*name));
        entry_changed(self.fs, steps, dir, 1, i64::from(to.1 == FileKind::Directory))
    }

    /// Removes an entry, of a file of type `kind`, by its stored name.
    #[doc(alias = "zfs_link_destroy")]
    pub(super) fn remove_entry(
        self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        entry: &Dirent,
        kind: FileKind,
    ) -> Result<()> {
        self.fs.may_fail()?;
        ZapEdit::unread(&mut dir.handle.edit(steps)).remove(&*entry.name)?;
        let (of, name, word) = (Arc::clone(dir), entry.name.clone(), dirent(self.fs, entry.object, kind));
        steps.inverse(move |_, tx| ZapEdit::open(&mut of.handle.edit(tx))?.insert(&*name, word));
        entry_changed(self.fs, steps, dir, -1, -i64::from(kind == FileKind::Directory))
    }

    /// Makes an entry, of a file of type `kind`, name another file.
    pub(super) fn replace_entry(
        self,
        steps: &Steps<'_>,
        dir: &Arc<Node>,
        (entry, kind): (&Dirent, FileKind),
        to: (u64, FileKind),
    ) -> Result<()> {
        self.fs.may_fail()?;
        ZapEdit::unread(&mut dir.handle.edit(steps)).update(&*entry.name, dirent(self.fs, to.0, to.1))?;
        let (of, name, word) = (Arc::clone(dir), entry.name.clone(), dirent(self.fs, entry.object, kind));
        steps.inverse(move |_, tx| ZapEdit::open(&mut of.handle.edit(tx))?.update(&*name, word));
        let subdirs = i64::from(to.1 == FileKind::Directory) - i64::from(kind == FileKind::Directory);
        entry_changed(self.fs, steps, dir, 0, subdirs)
    }

    /// Whether each file of a directory has one name there: neither case nor normal form are looked over.
    pub fn names_are_exact(self) -> bool {
        self.fs.case == CaseSensitivity::Sensitive && self.fs.normalization == 0
    }

    /// How directories hash names.
    pub(super) fn normflags(self) -> u64 {
        let fold = if self.fs.case == CaseSensitivity::Sensitive { 0 } else { TOUPPER };
        self.fs.normalization | fold
    }

    /// How a name is looked up.
    pub(super) fn matching(self) -> Match {
        match (self.fs.case, self.normflags()) {
            (_, 0) => Match::Exact,
            (CaseSensitivity::Mixed, _) if !self.fs.ignores_case.load(Ordering::Relaxed) => {
                Match::NormalizedCase
            }
            _ => Match::Normalized,
        }
    }
}

/// The word of an entry.
#[doc(alias = "ZFS_DIRENT_MAKE")]
fn dirent(fs: &FsWriter, number: u64, kind: FileKind) -> u64 {
    let kind = if fs.version() < VERSION_DIRENT_TYPE { 0 } else { kind.dirent_type() };
    u64::from(kind) << 60 | number
}

/// Bytes up to which a directory stays a micro ZAP.
#[doc(alias = "zap_get_micro_max_size")]
fn micro_max(fs: &FsWriter) -> u64 {
    let Some(spa) = fs.spa() else { return MAX_OLD_BLOCK };
    let set = spa.pool.env.memory.limits.get(Limit::MicroZapMax).next_multiple_of(ondisk::MIN_BLOCK_SIZE);
    let is_large = spa.feature(Feature::LargeMicrozap).is_some();
    if is_large { set } else { set.min(MAX_OLD_BLOCK) }
}

fn entry_changed(
    fs: &FsWriter,
    steps: &Steps<'_>,
    dir: &Arc<Node>,
    entries: i64,
    subdirs: i64,
) -> Result<()> {
    let (f, now) = (&fs.fields, fs.now());
    fs.change_step(steps, dir, [f.size, f.links, f.mtime, f.ctime], |state| {
        state.add(f.size, entries)?;
        state.add(f.links, subdirs)?;
        state.time(f.mtime, now)?;
        state.time(f.ctime, now)
    })
}
