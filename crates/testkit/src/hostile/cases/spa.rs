//! Forged pool structures: config, space, removed vdevs, lists of blocks, logs, dedup.

use engine::{Error, Result};
use nvpair::{NvList, NvValue};
use ondisk::{Blkptr, ObjectType};

use super::{Case, Forge, case, directory, itself_below, set, set_word};

pub(super) const CASES: &[Case] = &[
    case("a config of 2^63 bytes", "basic", |f| config_size(f, 1 << 63)),
    case("a config of 64 MiB of holes", "basic", |f| config_size(f, 64 << 20)),
    case("a config that is no list", "basic", |f| {
        let object = directory(f, "config")?;
        f.edit_block(0, object, 0, &mut |block| block.iter_mut().skip(4).for_each(|b| *b ^= 0x55))
    }),
    case("a vdev of 2^62 bytes in metaslabs of 512", "basic", |f| {
        vdev(f, &[("asize", 1 << 62), ("metaslab_shift", 9)])
    }),
    case("a vdev of 2^33 bytes in metaslabs of 512", "basic", |f| {
        vdev(f, &[("asize", 1 << 33), ("metaslab_shift", 9)])
    }),
    case("a vdev with an ashift of 63", "basic", |f| vdev(f, &[("ashift", 63), ("metaslab_shift", 63)])),
    case("a vdev in place 2^40", "basic", |f| vdev(f, &[("id", 1 << 40)])),
    case("metaslabs in the pool's directory", "basic", |f| vdev(f, &[("metaslab_array", 1)])),
    case("a log of what a vdev lacks without end", "mirror3", |f| {
        let map = space_map(f)?;
        space_map_length(f, map, 1 << 62)?;
        vdev(f, &[("DTL", map)])
    }),
    case("a space map of 2^62 bytes", "basic", |f| space_maps(f, 1 << 62)),
    case("space maps that count more than there can be", "basic", |f| {
        let objects = f.mos()?.objects().flatten();
        let maps: Vec<u64> =
            objects.filter(|o| o.dnode.object_type == ObjectType::SPACE_MAP).map(|o| o.number).collect();
        maps.into_iter().try_for_each(|map| {
            f.edit_bonus(0, map, &mut |bonus| {
                set_word(bonus, 16, i64::MAX.cast_unsigned());
                (8..40).for_each(|i| set_word(bonus, 8 * i, u64::MAX));
            })
        })
    }),
    case("a space map of 15 GiB of holes", "basic", |f| space_maps(f, 15 << 30)),
    case("a space map that is one block over and over", "basic", |f| {
        let map = space_map(f)?;
        let object = f.object(0, map)?;
        let data = object.blkptr(0, 0)?.unwrap_or_default();
        itself_below(f, &object, 3, &data)?;
        space_map_length(f, map, 12 << 30)
    }),
    case("a removed vdev that is on itself", "removed", |f| mapping(f, false)),
    case("a removed vdev mapped in circles, one sector at a time", "removed", |f| mapping(f, true)),
    case("a removed vdev of 2^26 mappings", "removed", |f| {
        let object = mapping_object(f)?;
        f.edit_bonus(0, object, &mut |bonus| (0..5).for_each(|i| set_word(bonus, 8 * i, 1 << 26)))?;
        f.edit_dnode(0, object, &mut |dnode| set_word(dnode, 16, 1 << 40))
    }),
    case("blocks to free that are the list itself", "basic", |f| {
        let list = directory(f, "free_bpobj")?;
        let block: Vec<u8> = list.to_le_bytes().repeat(4096 / 8);
        f.edit_bonus(0, list, &mut |bonus| {
            set_word(bonus, 0, 1 << 40);
            set_word(bonus, 40, list);
            set_word(bonus, 48, 1 << 40);
        })?;
        f.put_block(0, list, 0, 0, &block)
    }),
    case("history of 2^63 bytes", "basic", |f| {
        let object = directory(f, "history")?;
        f.edit_bonus(0, object, &mut |bonus| (0..5).for_each(|i| set_word(bonus, 8 * i, 1 << (63 - i))))
    }),
    case("history without a length", "basic", |f| {
        let object = directory(f, "history")?;
        f.edit_block(0, object, 0, &mut |block| block.fill(0xff))
    }),
    case("a dedup table of noise", "dedup-fast", dedup),
    case("a dedup table of noise, before fast dedup", "dedup-legacy", dedup),
    case("a log that goes on where it starts", "unclean-log", |f| log(f, false)),
    case("a log of garbage", "unclean-log", |f| log(f, true)),
    case("an uberblock of a future version", "basic", |f| {
        f.uberblock().version = 4999;
        Ok(())
    }),
    case("an uberblock whose MOS is a file", "basic", |f| {
        let file = f.dataset("tank")?.phys.bp;
        f.uberblock().rootbp = file;
        Ok(())
    }),
    case("a raidz expansion of a disk", "basic", |f| {
        f.uberblock().raidz_reflow_info = u64::MAX;
        Ok(())
    }),
];

fn config_size(forge: &mut Forge, size: u64) -> Result<()> {
    let object = directory(forge, "config")?;
    forge.edit_bonus(0, object, &mut |bonus| set_word(bonus, 0, size))?;
    forge.edit_dnode(0, object, &mut |dnode| set_word(dnode, 16, 1 << 40))
}

/// Changes the first top-level vdev in the MOS's config.
fn vdev(forge: &mut Forge, values: &[(&str, u64)]) -> Result<()> {
    let bad = |e: &dyn std::fmt::Display| Error::corrupt(e.to_string());
    let number = directory(forge, "config")?;
    let mut config = forge.pool.config.clone();
    let mut tree = config.nvlist("vdev_tree").cloned().unwrap_or_default();
    let Some(NvValue::ListArray(tops)) = tree.get("children") else {
        return Err(Error::not_found("children"));
    };
    let mut tops: Vec<NvList> = tops.clone();
    for top in tops.iter_mut().take(1) {
        values.iter().for_each(|(name, value)| {
            top.add(*name, *value);
        });
    }
    tree.add("children", NvValue::ListArray(tops));
    config.add("vdev_tree", NvValue::List(tree));
    let mut packed = config.encode_xdr().map_err(|e| bad(&e))?;
    forge.edit_bonus(0, number, &mut |bonus| set_word(bonus, 0, packed.len() as u64))?;
    let size = usize::try_from(forge.object(0, number)?.dnode.datablksz()).unwrap_or(16384);
    packed.resize(packed.len().next_multiple_of(size), 0);
    for (blkid, block) in packed.chunks(size).enumerate() {
        forge.put_block(0, number, 0, blkid as u64, block)?;
    }
    Ok(())
}

fn space_map(forge: &Forge) -> Result<u64> {
    let maps = forge.mos()?.objects().flatten();
    let mut maps = maps.filter(|o| o.dnode.object_type == ObjectType::SPACE_MAP && o.dnode.used_bytes() > 0);
    maps.next().map(|o| o.number).ok_or_else(|| Error::not_found("no space map"))
}

fn space_map_length(forge: &mut Forge, map: u64, length: u64) -> Result<()> {
    forge.edit_bonus(0, map, &mut |bonus| set_word(bonus, 8, length))?;
    forge.edit_dnode(0, map, &mut |dnode| set_word(dnode, 16, 1 << 40))
}

fn space_maps(forge: &mut Forge, length: u64) -> Result<()> {
    let objects = forge.mos()?.objects().flatten();
    let maps: Vec<u64> =
        objects.filter(|o| o.dnode.object_type == ObjectType::SPACE_MAP).map(|o| o.number).collect();
    maps.into_iter().try_for_each(|map| space_map_length(forge, map, length))
}

fn mapping_object(forge: &Forge) -> Result<u64> {
    let tree = forge.pool.tree();
    let removed = tree.config.children.iter().map(|c| c.indirect_object).find(|&n| n != 0);
    removed.ok_or_else(|| Error::not_found("no removed vdev"))
}

/// Maps the removed vdev onto itself; with `split`, in two pieces of which the second starts a sector on.
fn mapping(forge: &mut Forge, split: bool) -> Result<()> {
    let object = mapping_object(forge)?;
    let tree = forge.pool.tree();
    let id = tree.config.children.iter().find(|c| c.indirect_object == object).map_or(0, |c| c.id);
    let mut table = Vec::new();
    let mut entry = |source: u64, target: u64, len: u64| {
        // Source offset in sectors, then a DVA of the target.
        table.extend((source / 512).to_le_bytes());
        table.extend(((id << 32) | (len / 512)).to_le_bytes());
        table.extend((target / 512).to_le_bytes());
    };
    let step = 1 << 20;
    for i in 0..90 {
        let at = i * step;
        match split {
            false => entry(at, at, step),
            true => {
                entry(at, at, 512);
                entry(at + 512, at, step - 512);
            }
        }
    }
    let count = table.len() as u64 / 24;
    forge.edit_bonus(0, object, &mut |bonus| {
        set_word(bonus, 0, count);
        set_word(bonus, 8, 90 * step);
    })?;
    let size = usize::try_from(forge.object(0, object)?.dnode.datablksz()).unwrap_or(512);
    table.resize(table.len().next_multiple_of(size), 0);
    let blocks = table.len() / size;
    forge.edit_dnode(0, object, &mut |dnode| set_word(dnode, 16, blocks as u64 - 1))?;
    (0..).zip(table.chunks(size)).try_for_each(|(blkid, block)| forge.put_block(0, object, 0, blkid, block))
}

/// Replaces values of the dedup tables by noise, and keeps their names.
fn dedup(forge: &mut Forge) -> Result<()> {
    let objects = forge.mos()?.objects().flatten();
    let tables: Vec<_> = objects.filter(|o| o.dnode.object_type == ObjectType::DDT_ZAP).collect();
    let mut rng = stdx::rng::Rng::new(7);
    for table in tables {
        for blkid in 1..=table.dnode.maxblkid.min(20) {
            forge.edit_block(0, table.number, blkid, &mut |block| {
                let start = 48 + block.len() / 16;
                let chunks = block.get_mut(start..).unwrap_or_default().chunks_exact_mut(24);
                chunks
                    .filter(|c| c.first() == Some(&251))
                    .for_each(|c| rng.fill(c.get_mut(1..22).unwrap_or_default()));
            })?;
        }
    }
    Ok(())
}

/// A log whose blocks claim to follow themselves, or whose records are garbage.
fn log(forge: &mut Forge, garbage: bool) -> Result<()> {
    let dataset = forge.dataset("tank")?;
    let objset = forge.objset(dataset.number)?;
    let header = objset.phys.zil_header.log;
    let mut chain = engine::zil::chain(&objset);
    let bp = chain.next().map_or(header, |b| b.bp);
    let size = usize::try_from(bp.psize()).unwrap_or(4096);
    let at = forge.alloc(size)?;
    let mut words = *bp.words();
    let new = forge.pointer(at, size, bp.object_type(), 0);
    words[0] = new.words()[0];
    words[1] = new.words()[1];
    // A log's checksum cannot be off: its trailer is corrected for the words of the pointer.
    let bp = Blkptr::from_words(words);
    let mut block = vec![if garbage { 0xa5 } else { 0 }; size];
    set_word(&mut block, 0, 0);
    set(&mut block, 8, &bp.to_bytes());
    set_word(&mut block, 8 + 128, size as u64);
    let eck = 8 + 128 + 8;
    let trailer = |cksum| ondisk::Eck { endian: ondisk::Endian::Little, cksum }.to_bytes();
    set(&mut block, eck, &trailer(bp.checksum_words()));
    let sum = checksum::digest(checksum::Algorithm::Fletcher4, &block, None, false);
    set(&mut block, eck, &trailer(sum));
    forge.write(at, &block)?;
    forge.edit_objset(dataset.number, &mut |root| set(root, 512 + 16, &bp.to_bytes()))
}
