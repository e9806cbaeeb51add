//! Functions of the operating system and the C library that std lacks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns freed memory to the system, also memory between blocks in use.
///
/// The C library by itself returns only the end of its heap.
pub fn release_memory() {
    crate::shelf::clear();
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Whether this process was started without standard output.
static STARTED_WITHOUT_OUTPUT: AtomicBool = AtomicBool::new(false);

/// Runs before std does, which opens `/dev/null` in place of a closed standard output: afterwards nothing tells the two apart.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note_closed_output;

extern "C" fn note_closed_output() {
    // SAFETY: it takes numbers and returns an error for a descriptor that is not open.
    let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } != -1;
    STARTED_WITHOUT_OUTPUT.store(!is_open, Ordering::Relaxed);
}

/// Whether standard output was closed when this process was started: all output is lost then.
pub fn is_output_closed() -> bool {
    STARTED_WITHOUT_OUTPUT.load(Ordering::Relaxed)
}

/// Keeps this process's memory, which may have keys in it, from other processes of its user and from core files.
pub fn hide_memory() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both take numbers and a structure that lives long enough. They can't fail for a process that lowers its own
    // limits.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
    }
}

/// Makes the descriptors from `first` on invisible to programs that this process runs, also those that it inherited itself.
pub fn close_on_exec(first: u32) {
    // SAFETY: it takes numbers and closes nothing in this process.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return;
    }
    // Linux before 5.11.
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<libc::c_int>().ok());
        if let Some(fd) = number.filter(|fd| u32::try_from(*fd).is_ok_and(|fd| fd >= first)) {
            // SAFETY: it takes numbers; a descriptor that is closed meanwhile is an error without effect.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Private bytes of this process, without mapped files; `None` when the system does not report them.
pub fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// `struct fsxattr` of Linux: the result of `FS_IOC_FSGETXATTR`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileAttributes {
    /// Flags (`FS_XFLAG_…`).
    pub flags: u32,
    extent_size: u32,
    extents: u32,
    /// Project.
    pub project: u32,
    cow_extent_size: u32,
    pad: [u32; 2],
}

/// The flag of [`FileAttributes::flags`] of a directory that passes its project to new files (`FS_XFLAG_PROJINHERIT`).
pub const PROJECT_INHERIT: u32 = 0x200;

const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

impl FileAttributes {
    /// Asks a file or directory.
    ///
    /// # Errors
    /// When its file system does not know them.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut attributes = Self::default();
        // SAFETY: the request writes one `struct fsxattr`, which this is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, &raw mut attributes) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
    }

    /// Sets them.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn set(&self, file: &File) -> io::Result<()> {
        // SAFETY: the request reads one `struct fsxattr`, which this is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR as _, &raw const *self) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// `ZFS_IOC_REWRITE`.
const ZFS_IOC_REWRITE: u32 = 0x4020_8303;

/// Asks the file system, a ZFS, to write stored blocks of a range again. `flags`: those of `zfs_rewrite_args_t`.
///
/// # Errors
/// When it does not know the request, or refuses.
pub fn rewrite(file: &File, offset: u64, len: u64, flags: u64) -> io::Result<()> {
    let arguments = [offset, len, flags, 0];
    // SAFETY: the request reads one `zfs_rewrite_args_t` of four words.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), ZFS_IOC_REWRITE as _, arguments.as_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes of a request of [`ask_rewrite`], and of its answer.
pub const REWRITE_BYTES: usize = 4096;
/// `_IOWR(0x83, 0x40, char[4096])`: a request of this program's mounts only.
const REWRITE_CHOSEN: u32 = 0xd000_8340;

/// Asks a mount of this program for what `zfs rewrite` does beyond OpenZFS's request; the answer replaces the request.
///
/// # Errors
/// When the file system does not know the request.
pub fn ask_rewrite(file: &File, message: &mut [u8; REWRITE_BYTES]) -> io::Result<()> {
    // SAFETY: the request reads and writes 4,096 bytes, which `message` has.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), REWRITE_CHOSEN as _, message.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_given_back_is_no_longer_resident() {
        assert_eq!(std::mem::size_of::<FileAttributes>(), 28);
        // Every second block is freed: the C library can't shorten its heap.
        let mut blocks: Vec<Option<Vec<u8>>> = (0..4000).map(|n| Some(vec![n as u8 | 1; 16 << 10])).collect();
        blocks.iter_mut().step_by(2).for_each(|block| *block = None);
        let Some(before) = resident_memory() else { return };
        release_memory();
        let after = resident_memory().unwrap();
        assert!(!cfg!(target_env = "gnu") || after + (16 << 20) < before, "{before} {after}");
        assert!(blocks.iter().flatten().all(|block| block.len() == 16 << 10));
    }
}
