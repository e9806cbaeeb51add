//! The boot environment in each label: a few kilobytes for boot loaders.
//!
//! Source: `vdev_boot_envblock_t`, vdev_impl.h, OpenZFS 2.3.

use crate::label::BOOTENV_SIZE;
use crate::{Eck, EckPhys, Malformed};

/// Bytes for the content.
pub const BOOTENV_CONTENT: usize = BOOTENV_SIZE as usize - 8 - EckPhys::SIZE;

/// Format of a boot environment's content.
#[doc(alias = "vbe_vers_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootenvKind {
    /// Text, as GRUB writes it.
    Raw,
    /// A packed nvlist.
    Nvlist,
}

/// A boot environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootenv<'a> {
    /// `None`: a version that OpenZFS doesn't know.
    pub kind: Option<BootenvKind>,
    /// Version as stored (big-endian on disk).
    pub version: u64,
    /// The content, to its full size; text ends with the first NUL.
    pub content: &'a [u8],
    /// The trailer.
    pub tail: Eck,
}

impl<'a> Bootenv<'a> {
    /// Decodes the 8 KiB block.
    pub fn from_bytes(block: &'a [u8]) -> Result<Self, Malformed> {
        let short = || Malformed::short("boot environment", block.len(), BOOTENV_SIZE as usize);
        let block = block.get(..BOOTENV_SIZE as usize).ok_or_else(short)?;
        let (version, rest) = block.split_first_chunk().ok_or_else(short)?;
        let version = u64::from_be_bytes(*version);
        let kind = match version {
            0 => Some(BootenvKind::Raw),
            1 => Some(BootenvKind::Nvlist),
            _ => None,
        };
        let content = rest.get(..BOOTENV_CONTENT).ok_or_else(short)?;
        Ok(Self { kind, version, content, tail: Eck::from_trailer(block)? })
    }

    /// The block without its trailer, zeros after the content; `None` when that is too long.
    pub fn encode(kind: BootenvKind, content: &[u8]) -> Option<Vec<u8>> {
        let version: u64 = match kind {
            BootenvKind::Raw => 0,
            BootenvKind::Nvlist => 1,
        };
        let mut block = version.to_be_bytes().to_vec();
        block.extend_from_slice(Some(content).filter(|content| content.len() <= BOOTENV_CONTENT)?);
        block.resize(BOOTENV_CONTENT + 8, 0);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_come_back() {
        for kind in [BootenvKind::Raw, BootenvKind::Nvlist] {
            let mut block = Bootenv::encode(kind, b"saved_entry=1").unwrap();
            let tail = Eck { endian: crate::Endian::Little, cksum: [1, 2, 3, 4] };
            block.extend(tail.to_bytes());
            let decoded = Bootenv::from_bytes(&block).unwrap();
            assert_eq!((decoded.kind, decoded.tail), (Some(kind), tail));
            assert!(decoded.content.starts_with(b"saved_entry=1\0"));
        }
        assert!(Bootenv::encode(BootenvKind::Raw, &[1; BOOTENV_CONTENT + 1]).is_none());
    }
}
