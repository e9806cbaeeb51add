//! Object sets that a raw stream fills: encrypted, without the key.
//!
//! Data blocks come with salt, IV and MAC of their own ([`super::StoredBlock`]). Blocks of dnodes are assembled
//! here: the stream contains the encryption parameters of each ([`LiveObjset::set_range`]) and the encrypted bonus
//! buffers; the authentication of pointers in the dnodes covers only fields that are the same on both sides. Until
//! the last of its objects has arrived, the MAC of a block does not match it, and the dataset is marked as
//! inconsistent. The authenticated part of a block of dnodes is that of the byte order in which the sender wrote it, so a
//! block of a big-endian system is written in that order.
//!
//! The root block keeps the sender's portable MAC. It has no local MAC: user accounting is created when the key is
//! loaded.
//!
//! Source: `dmu_convert_mdn_block_to_raw`, `dsl_crypto_recv_raw_objset_sync`, OpenZFS 2.3.

use std::collections::BTreeMap;

use crypt::BlockParams;
use ondisk::{CompressType, Endian};
use parking_lot::Mutex;

use super::LiveObjset;
use crate::dmu::SpecialObject;
use crate::zio::write::AsStored;

/// The raw stream's parameters of the object set's own blocks.
#[derive(Debug, Default)]
pub(super) struct Raw {
    portable_mac: [u8; 32],
    /// Encryption parameters of blocks of dnodes, by number.
    ranges: Mutex<BTreeMap<u64, (BlockParams, Endian)>>,
}

impl LiveObjset {
    /// Marks it as being filled by a raw stream; `portable_mac` authenticates its root block.
    pub(crate) fn set_raw(&self, portable_mac: [u8; 32]) {
        *self.raw.write() = Some(Raw { portable_mac, ranges: Mutex::default() });
    }

    /// Whether a raw stream fills it.
    pub(crate) fn is_raw(&self) -> bool {
        self.raw.read().is_some()
    }

    /// Sets the encryption parameters and the byte order of block `blkid` of dnodes.
    pub(crate) fn set_range(&self, blkid: u64, params: BlockParams, endian: Endian) {
        if let Some(raw) = &*self.raw.read() {
            raw.ranges.lock().insert(blkid, (params, endian));
        }
    }

    /// Number of blocks of dnodes whose parameters are in memory.
    pub(crate) fn ranges(&self) -> usize {
        self.raw.read().as_ref().map_or(0, |raw| raw.ranges.lock().len())
    }

    /// Forgets the parameters of blocks of dnodes: those on disk have them in their pointers.
    pub(crate) fn forget_ranges(&self) {
        if let Some(raw) = &*self.raw.read() {
            raw.ranges.lock().clear();
        }
    }

    /// The form of `bytes`, which are block `blkid` of an object that is written without its key. A block that the
    /// stream does not describe cannot be read afterwards: such a stream is forged.
    pub(super) fn raw_form(&self, object: u64, blkid: u64, bytes: usize) -> Option<AsStored> {
        let raw = self.raw.read();
        let raw = raw.as_ref().filter(|_| object == SpecialObject::Meta.number())?;
        let range = raw.ranges.lock().get(&blkid).copied();
        let (params, endian) = range.unwrap_or((BlockParams::default(), Endian::Little));
        Some(sealed(bytes, params, endian))
    }

    /// The form of the root block.
    pub(super) fn raw_root(&self, bytes: usize) -> Option<AsStored> {
        self.is_raw().then(|| sealed(bytes, BlockParams::default(), Endian::Little))
    }

    /// The MAC of the root block in place of one of ours.
    pub(super) fn raw_mac(&self) -> Option<[u8; 32]> {
        self.raw.read().as_ref().map(|raw| raw.portable_mac)
    }
}

fn sealed(bytes: usize, params: BlockParams, endian: Endian) -> AsStored {
    let lsize = u64::try_from(bytes).unwrap_or(u64::MAX);
    AsStored { lsize, compress: CompressType::Off, crypt: Some(params), endian }
}
