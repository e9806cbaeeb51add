//! Accounting of space and objects by user, group and project.
//!
//! Three ZAPs in an object set's root block count bytes (key: the id in hexadecimal digits) and objects (with the
//! prefix `obj-`). They are updated while a txg is written: [`account`] gets the changes, with the owners in the
//! bonus buffers, before and after. An object counts with its blocks and 512 bytes for its dnode.
//!
//! Objects other than files (the master node, attribute tables) have no owner, but their dnodes are flagged as
//! counted, too. Owners have fixed positions in a file's bonus buffer, whatever its layout.
//!
//! Source: `userquota_updates_task`, dmu_objset.c; `zpl_get_file_info`, zfs_quota.c; OpenZFS 2.3.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::names::OBJACCT_PREFIX;
use ondisk::sa::SaHeader;
use ondisk::znode::pflags;
use ondisk::{Dnode, DnodeFlags, Endian, ObjectType, ZnodePhys, dnode};

use crate::dmu::dirty::sync::ChangedObject;
use crate::dmu::{LiveObjset, NewObject, SpecialObject, Tx};
use crate::error::Result;
use crate::zap::{NewZap, ZapEdit, int_name};

/// The owners of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owners {
    /// User, a FUID.
    pub(crate) user: u64,
    /// Group, a FUID.
    pub(crate) group: u64,
    /// Project; 0 for none.
    pub(crate) project: u64,
}

/// Offsets in a bonus buffer, after its header: owner, group, flags, project.
const PLACES: [usize; 4] = [24, 32, 48, 128];

impl Owners {
    /// The owners in a dnode's bonus buffer; `None` if it is not a file's.
    pub(crate) fn of(dnode: &Dnode) -> Option<Self> {
        match dnode.bonustype {
            ObjectType::SA => Self::of_attributes(dnode.bonus()),
            ObjectType::ZNODE => {
                let (znode, _) = ZnodePhys::from_bonus(dnode.bonus()).ok()?;
                Some(Self { user: znode.uid.get(), group: znode.gid.get(), project: 0 })
            }
            _ => None,
        }
    }

    fn of_attributes(bonus: &[u8]) -> Option<Self> {
        let header = SaHeader::from_bytes(bonus).ok()?;
        let word = |at: usize| {
            let bytes = *bonus.get(header.size.max(8) + at..)?.first_chunk()?;
            Some(match header.endian {
                Endian::Little => u64::from_le_bytes(bytes),
                Endian::Big => u64::from_be_bytes(bytes),
            })
        };
        let [user, group, flags, project] = PLACES.map(word);
        let has = flags? & pflags::PROJID != 0;
        Some(Self { user: user?, group: group?, project: project.filter(|_| has).unwrap_or(0) })
    }
}

/// The generation of a file by its bonus buffer: the group in which it was created.
#[doc(alias = "zfi_generation")]
pub(crate) fn generation(kind: ObjectType, bonus: &[u8]) -> Option<u64> {
    const PLACE: usize = 16;
    match kind {
        ObjectType::SA => {
            let header = SaHeader::from_bytes(bonus).ok()?;
            let bytes = *bonus.get(header.size.max(8) + PLACE..)?.first_chunk()?;
            Some(match header.endian {
                Endian::Little => u64::from_le_bytes(bytes),
                Endian::Big => u64::from_be_bytes(bytes),
            })
        }
        ObjectType::ZNODE => ZnodePhys::from_bonus(bonus).ok().map(|(znode, _)| znode.r#gen.get()),
        _ => None,
    }
}

/// Changes of one account: bytes and objects by id.
type Deltas = BTreeMap<u64, (i64, i64)>;

/// Changes of the accounts of users, groups and projects. Neighbouring objects mostly have the same owners.
#[derive(Default)]
struct Tally {
    accounts: [Deltas; 3],
    /// The last owners, and their changes that are not in the accounts yet.
    last: Option<(Owners, (i64, i64))>,
}

impl Tally {
    fn add(&mut self, owners: Owners, (bytes, objects): (i64, i64)) {
        if self.last.is_none_or(|(last, _)| last != owners) {
            self.settle();
        }
        let (_, delta) = self.last.get_or_insert((owners, (0, 0)));
        *delta = (delta.0.saturating_add(bytes), delta.1.saturating_add(objects));
    }

    fn settle(&mut self) {
        let Some((owners, (bytes, objects))) = self.last.take() else { return };
        for (deltas, id) in self.accounts.iter_mut().zip([owners.user, owners.group, owners.project]) {
            let delta = deltas.entry(id).or_default();
            *delta = (delta.0.saturating_add(bytes), delta.1.saturating_add(objects));
        }
    }

    fn finish(mut self) -> [Deltas; 3] {
        self.settle();
        self.accounts
    }
}

/// Adds the changes of one txg to the accounts of users, groups and (if the pool counts them) `projects`. To be
/// called between writing the objects and writing the root; the changed accounts are then to be written, too.
/// `salt`: any number.
pub(crate) fn account(
    objset: &Arc<LiveObjset>,
    changed: &[ChangedObject],
    projects: bool,
    tx: &Tx,
    salt: u64,
) -> Result<()> {
    let mut tally = Tally::default();
    for change in changed.iter().filter(|c| c.after.number != 0 && c.after.number < dnode::MAX_OBJECT) {
        note(&mut tally, &change.before.dnode, -1);
        note(&mut tally, &change.after.dnode, 1);
    }
    let which = [SpecialObject::UserUsed, SpecialObject::GroupUsed, SpecialObject::ProjectUsed];
    for (which, deltas) in which.into_iter().zip(tally.finish()) {
        if deltas.values().all(|d| *d == (0, 0)) || (which == SpecialObject::ProjectUsed && !projects) {
            continue;
        }
        store(objset, which, &deltas, tx, salt)?;
    }
    Ok(())
}

fn note(tally: &mut Tally, dnode: &Dnode, sign: i64) {
    if dnode.is_free() || !dnode.flags.has(DnodeFlags::USERUSED_ACCOUNTED) {
        return;
    }
    let Some(owners) = Owners::of(dnode) else { return };
    let used = dnode.used_bytes().saturating_add(u64::try_from(dnode::DNODE_MIN_SIZE).unwrap_or(0));
    let used = i64::try_from(used).unwrap_or(i64::MAX);
    let object = i64::from(dnode.flags.has(DnodeFlags::USEROBJUSED_ACCOUNTED));
    tally.add(owners, (sign * used, sign * object));
}

fn store(objset: &Arc<LiveObjset>, which: SpecialObject, deltas: &Deltas, tx: &Tx, salt: u64) -> Result<()> {
    let new = NewObject::plain(ObjectType::USERGROUP_USED, ondisk::MIN_BLOCK_SIZE);
    let is_new = objset.special(which)?.is_free();
    let handle = objset.create_special(tx, which, new)?;
    let mut edit = handle.edit(tx);
    let mut zap = match is_new {
        true => ZapEdit::create(&mut edit, &NewZap { salt, ..NewZap::default() })?,
        false => ZapEdit::open(&mut edit)?,
    };
    for (&id, &(bytes, objects)) in deltas {
        zap.increment_int(id, bytes)?;
        zap.increment(format!("{OBJACCT_PREFIX}{}", int_name(id)).as_bytes(), objects)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sa::{SaAttrs, SaTables};

    #[test]
    fn owners_stand_at_fixed_places() {
        let mut tables = SaTables::new(1);
        let mut attrs = SaAttrs::new();
        let names = [
            "MODE", "SIZE", "GEN", "UID", "GID", "PARENT", "FLAGS", "ATIME", "MTIME", "CTIME", "CRTIME",
            "LINKS", "PROJID",
        ];
        for (i, name) in (0u8..).zip(names) {
            let attr = tables.attr(&format!("ZPL_{name}")).unwrap();
            attrs.set(attr, vec![i; attr.len.into()]).unwrap();
        }
        attrs.set_word(tables.attr("ZPL_FLAGS").unwrap(), pflags::PROJID).unwrap();
        let mut dnode = Dnode::new(ObjectType::PLAIN_FILE_CONTENTS, 512, 1, ObjectType::SA, 0);
        dnode.set_bonus(&attrs.encode(&mut tables, 320).unwrap().bonus);
        let all = |n: u64| n * 0x0101_0101_0101_0101;
        let owners = Owners { user: all(3), group: all(4), project: all(12) };
        assert_eq!(Owners::of(&dnode), Some(owners));
        attrs.set_word(tables.attr("ZPL_FLAGS").unwrap(), 0).unwrap();
        dnode.set_bonus(&attrs.encode(&mut tables, 320).unwrap().bonus);
        assert_eq!(Owners::of(&dnode), Some(Owners { project: 0, ..owners }));
        assert_eq!(Owners::of(&Dnode::default()), None);
    }

    #[test]
    fn a_file_that_changes_hands_is_moved_between_accounts() {
        let mut tally = Tally::default();
        let mut dnode = Dnode::new(ObjectType::PLAIN_FILE_CONTENTS, 512, 1, ObjectType::ZNODE, 264);
        dnode.flags.0 |= DnodeFlags::USERUSED_ACCOUNTED.0 | DnodeFlags::USEROBJUSED_ACCOUNTED.0;
        dnode.used = 1024;
        note(&mut tally, &dnode, -1);
        dnode.used = 4096;
        let mut bonus = dnode.bonus().to_vec();
        bonus[128] = 9; // owner
        dnode.set_bonus(&bonus);
        note(&mut tally, &dnode, 1);
        let accounts = tally.finish();
        assert_eq!(accounts[0], BTreeMap::from([(0, (-1536, -1)), (9, (4608, 1))]));
        assert_eq!(accounts[1], BTreeMap::from([(0, (3072, 0))]));
    }
}
