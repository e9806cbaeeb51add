//! Page-aligned buffers that devices can fill directly, and cheap shared views of them.
//!
//! [`AlignedBuf`] is owned and writable: a device fills it, a transform writes its result there.
//! [`Buf`] is a reference-counted, read-only window into one: caches, zios and readers pass it
//! around without copying.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use crate::shelf::{self, Block};

/// Alignment of every buffer: enough for direct I/O on any device with sectors up to 4 KiB.
const ALIGN: usize = 4096;

/// An owned byte buffer, aligned to 4 KiB.
///
/// Its `len` bytes are initialised always; the memory behind them may be larger and is reused by later
/// buffers (see `shelf.rs`).
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Allocated bytes; 0 when `ptr` is dangling.
    cap: usize,
    /// Bytes at the front that have been initialised: at least `len`.
    written: usize,
}

// SAFETY: the buffer exclusively owns its memory, which has no thread affinity.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zero bytes. Aborts when memory is exhausted, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        let Block { ptr, cap, written } = Self::block(len);
        // SAFETY: the block has at least `len` bytes.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Self { ptr, len, cap, written: written.max(len) }
    }

    /// A buffer of `len` bytes to be overwritten: zeros, or the content of an earlier buffer. Cheaper than
    /// [`AlignedBuf::zeroed`]; the caller treats it as garbage when filling fails.
    pub fn scratch(len: usize) -> Self {
        let Block { ptr, cap, written } = Self::block(len);
        if written < len {
            // SAFETY: the block has at least `len` bytes, the first `written` are initialised already.
            unsafe { ptr.as_ptr().add(written).write_bytes(0, len - written) };
        }
        Self { ptr, len, cap, written: written.max(len) }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self::concat(&[bytes])
    }

    /// The parts one after the other: cheaper than zeroing a buffer and copying into it.
    pub fn concat(parts: &[&[u8]]) -> Self {
        let len = parts.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
        let Block { ptr, cap, written } = Self::block(len);
        let mut filled = 0;
        for part in parts {
            // SAFETY: the lengths of all parts add up to `len`, so each fits behind those before it, and
            // memory of our own overlaps nothing. After the last one all `len` bytes are initialised.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), ptr.as_ptr().add(filled), part.len()) };
            filled += part.len();
        }
        Self { ptr, len, cap, written: written.max(len) }
    }

    /// A copy of `bytes` in memory for `room` bytes, into which it can [`AlignedBuf::grow`]. The rest of the memory is not
    /// touched.
    pub fn copy_with_room(bytes: &[u8], room: usize) -> Self {
        let len = bytes.len();
        let Block { ptr, cap, written } = Self::block(room.max(len));
        // SAFETY: the block has at least `len` bytes, and memory of our own overlaps nothing.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr.as_ptr(), len) };
        Self { ptr, len, cap, written: written.max(len) }
    }

    /// Appends zeros up to a length of `len` bytes, without moving the bytes; false, and nothing is changed, where the memory
    /// does not suffice.
    pub fn grow(&mut self, len: usize) -> bool {
        let before = self.len;
        let fits = (before..=self.cap).contains(&len);
        if fits {
            // SAFETY: the memory has `cap` bytes, of which those from `before` up to `len` become initialised here.
            unsafe { self.ptr.as_ptr().add(before).write_bytes(0, len - before) };
            (self.len, self.written) = (len, self.written.max(len));
        }
        fits
    }

    /// Memory for `len` bytes; for 0 a dangling pointer with capacity 0.
    fn block(len: usize) -> Block {
        if len == 0 {
            return Block { ptr: NonNull::dangling(), cap: 0, written: 0 };
        }
        let cap = shelf::capacity(len);
        if let Some(block) = shelf::take(cap) {
            return block;
        }
        let layout = Self::layout(cap);
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc(layout) };
        match NonNull::new(raw) {
            Some(ptr) => Block { ptr, cap, written: 0 },
            None => handle_alloc_error(layout),
        }
    }

    /// Shortens the visible length; the memory is kept until drop.
    pub fn into_prefix(self, len: usize) -> Buf {
        let len = len.min(self.len);
        Buf::from(self).slice(0..len)
    }

    #[expect(clippy::expect_used, reason = "a length that overflows isize can't be allocated at all")]
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("buffer length fits the address space")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.cap == 0 {
            return;
        }
        let block = Block { ptr: self.ptr, cap: self.cap, written: self.written };
        if let Some(block) = shelf::put(block) {
            free(block);
        }
    }
}

/// Returns a block to the allocator.
pub(crate) fn free(block: Block) {
    // SAFETY: the holder of a block owns it, and it was allocated in `AlignedBuf::block` with this layout.
    unsafe { dealloc(block.ptr.as_ptr(), AlignedBuf::layout(block.cap)) }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` covers `len` initialised bytes (or is dangling with `len` 0).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// A shared, read-only window into an [`AlignedBuf`]. Cloning and slicing cost one reference count.
#[derive(Clone)]
pub struct Buf {
    owner: Arc<AlignedBuf>,
    start: usize,
    len: usize,
}

impl Buf {
    /// The empty buffer.
    pub fn empty() -> Self {
        static EMPTY: LazyLock<Buf> = LazyLock::new(|| AlignedBuf::zeroed(0).into());
        EMPTY.clone()
    }

    /// The bytes for changing them in place; `None` unless this is the only reference to all of the buffer.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let whole = self.start == 0 && self.len == self.owner.len();
        Arc::get_mut(&mut self.owner).filter(|_| whole).map(|buf| &mut **buf)
    }

    /// Appends zeros as [`AlignedBuf::grow`] does; false also when this is not the only reference to all of the buffer.
    pub fn grow(&mut self, len: usize) -> bool {
        let whole = self.start == 0 && self.len == self.owner.len();
        let grown = whole && Arc::get_mut(&mut self.owner).is_some_and(|buf| buf.grow(len));
        if grown {
            self.len = len;
        }
        grown
    }

    /// A window of this window; clamped to its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = range.start.min(self.len);
        let end = range.end.clamp(start, self.len);
        Self { owner: Arc::clone(&self.owner), start: self.start + start, len: end - start }
    }

    /// The bytes as an owned buffer: without copying when this is the only reference to all of it.
    pub fn into_owned(self) -> AlignedBuf {
        if self.start == 0 && self.len == self.owner.len() {
            return match Arc::try_unwrap(self.owner) {
                Ok(buf) => buf,
                Err(shared) => AlignedBuf::copy_of(&shared),
            };
        }
        AlignedBuf::copy_of(&self)
    }

    /// Whether there are other windows of the same memory.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.owner) > 1
    }

    /// Bytes of memory that this window keeps alive.
    pub fn footprint(&self) -> usize {
        self.owner.cap
    }
}

impl From<AlignedBuf> for Buf {
    fn from(buf: AlignedBuf) -> Self {
        let len = buf.len();
        Self { owner: Arc::new(buf), start: 0, len }
    }
}

impl From<&[u8]> for Buf {
    fn from(bytes: &[u8]) -> Self {
        AlignedBuf::copy_of(bytes).into()
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[expect(clippy::indexing_slicing, reason = "every constructor keeps start + len within the owner")]
    fn deref(&self) -> &[u8] {
        &self.owner[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_clamp() {
        let mut a = AlignedBuf::zeroed(10);
        a[3] = 7;
        let b = Buf::from(a);
        assert_eq!(&*b.slice(2..5), &[0, 7, 0]);
        assert_eq!(b.slice(8..50).len(), 2);
        assert_eq!(b.slice(50..60).len(), 0);
        assert_eq!(b.slice(2..5).into_owned()[1], 7);
    }

    #[test]
    fn only_a_buffer_without_other_references_is_changed_in_place() {
        let mut buf = Buf::from(&[1, 2, 3][..]);
        buf.get_mut().unwrap()[0] = 9;
        let mut other = buf.clone();
        assert!(buf.get_mut().is_none() && other.get_mut().is_none());
        drop(other);
        assert_eq!(buf.get_mut().unwrap(), [9, 2, 3]);
        let mut part = buf.slice(0..2);
        drop(buf);
        assert!(part.get_mut().is_none());
    }

    #[test]
    fn a_buffer_grows_in_place_within_its_room() {
        let mut buf = Buf::from(AlignedBuf::copy_with_room(&[7; 512], 4096));
        let at = buf.as_ptr();
        assert!(buf.grow(1024) && buf.grow(4096) && !buf.grow(4097) && !buf.grow(4095));
        assert!(buf.len() == 4096 && buf.as_ptr() == at);
        assert!(buf[..512].iter().all(|b| *b == 7) && buf[512..].iter().all(|b| *b == 0));
        let mut other = buf.clone();
        assert!(!other.grow(4096) && !buf.slice(0..10).grow(20));
        let mut short = Buf::from(&[1, 2][..]);
        assert!(!short.grow(3) && *short == [1, 2]);
    }

    #[test]
    fn parts_follow_each_other() {
        assert_eq!(&*AlignedBuf::concat(&[&[1, 2], &[], &[3]]), &[1, 2, 3]);
        assert_eq!(AlignedBuf::concat(&[&[], &[]]).len(), 0);
        assert_eq!(AlignedBuf::concat(&[&[9; 5000]]).as_ptr() as usize % ALIGN, 0);
    }

    #[test]
    fn memory_is_used_again_and_zeroed_when_asked() {
        let mut first = AlignedBuf::zeroed(100_000);
        first.fill(9);
        let longer = first.cap;
        drop(first);
        // Other tests may take the block meanwhile: its bytes are initialised in any case.
        assert!(AlignedBuf::scratch(longer).iter().all(|b| *b == 0 || *b == 9));
        assert!(AlignedBuf::zeroed(100_001).iter().all(|b| *b == 0));
        assert_eq!(*AlignedBuf::copy_of(&[5; 99_999]), [5; 99_999]);
        assert_eq!(AlignedBuf::scratch(0).len(), 0);
    }

    #[test]
    fn start_is_aligned() {
        assert_eq!(AlignedBuf::zeroed(1).as_ptr() as usize % ALIGN, 0);
    }
}
