//! A new file system: master node, attribute tables, delete queue, root directory.
//!
//! Source: `zfs_create_fs`, zfs_znode_os.c, OpenZFS 2.3. Object numbers come out as OpenZFS's do: 32 the master node
//! of the attributes, 33 the delete queue, 34 the root, 35 the registry, 36 the layouts.

use std::sync::Arc;

use engine::dmu::{Handle, LiveObjset, NewObject, Tx};
use engine::sa::SaTables;
use engine::zap::{FORM, NewZap, TOUPPER, ZapEdit};
use engine::{Error, Result};
use ondisk::ObjectType;
use ondisk::dnode::DNODE_MIN_SIZE;
use ondisk::names::{DEFAULT_QUOTAS, MASTER_NODE_OBJECT, master_node};
use ondisk::objset::ObjsetFlags;
use ondisk::znode::pflags;
use stdx::rng::Rng;
use zerocopy::IntoBytes;

use super::fields::{Fields, NewAttrs};
use super::{aces, znode};
use crate::attr::Time;
use crate::filesystem::{CaseSensitivity, MAX_VERSION, VERSION_FUID, VERSION_SA};

/// Bytes of a dnode that a bonus buffer can't have: its core and one pointer.
pub(super) const BONUS_LESS: usize = 192;

/// A file system to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewFs {
    /// Version of the POSIX layer, 1 to 5.
    pub version: u64,
    /// Normal form of names (`U8_TEXTPREP_*` bits); 0: none.
    pub normalization: u64,
    /// How the case of names counts.
    pub case: CaseSensitivity,
    /// Whether only names in UTF-8 can be created.
    pub utf8only: bool,
    /// Quotas of users, groups and projects without one of their own, of bytes and of objects.
    pub default_quotas: [u64; 6],
    /// Owner and group of the root directory.
    pub owner: (u64, u64),
    /// Files have projects (feature `project_quota` is enabled). OpenZFS makes a pool's own root file system without,
    /// as no feature is enabled yet at that moment.
    pub projects: bool,
    /// Objects are counted by user (feature `userobj_accounting` is enabled).
    pub count_objects: bool,
    /// Times of the root directory.
    pub now: Time,
    /// Any number: seeds of hashes.
    pub seed: u64,
}

impl NewFs {
    /// With the properties' defaults, owned by `root`.
    pub fn new(now: Time, seed: u64) -> Self {
        Self {
            version: MAX_VERSION,
            normalization: 0,
            case: CaseSensitivity::Sensitive,
            utf8only: false,
            default_quotas: [0; 6],
            owner: (0, 0),
            projects: true,
            count_objects: true,
            now,
            seed,
        }
    }

    /// How directories hash names.
    pub(crate) fn normflags(&self) -> u64 {
        let fold = if self.case == CaseSensitivity::Sensitive { 0 } else { TOUPPER };
        self.normalization & FORM | fold
    }
}

/// Makes an empty ZAP of a new object.
fn zap(handle: &Arc<Handle>, tx: &Tx, normflags: u64, rng: &mut Rng) -> Result<()> {
    let new = NewZap { normflags, salt: rng.next_u64(), ..NewZap::default() };
    ZapEdit::create(&mut handle.edit(tx), &new).map(drop)
}

/// Makes a file system in an empty object set.
pub fn create_fs(objset: &Arc<LiveObjset>, tx: &Tx, new: &NewFs) -> Result<()> {
    let mut rng = Rng::new(new.seed);
    let rng = &mut rng;
    let plain = |kind| NewObject::plain(kind, ondisk::MIN_BLOCK_SIZE);
    let master = objset.create_object_at(tx, MASTER_NODE_OBJECT, plain(ObjectType::MASTER_NODE))?;
    zap(&master, tx, 0, rng)?;
    let note = |name: &str, value: u64| ZapEdit::open(&mut master.edit(tx))?.insert(name, value);
    note(master_node::UTF8ONLY, new.utf8only.into())?;
    note(master_node::NORMALIZATION, new.normalization)?;
    note(master_node::CASESENSITIVITY, case_number(new.case))?;
    for (name, limit) in DEFAULT_QUOTAS.into_iter().zip(new.default_quotas) {
        note(name, limit)?;
    }
    note(master_node::VERSION, new.version)?;
    let mut sa = 0;
    if new.version >= VERSION_SA {
        let tables = objset.create_object(tx, plain(ObjectType::SA_MASTER_NODE))?;
        zap(&tables, tx, 0, rng)?;
        sa = tables.number;
        note(master_node::SA_ATTRS, sa)?;
    }
    let queue = objset.create_object(tx, plain(ObjectType::UNLINKED_SET))?;
    zap(&queue, tx, 0, rng)?;
    note(master_node::UNLINKED_SET, queue.number)?;
    let root = root(objset, tx, new, sa, rng)?;
    note(master_node::ROOT, root)?;
    let mut flags = if new.count_objects { ObjsetFlags::USEROBJACCOUNTING_COMPLETE.0 } else { 0 };
    flags |= if new.projects { ObjsetFlags::PROJECTQUOTA_COMPLETE.0 } else { 0 };
    objset.change_root(tx, |phys| phys.flags.0 |= flags)
}

fn case_number(case: CaseSensitivity) -> u64 {
    match case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    }
}

/// The root directory, and with it the tables of attributes.
fn root(objset: &Arc<LiveObjset>, tx: &Tx, new: &NewFs, sa: u64, rng: &mut Rng) -> Result<u64> {
    let size = ondisk::MIN_BLOCK_SIZE;
    let (is_znode, projects) = (new.version < VERSION_SA, new.projects && new.version >= VERSION_SA);
    let object = znode::object(ObjectType::DIRECTORY_CONTENTS, size, is_znode);
    let handle = objset.create_object(tx, object)?;
    zap(&handle, tx, new.normflags(), rng)?;
    let mode = 0o40755;
    let mut acl = aces::trivial(mode, true);
    acl.hints |= pflags::ACL_AUTO_INHERIT | aces::exec_hint(mode, &acl.aces);
    let mut flags = acl.hints | if projects { pflags::PROJID } else { 0 };
    if new.version >= VERSION_FUID {
        flags |= pflags::ARCHIVE | pflags::AV_MODIFIED;
    }
    let attrs = NewAttrs {
        mode,
        size: 2,
        r#gen: tx.txg(),
        uid: new.owner.0,
        gid: new.owner.1,
        parent: handle.number,
        flags,
        now: new.now,
        links: 2,
        rdev: None,
        projid: projects.then_some(0),
        acl: aces::encode(&acl.aces),
    };
    let mut tables = SaTables::new(sa);
    if is_znode {
        let mut built = attrs.build_znode(&Fields::of(&tables)?)?;
        let head = znode::short_list(&acl.aces, new.version)?;
        built.set(Fields::of(&tables)?.znode_acl, head.as_bytes())?;
        handle.set_bonus(tx, &built.encode(&mut tables, 0)?.bonus)?;
        return Ok(handle.number);
    }
    let built = attrs.build(&Fields::of(&tables)?)?.encode(&mut tables, DNODE_MIN_SIZE - BONUS_LESS)?;
    if built.spill.is_some() {
        return Err(Error::corrupt("the root directory's attributes don't fit its dnode"));
    }
    handle.set_bonus(tx, &built.bonus)?;
    tables.store(&objset.within(tx), rng)?;
    Ok(handle.number)
}
