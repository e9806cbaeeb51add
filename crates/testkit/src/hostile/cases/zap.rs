//! Forged ZAPs: changes to the large directory of the pool `basic`.

use engine::dmu::Object;
use engine::zap::Zap;
use engine::{Error, Result};
use ondisk::{Blkptr, ObjectType};

use super::{Case, Forge, case, micro_zap, only_block, set, set_word};

const PTRTBL: usize = 16;
const LEAF_MAGIC: u64 = 0x02AB_1EAF;

pub(super) const CASES: &[Case] = &[
    case("a pointer table of 2^40 entries, all holes", "basic", |f| table(f, 40)),
    case("a pointer table of 2^20 entries, all holes", "basic", |f| table(f, 20)),
    case("a pointer table of one leaf", "basic", |f| {
        let dir = fat(f)?;
        f.edit_block(dir.objset.id, dir.number, 0, &mut |block| {
            let half = block.len() / 2;
            set_word(block, PTRTBL + 8, 0);
            set_word(block, PTRTBL + 16, u64::from(block.len().trailing_zeros() - 4));
            (half..2 * half).step_by(8).for_each(|at| set_word(block, at, 1));
        })
    }),
    case("a pointer table that is a leaf", "basic", |f| {
        let dir = fat(f)?;
        f.edit_block(dir.objset.id, dir.number, 0, &mut |block| {
            set_word(block, PTRTBL, 1);
            set_word(block, PTRTBL + 8, 1);
            set_word(block, PTRTBL + 16, u64::from(block.len().trailing_zeros() - 3));
        })
    }),
    case("leaves that are one leaf in many blocks", "basic", one_leaf),
    case("hash chains that go in circles", "basic", |f| {
        leaves(f, |block| {
            let chunks = 48 + block.len() / 16;
            let first: Vec<u8> = [0_u8, 0].repeat(block.len() / 32);
            set(block, 48, &first);
            (chunks..block.len() - 24).step_by(24).for_each(|at| set(block, at + 2, &[0, 0]));
        })
    }),
    case("names and values that share their bytes", "basic", shared),
    case("a micro ZAP of 16 MiB, all one name", "basic", |f| {
        let dir = fat(f)?;
        let entries = vec![(&b"same"[..], 34); (16 << 20) / 64 - 1];
        only_block(f, dir.objset.id, dir.number, &micro_zap(&entries))
    }),
    case("a ZAP without a block", "basic", |f| {
        let dir = fat(f)?;
        f.put_pointer(dir.objset.id, dir.number, 0, 0, &Blkptr::default())
    }),
];

/// A directory with a fat ZAP.
pub(super) fn fat(forge: &Forge) -> Result<Object> {
    let id = forge.dataset("tank")?.number;
    for object in forge.objset(id)?.objects() {
        let object = object?;
        let dir = object.dnode.object_type == ObjectType::DIRECTORY_CONTENTS;
        if dir && Zap::open(&object)?.fat_header().is_some() {
            return Ok(object);
        }
    }
    Err(Error::not_found("no large directory"))
}

/// Claims an external table of `1 << shift` entries in blocks that are holes.
fn table(forge: &mut Forge, shift: u32) -> Result<()> {
    let dir = fat(forge)?;
    let (id, number) = (dir.objset.id, dir.number);
    forge.edit_block(id, number, 0, &mut |block| {
        set_word(block, PTRTBL, 1 << 20);
        set_word(block, PTRTBL + 8, 1 << (shift + 3 - block.len().trailing_zeros()));
        set_word(block, PTRTBL + 16, shift.into());
    })?;
    forge.edit_dnode(id, number, &mut |dnode| set_word(dnode, 16, u64::MAX >> 1))
}

fn leaves(forge: &mut Forge, edit: fn(&mut [u8])) -> Result<()> {
    let dir = fat(forge)?;
    for blkid in 1..=dir.dnode.maxblkid.min(8) {
        forge.edit_block(dir.objset.id, dir.number, blkid, &mut |block| edit(block))?;
    }
    Ok(())
}

/// A pointer table of a thousand slots that all name the same leaf.
fn one_leaf(forge: &mut Forge) -> Result<()> {
    let dir = fat(forge)?;
    let (id, number, kind) = (dir.objset.id, dir.number, dir.dnode.object_type);
    let mut header = dir.block(0)?.to_vec();
    let shift = header.len().trailing_zeros() - 4;
    set_word(&mut header, PTRTBL + 8, 0);
    set_word(&mut header, PTRTBL + 16, shift.into());
    (0_u64..1 << shift)
        .zip((header.len() / 2..).step_by(8))
        .for_each(|(i, at)| set_word(&mut header, at, i + 1));
    let header = forge.store(&header, kind, 0)?;
    let leaf = dir.blkptr(0, 1)?.unwrap_or_default();
    let mut pointers = vec![header];
    pointers.resize(1 << (17 - 7), leaf);
    let bytes: Vec<u8> = pointers.iter().flat_map(Blkptr::to_bytes).collect();
    let top = forge.store(&bytes, kind, 1)?;
    forge.edit_dnode(id, number, &mut |dnode| {
        set(dnode, 1, &[17, 2, 1]);
        set_word(dnode, 16, 1023);
        set(dnode, 64, &top.to_bytes());
    })
}

/// A leaf of 2 MiB whose entries all have the same long name and value.
fn shared(forge: &mut Forge) -> Result<()> {
    let dir = fat(forge)?;
    let (id, number) = (dir.objset.id, dir.number);
    let size = 2 << 20;
    let mut header = vec![0; size];
    let words: [u64; 13] = [0x8000_0000_0000_0001, 0x2_F52A_B2AB, 0, 0, 17, 0, 0, 2, 1, 60000, 7, 0, 0];
    words.iter().enumerate().for_each(|(i, w)| set_word(&mut header, 8 * i, *w));
    (size / 2..size).step_by(8).for_each(|at| set_word(&mut header, at, 1));
    let mut leaf = vec![0; size];
    set_word(&mut leaf, 0, 0x8000_0000_0000_0000);
    set_word(&mut leaf, 24, LEAF_MAGIC);
    let chunks = 48 + size / 16;
    let count = (size - chunks) / 24 - 2;
    for i in 0..count.min(65535) {
        let at = chunks + 24 * i;
        if i < 30_000 {
            // Type, integers of one byte, next, name chunk and length, value chunk and length.
            set(&mut leaf, at, &[252, 1, 255, 255]);
            set(&mut leaf, at + 4, &30_000_u16.to_le_bytes());
            set(&mut leaf, at + 6, &65_535_u16.to_le_bytes());
            set(&mut leaf, at + 8, &30_000_u16.to_le_bytes());
            set(&mut leaf, at + 10, &65_535_u16.to_le_bytes());
            set_word(&mut leaf, at + 16, i as u64);
        } else {
            set(&mut leaf, at, &[251]);
            set(&mut leaf, at + 1, &[b'x'; 21]);
            set(&mut leaf, at + 22, &u16::try_from(i + 1).unwrap_or(u16::MAX).to_le_bytes());
        }
    }
    let (header, leaf) =
        (forge.store(&header, dir.dnode.object_type, 0)?, forge.store(&leaf, dir.dnode.object_type, 0)?);
    forge.edit_dnode(id, number, &mut |dnode| {
        set(dnode, 2, &[1, 2]);
        set(dnode, 8, &4096_u16.to_le_bytes());
        set_word(dnode, 16, 1);
        set(dnode, 64, &header.to_bytes());
        set(dnode, 192, &leaf.to_bytes());
    })
}
