//! Secret bytes: in memory that is not swapped out, not in core files, and cleared before it is freed.

use std::fmt;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

/// Bytes of a place for a key; a page has many.
const SMALL: usize = 128;
const PAGE: usize = 4096;

/// Addresses of free places.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A secret of a length that does not grow.
///
/// Its memory is locked as far as the process's limit (`RLIMIT_MEMLOCK`) goes.
pub struct Secret {
    at: NonNull<u8>,
    len: usize,
    room: usize,
}

// SAFETY: it alone has its memory, and shares it as a slice does.
unsafe impl Send for Secret {}
// SAFETY: as above.
unsafe impl Sync for Secret {}

/// New memory of whole pages.
fn map(room: usize) -> NonNull<u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory is asked for, and nothing that exists is touched.
    let at = unsafe { libc::mmap(ptr::null_mut(), room, protection, flags, -1, 0) };
    let Some(at) = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED) else {
        // As when any other memory is asked for and there is none.
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u8; PAGE]>());
    };
    // SAFETY: these are the pages that were just made. Memory that can't be locked is used all the same.
    unsafe {
        libc::mlock(at.as_ptr().cast(), room);
        libc::madvise(at.as_ptr().cast(), room, libc::MADV_DONTDUMP);
    }
    at
}

fn small() -> NonNull<u8> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(at) = free.pop().and_then(|at| NonNull::new(at as *mut u8)) {
            return at;
        }
        let page = map(PAGE).as_ptr() as usize;
        free.extend((0..PAGE / SMALL).map(|place| page + place * SMALL));
    }
}

impl Secret {
    /// That many zeros.
    pub fn zeros(len: usize) -> Self {
        let (at, room) = match len {
            0..=SMALL => (small(), SMALL),
            _ => {
                let room = len.next_multiple_of(PAGE);
                (map(room), room)
            }
        };
        // Memory is cleared when it is given back, and new memory is zeros.
        Self { at, len, room }
    }

    /// A copy of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut secret = Self::zeros(bytes.len());
        secret.copy_from_slice(bytes);
        secret
    }

    /// Reads to the end, or to a byte that is taken, too, but no more than `most`. No copy stays in a buffer.
    ///
    /// # Errors
    /// Errors of the read.
    pub fn read(from: &mut dyn Read, until: Option<u8>, most: usize) -> io::Result<Self> {
        let mut secret = Self::zeros(most);
        let mut len = 0;
        // Bytes after `until` may be for another reader.
        let step = if until.is_some() { 1 } else { most };
        while let Some(rest) = secret.get_mut(len..).filter(|rest| !rest.is_empty()) {
            let some = step.min(rest.len());
            let got = match from.read(rest.get_mut(..some).unwrap_or_default()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                got => got?,
            };
            len += got;
            let last = len.checked_sub(1).and_then(|at| secret.get(at)).copied();
            if got == 0 || (until.is_some() && last == until) {
                break;
            }
        }
        secret.len = len;
        Ok(secret)
    }
}

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it has that much memory of its own, all of it written.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Secret {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the place has no other owner.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self::of(self)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        for at in 0..self.room {
            // SAFETY: it is a byte of its memory. The compiler may not leave out such a write.
            unsafe { self.at.as_ptr().add(at).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
        if self.room == SMALL {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.at.as_ptr() as usize);
            return;
        }
        // SAFETY: the pages are its own and no longer used.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.room) };
    }
}

/// A value without a destructor in memory of its own, which is cleared when the value goes: for keys inside types of other
/// crates that do not clear them.
pub struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Takes a value. The caller's copy, if the compiler made one, is on the stack: see [`scrub_stack`].
    pub fn new(value: T) -> Self {
        const { assert!(!std::mem::needs_drop::<T>()) };
        Self(Box::new(MaybeUninit::new(value)))
    }
}

impl<T> Deref for Wiped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a value was put there, and stays until the drop.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        let at = self.0.as_mut_ptr().cast::<u8>();
        for byte in 0..size_of::<T>() {
            // SAFETY: it is a byte of the box. Nothing reads it as a value any more.
            unsafe { at.add(byte).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
    }
}

impl<T> fmt::Debug for Wiped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wiped(…)")
    }
}

/// Words of the stack that are cleared.
const SCRUBBED: usize = 2048;

/// Clears the part of the stack that functions used which have returned: copies of keys that calls left there.
#[inline(never)]
pub fn scrub_stack() {
    let mut words = [const { MaybeUninit::<u64>::uninit() }; SCRUBBED];
    for word in &mut words {
        // SAFETY: it is a word of this array.
        unsafe { word.as_mut_ptr().write_volatile(0) };
    }
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_locked_memory_and_leaves_nothing_behind() {
        let secret = Secret::of(b"correct horse");
        assert_eq!((&*secret, format!("{secret:?}").as_str()), (&b"correct horse"[..], "Secret(…)"));
        assert_eq!(secret.clone(), secret);
        let at = secret.as_ptr() as usize;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut locked = None;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.and_then(|(a, b)| {
                Some((usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?))
            });
            match (bounds, locked) {
                (Some((from, to)), None) if (from..to).contains(&at) => locked = Some(false),
                (None, Some(false)) if line.starts_with("VmFlags:") => {
                    locked = Some(line.contains(" lo") && line.contains(" dd"));
                    break;
                }
                _ => {}
            }
        }
        assert_eq!(locked, Some(true));
        drop(secret);
        // SAFETY: pages of small secrets stay mapped.
        let left = unsafe { std::slice::from_raw_parts(at as *const u8, 13) };
        assert_ne!(left, b"correct horse");
    }

    #[test]
    fn reading_stops_where_it_is_to() {
        let text = b"first\nsecond".as_slice();
        let mut from = text;
        assert_eq!(&*Secret::read(&mut from, Some(b'\n'), 100).unwrap(), b"first\n");
        assert_eq!(from, b"second");
        assert_eq!(&*Secret::read(&mut from, None, 4).unwrap(), b"seco");
        assert_eq!(Secret::read(&mut io::repeat(7), None, 9000).unwrap().len(), 9000);
        assert!(Secret::read(&mut io::empty(), None, 10).unwrap().is_empty());
    }
}
