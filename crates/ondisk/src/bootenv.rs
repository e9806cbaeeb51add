//! The boot environment in each label: a few kilobytes for boot loaders.
//!
//! Source: `vdev_boot_envblock_t`, vdev_impl.h, OpenZFS 2.3.

use crate::label::BOOTENV_SIZE;
use crate::{Eck, EckPhys, Malformed};

/// Bytes for the content.
pub const BOOTENV_CONTENT: usize = BOOTENV_SIZE as usize - 8 - EckPhys::SIZE;

/// What a boot environment holds.
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
}
