//! The forgeries, each a change to a golden pool.

mod dmu;
mod dsl;
mod spa;
mod zap;
mod zpl;

use engine::Result;
use engine::dmu::Object;
use engine::zap::Zap;
use ondisk::Blkptr;

use super::forge::{Forge, POINTER, set, set_word};

/// One forgery.
#[derive(Clone, Copy)]
pub struct Case {
    /// The forged claim.
    pub name: &'static str,
    /// The golden pool to change.
    pub pool: &'static str,
    /// Makes the change.
    pub make: fn(&mut Forge) -> Result<()>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.pool)
    }
}

/// All of them.
pub fn all() -> Vec<Case> {
    [dsl::CASES, dmu::CASES, zap::CASES, zpl::CASES, spa::CASES].concat()
}

const fn case(name: &'static str, pool: &'static str, make: fn(&mut Forge) -> Result<()>) -> Case {
    Case { name, pool, make }
}

/// The object that the pool's directory has under `name`.
fn directory(forge: &Forge, name: &str) -> Result<u64> {
    Zap::open(&forge.object(0, ondisk::names::MOS_DIRECTORY_OBJECT)?)?.need(name)
}

/// A block that holds a micro ZAP with these entries.
fn micro_zap(entries: &[(&[u8], u64)]) -> Vec<u8> {
    let mut block = vec![0; (64 + 64 * entries.len()).next_multiple_of(512)];
    set_word(&mut block, 0, 0x8000_0000_0000_0003);
    set_word(&mut block, 8, 0x5a17);
    for (i, (name, value)) in entries.iter().enumerate() {
        set_word(&mut block, 64 + 64 * i, *value);
        set(&mut block, 64 + 64 * i + 14, name.get(..name.len().min(49)).unwrap_or_default());
    }
    block
}

/// Makes the first block of an object its only block.
fn only_block(forge: &mut Forge, id: u64, number: u64, block: &[u8]) -> Result<()> {
    let kind = forge.object(id, number)?.dnode.object_type;
    let bp = forge.store(block, kind, 0)?;
    let sectors = u16::try_from(block.len().div_ceil(512)).unwrap_or(u16::MAX);
    forge.edit_dnode(id, number, &mut |dnode| {
        set(dnode, 2, &[1, 1]);
        set(dnode, 8, &sectors.to_le_bytes());
        set_word(dnode, 16, 0);
        set(dnode, 64, &bp.to_bytes());
    })
}

/// Gives `object` `levels` levels with one indirect block each, which names the one below in all of its slots; at
/// the bottom is `data`.
fn one_a_level(forge: &mut Forge, object: &Object, levels: u8, data: &Blkptr) -> Result<()> {
    let mut below = *data;
    for level in 1..levels {
        let block = below.to_bytes().repeat(1024);
        below = forge.store(&block, object.dnode.object_type, level)?;
    }
    forge.edit_dnode(object.objset.id, object.number, &mut |dnode| {
        set(dnode, 1, &[17, levels, 1]);
        set_word(dnode, 16, u64::MAX >> 10);
        set(dnode, 64, &below.to_bytes());
    })
}

/// Gives `object` `levels` levels whose indirect blocks are all the same one, which names itself and, in its slots
/// for data, `data`.
fn itself_below(forge: &mut Forge, object: &Object, levels: u8, data: &Blkptr) -> Result<()> {
    let kind = object.dnode.object_type;
    let size = 128 << 10;
    let at = forge.alloc(size)?;
    let mut block = vec![0; size];
    for (slot, bytes) in block.chunks_exact_mut(POINTER).enumerate() {
        let level = u8::try_from(slot % usize::from(levels)).unwrap_or(0);
        let bp = if level == 0 { *data } else { forge.pointer(at, size, kind, level) };
        set(bytes, 0, &bp.to_bytes());
    }
    forge.write(at, &block)?;
    let top = forge.pointer(at, size, kind, levels - 1);
    forge.edit_dnode(object.objset.id, object.number, &mut |dnode| {
        set(dnode, 1, &[17, levels, 1]);
        set_word(dnode, 16, u64::MAX >> 10);
        set(dnode, 64, &top.to_bytes());
    })
}
