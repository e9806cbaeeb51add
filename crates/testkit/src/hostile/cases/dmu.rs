//! Forged objects and blocks.
#![allow(clippy::indexing_slicing, reason = "forged structures have fixed sizes")]

use engine::Result;
use engine::dmu::Object;
use ondisk::{Blkptr, ObjectType};

use super::{Case, Forge, case, directory, itself_below, one_a_level, set, set_word};
use crate::hostile::forge::{POINTER, seal};

pub(super) const CASES: &[Case] = &[
    case("indirect blocks that are themselves, in a file", "basic", |f| {
        let file = file(f)?;
        let data = first(&file)?;
        itself_below(f, &file, 6, &data)
    }),
    case("indirect blocks that are themselves, over holes", "basic", |f| {
        let file = file(f)?;
        itself_below(f, &file, 6, &Blkptr::default())
    }),
    case("indirect blocks that come again and again, over data", "basic", |f| {
        let file = file(f)?;
        let data = first(&file)?;
        one_a_level(f, &file, 5, &data)
    }),
    case("indirect blocks that come again and again, over holes", "basic", |f| {
        let file = file(f)?;
        one_a_level(f, &file, 5, &Blkptr::default())
    }),
    case("indirect blocks that are themselves, in the MOS", "basic", |f| {
        let meta = f.object(0, 0)?;
        let data = first(&meta)?;
        itself_below(f, &meta, 5, &data)
    }),
    case("indirect blocks that are themselves, in a file system", "basic", |f| {
        let id = f.dataset("tank")?.number;
        let meta = f.object(id, 0)?;
        let data = first(&meta)?;
        itself_below(f, &meta, 7, &data)
    }),
    case("a file of 2^64 blocks at one level", "basic", |f| head(f, &[1, 3], u64::MAX)),
    case("a file of 30 levels", "basic", |f| head(f, &[30, 3], u64::MAX)),
    case("a file system's objects without end", "basic", |f| {
        let id = f.dataset("tank")?.number;
        f.edit_dnode(id, 0, &mut |dnode| set_word(dnode, 16, u64::MAX))
    }),
    case("a MOS of one level and 2^60 blocks", "basic", |f| {
        f.edit_dnode(0, 0, &mut |dnode| {
            set(dnode, 2, &[1]);
            set_word(dnode, 16, 1 << 60);
        })
    }),
    case("a gang of itself", "basic", gang),
    case("a block beyond the disk", "basic", |f| pointer(f, |words| words[1] = u64::MAX >> 2)),
    case("a block of no vdev", "basic", |f| pointer(f, |words| words[0] = 0xff_ffff << 32 | 8)),
    case("a block of every unknown kind", "basic", |f| pointer(f, |words| words[6] = u64::MAX)),
    case("an embedded block of 16 MiB", "basic", |f| {
        pointer(f, |words| words[6] = 1 << 39 | 0x01ff_ffff | 15 << 32 | 112 << 25 | 1 << 63)
    }),
];

/// A file of the root file system.
fn file(forge: &Forge) -> Result<Object> {
    let id = forge.dataset("tank")?.number;
    let mut best = None;
    for object in forge.objset(id)?.objects() {
        let object = object?;
        if object.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS && object.dnode.used_bytes() > 0 {
            best = Some(object);
            break;
        }
    }
    best.ok_or_else(|| engine::Error::not_found("no file"))
}

fn first(object: &Object) -> Result<Blkptr> {
    Ok(object.blkptr(0, 0)?.unwrap_or_default())
}

fn head(forge: &mut Forge, levels: &[u8], maxblkid: u64) -> Result<()> {
    let file = file(forge)?;
    forge.edit_dnode(file.objset.id, file.number, &mut |dnode| {
        set(dnode, 2, levels);
        set_word(dnode, 16, maxblkid);
    })
}

fn pointer(forge: &mut Forge, edit: fn(&mut [u64; 16])) -> Result<()> {
    let file = file(forge)?;
    let mut words = *first(&file)?.words();
    edit(&mut words);
    forge.put_pointer(file.objset.id, file.number, 0, 0, &Blkptr::from_words(words))
}

/// A gang header all of whose members are itself, in three copies.
fn gang(forge: &mut Forge) -> Result<()> {
    let config = directory(forge, "config")?;
    let config = forge.object(0, config)?;
    let size = usize::try_from(config.dnode.datablksz()).unwrap_or(512);
    let at = forge.alloc(512)?;
    let plain = forge.pointer(at, size, config.dnode.object_type, 0);
    let mut words = *plain.words();
    for copy in 0..3 {
        words[2 * copy] = words[0];
        words[2 * copy + 1] = words[1] | 1 << 63;
    }
    let bp = Blkptr::from_words(words);
    let mut header = vec![0; 512];
    for slot in 0..3 {
        set(&mut header, slot * POINTER, &bp.to_bytes());
    }
    seal(&mut header, ondisk::label::gang_verifier(&bp));
    forge.write(at, &header)?;
    forge.put_pointer(0, config.number, 0, 0, &bp)
}
