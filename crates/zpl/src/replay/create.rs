//! Files that the log made.

use engine::{Error, Result};
use ondisk::acl::Ace;
use ondisk::zil::{Create, CreateAcl, LrCreate, LrRenameWhiteout, TxType};
use ondisk::znode::pflags;

use super::names::add;
use super::state::OverlayState;
use crate::attr::Words;
use crate::inode::AclSource;
use crate::record::OBJECT_MASK;

/// TX_CREATE, TX_MKDIR, TX_MKXATTR, TX_SYMLINK and their forms with attributes.
pub(super) fn create(state: &mut OverlayState<'_>, txtype: TxType, c: &Create<'_>) -> Result<()> {
    let target = c.link.map(<[u8]>::to_vec);
    if txtype.raw() == TxType::MKXATTR {
        let object = make(state, &c.lr, pflags::XATTR, None, AclSource::None)?.0;
        state.get(c.lr.doid)?.attr.xattr = object;
        return Ok(());
    }
    named(state, &c.lr, c.name, target, AclSource::None)
}

/// The forms with an ACL.
pub(super) fn create_acl(state: &mut OverlayState<'_>, c: &CreateAcl<'_>, aces: Vec<Ace>) -> Result<()> {
    named(state, &c.lr, c.name, None, AclSource::Decoded(aces))
}

fn named(
    state: &mut OverlayState<'_>,
    lr: &LrCreate,
    name: &[u8],
    target: Option<Vec<u8>>,
    acl: AclSource,
) -> Result<()> {
    // Files below a hidden directory of attributes are hidden, too.
    let hidden = state.get(lr.doid)?.attr.flags & pflags::XATTR;
    let (object, kind) = make(state, lr, hidden, target, acl)?;
    add(state, lr.doid, name, object, kind)
}

fn make(
    state: &mut OverlayState<'_>,
    lr: &LrCreate,
    flags: u64,
    target: Option<Vec<u8>>,
    acl: AclSource,
) -> Result<(u64, crate::FileKind)> {
    let object = lr.foid & OBJECT_MASK;
    let dir = crate::FileKind::from_mode(lr.mode) == Some(crate::FileKind::Directory);
    let words = Words {
        atime: lr.crtime,
        mtime: lr.crtime,
        ctime: lr.crtime,
        crtime: lr.crtime,
        r#gen: lr.r#gen,
        mode: lr.mode,
        size: target.as_ref().map_or(if dir { 2 } else { 0 }, |t| u64::try_from(t.len()).unwrap_or(0)),
        parent: lr.doid,
        links: if dir { 2 } else { 1 },
        rdev: lr.rdev,
        flags,
        uid: lr.uid,
        gid: lr.gid,
        ..Words::default()
    };
    let bad = || Error::corrupt(format!("mode {:o} names no known file type", lr.mode));
    let attr = words.attr(512, 1).ok_or_else(bad)?;
    let kind = attr.kind;
    state.create(object, attr, target, acl);
    Ok((object, kind))
}

/// Creates the whiteout that a rename leaves behind for an overlay file system.
pub(super) fn whiteout(
    state: &mut OverlayState<'_>,
    dir: u64,
    name: &[u8],
    lr: &LrRenameWhiteout,
) -> Result<()> {
    let lr = LrCreate {
        doid: dir,
        foid: lr.wfoid,
        mode: lr.wmode,
        uid: lr.wuid,
        gid: lr.wgid,
        r#gen: lr.wgen,
        crtime: lr.wcrtime,
        rdev: lr.wrdev,
    };
    named(state, &lr, name, None, AclSource::None)
}
