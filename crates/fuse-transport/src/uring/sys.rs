//! The commands of FUSE over io_uring, and the machine's cores.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};

/// Registers an entry's buffers; completes with its first request.
#[doc(alias = "FUSE_IO_URING_CMD_REGISTER")]
const REGISTER: u32 = 1;
/// Commits an answer; completes with the next request.
#[doc(alias = "FUSE_IO_URING_CMD_COMMIT_AND_FETCH")]
const COMMIT_AND_FETCH: u32 = 2;
/// Buffers of an entry: headers and payload.
const BUFFERS: u32 = 2;
/// The place of `len` in a submission.
const LEN_AT: usize = 24;

/// The command's part of a submission.
#[doc(alias = "fuse_uring_cmd_req")]
fn command(commit: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    let fields = [0; 8].into_iter().chain(commit.to_ne_bytes()).chain(queue.to_ne_bytes());
    bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    bytes
}

/// Registers the buffers that an array of two `iovec` at `buffers` names.
pub fn register(device: RawFd, queue: u16, buffers: *const libc::iovec, key: u64) -> Entry128 {
    let command = opcode::UringCmd80::new(types::Fd(device), REGISTER).cmd(command(0, queue));
    let mut entry = command.addr(Some(buffers.addr() as u64)).build().user_data(key);
    // SAFETY: an `Entry128` is, by `repr(C)`, the kernel's `io_uring_sqe` of 128 bytes, in which the 32-bit `len` lies
    // at byte 24. The crate has no other way to set it for a command.
    unsafe { std::ptr::from_mut(&mut entry).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(BUFFERS) };
    entry
}

/// Commits the answer to the request of that number.
pub fn commit(device: RawFd, queue: u16, request: u64, key: u64) -> Entry128 {
    let command = opcode::UringCmd80::new(types::Fd(device), COMMIT_AND_FETCH).cmd(command(request, queue));
    command.build().user_data(key)
}

/// Cores that the machine may ever have: as many queues has a connection.
#[doc(alias = "num_possible_cpus")]
pub fn possible_cores() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(text.trim()).filter(|cores| *cores > 0).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the list of possible cores cannot be read")
    })
}

/// The length of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',').try_fold(0usize, |all, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!((count("0"), count("0-1"), count("0-3,8,10-11")), (Some(1), Some(2), Some(7)));
        assert_eq!((count(""), count("3-1"), count("a")), (None, None, None));
    }

    #[test]
    fn a_registration_names_two_buffers() {
        let buffers = 0x1234_5678usize as *const libc::iovec;
        let entry = register(7, 3, buffers, 9);
        let text = format!("{entry:?}");
        assert!(text.contains("user_data: 9"), "{text}");
        // SAFETY: the bytes of a plain structure.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(&entry).cast::<u8>(), 128) };
        assert_eq!(bytes[16..24], 0x1234_5678u64.to_ne_bytes());
        assert_eq!((&bytes[24..28], &bytes[64..66]), (&2u32.to_ne_bytes()[..], &3u16.to_ne_bytes()[..]));
    }
}
