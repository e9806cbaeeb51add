//! A new volume. Source: `zvol_create_cb`, zvol.c, OpenZFS 2.3.

use std::sync::Arc;

use engine::dmu::{LiveObjset, NewObject, Tx};
use engine::spa::Spa;
use engine::vdev::config::AllocBias;
use engine::vdev::top::Top;
use engine::zap::{NewZap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use ondisk::names::{ZVOL_OBJECT, ZVOL_ZAP_OBJECT};

/// Blocks of dnodes above a volume's.
const DNODE_LEVELS: u64 = 7;
/// Pointers in an indirect block, and log2 of its bytes.
const POINTERS: u64 = 1024;
const INDIRECT_SHIFT: u32 = 17;
/// Least and largest block of a volume.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 512..=16 << 20;

/// Checks a volume's size and block size (property `volblocksize`), both in bytes.
#[doc(alias("zvol_check_volsize", "zvol_check_volblocksize"))]
pub fn check(volsize: u64, volblocksize: u64) -> Result<()> {
    let invalid = |what: &str| Err(Error::new(Kind::Invalid, what));
    if !BLOCK_SIZES.contains(&volblocksize) || !volblocksize.is_power_of_two() {
        return invalid("the block size of a volume is a power of two from 512 bytes to 16 MiB");
    }
    if volsize == 0 || !volsize.is_multiple_of(volblocksize) {
        return invalid("the size of a volume is a multiple of its block size");
    }
    Ok(())
}

/// Bytes to be reserved (property `refreservation`) so that every byte of a volume can be written.
#[doc(alias = "zvol_volsize_to_reservation")]
pub fn reservation(spa: &Spa, volsize: u64, volblocksize: u64, copies: u64) -> u64 {
    let mut count = volsize / volblocksize.max(1);
    // A block takes more on vdevs with parity the smaller it is.
    let tops = spa.pool.zio.tree();
    let data = |top: &Top| {
        let asize = top.asize_of(volblocksize, spa.txgs.synced());
        (asize >> ondisk::MIN_BLOCK_SHIFT).saturating_mul(top.deflate_ratio()).max(volblocksize)
    };
    let normal = tops.tops().filter(|top| spa.vdevs().bias_of(top) == AllocBias::Normal);
    let largest = normal.map(|top| data(top)).max().unwrap_or(volblocksize);
    let bytes = largest.saturating_mul(count).saturating_mul(copies);
    let mut metadata = DNODE_LEVELS;
    while count > 1 {
        count = count.div_ceil(POINTERS);
        metadata += count;
    }
    bytes.saturating_add((metadata * (copies + 1).min(3)) << INDIRECT_SHIFT)
}

/// Makes a volume of `volsize` bytes in an empty object set. `seed`: any number.
pub fn create(objset: &Arc<LiveObjset>, tx: &Tx, volsize: u64, volblocksize: u64, seed: u64) -> Result<()> {
    check(volsize, volblocksize)?;
    objset.create_object_at(tx, ZVOL_OBJECT, NewObject::plain(ObjectType::ZVOL, volblocksize))?;
    let new = NewObject::plain(ObjectType::ZVOL_PROP, ondisk::MIN_BLOCK_SIZE);
    let properties = objset.create_object_at(tx, ZVOL_ZAP_OBJECT, new)?;
    let mut edit = properties.edit(tx);
    ZapEdit::create(&mut edit, &NewZap { salt: seed, ..NewZap::default() })?.insert("size", volsize)
}
