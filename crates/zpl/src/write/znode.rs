//! Files of file systems of versions 1 to 4: znodes, whose attributes have fixed places; and newer versions for such
//! file systems.
//!
//! ```text
//!  bonus buffer: 264 bytes, the list of access control entries in their last 88 │ a short link's target, or a scan stamp
//! ```
//!
//! A file keeps its znode when its file system gets version 5, until it needs values that only system
//! attributes hold: a project, or an extended attribute among them. Files made from then on have system
//! attributes.
//!
//! Source: `zfs_sa_upgrade`, zfs_sa.c; `zfs_aclset_common`, zfs_acl.c; `zfs_set_version`, zfs_vfsops.c; OpenZFS 2.3.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::dmu::{Handle, NewObject, Tx};
use engine::sa::{SaAttrs, SaTables};
use engine::zap::{NewZap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::acl::{ACE_SPACE, ACL_VERSION_FUID, ACL_VERSION_INITIAL, Ace, AclPhys, decode_aces};
use ondisk::names::{MASTER_NODE_OBJECT, master_node};
use ondisk::znode::pflags;
use ondisk::{ObjectType, ZnodePhys};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::aces;
use super::fs::{Acls, FileAttrs, FsWriter};
use super::node::NodeState;
use crate::attr::FileKind;
use crate::filesystem::{MAX_VERSION, VERSION_FUID, VERSION_SA};
use crate::master::Master;

/// Bytes of the bonus buffers that there were when targets were put there.
#[doc(alias = "DN_OLD_MAX_BONUSLEN")]
const OLD_MAX_BONUS: usize = 320;
/// Longest list that is read from an object of its own.
const MAX_LIST: u64 = 1 << 20;

/// A file's object, with room for the content of its bonus buffer.
pub(super) fn object(kind: ObjectType, block: u64, is_znode: bool) -> NewObject {
    match is_znode {
        true => NewObject::with_bonus(kind, block, ObjectType::ZNODE, ZnodePhys::SIZE),
        false => NewObject::with_bonus(kind, block, ObjectType::SA, 0),
    }
}

/// Puts a link's target behind its znode, or into its block.
#[doc(alias = "zfs_sa_symlink")]
pub(super) fn put_target(tx: &Tx, handle: &Arc<Handle>, attrs: &mut SaAttrs, target: &[u8]) -> Result<()> {
    if ZnodePhys::SIZE + target.len() <= OLD_MAX_BONUS {
        attrs.set_znode_tail(target.to_vec());
        return Ok(());
    }
    let len = u64::try_from(target.len()).unwrap_or(u64::MAX);
    handle.set_block_size(tx, len.next_multiple_of(ondisk::MIN_BLOCK_SIZE))?;
    handle.write(tx, 0, target)
}

/// The head of a list in a znode, and its entries in the form of a file system's version.
fn head_of(list: &[Ace], version: u64) -> Result<(AclPhys, Vec<u8>)> {
    let is_old = version < VERSION_FUID;
    let (_, new) = aces::encode(list);
    let bytes = if is_old { aces::encode_old(list) } else { new };
    let too_long = |_| Error::new(Kind::TooLong, "the list is too long");
    let size = u16::try_from(bytes.len()).map_err(too_long)?;
    let count = u16::try_from(list.len()).map_err(too_long)?;
    let mut head = AclPhys::new_zeroed();
    // The field for the number of entries in one form holds the number of bytes in the other.
    let (wide, narrow) = if is_old { (count, size) } else { (size, count) };
    (head.size, head.count) = (u32::from(wide).into(), narrow.into());
    head.version = if is_old { ACL_VERSION_INITIAL } else { ACL_VERSION_FUID }.into();
    Ok((head, bytes))
}

/// A list that the znode has room for.
pub(super) fn short_list(list: &[Ace], version: u64) -> Result<AclPhys> {
    let (mut head, bytes) = head_of(list, version)?;
    let place = head.ace_data.get_mut(..bytes.len());
    place.ok_or_else(|| Error::new(Kind::TooLong, "the list is too long"))?.copy_from_slice(&bytes);
    Ok(head)
}

impl FsWriter {
    /// Version of the POSIX layer, 1 to 5.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Upgrades the file system to a newer version.
    ///
    /// # Errors
    /// `Invalid` for a version that there is not, or that it is beyond.
    #[doc(alias = "zfs_set_version")]
    pub fn set_version(&self, to: u64) -> Result<()> {
        if to < self.version() {
            let what = format!("Can not downgrade; already at version {}", self.version());
            return Err(Error::new(Kind::Invalid, what));
        }
        if to > MAX_VERSION {
            return Err(Error::new(Kind::Invalid, "there is no such version"));
        }
        let tx = self.begin()?;
        let _names = self.names.write();
        let mut edit = self.objset.handle(MASTER_NODE_OBJECT)?.edit(&tx);
        let mut master = ZapEdit::open(&mut edit)?;
        if to >= VERSION_SA && master.lookup(master_node::SA_ATTRS.as_bytes())?.is_none() {
            let new = NewObject::plain(ObjectType::SA_MASTER_NODE, ondisk::MIN_BLOCK_SIZE);
            let tables = self.objset.create_object(&tx, new)?;
            let salt = self.random.lock().next_u64();
            ZapEdit::create(&mut tables.edit(&tx), &NewZap { salt, ..NewZap::default() })?;
            master.insert(master_node::SA_ATTRS, tables.number)?;
        }
        master.update(master_node::VERSION, to)?;
        self.adopt_version(&Master::read(&self.objset.view())?)
    }

    /// Learns of a newer version, which may have been given by others.
    pub(super) fn adopt_version(&self, master: &Master) -> Result<()> {
        if master.version <= self.version() {
            return Ok(());
        }
        if master.version >= VERSION_SA {
            *self.tables.lock() = SaTables::load(&self.objset.view(), master.sa_attrs)?;
        }
        self.version.store(master.version, Ordering::Release);
        Ok(())
    }
}

impl Acls<'_> {
    /// The access control entries of a file.
    pub(super) fn list_of(self, attrs: &SaAttrs) -> Result<Vec<Ace>> {
        let (version, count, bytes) = match list_head(self.fs, attrs)? {
            None => {
                let bytes = attrs.get(self.fs.fields.dacl_aces).unwrap_or_default().to_vec();
                let count = u32::try_from(attrs.word(self.fs.fields.dacl_count).unwrap_or(0));
                (ACL_VERSION_FUID, count.unwrap_or(u32::MAX), bytes)
            }
            Some(head) => {
                let bytes = match head.extern_obj.get() {
                    0 => head.ace_data.to_vec(),
                    number => {
                        let object = self.fs.objset.object(&self.fs.objset.view(), number)?;
                        let len = head.ace_bytes().min(MAX_LIST).min(object.max_offset());
                        object.read_vec(0, usize::try_from(len).unwrap_or(0))?
                    }
                };
                (head.version.get(), head.ace_count(), bytes)
            }
        };
        decode_aces(&bytes, version, count).map_err(|e| Error::corrupt(e.to_string()))
    }

    /// Replaces the access control entries of a file, in the form that it has.
    #[doc(alias = "zfs_aclset_common")]
    pub(super) fn put_list(self, tx: &Tx, attrs: &mut SaAttrs, list: &[Ace]) -> Result<()> {
        if list_head(self.fs, attrs)?.is_none() {
            let (count, bytes) = aces::encode(list);
            attrs.set_word(self.fs.fields.dacl_count, count)?;
            return attrs.set(self.fs.fields.dacl_aces, bytes);
        }
        self.free_list(tx, attrs)?;
        let (mut head, bytes) = head_of(list, self.fs.version())?;
        match head.ace_data.get_mut(..bytes.len()) {
            Some(place) => place.copy_from_slice(&bytes),
            None => head.extern_obj = list_object(self.fs, tx, &bytes)?.into(),
        }
        attrs.set(self.fs.fields.znode_acl, head.as_bytes())
    }

    /// The object that holds the list, if there is one.
    pub(super) fn list_object_of(self, attrs: &SaAttrs) -> Result<Option<u64>> {
        let number = list_head(self.fs, attrs)?.map_or(0, |head| head.extern_obj.get());
        Ok((number != 0).then_some(number))
    }

    /// Frees the object that holds the list, if there is one; the znode is to be changed or to go.
    pub(super) fn free_list(self, tx: &Tx, attrs: &SaAttrs) -> Result<()> {
        self.list_object_of(attrs)?.map_or(Ok(()), |number| self.fs.objset.free_object(tx, number))
    }
}

impl FileAttrs<'_> {
    /// Makes system attributes of a znode.
    ///
    /// # Errors
    /// `Unsupported` in file systems older than version 5.
    #[doc(alias = "zfs_sa_upgrade")]
    pub(super) fn to_attributes(self, tx: &Tx, state: &mut NodeState) -> Result<()> {
        let Some(tail) = state.attrs.znode_tail().map(<[u8]>::to_vec) else { return Ok(()) };
        if self.fs.version() < VERSION_SA {
            return Err(Error::unsupported("files of a file system this old have no such attribute"));
        }
        let f = &self.fs.fields;
        let mut new = SaAttrs::new();
        let head = [
            f.mode, f.size, f.r#gen, f.uid, f.gid, f.parent, f.flags, f.atime, f.mtime, f.ctime, f.crtime,
            f.links,
        ];
        for attr in head {
            new.set(attr, state.attrs.get(attr).unwrap_or_default())?;
        }
        let kind = FileKind::from_mode(state.word(f.mode));
        if kind.is_some_and(FileKind::is_device) {
            new.set_word(f.rdev, state.word(f.rdev))?;
        }
        let (count, bytes) = aces::encode(&self.fs.acls().list_of(&state.attrs)?);
        new.set_word(f.dacl_count, count)?;
        new.set(f.dacl_aces, bytes)?;
        if state.word(f.xattr) != 0 {
            new.set_word(f.xattr, state.word(f.xattr))?;
        }
        if kind == Some(FileKind::Symlink) {
            let target = usize::try_from(state.word(f.size)).ok().and_then(|len| tail.get(..len));
            let outside = || Error::unsupported("the link's target stands in a block of its own");
            new.set(f.symlink, target.ok_or_else(outside)?)?;
        }
        if let Some(stamp) = tail.get(..32).filter(|_| state.word(f.flags) & pflags::BONUS_SCANSTAMP != 0) {
            new.set(f.scanstamp, stamp)?;
            new.set_word(f.flags, state.word(f.flags) & !pflags::BONUS_SCANSTAMP)?;
        }
        self.fs.acls().free_list(tx, &state.attrs)?;
        state.attrs = new.into();
        Ok(())
    }
}

/// The head of the list in a znode; `None` for a file with system attributes.
fn list_head(fs: &FsWriter, attrs: &SaAttrs) -> Result<Option<AclPhys>> {
    let Some(_) = attrs.znode_tail() else { return Ok(None) };
    let bytes = attrs.get(fs.fields.znode_acl).unwrap_or_default();
    AclPhys::read_from_bytes(bytes).map(Some).map_err(|_| Error::corrupt("a znode is too short"))
}

/// An object for a list that is longer than the znode has room for.
fn list_object(fs: &FsWriter, tx: &Tx, bytes: &[u8]) -> Result<u64> {
    debug_assert!(bytes.len() > ACE_SPACE, "others lie in the znode");
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let block = len.next_multiple_of(ondisk::MIN_BLOCK_SIZE);
    let new = match fs.version() < VERSION_FUID {
        true => NewObject::plain(ObjectType::OLDACL, block),
        false => NewObject::with_bonus(ObjectType::ACL, block, ObjectType::SYSACL, OLD_MAX_BONUS),
    };
    let handle = fs.objset.create_object(tx, new)?;
    handle.write(tx, 0, bytes)?;
    Ok(handle.number)
}
