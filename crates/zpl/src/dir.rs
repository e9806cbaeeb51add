//! Directories: names to objects.
//!
//! A directory is a ZAP; an entry's value has the object in its low 48 bits and the file's type in
//! the high 4 (since version 2). `.` and `..` are not stored. Source: `ZFS_DIRENT_*`, zfs_znode.h,
//! OpenZFS 2.3.

use engine::zap::{Cursor, ZapEntry, fold};
use engine::{Error, Kind, Result};

use crate::attr::FileKind;
use crate::inode::Inode;

const OBJECT_MASK: u64 = (1 << 48) - 1;
/// Entries and errors of one directory after which its listing ends: a forged one could go on for ever.
const MAX_ENTRIES: u64 = 1 << 27;
const MAX_ERRORS: u64 = 4096;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirent {
    /// Its name: any bytes but `/` and NUL in a sound file system.
    pub name: Vec<u8>,
    /// The object it names.
    pub object: u64,
    /// The type in it; `None` in file systems of version 1, whose entries lack it.
    pub kind: Option<FileKind>,
}

impl Dirent {
    fn from_value(name: Vec<u8>, value: u64, typed: bool) -> Self {
        let (object, raw) =
            if typed { (value & OBJECT_MASK, (value >> 60) as u8) } else { (value & OBJECT_MASK, 0) };
        Self { name, object, kind: FileKind::from_dirent_type(raw) }
    }
}

/// Iterator over a directory, in the order of hashes, which is also OpenZFS's.
#[derive(Debug)]
pub struct Entries {
    dir: Inode,
    cursor: Option<Cursor>,
    seen: u64,
    errors: u64,
}

impl Entries {
    /// The next entry and the cookie behind it.
    fn step(&mut self) -> Option<Result<(u64, Dirent)>> {
        let cursor = self.cursor.as_mut()?;
        let item = cursor.next()?;
        let behind = item.as_ref().map_or(0, |e| cursor.cookie_after(e));
        let item = self.limited(item.and_then(|e| self.dir.dirent(e)));
        let item = item.map_err(|e| self.dir.fs.place(e, self.dir.number));
        Some(item.map(|entry| (behind, entry)))
    }

    /// Counts an item; past a limit it becomes the last one, an error.
    fn limited(&mut self, item: Result<Dirent>) -> Result<Dirent> {
        self.seen += 1;
        self.errors += u64::from(item.is_err());
        if self.seen <= MAX_ENTRIES && self.errors <= MAX_ERRORS {
            return item;
        }
        self.cursor = None;
        Err(Error::new(Kind::Limit, "the directory has more entries or errors than are listed"))
    }
}

impl Iterator for Entries {
    type Item = Result<Dirent>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.step()?.map(|(_, entry)| entry))
    }
}

impl Inode {
    /// All entries. A part that can't be read yields one error, and the rest follows. A name that contains
    /// `/` or NUL, or is `.` or `..`, is an error too: it could never be opened, and a copy must not follow
    /// it out of its tree.
    pub fn entries(&self) -> Result<Entries> {
        self.cursor_at(0)
    }

    /// The same from the place of a cookie on, each with the cookie behind it; 0 is the beginning, and all others are at
    /// least 2^28 and below 2^63.
    pub fn entries_from(&self, cookie: u64) -> Result<impl Iterator<Item = Result<(u64, Dirent)>> + use<>> {
        let mut entries = self.cursor_at(cookie)?;
        Ok(std::iter::from_fn(move || entries.step()))
    }

    fn cursor_at(&self, cookie: u64) -> Result<Entries> {
        let cursor = Some(self.zap()?.entries_from(cookie));
        Ok(Entries { dir: self.clone(), cursor, seen: 0, errors: 0 })
    }

    fn dirent(&self, entry: ZapEntry) -> Result<Dirent> {
        let name = entry.name().to_vec();
        if !is_sound(&name) {
            let shown = String::from_utf8_lossy(&name).into_owned();
            return Err(Error::corrupt(format!("directory entry with the impossible name {shown:?}")));
        }
        let value = entry.value.first();
        let value = value.ok_or_else(|| Error::corrupt("directory entry without an object"))?;
        Ok(Dirent::from_value(name, value, self.fs.entries_have_type()))
    }

    /// The entry that `name` means by the rules of the file system (case, normal form). `None` when
    /// there is none. `.` and `..` are not entries: see [`Inode::parent`].
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Dirent>> {
        self.find(name).map_err(|e| self.fs.place(e, self.number))
    }

    /// The file that `name` means; `NotFound` when there is none.
    pub fn child(&self, name: &[u8]) -> Result<Self> {
        let found = self.lookup(name)?;
        let found = found.ok_or_else(|| self.error(Kind::NotFound, "no such file or directory"))?;
        self.fs.inode(found.object)
    }

    fn find(&self, name: &[u8]) -> Result<Option<Dirent>> {
        let zap = self.zap()?;
        let flags = self.fs.match_flags();
        let wanted = fold(name, flags);
        let matches = |other: &[u8]| other == name || fold(other, flags) == wanted;
        let typed = self.fs.entries_have_type();
        let stored = zap.normflags();
        if stored == 0 && flags == 0 {
            let value = zap.lookup(name)?.and_then(|v| v.first());
            return Ok(value.map(|value| Dirent::from_value(name.to_vec(), value, typed)));
        }
        if let Some((found, value)) = zap.lookup_normalized(&fold(name, stored), &matches)? {
            return Ok(value.first().map(|value| Dirent::from_value(found, value, typed)));
        }
        if wanted.is_ascii() && name.is_ascii() {
            return Ok(None);
        }
        for entry in self.entries()? {
            let entry = entry?;
            if matches(&entry.name) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// Whether a name can be a directory entry.
pub(crate) fn is_sound(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_hold_type_and_object() {
        let value = 4 << 60 | 0xfff << 48 | 77;
        let typed = Dirent::from_value(b"a".to_vec(), value, true);
        assert_eq!((typed.object, typed.kind), (77, Some(FileKind::Directory)));
        assert_eq!(Dirent::from_value(b"a".to_vec(), value, false).kind, None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(!is_sound(bad));
        }
        assert!(is_sound(b"...") && is_sound(b"\xff") && is_sound(b"a b\n"));
    }
}
