//! Operations as records of the intent log.
//!
//! Changes of names are written by every commit, so that a committed file can be found. Changes of one file
//! only are written when that file, or all, are committed. A change that no record can describe makes the
//! next commit wait for its txg: so no later change is in the log without it.
//!
//! Source: zfs_log.c, OpenZFS 2.3. Differs from it: extended attributes that the log can't hold (the feature
//! `zilsaxattr` is off, or an empty value, which in a record means that the attribute is gone) are as safe as others
//! after a commit, where OpenZFS loses them.

use std::sync::Arc;
use std::time::Duration;

use engine::Result;
use engine::dmu::Tx;
use engine::zil::{Itx, Written, Zil};
use ondisk::acl::{Ace, is_abstract};
use ondisk::zil::{
    AclRecord, CloneRange, Create, CreateAcl, Link, LogRecord, LrAclCreate, LrCloneRange, LrCreate, LrLink,
    LrRemove, LrRename, LrRenameWhiteout, LrSetsaxattr, LrTruncate, Remove, Rename, RenameWhiteout,
    Setsaxattr, TxType, encode_log_aces,
};
use zcommon::features::Feature;

use super::fs::Transactions;
use super::sink::{Created, LogOp, LogSink, NewFile, RenameKind};
use crate::record::{foid, setattr, words};

/// Records operations in an intent log.
#[derive(Debug)]
pub(super) struct Log {
    pub zil: Arc<Zil>,
    pub txs: Arc<dyn Transactions>,
}

fn size(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn sizes_of(aces: &[Ace], bytes: &[u8]) -> LrAclCreate {
    LrAclCreate { aclcnt: size(aces.len()), acl_bytes: size(bytes.len()), ..LrAclCreate::default() }
}

fn create(dir: u64, file: &NewFile) -> LrCreate {
    LrCreate {
        doid: dir,
        foid: foid(file.object, file.slots),
        mode: file.mode,
        uid: file.uid,
        gid: file.gid,
        r#gen: file.r#gen,
        crtime: words(file.crtime),
        rdev: file.rdev,
    }
}

fn whiteout(file: &NewFile) -> LrRenameWhiteout {
    LrRenameWhiteout {
        wfoid: foid(file.object, file.slots),
        wmode: file.mode,
        wuid: file.uid,
        wgid: file.gid,
        wgen: file.r#gen,
        wcrtime: words(file.crtime),
        wrdev: file.rdev,
    }
}

impl Log {
    /// Notes a record that every commit writes.
    fn name(&self, tx: &Tx, object: u64, txtype: u64, record: &LogRecord<'_>) {
        self.zil.assign(Itx::new(object, TxType(txtype), record), tx);
    }

    /// Notes a record that commits of its file write; `sync`: all.
    fn file(&self, tx: &Tx, object: u64, txtype: u64, record: &LogRecord<'_>, sync: bool) {
        self.zil.assign(Itx::new(object, TxType(txtype), record).with_sync(sync), tx);
    }

    fn created(
        &self,
        tx: &Tx,
        what: Created,
        lr: LrCreate,
        (name, target): (&[u8], Option<&[u8]>),
        acl: Option<&[Ace]>,
    ) {
        let object = lr.foid;
        let is_dir = what == Created::Directory;
        if let Some(aces) = acl {
            let bytes = encode_log_aces(aces);
            let sizes = sizes_of(aces, &bytes);
            let (fuids, domains) = (Vec::new(), Vec::new());
            let acl = AclRecord { foid: 0, lr: sizes, aces: &bytes, fuids, domains };
            let txtype = if is_dir { TxType::MKDIR_ACL } else { TxType::CREATE_ACL };
            let record = LogRecord::CreateAcl(CreateAcl { lr, attr: None, acl, name });
            return self.name(tx, object, txtype, &record);
        }
        let txtype = match what {
            Created::File => TxType::CREATE,
            Created::Directory => TxType::MKDIR,
            Created::Symlink => TxType::SYMLINK,
            Created::XattrDirectory => TxType::MKXATTR,
        };
        let record = Create { lr, attr: None, domains: Vec::new(), name, link: target };
        self.name(tx, object, txtype, &LogRecord::Create(record));
    }

    fn renamed(
        &self,
        tx: &Tx,
        kind: RenameKind,
        ((sdoid, source), (tdoid, target)): ((u64, &[u8]), (u64, &[u8])),
        object: u64,
        left: Option<&NewFile>,
    ) {
        // The file's data must not be missing when it is found under its new name.
        self.zil.want(object);
        let rename = Rename { lr: LrRename { sdoid, tdoid }, source, target };
        match (kind, left) {
            (RenameKind::Exchange, _) => {
                self.name(tx, object, TxType::RENAME_EXCHANGE, &LogRecord::RenameExchange(rename));
            }
            (RenameKind::Whiteout | RenameKind::NoReplaceWhiteout, Some(left)) => {
                let record = RenameWhiteout { rename, whiteout: whiteout(left) };
                self.name(tx, object, TxType::RENAME_WHITEOUT, &LogRecord::RenameWhiteout(record));
            }
            _ => self.name(tx, object, TxType::RENAME, &LogRecord::Rename(rename)),
        }
    }

    fn xattr(&self, tx: &Tx, object: u64, name: &[u8], value: Option<&[u8]>) {
        let usable = self.txs.use_feature(Feature::Zilsaxattr, tx).unwrap_or(false);
        if !usable || value.is_some_and(<[u8]>::is_empty) {
            return self.zil.skip(tx);
        }
        let value = value.unwrap_or_default();
        let lr = LrSetsaxattr { foid: object, size: size(value.len()) };
        let record = LogRecord::Setsaxattr(Setsaxattr { lr, name, value });
        self.file(tx, object, TxType::SETSAXATTR, &record, false);
    }
}

/// Whether a record can hold the entries: its subjects have 32 bits, and those of Windows domains have more.
fn is_loggable(aces: &[Ace]) -> bool {
    aces.iter().all(|ace| is_abstract(ace.flags) || ace.who <= u64::from(u32::MAX))
}

impl LogSink for Log {
    fn log(&self, tx: &Tx, op: &LogOp<'_>) {
        match *op {
            LogOp::Create { acl: Some(aces), .. } | LogOp::Acl { aces, .. } if !is_loggable(aces) => {
                self.zil.skip(tx);
            }
            LogOp::Create { what, dir, ref file, name, target, acl } => {
                self.created(tx, what, create(dir, file), (name, target), acl);
            }
            LogOp::Remove { dir, name, object, dir_removed } => {
                let txtype = if dir_removed { TxType::RMDIR } else { TxType::REMOVE };
                let record = LogRecord::Remove(Remove { lr: LrRemove { doid: dir }, name });
                self.name(tx, object, txtype, &record);
            }
            LogOp::Link { dir, object, name } => {
                let record = LogRecord::Link(Link { lr: LrLink { doid: dir, link_obj: object }, name });
                self.name(tx, object, TxType::LINK, &record);
            }
            LogOp::Rename { kind, from, to, object, ref whiteout } => {
                self.renamed(tx, kind, (from, to), object, whiteout.as_ref());
            }
            LogOp::Write { object, offset, data, block_size, sync } => {
                self.zil.log_write(&Written { object, offset, data, block_size, sync }, tx);
            }
            LogOp::Clone { object, offset, length, block_size, pointers } => {
                let nbps = size(pointers.len());
                let lr = LrCloneRange { foid: object, offset, length, blksz: block_size, nbps };
                let record = LogRecord::CloneRange(CloneRange { lr, bps: pointers.to_vec() });
                self.file(tx, object, TxType::CLONE_RANGE, &record, false);
            }
            LogOp::Truncate { object, offset, length, sync } => {
                let record = LogRecord::Truncate(LrTruncate { foid: object, offset, length });
                self.file(tx, object, TxType::TRUNCATE, &record, sync);
            }
            LogOp::Setattr { object, settings, mode, uid, gid } => {
                let record = LogRecord::Setattr(setattr(object, settings, (mode, uid, gid)));
                self.file(tx, object, TxType::SETATTR, &record, false);
            }
            LogOp::Acl { object, aces, .. } => {
                let bytes = encode_log_aces(aces);
                let (lr, fuids, domains) = (sizes_of(aces, &bytes), Vec::new(), Vec::new());
                let record = LogRecord::Acl(AclRecord { foid: object, lr, aces: &bytes, fuids, domains });
                self.file(tx, object, TxType::ACL, &record, false);
            }
            LogOp::Xattr { object, name, value } => self.xattr(tx, object, name, value),
        }
    }

    fn forget(&self, object: u64) {
        self.zil.forget(object);
    }

    fn skip(&self, tx: &Tx) {
        self.zil.skip(tx);
    }

    fn settle(&self, object: u64) -> Result<()> {
        self.zil.settle(object)
    }

    fn expect(&self, object: u64) -> Option<Duration> {
        self.zil.want(object);
        self.zil.commit_time()
    }

    fn commit(&self, object: u64) -> Result<()> {
        self.zil.commit(object)
    }
}
