//! Extended attributes, under their Linux names.
//!
//! With `xattr=sa` they stand in a packed list in the system attributes while they fit there, else each is a file in
//! a hidden directory. A value set in one form is removed from the other. User attributes are stored with their
//! prefix, as OpenZFS on Linux does; one that another system stored without is found, and goes when it is set.

use std::sync::Arc;

use engine::dmu::{Content, Tx};
use engine::{Error, Kind, Result};
use nvpair::{NvFlags, NvList, NvValue};

use super::fs::{FsWriter, Xattrs};
use super::make::{Birth, NewNode};
use super::node::{Node, NodeState};
use super::sink::{Created, LogOp, NewFile};
use super::steps::Steps;
use crate::attr::FileKind;
use crate::dir::Dirent;
use crate::filesystem::VERSION_SA;
use crate::xattr;

/// Bytes that packed attributes may take: the longest system attribute.
#[doc(alias("DXATTR_MAX_SA_SIZE", "SA_ATTR_MAX_LEN"))]
const MAX_PACKED: usize = 0xffff;
/// Longest value that is packed.
#[doc(alias = "DXATTR_MAX_ENTRY_SIZE")]
const MAX_PACKED_VALUE: usize = 32 << 10;
/// Longest value at all.
#[doc(alias = "XATTR_SIZE_MAX")]
const MAX_VALUE: usize = 64 << 10;
/// Bytes of an attribute in the packed list besides its name and value, at most.
const PACKED_ENTRY: usize = 64;
const MAX_NAME: usize = 255;

/// Files with more extended attributes in files give them up in pieces.
const XATTRS_AT_ONCE: u64 = 1024;
/// Attributes of such a piece.
pub(super) const XATTRS_IN_PIECE: usize = 512;

/// An attribute in the hidden directory: the directory, the attribute's file, and its name there.
type Held = (Arc<Node>, Arc<Node>, Vec<u8>);

/// Requirement on an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Anything.
    #[default]
    Set,
    /// The attribute must be new.
    Create,
    /// It must be there.
    Replace,
    /// Both, so it always fails: nothing is written.
    CreateAndReplace,
}

impl Xattrs<'_> {
    /// Whether it has more extended attributes in files than are freed, or changed, at once.
    pub(super) fn are_many(self, node: &Node) -> bool {
        let number = node.word(self.fs.fields.xattr);
        number != 0 && self.fs.node(number).is_ok_and(|dir| dir.word(self.fs.fields.size) > XATTRS_AT_ONCE)
    }

    /// The value of an extended attribute.
    pub fn get(self, number: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = self.fs.node(number)?;
        match (stored_xattr(self.fs, &node, name)?, xattr::bare(name)) {
            (None, Some(bare)) => stored_xattr(self.fs, &node, bare),
            (found, _) => Ok(found),
        }
    }

    /// Names of all extended attributes, each once.
    pub fn names(self, number: u64) -> Result<Vec<Vec<u8>>> {
        let node = self.fs.node(number)?;
        let _entries = node.entries.lock();
        let list = packed(self.fs, &node.state.read())?;
        let mut names: Vec<Vec<u8>> = list.iter().map(|pair| xattr::shown(pair.name.as_bytes())).collect();
        let dir = node.word(self.fs.fields.xattr);
        if dir != 0 {
            names.extend(self.fs.dirs().entries(dir)?.into_iter().map(|entry| xattr::shown(&entry.name)));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Sets an extended attribute; `None` removes it.
    ///
    /// # Errors
    /// `Exists` and `NotFound` according to `mode`; `NotFound` for one to be removed that is not there.
    #[doc(alias = "zpl_xattr_set")]
    pub fn set(self, number: u64, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        self.fs.settled(number, || set_xattr_now(self.fs, number, name, value, mode))
    }

    /// Sets or removes an attribute in the packed list; false when the list would grow too long.
    #[doc(alias = "zfs_sa_set_xattr")]
    pub(super) fn pack(
        self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool> {
        // A symbolic link of an old version has its target where packed attributes would go: it stays as it is.
        if node.kind == FileKind::Symlink && node.state.read().attrs.znode_tail().is_some() {
            return Ok(false);
        }
        let mut list = packed(self.fs, &node.state.read())?;
        match value {
            Some(value) => {
                list.add(name, NvValue::ByteArray(value.to_vec()));
            }
            None => {
                list.remove(name);
            }
        }
        let packed = list.encode_xdr().map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
        if packed.len() > MAX_PACKED {
            return Ok(false);
        }
        let now = self.fs.now();
        self.fs.change_step(steps, node, [self.fs.fields.dxattr, self.fs.fields.ctime], |state| {
            self.fs.attrs().to_attributes(steps, state)?;
            if list.is_empty() {
                state.attrs.remove(self.fs.fields.dxattr);
            } else {
                state.attrs.set(self.fs.fields.dxattr, packed)?;
            }
            state.time(self.fs.fields.ctime, now)
        })?;
        let (node, name, value) = (Arc::clone(node), name.to_vec(), value.map(<[u8]>::to_vec));
        steps.at_last(move |fs, tx| {
            let op = LogOp::Xattr { object: node.number, name: &name, value: value.as_deref() };
            fs.log_of(&node, tx, &op);
        });
        Ok(true)
    }

    #[doc(alias = "zfs_make_xattrdir")]
    pub(super) fn make_dir(
        self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        new: &NewNode<'_>,
    ) -> Result<Arc<Node>> {
        let (dir, file, _) = self.fs.dirs().make(steps, node, new, Birth::Hidden)?;
        let xattr = self.fs.fields.xattr;
        self.fs.change_step(steps, node, [xattr], |state| state.attrs.set_word(xattr, dir.number))?;
        log_made(steps, node, (Created::XattrDirectory, node.number, b""), file);
        Ok(dir)
    }
}

fn packed(fs: &FsWriter, state: &NodeState) -> Result<NvList> {
    let bytes = state.attrs.get(fs.fields.dxattr).unwrap_or_default();
    match bytes.is_empty() {
        true => Ok(NvList::with_flags(NvFlags::UNIQUE_NAME)),
        false => NvList::decode(bytes).map_err(|e| Error::corrupt(format!("extended attributes: {e}"))),
    }
}

fn stored_xattr(fs: &FsWriter, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if let Some(value) = packed_value(fs, node, name)? {
        return Ok(Some(value));
    }
    // An attribute in a file changes in several steps, and one may move between its file and the list.
    let _entries = node.entries.lock();
    if let Some(value) = packed_value(fs, node, name)? {
        return Ok(Some(value));
    }
    let Some((_, file, _)) = xattr_file(fs, node, name)? else { return Ok(None) };
    content(fs, &file).map(Some)
}

fn packed_value(fs: &FsWriter, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match packed(fs, &node.state.read())?.get(name) {
        Some(NvValue::ByteArray(value) | NvValue::Uint8Array(value)) => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}

/// The directory, the file in it that holds an attribute, and that file's name, which may differ in case.
fn xattr_file(fs: &FsWriter, node: &Node, name: &[u8]) -> Result<Option<Held>> {
    let number = node.word(fs.fields.xattr);
    if number == 0 {
        return Ok(None);
    }
    let dir = fs.dir(number)?;
    let Some(entry) = fs.dirs().find(&dir, name)? else { return Ok(None) };
    let file = fs.node(entry.object)?;
    Ok(Some((dir, file, entry.name)))
}

fn set_xattr_now(
    fs: &FsWriter,
    number: u64,
    name: &[u8],
    value: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    let node = fs.node(number)?;
    if name.is_empty() || name.contains(&0) || name.len() > MAX_NAME {
        return Err(Error::new(Kind::Invalid, "not a name that an attribute can have"));
    }
    if value.is_some_and(|v| v.len() > MAX_VALUE) {
        return Err(Error::new(Kind::TooLong, "the value is too long"));
    }
    fs.restrictions().check_changeable(&node)?;
    let more = value.map_or(0, |value| file_for(fs, &node, name, value));
    let quota = (more > 0).then(|| fs.quotas().reserve_bytes(&node, (more, more))).transpose()?;
    let tx = fs.begin()?;
    let _names = fs.names.read();
    let _entries = node.entries.lock();
    let (in_list, in_dir) = places(fs, &node, name)?;
    let bare = match xattr::bare(name) {
        Some(bare) => {
            let (in_list, in_dir) = places(fs, &node, bare)?;
            (in_list || in_dir.is_some()).then_some((bare, in_list, in_dir))
        }
        None => None,
    };
    let is_there = in_list || in_dir.is_some();
    match (is_there || bare.is_some(), mode, value) {
        (true, XattrMode::Create | XattrMode::CreateAndReplace, Some(_)) => {
            return Err(Error::new(Kind::Exists, "the attribute exists"));
        }
        (false, XattrMode::Replace | XattrMode::CreateAndReplace, _) | (false, _, None) => {
            return Err(Error::not_found("no such attribute"));
        }
        _ => {}
    }
    fs.attempt(&tx, |steps| {
        if let Some((bare, in_list, in_dir)) = bare {
            put_xattr(fs, steps, &node, (bare, None), in_list, in_dir)?;
        }
        match is_there || value.is_some() {
            true => put_xattr(fs, steps, &node, (name, value), in_list, in_dir),
            false => Ok(()),
        }
    })?;
    if let Some(quota) = quota {
        quota.spend(&tx, more);
    }
    Ok(())
}

/// Bytes that an attribute takes as a file; 0 if it is going to be in the packed list.
fn file_for(fs: &FsWriter, node: &Node, name: &[u8], value: &[u8]) -> u64 {
    let may_pack = fs.options.read().xattr_sa && fs.version() >= VERSION_SA;
    let list = node.state.read().attrs.get(fs.fields.dxattr).map_or(0, <[u8]>::len);
    let fits = list.saturating_add(name.len() + value.len() + PACKED_ENTRY) <= MAX_PACKED;
    if may_pack && value.len() <= MAX_PACKED_VALUE && fits {
        return 0;
    }
    let bytes = u64::try_from(value.len()).unwrap_or(u64::MAX).next_multiple_of(ondisk::MIN_BLOCK_SIZE);
    bytes.saturating_add(u64::try_from(fs.options().dnodesize).unwrap_or(0))
}

/// Whether an attribute is in the packed list, and where it is in the directory.
fn places(fs: &FsWriter, node: &Node, name: &[u8]) -> Result<(bool, Option<Held>)> {
    Ok((packed(fs, &node.state.read())?.contains(name), xattr_file(fs, node, name)?))
}

/// Sets or removes an attribute that is in the packed list or in the directory before, or in neither.
fn put_xattr(
    fs: &FsWriter,
    steps: &Steps<'_>,
    node: &Arc<Node>,
    (name, value): (&[u8], Option<&[u8]>),
    in_list: bool,
    in_dir: Option<Held>,
) -> Result<()> {
    let may_pack = fs.options.read().xattr_sa && fs.version() >= VERSION_SA;
    let fits = may_pack && value.is_none_or(|v| v.len() <= MAX_PACKED_VALUE);
    let packed = fits && fs.xattrs().pack(steps, node, name, value)?;
    // Readers look into the list first: an older value must not stay there.
    let unpacked = !packed && in_list && fs.xattrs().pack(steps, node, name, None)?;
    if let Some((dir, file, stored)) = in_dir.filter(|_| packed || unpacked || value.is_none()) {
        if value.is_some() {
            // The attribute moves: a part of the log must not hold its end without its new value.
            steps.at_last(|fs, tx| fs.log_nothing(tx));
        }
        let entry = Dirent { name: stored, object: file.number, kind: None };
        fs.dirs().remove_entry(steps, &dir, &entry, FileKind::Regular)?;
        fs.dirs().drop_link(steps, &file)?;
        let (node, object) = (Arc::clone(node), file.number);
        steps.at_last(move |fs, tx| {
            let op = LogOp::Remove { dir: dir.number, name: &entry.name, object, dir_removed: false };
            fs.log_of(&node, tx, &op);
        });
    }
    match value {
        Some(value) if !packed => {
            if in_list {
                steps.at_last(|fs, tx| fs.log_nothing(tx));
            }
            set_in_dir(fs, steps, node, name, value)
        }
        _ => Ok(()),
    }
}

/// The hidden directory, made when there is none.
fn xattr_dir(fs: &FsWriter, steps: &Steps<'_>, node: &Arc<Node>) -> Result<Arc<Node>> {
    let number = node.word(fs.fields.xattr);
    if number != 0 {
        return fs.dir(number);
    }
    let (uid, gid) = (node.word(fs.fields.uid), node.word(fs.fields.gid));
    let perm = 0o777 | node.word(fs.fields.mode) & 0o1000;
    let new = NewNode::new(FileKind::Directory, perm, uid, gid);
    fs.xattrs().make_dir(steps, node, &new)
}

fn log_made(steps: &Steps<'_>, node: &Arc<Node>, (what, dir, name): (Created, u64, &[u8]), file: NewFile) {
    let (node, name) = (Arc::clone(node), name.to_vec());
    steps.at_last(move |fs, tx| {
        fs.log_of(&node, tx, &LogOp::Create { what, dir, file, name: &name, target: None, acl: None });
    });
}

fn set_in_dir(fs: &FsWriter, steps: &Steps<'_>, node: &Arc<Node>, name: &[u8], value: &[u8]) -> Result<()> {
    let dir = xattr_dir(fs, steps, node)?;
    let file = match xattr_file(fs, node, name)? {
        Some((_, file, _)) => {
            keep_value(fs, steps, &file);
            file
        }
        None => {
            let (uid, gid) = (node.word(fs.fields.uid), node.word(fs.fields.gid));
            let new = NewNode::new(FileKind::Regular, 0o644, uid, gid);
            let (made, file, _) = fs.dirs().make_in(steps, &dir, name, &new, Birth::Hidden)?;
            log_made(steps, node, (Created::File, dir.number, name), file);
            made
        }
    };
    fs.may_fail()?;
    set_content(fs, steps, &file, value)?;
    let (f, now) = (&fs.fields, fs.now());
    fs.change_step(steps, node, [f.ctime], |state| state.time(f.ctime, now))?;
    let (node, value) = (Arc::clone(node), value.to_vec());
    steps.at_last(move |fs, tx| {
        let object = file.number;
        fs.log_of(&node, tx, &LogOp::Truncate { object, offset: 0, length: 0, sync: true });
        if node.word(fs.fields.links) > 0 {
            fs.data().log_write(tx, &file, (0, &value), true);
        }
    });
    Ok(())
}

fn set_content(fs: &FsWriter, tx: &Tx, file: &Node, value: &[u8]) -> Result<()> {
    fs.data().resize(tx, file, 0)?;
    fs.data().resize(tx, file, u64::try_from(value.len()).unwrap_or(0))?;
    file.handle.write(tx, 0, value)
}

/// The value that an attribute's file has comes back when a later step fails; one that cannot be read does not.
fn keep_value(fs: &FsWriter, steps: &Steps<'_>, file: &Arc<Node>) {
    let Ok(value) = content(fs, file) else { return };
    let (file, f) = (Arc::clone(file), &fs.fields);
    let times = [f.mtime, f.ctime].map(|attr| (attr, file.state.read().attrs.get(attr).map(<[u8]>::to_vec)));
    steps.inverse(move |fs, tx| {
        set_content(fs, tx, &file, &value)?;
        fs.change(tx, &file, |state| {
            let set = |(attr, time): (_, Option<Vec<u8>>)| state.attrs.set(attr, time.unwrap_or_default());
            times.into_iter().try_for_each(set)
        })
    });
}

/// The bytes of an attribute's file.
fn content(fs: &FsWriter, file: &Node) -> Result<Vec<u8>> {
    let (object, size) = (fs.object(file)?, file.word(fs.fields.size));
    let len = usize::try_from(size).ok().filter(|len| *len <= 64 << 20);
    let mut value = vec![0; len.ok_or_else(|| Error::new(Kind::TooLong, "the value is too long"))?];
    Content::new(&object, size).read_at(0, &mut value)?;
    Ok(value)
}
