//! The requests that read a file's flags and project: `lsattr`, `xfs_io`, SMB servers.

use zpl::{Attr, pflags};

/// `FS_IOC_GETFLAGS`: lsattr. The number encodes 8 bytes, but the kernel expects 4.
const GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_GETVERSION`: lsattr -v. As above.
const GETVERSION: u32 = 0x8008_7601;
/// `FS_IOC_FSGETXATTR`: `struct fsxattr`, 28 bytes: flags, extent size, extents, project, …
const FSGETXATTR: u32 = 0x801c_581f;
/// `ZFS_IOC_GETDOSFLAGS`: returns the flags as 8 bytes.
const GETDOSFLAGS: u32 = 0x8008_8301;
const FSXATTR: usize = 28;
/// Offset of the project in `struct fsxattr`.
pub const PROJECT_AT: usize = 12;

/// The flag's value in both Linux interfaces and in ZFS.
pub const FLAGS: [(u32, u32, u64); 4] = [
    (0x0000_0010, 0x0000_0008, pflags::IMMUTABLE),
    (0x0000_0020, 0x0000_0010, pflags::APPENDONLY),
    (0x0000_0040, 0x0000_0080, pflags::NODUMP),
    (0x2000_0000, 0x0000_0200, pflags::PROJINHERIT),
];

/// The DOS attributes that requests show and set.
#[doc(alias = "ZFS_DOS_FL_USER_VISIBLE")]
pub const DOS_FLAGS: u64 = pflags::IMMUTABLE
    | pflags::APPENDONLY
    | pflags::NOUNLINK
    | pflags::ARCHIVE
    | pflags::NODUMP
    | pflags::SYSTEM
    | pflags::HIDDEN
    | pflags::READONLY
    | pflags::REPARSE
    | pflags::OFFLINE
    | pflags::SPARSE;

/// Whether a request changes nothing.
pub fn is_reading(command: u32) -> bool {
    matches!(command, GETFLAGS | GETVERSION | FSGETXATTR | GETDOSFLAGS)
}

/// The answer to a request that changes nothing; `None` for any other.
pub fn answer(attr: &Attr, command: u32) -> Option<Vec<u8>> {
    let shown = FLAGS.iter().filter(|(_, _, zfs)| attr.flags & zfs != 0);
    let (fs, xfs) = shown.fold((0, 0), |(a, b), (fs, xfs, _)| (a | fs, b | xfs));
    match command {
        GETFLAGS => Some(fs.to_le_bytes().to_vec()),
        GETVERSION => attr.generation.to_le_bytes().first_chunk::<4>().map(|low| low.to_vec()),
        FSGETXATTR => {
            let mut out = xfs.to_le_bytes().to_vec();
            out.resize(FSXATTR, 0);
            let project = u32::try_from(attr.projid).unwrap_or(0);
            out.get_mut(PROJECT_AT..PROJECT_AT + 4)?.copy_from_slice(&project.to_le_bytes());
            Some(out)
        }
        GETDOSFLAGS => Some((attr.flags & DOS_FLAGS).to_le_bytes().to_vec()),
        _ => None,
    }
}
