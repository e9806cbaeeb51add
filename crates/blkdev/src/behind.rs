//! Whether requests to a file or device may wait for a mount of this process.
//!
//! A pool can lie on a file in a mount of the same process, or on a device above such a file. The thread that answers requests
//! of mounts must not wait for such a request: over io_uring the kernel delivers requests by the thread that fetched them, and
//! not while that one waits for a device.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The type of file systems in user space in `statfs`.
#[doc(alias = "FUSE_SUPER_MAGIC")]
const FUSE: u64 = 0x6573_5546;
/// The major number of network block devices, whose server may be a program here.
const NBD: u32 = 43;

/// Whether a request may need an answer of a file system in user space: for a file in one, and for a device above other devices,
/// files or programs. If that is not known, it may.
pub(crate) fn may_wait_for_a_mount(file: &File) -> bool {
    let Ok(meta) = file.metadata() else { return true };
    if meta.is_file() {
        // The field's type differs between architectures.
        #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "a number of 32 bits")]
        return rustix::fs::fstatfs(file).map_or(true, |stat| stat.f_type as u64 & 0xffff_ffff == FUSE);
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    let has = |name: &str| Path::new(&device).join(name).exists();
    // A partition's directory is in that of its disk.
    major == NBD
        || !has("dev")
        || ["loop", "dm", "md", "../loop", "../dm", "../md"].iter().any(|name| has(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_does_not_wait_for_a_mount() {
        let file = tempfile::tempfile().unwrap();
        let magic = rustix::fs::fstatfs(&file).unwrap().f_type;
        assert_eq!(may_wait_for_a_mount(&file), magic == 0x6573_5546);
    }

    #[test]
    fn a_device_that_the_system_does_not_describe_may_wait() {
        // No block device.
        assert!(may_wait_for_a_mount(&File::open("/dev/null").unwrap()));
    }
}
