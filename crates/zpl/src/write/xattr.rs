//! Extended attributes, under their Linux names.
//!
//! With `xattr=sa` they stand in a packed list in the system attributes while they fit there, else each is a file in
//! a hidden directory. A value set in one form is removed from the other. User attributes are stored with their
//! prefix, as OpenZFS on Linux does; one that another system stored without is found, and goes when it is set.

use std::sync::Arc;

use engine::dmu::{Content, Tx};
use engine::{Error, Kind, Result};
use nvpair::{NvFlags, NvList, NvValue};

use super::fs::FsWriter;
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

impl FsWriter {
    fn packed(&self, state: &NodeState) -> Result<NvList> {
        let bytes = state.attrs.get(self.fields.dxattr).unwrap_or_default();
        match bytes.is_empty() {
            true => Ok(NvList::with_flags(NvFlags::UNIQUE_NAME)),
            false => NvList::decode(bytes).map_err(|e| Error::corrupt(format!("extended attributes: {e}"))),
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, number: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = self.node(number)?;
        match (self.stored_xattr(&node, name)?, xattr::bare(name)) {
            (None, Some(bare)) => self.stored_xattr(&node, bare),
            (found, _) => Ok(found),
        }
    }

    fn stored_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(value) = self.packed_value(node, name)? {
            return Ok(Some(value));
        }
        // An attribute in a file changes in several steps, and one may move between its file and the list.
        let _entries = node.entries.lock();
        if let Some(value) = self.packed_value(node, name)? {
            return Ok(Some(value));
        }
        let Some((_, file, _)) = self.xattr_file(node, name)? else { return Ok(None) };
        self.content(&file).map(Some)
    }

    fn packed_value(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.packed(&node.state.read())?.get(name) {
            Some(NvValue::ByteArray(value) | NvValue::Uint8Array(value)) => Ok(Some(value.clone())),
            _ => Ok(None),
        }
    }

    /// Names of all extended attributes, each once.
    pub fn xattr_names(&self, number: u64) -> Result<Vec<Vec<u8>>> {
        let node = self.node(number)?;
        let _entries = node.entries.lock();
        let list = self.packed(&node.state.read())?;
        let mut names: Vec<Vec<u8>> = list.iter().map(|pair| xattr::shown(pair.name.as_bytes())).collect();
        let dir = node.word(self.fields.xattr);
        if dir != 0 {
            names.extend(self.entries(dir)?.into_iter().map(|entry| xattr::shown(&entry.name)));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The directory, the file in it that holds an attribute, and that file's name, which may differ in case.
    fn xattr_file(&self, node: &Node, name: &[u8]) -> Result<Option<Held>> {
        let number = node.word(self.fields.xattr);
        if number == 0 {
            return Ok(None);
        }
        let dir = self.dir(number)?;
        let Some(entry) = self.find(&dir, name)? else { return Ok(None) };
        let file = self.node(entry.object)?;
        Ok(Some((dir, file, entry.name)))
    }

    /// Sets an extended attribute; `None` removes it.
    ///
    /// # Errors
    /// `Exists` and `NotFound` according to `mode`; `NotFound` for one to be removed that is not there.
    #[doc(alias = "zpl_xattr_set")]
    pub fn set_xattr(&self, number: u64, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        self.settled(number, || self.set_xattr_now(number, name, value, mode))
    }

    fn set_xattr_now(&self, number: u64, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let node = self.node(number)?;
        if name.is_empty() || name.contains(&0) || name.len() > MAX_NAME {
            return Err(Error::new(Kind::Invalid, "not a name that an attribute can have"));
        }
        if value.is_some_and(|v| v.len() > MAX_VALUE) {
            return Err(Error::new(Kind::TooLong, "the value is too long"));
        }
        self.check_changeable(&node)?;
        let more = value.map_or(0, |value| self.file_for(&node, name, value));
        let quota = (more > 0).then(|| self.reserve_bytes(&node, (more, more))).transpose()?;
        let tx = self.begin()?;
        let _names = self.names.read();
        let _entries = node.entries.lock();
        let (in_list, in_dir) = self.places(&node, name)?;
        let bare = match xattr::bare(name) {
            Some(bare) => {
                let (in_list, in_dir) = self.places(&node, bare)?;
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
        self.attempt(&tx, |steps| {
            if let Some((bare, in_list, in_dir)) = bare {
                self.put_xattr(steps, &node, (bare, None), in_list, in_dir)?;
            }
            match is_there || value.is_some() {
                true => self.put_xattr(steps, &node, (name, value), in_list, in_dir),
                false => Ok(()),
            }
        })?;
        if let Some(quota) = quota {
            quota.spend(&tx, more);
        }
        Ok(())
    }

    /// Bytes that an attribute takes as a file; 0 if it is going to be in the packed list.
    fn file_for(&self, node: &Node, name: &[u8], value: &[u8]) -> u64 {
        let may_pack = self.options.read().xattr_sa && self.version() >= VERSION_SA;
        let list = node.state.read().attrs.get(self.fields.dxattr).map_or(0, <[u8]>::len);
        let fits = list.saturating_add(name.len() + value.len() + PACKED_ENTRY) <= MAX_PACKED;
        if may_pack && value.len() <= MAX_PACKED_VALUE && fits {
            return 0;
        }
        let bytes = u64::try_from(value.len()).unwrap_or(u64::MAX).next_multiple_of(ondisk::MIN_BLOCK_SIZE);
        bytes.saturating_add(u64::try_from(self.options().dnodesize).unwrap_or(0))
    }

    /// Whether an attribute is in the packed list, and where it is in the directory.
    fn places(&self, node: &Node, name: &[u8]) -> Result<(bool, Option<Held>)> {
        Ok((self.packed(&node.state.read())?.contains(name), self.xattr_file(node, name)?))
    }

    /// Sets or removes an attribute that is in the packed list or in the directory before, or in neither.
    fn put_xattr(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        (name, value): (&[u8], Option<&[u8]>),
        in_list: bool,
        in_dir: Option<Held>,
    ) -> Result<()> {
        let may_pack = self.options.read().xattr_sa && self.version() >= VERSION_SA;
        let fits = may_pack && value.is_none_or(|v| v.len() <= MAX_PACKED_VALUE);
        let packed = fits && self.pack(steps, node, name, value)?;
        // Readers look into the list first: an older value must not stay there.
        let unpacked = !packed && in_list && self.pack(steps, node, name, None)?;
        if let Some((dir, file, stored)) = in_dir.filter(|_| packed || unpacked || value.is_none()) {
            if value.is_some() {
                // The attribute moves: a part of the log must not hold its end without its new value.
                steps.at_last(|fs, tx| fs.log_nothing(tx));
            }
            let entry = Dirent { name: stored, object: file.number, kind: None };
            self.remove_entry(steps, &dir, &entry, FileKind::Regular)?;
            self.drop_link(steps, &file)?;
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
                self.set_in_dir(steps, node, name, value)
            }
            _ => Ok(()),
        }
    }

    /// Sets or removes an attribute in the packed list; false when the list would grow too long.
    #[doc(alias = "zfs_sa_set_xattr")]
    pub(super) fn pack(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool> {
        // A symbolic link of an old version has its target where packed attributes would go: it stays as it is.
        if node.kind == FileKind::Symlink && node.state.read().attrs.znode_tail().is_some() {
            return Ok(false);
        }
        let mut list = self.packed(&node.state.read())?;
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
        let now = self.now();
        self.change_step(steps, node, [self.fields.dxattr, self.fields.ctime], |state| {
            self.to_attributes(steps, state)?;
            if list.is_empty() {
                state.attrs.remove(self.fields.dxattr);
            } else {
                state.attrs.set(self.fields.dxattr, packed)?;
            }
            state.time(self.fields.ctime, now)
        })?;
        let (node, name, value) = (Arc::clone(node), name.to_vec(), value.map(<[u8]>::to_vec));
        steps.at_last(move |fs, tx| {
            let op = LogOp::Xattr { object: node.number, name: &name, value: value.as_deref() };
            fs.log_of(&node, tx, &op);
        });
        Ok(true)
    }

    /// The hidden directory, made when there is none.
    fn xattr_dir(&self, steps: &Steps<'_>, node: &Arc<Node>) -> Result<Arc<Node>> {
        let number = node.word(self.fields.xattr);
        if number != 0 {
            return self.dir(number);
        }
        let (uid, gid) = (node.word(self.fields.uid), node.word(self.fields.gid));
        let perm = 0o777 | node.word(self.fields.mode) & 0o1000;
        let new = NewNode::new(FileKind::Directory, perm, uid, gid);
        self.make_xattr_dir(steps, node, &new)
    }

    #[doc(alias = "zfs_make_xattrdir")]
    pub(super) fn make_xattr_dir(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        new: &NewNode<'_>,
    ) -> Result<Arc<Node>> {
        let (dir, file, _) = self.make(steps, node, new, Birth::Hidden)?;
        let xattr = self.fields.xattr;
        self.change_step(steps, node, [xattr], |state| state.attrs.set_word(xattr, dir.number))?;
        self.log_made(steps, node, (Created::XattrDirectory, node.number, b""), file);
        Ok(dir)
    }

    fn log_made(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        (what, dir, name): (Created, u64, &[u8]),
        file: NewFile,
    ) {
        let (node, name) = (Arc::clone(node), name.to_vec());
        steps.at_last(move |fs, tx| {
            fs.log_of(&node, tx, &LogOp::Create { what, dir, file, name: &name, target: None, acl: None });
        });
    }

    fn set_in_dir(&self, steps: &Steps<'_>, node: &Arc<Node>, name: &[u8], value: &[u8]) -> Result<()> {
        let dir = self.xattr_dir(steps, node)?;
        let file = match self.xattr_file(node, name)? {
            Some((_, file, _)) => {
                self.keep_value(steps, &file);
                file
            }
            None => {
                let (uid, gid) = (node.word(self.fields.uid), node.word(self.fields.gid));
                let new = NewNode::new(FileKind::Regular, 0o644, uid, gid);
                let (made, file, _) = self.make_in(steps, &dir, name, &new, Birth::Hidden)?;
                self.log_made(steps, node, (Created::File, dir.number, name), file);
                made
            }
        };
        self.may_fail()?;
        self.set_content(steps, &file, value)?;
        let (f, now) = (&self.fields, self.now());
        self.change_step(steps, node, [f.ctime], |state| state.time(f.ctime, now))?;
        let (node, value) = (Arc::clone(node), value.to_vec());
        steps.at_last(move |fs, tx| {
            let object = file.number;
            fs.log_of(&node, tx, &LogOp::Truncate { object, offset: 0, length: 0, sync: true });
            if node.word(fs.fields.links) > 0 {
                fs.log_write(tx, &file, (0, &value), true);
            }
        });
        Ok(())
    }

    fn set_content(&self, tx: &Tx, file: &Node, value: &[u8]) -> Result<()> {
        self.resize(tx, file, 0)?;
        self.resize(tx, file, u64::try_from(value.len()).unwrap_or(0))?;
        file.handle.write(tx, 0, value)
    }

    /// The value that an attribute's file has comes back when a later step fails; one that cannot be read does not.
    fn keep_value(&self, steps: &Steps<'_>, file: &Arc<Node>) {
        let Ok(value) = self.content(file) else { return };
        let (file, f) = (Arc::clone(file), &self.fields);
        let times =
            [f.mtime, f.ctime].map(|attr| (attr, file.state.read().attrs.get(attr).map(<[u8]>::to_vec)));
        steps.inverse(move |fs, tx| {
            fs.set_content(tx, &file, &value)?;
            fs.change(tx, &file, |state| {
                let set =
                    |(attr, time): (_, Option<Vec<u8>>)| state.attrs.set(attr, time.unwrap_or_default());
                times.into_iter().try_for_each(set)
            })
        });
    }

    /// The bytes of an attribute's file.
    fn content(&self, file: &Node) -> Result<Vec<u8>> {
        let (object, size) = (self.object(file)?, file.word(self.fields.size));
        let len = usize::try_from(size).ok().filter(|len| *len <= 64 << 20);
        let mut value = vec![0; len.ok_or_else(|| Error::new(Kind::TooLong, "the value is too long"))?];
        Content::new(&object, size).read_at(0, &mut value)?;
        Ok(value)
    }
}
