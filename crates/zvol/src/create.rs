//! A new volume. Source: `zvol_create_cb`, zvol.c, OpenZFS 2.3.

use std::sync::Arc;

use engine::dmu::{LiveObjset, NewObject, Tx};
use engine::zap::{NewZap, ZapEdit};
use engine::{Error, Kind, Result};
use ondisk::ObjectType;
use ondisk::names::{ZVOL_OBJECT, ZVOL_ZAP_OBJECT};

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

/// Makes a volume of `volsize` bytes in an empty object set. `seed`: any number.
pub fn create(objset: &Arc<LiveObjset>, tx: &Tx, volsize: u64, volblocksize: u64, seed: u64) -> Result<()> {
    check(volsize, volblocksize)?;
    objset.create_object_at(tx, ZVOL_OBJECT, NewObject::plain(ObjectType::ZVOL, volblocksize))?;
    let new = NewObject::plain(ObjectType::ZVOL_PROP, ondisk::MIN_BLOCK_SIZE);
    let properties = objset.create_object_at(tx, ZVOL_ZAP_OBJECT, new)?;
    let mut edit = properties.edit(tx);
    ZapEdit::create(&mut edit, &NewZap { salt: seed, ..NewZap::default() })?.insert("size", volsize)
}
