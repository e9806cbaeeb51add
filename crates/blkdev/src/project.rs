//! Project ids of files, through a Linux `ioctl` that no safe crate offers.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// New files in such a directory get its project (`FS_XFLAG_PROJINHERIT`).
const INHERIT: u32 = 0x200;

/// `struct fsxattr`, linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

const GET: Opcode = opcode::read::<FsXattr>(b'X', 31);
const SET: Opcode = opcode::write::<FsXattr>(b'X', 32);

/// The project of an open file or directory, and whether new files in it get it, too.
pub fn project(file: impl AsFd) -> io::Result<(u32, bool)> {
    let attr = get(&file)?;
    Ok((attr.projid, attr.xflags & INHERIT != 0))
}

/// Adds an open file or directory to a project. Requires support of the file system and permission.
pub fn set_project(file: impl AsFd, id: u32, inherit: bool) -> io::Result<()> {
    let mut attr = get(&file)?;
    attr.projid = id;
    attr.xflags = if inherit { attr.xflags | INHERIT } else { attr.xflags & !INHERIT };
    // SAFETY: FS_IOC_FSSETXATTR reads one `struct fsxattr`, which is laid out as C does.
    let set = unsafe { Setter::<SET, FsXattr>::new(attr) };
    // SAFETY: as above; the descriptor is open while this runs.
    Ok(unsafe { ioctl(&file, set) }?)
}

fn get(file: &impl AsFd) -> io::Result<FsXattr> {
    // SAFETY: FS_IOC_FSGETXATTR fills one `struct fsxattr`; any bytes make a valid one.
    let get = unsafe { Getter::<GET, FsXattr>::new() };
    // SAFETY: as above; the descriptor is open while this runs.
    Ok(unsafe { ioctl(file, get) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_the_structure() {
        assert_eq!(size_of::<FsXattr>(), 28);
        assert_eq!((GET, SET), (0x801c_581f, 0x401c_5820));
        let path = std::env::temp_dir().join(format!("aquifer-project-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        // Without project support both calls say so; with it, the set value is returned.
        match (set_project(&file, 7, false), project(&file)) {
            (Ok(()), found) => assert_eq!(found.unwrap(), (7, false)),
            (Err(e), _) => assert!(e.raw_os_error().is_some(), "{e}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}
