//! Bounds-checked reads of single fields.

/// `N` bytes at `offset`.
pub(crate) fn array<const N: usize>(buf: &[u8], offset: usize) -> Option<[u8; N]> {
    buf.get(offset..)?.first_chunk().copied()
}

/// Copies `from` into `buf` at `offset`; false when it doesn't fit.
pub(crate) fn put(buf: &mut [u8], offset: usize, from: &[u8]) -> bool {
    let end = offset.saturating_add(from.len());
    match buf.get_mut(offset..end) {
        Some(to) => {
            to.copy_from_slice(from);
            true
        }
        None => false,
    }
}
