//! Extended attributes, under their Linux names.
//!
//! With `xattr=sa` they stand in a packed list in the system attributes while they fit there, else each is a file in
//! a hidden directory. A value set in one form is removed from the other. User attributes are stored with their
//! prefix, as OpenZFS on Linux does.

use std::sync::Arc;

use engine::dmu::{Content, Tx};
use engine::zap::Zap;
use engine::{Error, Kind, Result};
use nvpair::{NvFlags, NvList, NvValue};
use ondisk::znode::dirent_object;

use super::fs::FsWriter;
use super::make::{Birth, NewNode};
use super::node::{Node, State};
use super::sink::{Created, LogOp, NewFile};
use crate::attr::FileKind;
use crate::filesystem::VERSION_SA;

/// Bytes that packed attributes may take.
#[doc(alias = "DXATTR_MAX_SA_SIZE")]
const MAX_PACKED: usize = 64 << 10;
/// Longest value that is packed.
#[doc(alias = "DXATTR_MAX_ENTRY_SIZE")]
const MAX_PACKED_VALUE: usize = 32 << 10;
/// Longest value at all.
#[doc(alias = "XATTR_SIZE_MAX")]
const MAX_VALUE: usize = 64 << 10;
const MAX_NAME: usize = 255;

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
}

impl FsWriter {
    fn packed(&self, state: &State) -> Result<NvList> {
        let bytes = state.attrs.get(self.fields.dxattr).unwrap_or_default();
        match bytes.is_empty() {
            true => Ok(NvList::with_flags(NvFlags::UNIQUE_NAME)),
            false => NvList::decode(bytes).map_err(|e| Error::corrupt(format!("extended attributes: {e}"))),
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, number: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = self.node(number)?;
        let list = self.packed(&node.state.read())?;
        if let Some(NvValue::ByteArray(value) | NvValue::Uint8Array(value)) = list.get(name) {
            return Ok(Some(value.clone()));
        }
        let Some((_, file)) = self.xattr_file(&node, name)? else { return Ok(None) };
        let (object, size) = (self.object(&file)?, file.word(self.fields.size));
        let len = usize::try_from(size).ok().filter(|len| *len <= 64 << 20);
        let mut value = vec![0; len.ok_or_else(|| Error::new(Kind::TooLong, "the value is too long"))?];
        Content::new(&object, size).read_at(0, &mut value)?;
        Ok(Some(value))
    }

    /// Names of all extended attributes, each once.
    pub fn xattr_names(&self, number: u64) -> Result<Vec<Vec<u8>>> {
        let node = self.node(number)?;
        let list = self.packed(&node.state.read())?;
        let mut names: Vec<Vec<u8>> = list.iter().map(|pair| pair.name.as_bytes().to_vec()).collect();
        let dir = node.word(self.fields.xattr);
        if dir != 0 {
            names.extend(self.entries(dir)?.into_iter().map(|entry| entry.name));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The file that holds an attribute, and its directory.
    fn xattr_file(&self, node: &Node, name: &[u8]) -> Result<Option<(Arc<Node>, Arc<Node>)>> {
        let number = node.word(self.fields.xattr);
        if number == 0 {
            return Ok(None);
        }
        let dir = self.dir(number)?;
        let value = Zap::open(&self.object(&dir)?)?.lookup(name)?.and_then(|v| v.first());
        let Some(value) = value else { return Ok(None) };
        let file = self.node(dirent_object(value))?;
        Ok(Some((dir, file)))
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
        let tx = self.begin()?;
        let _names = self.names.read();
        let _entries = node.entries.lock();
        let in_list = self.packed(&node.state.read())?.contains(name);
        let in_dir = self.xattr_file(&node, name)?;
        match (in_list || in_dir.is_some(), mode, value) {
            (true, XattrMode::Create, Some(_)) => {
                return Err(Error::new(Kind::Exists, "the attribute exists"));
            }
            (false, XattrMode::Replace, _) | (false, _, None) => {
                return Err(Error::not_found("no such attribute"));
            }
            _ => {}
        }
        let may_pack = self.options.read().xattr_sa && self.version() >= VERSION_SA;
        let fits = may_pack && value.is_none_or(|v| v.len() <= MAX_PACKED_VALUE);
        let packed =
            if fits || in_list { self.pack(&tx, &node, name, value.filter(|_| fits))? } else { false };
        if let Some((dir, file)) = in_dir.filter(|_| packed || value.is_none()) {
            self.remove_entry(&tx, &dir, name, FileKind::Regular)?;
            self.drop_link(&tx, &file)?;
            let op = LogOp::Remove { dir: dir.number, name, object: file.number, dir_removed: false };
            self.log_of(&node, &tx, &op);
        }
        match value {
            Some(value) if !(packed && fits) => self.set_in_dir(&tx, &node, name, value),
            _ => Ok(()),
        }
    }

    /// Sets or removes an attribute in the packed list; false when the list would grow too long.
    #[doc(alias = "zfs_sa_set_xattr")]
    pub(super) fn pack(&self, tx: &Tx, node: &Node, name: &[u8], value: Option<&[u8]>) -> Result<bool> {
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
        self.change(tx, node, |state| {
            self.to_attributes(tx, state)?;
            if list.is_empty() {
                state.attrs.remove(self.fields.dxattr);
            } else {
                state.attrs.set(self.fields.dxattr, packed)?;
            }
            state.time(self.fields.ctime, now)
        })?;
        self.log_of(node, tx, &LogOp::Xattr { object: node.number, name, value });
        Ok(true)
    }

    /// The hidden directory, made when there is none.
    #[doc(alias = "zfs_make_xattrdir")]
    fn xattr_dir(&self, tx: &Tx, node: &Arc<Node>) -> Result<Arc<Node>> {
        let number = node.word(self.fields.xattr);
        if number != 0 {
            return self.dir(number);
        }
        let (uid, gid) = (node.word(self.fields.uid), node.word(self.fields.gid));
        let perm = 0o777 | node.word(self.fields.mode) & 0o1000;
        let new = NewNode::new(FileKind::Directory, perm, uid, gid);
        let (dir, file, _) = self.make(tx, node, &new, Birth::Hidden)?;
        self.change(tx, node, |state| state.attrs.set_word(self.fields.xattr, dir.number))?;
        self.log_xattr_dir(tx, node, file);
        Ok(dir)
    }

    pub(super) fn log_xattr_dir(&self, tx: &Tx, node: &Node, file: NewFile) {
        let what = Created::XattrDirectory;
        let op = LogOp::Create { what, dir: node.number, file, name: b"", target: None, acl: None };
        self.log_of(node, tx, &op);
    }

    fn set_in_dir(&self, tx: &Tx, node: &Arc<Node>, name: &[u8], value: &[u8]) -> Result<()> {
        let dir = self.xattr_dir(tx, node)?;
        let file = match self.xattr_file(node, name)? {
            Some((_, file)) => file,
            None => {
                let (uid, gid) = (node.word(self.fields.uid), node.word(self.fields.gid));
                let new = NewNode::new(FileKind::Regular, 0o644, uid, gid);
                let (made, file, _) = self.make_in(tx, &dir, name, &new, Birth::Hidden)?;
                let (what, dir) = (Created::File, dir.number);
                self.log_of(node, tx, &LogOp::Create { what, dir, file, name, target: None, acl: None });
                made
            }
        };
        self.resize(tx, &file, 0)?;
        self.log_of(node, tx, &LogOp::Truncate { object: file.number, offset: 0, length: 0, sync: true });
        self.resize(tx, &file, u64::try_from(value.len()).unwrap_or(0))?;
        file.handle.write(tx, 0, value)?;
        if node.word(self.fields.links) > 0 {
            self.log_write(tx, &file, (0, value), true);
        }
        let now = self.now();
        self.change(tx, node, |state| state.time(self.fields.ctime, now))
    }
}
