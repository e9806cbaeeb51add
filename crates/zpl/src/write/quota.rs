//! Quotas of users, groups and projects: bytes and objects.
//!
//! Limits stand in ZAPs that the master node names after the properties; the usage is in the object set's
//! accounts (see [`engine::sa::usage`]), as of the last txg on disk. The bytes that writes of open txgs add are in module `owed`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use engine::dmu::SpecialObject;
use engine::zap::{NewZap, Zap, ZapEdit, int_name};
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use ondisk::names::{MASTER_NODE_OBJECT, OBJACCT_PREFIX};
use ondisk::znode::pflags;

use super::fs::{FsWriter, OwnerQuotas};
use super::node::Node;
use super::owed::{Account, Reserved};
use super::quota_kind::QuotaKind;
use crate::filesystem::VERSION_USERSPACE;
use crate::master::Master;

/// Txgs that a writer waits for at most.
const PATIENCE: u32 = 64;

/// Objects of the quota tables, and the quotas of ids without an entry.
#[derive(Debug, Clone, Default)]
pub(super) struct Quotas {
    tables: BTreeMap<QuotaKind, u64>,
    defaults: BTreeMap<QuotaKind, u64>,
}

impl Quotas {
    pub fn load(master: &Zap) -> Result<Self> {
        let mut all = Self::default();
        for kind in QuotaKind::ALL {
            if let Some(object) = master.u64(kind.name())? {
                all.tables.insert(kind, object);
            }
            if let Some(limit) = master.u64(kind.default_name())?.filter(|limit| *limit != 0) {
                all.defaults.insert(kind, limit);
            }
        }
        Ok(all)
    }

    fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.defaults.is_empty()
    }
}

impl<'a> OwnerQuotas<'a> {
    /// The quota of an id, or that of ids without one of their own; `None`: none is set.
    pub fn get(self, kind: QuotaKind, id: u64) -> Result<Option<u64>> {
        let (object, default) = {
            let quotas = self.fs.quota_tables.read();
            (quotas.tables.get(&kind).copied(), quotas.defaults.get(&kind).copied())
        };
        let Some(object) = object else { return Ok(default) };
        let zap = Zap::open(&self.fs.objset.view().object(object)?)?;
        Ok(zap.u64(&int_name(id))?.filter(|limit| *limit != 0).or(default))
    }

    /// Sets the quota of ids without one of their own; 0 removes it.
    #[doc(alias = "zfs_set_default_quota")]
    pub fn set_default(self, kind: QuotaKind, limit: u64) -> Result<()> {
        check_accounts(self.fs)?;
        let tx = self.fs.begin()?;
        let mut quotas = self.fs.quota_tables.write();
        let master = self.fs.objset.handle(MASTER_NODE_OBJECT)?;
        let mut edit = master.edit(&tx);
        let mut zap = ZapEdit::open(&mut edit)?;
        if limit != 0 {
            zap.update(kind.default_name(), limit)?;
            quotas.defaults.insert(kind, limit);
            return Ok(());
        }
        quotas.defaults.remove(&kind);
        match zap.remove(kind.default_name()) {
            Err(e) if e.kind() != Kind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Usage of an id, as of the last txg on disk.
    pub fn used_by(self, kind: QuotaKind, id: u64) -> Result<u64> {
        let Some(object) = self.fs.objset.view().special(kind.account()) else { return Ok(0) };
        let prefix = if kind.counts_objects() { OBJACCT_PREFIX } else { "" };
        Ok(Zap::open(&object)?.u64(&format!("{prefix}{}", int_name(id)))?.unwrap_or(0))
    }

    /// Bytes and objects in use by the project of a directory that passes it on, or of a file in one, and left of its quotas;
    /// `None` where it has none.
    #[doc(alias = "zfs_statfs_project")]
    pub fn project_limits(self, number: u64) -> Result<[Option<(u64, u64)>; 2]> {
        find_tables(self.fs)?;
        let attr = self.fs.attrs().get(number)?;
        if attr.flags & pflags::PROJINHERIT == 0 || attr.projid == 0 {
            return Ok([None; 2]);
        }
        let of = |kind| match self.get(kind, attr.projid)? {
            Some(limit) => {
                let used = self.used_by(kind, attr.projid)?;
                Ok::<_, Error>(Some((used, limit.saturating_sub(used))))
            }
            None => Ok(None),
        };
        Ok([of(QuotaKind::Project)?, of(QuotaKind::ProjectObjects)?])
    }

    /// Sets the quota of an id; 0 removes it.
    #[doc(alias = "zfs_set_userquota")]
    pub fn set(self, kind: QuotaKind, id: u64, limit: u64) -> Result<()> {
        check_accounts(self.fs)?;
        let tx = self.fs.begin()?;
        let mut quotas = self.fs.quota_tables.write();
        let object = match quotas.tables.get(&kind) {
            Some(object) => *object,
            None => {
                let new = engine::dmu::NewObject::plain(ObjectType::USERGROUP_QUOTA, ondisk::MIN_BLOCK_SIZE);
                let handle = self.fs.objset.create_object(&tx, new)?;
                let salt = self.fs.random.lock().next_u64();
                ZapEdit::create(&mut handle.edit(&tx), &NewZap { salt, ..NewZap::default() })?;
                let master = self.fs.objset.handle(MASTER_NODE_OBJECT)?;
                ZapEdit::open(&mut master.edit(&tx))?.insert(kind.name(), handle.number)?;
                quotas.tables.insert(kind, handle.number);
                handle.number
            }
        };
        let handle = self.fs.objset.handle(object)?;
        let mut edit = handle.edit(&tx);
        let mut zap = ZapEdit::open(&mut edit)?;
        match limit {
            0 => match zap.remove(&int_name(id)) {
                Err(e) if e.kind() != Kind::NotFound => Err(e),
                _ => Ok(()),
            },
            limit => zap.update(&int_name(id), limit),
        }
    }

    /// Whether quotas are to be respected.
    pub(super) fn are_respected(self) -> bool {
        !self.fs.quota_tables.read().is_empty() && !self.fs.replaying.load(Ordering::Acquire)
    }

    /// Fails when a new file of these owners is one too many, or they have no space left.
    #[doc(alias = "zfs_acl_ids_overquota")]
    pub(super) fn check_owners(self, uid: u64, gid: u64, project: u64) -> Result<()> {
        let ids = [uid, gid, project];
        check_ids(self.fs, [QuotaKind::User, QuotaKind::Group, QuotaKind::Project], ids)?;
        check_ids(self.fs, [QuotaKind::UserObjects, QuotaKind::GroupObjects, QuotaKind::ProjectObjects], ids)
    }

    /// Fails when a file's owners have no space left.
    pub(super) fn check(self, node: &Node) -> Result<()> {
        quota_left(self.fs, node).map(drop)
    }

    /// Reserves up to `most` bytes, and at least `least`, that a file's owners may add; waits for txgs while others that are
    /// not on disk leave no room. Call it without a transaction.
    ///
    /// # Errors
    /// `Quota` when a quota of an owner is reached.
    pub(super) fn reserve_bytes(self, node: &Node, (least, most): (u64, u64)) -> Result<Reserved<'a>> {
        let mut tries = 0;
        loop {
            let synced = self.fs.synced();
            let left = quota_left(self.fs, node)?;
            let Some(synced) = synced.filter(|_| !left.is_empty() && most > 0) else {
                return Ok(self.fs.owed.reserve_anyway(&[], most));
            };
            if let Some(reserved) = self.fs.owed.reserve(synced, &left, (least, most)) {
                return Ok(reserved);
            }
            tries += 1;
            if tries > PATIENCE {
                return Ok(self.fs.owed.reserve_anyway(&left, least));
            }
            self.fs.txs.sync()?;
        }
    }
}

/// Refuses quotas in a file system whose version has no accounts.
fn check_accounts(fs: &FsWriter) -> Result<()> {
    match fs.version() < VERSION_USERSPACE {
        true => Err(Error::unsupported("pool and or dataset must be upgraded to set this property or value")),
        false => Ok(()),
    }
}

/// Once after each txg: finds tables that others made, as commands set quotas of mounted file systems, too, and counts
/// existing files where that accounting is new.
fn find_tables(fs: &FsWriter) -> Result<()> {
    let Some(synced) = fs.synced() else { return Ok(()) };
    if fs.quotas_as_of.swap(synced, Ordering::AcqRel) != synced {
        fs.count_what_is_there();
        let master = Master::read(&fs.objset.view())?;
        fs.adopt_version(&master)?;
        let found = Quotas::load(&master.zap)?;
        let mut quotas = fs.quota_tables.write();
        quotas.tables.extend(found.tables);
        quotas.defaults = found.defaults;
    }
    Ok(())
}

/// The rest of the quotas of these owners on disk; fails where nothing is left.
fn left(fs: &FsWriter, kinds: [QuotaKind; 3], ids: [u64; 3]) -> Result<Vec<(Account, u64)>> {
    find_tables(fs)?;
    let mut all = Vec::new();
    if !fs.quotas().are_respected() {
        return Ok(all);
    }
    for (kind, id) in kinds.into_iter().zip(ids) {
        let no_project = id == 0 && kind.account() == SpecialObject::ProjectUsed;
        let limit = if no_project { None } else { fs.quotas().get(kind, id)? };
        let Some(limit) = limit else { continue };
        match limit.saturating_sub(fs.quotas().used_by(kind, id)?) {
            0 => return Err(Error::new(Kind::Quota, format!("{}{id} is reached", kind.name()))),
            left => all.push(((kind, id), left)),
        }
    }
    Ok(all)
}

fn check_ids(fs: &FsWriter, kinds: [QuotaKind; 3], ids: [u64; 3]) -> Result<()> {
    left(fs, kinds, ids).map(drop)
}

/// The bytes that are left of the quotas of a file's owners.
///
/// # Errors
/// `Quota` where none is.
#[doc(alias = "zfs_id_overblockquota")]
fn quota_left(fs: &FsWriter, node: &Node) -> Result<Vec<(Account, u64)>> {
    let f = &fs.fields;
    let ids = [node.word(f.uid), node.word(f.gid), node.word(f.projid)];
    left(fs, [QuotaKind::User, QuotaKind::Group, QuotaKind::Project], ids)
}
