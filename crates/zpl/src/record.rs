//! Conversion between intent-log records and our types for file changes, used by writing, replaying and
//! reading of logs.

use ondisk::Endian;
use ondisk::zil::{LrAttr, LrSetattr, Setattr};
use ondisk::znode::pflags;

use crate::attr::Time;
use crate::write::Settings;

/// Object number in a record; the bits above are the slots of its dnode.
pub(crate) const OBJECT_MASK: u64 = (1 << 48) - 1;

/// Which attributes a setattr sets, as Linux writes it (`ATTR_*`).
mod mask {
    pub const MODE: u64 = 1;
    pub const UID: u64 = 2;
    pub const GID: u64 = 4;
    pub const SIZE: u64 = 8;
    pub const ATIME: u64 = 16;
    pub const MTIME: u64 = 32;
    pub const XVATTR: u64 = 1 << 31;
}

/// Optional attributes (`XAT0_*`).
mod xat {
    pub const CREATETIME: u64 = 1;
    pub const PROJID: u64 = 0x40000;
}

/// Optional attributes that are flags of a file.
const FLAGS: [(u64, u64); 15] = [
    (0x2, pflags::ARCHIVE),
    (0x4, pflags::SYSTEM),
    (0x8, pflags::READONLY),
    (0x10, pflags::HIDDEN),
    (0x20, pflags::NOUNLINK),
    (0x40, pflags::IMMUTABLE),
    (0x80, pflags::APPENDONLY),
    (0x100, pflags::NODUMP),
    (0x200, pflags::OPAQUE),
    (0x400, pflags::AV_QUARANTINED),
    (0x800, pflags::AV_MODIFIED),
    (0x2000, pflags::REPARSE),
    (0x8000, pflags::OFFLINE),
    (0x10000, pflags::SPARSE),
    (0x20000, pflags::PROJINHERIT),
];

/// Words of the map of optional attributes.
#[doc(alias = "XVA_MAPSIZE")]
const MAP: usize = 3;

/// An object and the slots of its dnode, as records name it.
#[doc(alias = "LR_FOID_SET_SLOTS")]
pub(crate) fn foid(object: u64, slots: u8) -> u64 {
    object | u64::from(slots.saturating_sub(1)) << 56
}

/// Slots of the dnode that a record names.
#[doc(alias = "LR_FOID_GET_SLOTS")]
pub(crate) fn slots(foid: u64) -> usize {
    usize::try_from(foid >> 56).unwrap_or(0) + 1
}

/// The words of a time.
pub(crate) fn words(time: Time) -> [u64; 2] {
    [time.sec.cast_unsigned(), u64::from(time.nsec)]
}

/// The settings of a setattr record.
pub(crate) fn settings(record: &Setattr<'_>, endian: Endian) -> Settings {
    let lr = &record.lr;
    let which = lr.linux_mask();
    let has = |bit: u64| which & bit != 0;
    let settings = Settings {
        mode: has(mask::MODE).then_some(lr.mode & 0o7777),
        uid: has(mask::UID).then_some(lr.uid),
        gid: has(mask::GID).then_some(lr.gid),
        size: has(mask::SIZE).then_some(lr.size),
        atime: has(mask::ATIME).then(|| Time::from_words(lr.atime)),
        mtime: has(mask::MTIME).then(|| Time::from_words(lr.mtime)),
        ..Settings::default()
    };
    record.attr.as_ref().map_or(settings, |attr| with_optional(settings, attr, endian))
}

/// Adds the settings in a record's optional attributes.
pub(crate) fn with_optional(settings: Settings, attr: &LrAttr, endian: Endian) -> Settings {
    let wanted = u64::from(attr.bitmap.first().copied().unwrap_or(0));
    let has = |bit: u64| wanted & bit != 0;
    let (mut value, mut which) = (0, 0);
    for (bit, flag) in FLAGS.into_iter().filter(|(bit, _)| has(*bit)) {
        which |= flag;
        value |= if attr.attrs & bit != 0 { flag } else { 0 };
    }
    let stamp = attr.scanstamp.first_chunk().copied().unwrap_or_default();
    let project = match endian {
        Endian::Little => u64::from_le_bytes(stamp),
        Endian::Big => u64::from_be_bytes(stamp),
    };
    Settings {
        flags: (which != 0).then_some((value, which)),
        crtime: has(xat::CREATETIME).then(|| Time::from_words(attr.crtime)),
        projid: has(xat::PROJID).then_some(project),
        ..settings
    }
}

/// The optional attributes for the settings that the record has no other fields for.
#[doc(alias = "zfs_log_xvattr")]
fn optional(settings: &Settings) -> Option<LrAttr> {
    let (mut wanted, mut attrs, mut scanstamp) = (0, 0, [0; 32]);
    let (value, which) = settings.flags.unwrap_or_default();
    for (bit, flag) in FLAGS.into_iter().filter(|(_, flag)| which & flag != 0) {
        wanted |= bit;
        attrs |= if value & flag != 0 { bit } else { 0 };
    }
    wanted |= settings.crtime.map_or(0, |_| xat::CREATETIME);
    if let Some(project) = settings.projid {
        wanted |= xat::PROJID;
        scanstamp.iter_mut().zip(project.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
    let mut bitmap = vec![0; MAP];
    *bitmap.first_mut()? = u32::try_from(wanted).unwrap_or(0);
    let crtime = settings.crtime.map(words).unwrap_or_default();
    (wanted != 0).then_some(LrAttr { bitmap, attrs, crtime, scanstamp })
}

/// The record of a setattr. `now`: mode, owner and group as they are afterwards.
#[doc(alias = "zfs_log_setattr")]
pub(crate) fn setattr(
    object: u64,
    settings: &Settings,
    (mode, uid, gid): (u64, u64, u64),
) -> Setattr<'static> {
    let attr = optional(settings);
    let bits = [
        (mask::MODE, settings.mode.is_some()),
        (mask::UID, settings.uid.is_some()),
        (mask::GID, settings.gid.is_some()),
        (mask::SIZE, settings.size.is_some()),
        (mask::ATIME, settings.atime.is_some()),
        (mask::MTIME, settings.mtime.is_some()),
        (mask::XVATTR, attr.is_some()),
    ];
    let lr = LrSetattr {
        foid: object,
        mask: bits.into_iter().filter(|(_, set)| *set).map(|(bit, _)| bit).sum(),
        mode,
        uid,
        gid,
        size: settings.size.unwrap_or(0),
        atime: settings.atime.map(words).unwrap_or_default(),
        mtime: settings.mtime.map(words).unwrap_or_default(),
    };
    Setattr { lr, attr, rest: &[] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::Field;

    /// FreeBSD's bits; a value that is not set is all ones.
    #[test]
    fn masks_of_other_systems_are_translated() {
        let none = LrSetattr {
            uid: 0xffff_ffff,
            gid: 0xffff_ffff,
            size: u64::MAX,
            mode: 0o640,
            ..LrSetattr::default()
        };
        let of = |lr: LrSetattr| settings(&Setattr { lr, attr: None, rest: &[] }, Endian::Little);
        let chmod = of(LrSetattr { mask: 0x2, ..none });
        assert_eq!(chmod, Settings { mode: Some(0o640), ..Settings::default() });
        let chown = of(LrSetattr { mask: 0xc, uid: 5, gid: 6, ..none });
        assert_eq!(chown, Settings { uid: Some(5), gid: Some(6), ..Settings::default() });
        let cut = of(LrSetattr { mask: 0x80, size: 9, ..none });
        assert_eq!(cut, Settings { size: Some(9), ..Settings::default() });
        // Linux's own, with and without the time of the change.
        let own = LrSetattr { uid: 5, gid: 6, size: 9, mode: 0o640, ..LrSetattr::default() };
        assert_eq!(of(LrSetattr { mask: 0x42, ..own }), Settings { uid: Some(5), ..Settings::default() });
        assert_eq!(of(LrSetattr { mask: 0x8, ..own }), Settings { size: Some(9), ..Settings::default() });
    }
    use ondisk::zil::{LogRecord, LrCommon, TxType};

    #[test]
    fn settings_come_back_from_their_record() {
        let time = Time { sec: -5, nsec: 7 };
        let all = Settings {
            mode: Some(0o640),
            uid: Some(3),
            size: Some(9),
            mtime: Some(time),
            crtime: Some(time),
            flags: Some((pflags::IMMUTABLE, pflags::IMMUTABLE | pflags::NODUMP)),
            projid: Some(77),
            ..Settings::default()
        };
        for settings in [all, Settings { atime: Some(time), ..Settings::default() }] {
            let record = LogRecord::Setattr(setattr(8, &settings, (0o100640, 3, 4)));
            let bytes = record.encode(TxType(TxType::SETATTR));
            let body = &bytes[LrCommon::SIZE..];
            let Ok(LogRecord::Setattr(read)) =
                LogRecord::decode(TxType(TxType::SETATTR), body, Endian::Little)
            else {
                panic!("not a setattr")
            };
            assert_eq!(self::settings(&read, Endian::Little), settings);
        }
    }
}
