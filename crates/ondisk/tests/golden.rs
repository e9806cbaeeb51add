//! Blocks that OpenZFS wrote, decoded; the expected values are those printed by zdb 2.3.2.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use ondisk::drr::{Drr, DrrBody, stream_feature};
use ondisk::sa::{SaAttr, SaByteswap, SaHeader};
use ondisk::zap::{Leaf, MicroZap, ZapFlags, hash_name};
use ondisk::zil::{LogBlock, LogRecord};
use ondisk::{
    Blkptr, BlkptrLimits, Byteswap, Dnode, DnodeFlags, Eck, Endian, ObjectType, Objset, ObjsetType,
    Uberblock, ZnodePhys, byteswap, dnode,
};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("data/", $name, ".bin")).to_vec()
    };
}

#[test]
fn uberblock_and_root_pointer() {
    let raw = data!("uberblock");
    let ub = Uberblock::from_bytes(&raw).unwrap();
    assert_eq!((ub.endian, ub.version, ub.txg, ub.timestamp), (Endian::Little, 5000, 9, 1_795_218_191));
    assert_eq!(
        ub.rootbp.to_string(),
        "DVA[0]=<0:17200:200> DVA[1]=<0:1017200:200> DVA[2]=<0:2012400:200> [L0 DMU objset] fletcher4 lz4 \
         unencrypted LE contiguous unique triple size=1000L/200P birth=9L/9P fill=46 \
         cksum=00000008ff330c5e:000003b4b3694b28:0000c6d98224ddb7:001c47d0ea7d69f4"
    );
    assert!(ub.mmp_valid() && ub.mmp_delay == 0 && ub.checkpoint_txg == 0);
    ub.rootbp.verify(&BlkptrLimits::default()).unwrap();
    assert_eq!(ub.to_bytes(), raw[..Uberblock::SIZE]);
    assert_eq!(Eck::from_trailer(&raw).unwrap().endian, Endian::Little);
}

#[test]
fn uberblock_of_the_other_byte_order() {
    let raw = data!("be-uberblock");
    let ub = Uberblock::from_bytes(&raw).unwrap();
    assert_eq!((ub.endian, ub.version, ub.txg), (Endian::Big, 3, 9));
    assert!(
        ub.rootbp
            .to_string()
            .contains("[L0 DMU objset] fletcher4 lzjb unencrypted BE contiguous unique triple")
    );
    assert_eq!(ub.to_bytes(), raw[..Uberblock::SIZE]);
    assert_eq!(Eck::from_trailer(&raw).unwrap().endian, Endian::Big);
}

#[test]
fn objset_with_every_accounting_dnode() {
    let objset = Objset::from_bytes(&data!("objset")).unwrap();
    assert_eq!((objset.objset_type, objset.flags.0), (ObjsetType::Zfs, 7));
    let meta = &objset.meta_dnode;
    assert_eq!((meta.nlevels, meta.nblkptr(), meta.maxblkid, meta.used_bytes()), (6, 3, 88, 192_512));
    assert_eq!(
        meta.blkptrs()[0].compact(true),
        "0:354aa00:400 0:12c5800:400 20000L/400P F=2301 B=75/75 \
         cksum=00000087956133d9:00005c77ed7dcd0a:002157366a14e7b7:0869ad017d6c7d91"
    );
    for dnode in [&objset.userused, &objset.groupused, &objset.projectused] {
        assert_eq!(dnode.as_ref().unwrap().object_type, ObjectType::USERGROUP_USED);
    }
    let projectused = objset.projectused.unwrap().blkptrs()[0];
    assert_eq!(projectused.compact(true), "EMBEDDED et=0 200L/3eP B=59");
    assert!(projectused.is_embedded() && projectused.psize() == 0 && projectused.fill() == 1);
}

/// Some layout of a plain file; the numbers are this dataset's.
fn layout() -> Vec<SaAttr> {
    let words = |num, len| SaAttr { num, len, byteswap: SaByteswap::Uint64Array };
    vec![words(5, 8), words(6, 8), words(4, 8), words(12, 8), words(13, 8), words(7, 8), words(11, 8)]
}

#[test]
fn dnode_of_a_file_with_system_attributes() {
    let raw = data!("dnode");
    let dnode = Dnode::from_bytes(&raw).unwrap();
    assert_eq!((dnode.object_type, dnode.bonustype), (ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA));
    assert_eq!((dnode.datablksz(), dnode.used_bytes(), dnode.bonus().len()), (131_072, 1024, 176));
    assert!(dnode.flags.has(DnodeFlags::USEROBJUSED_ACCOUNTED) && dnode.spill().is_none());
    let header = SaHeader::from_bytes(dnode.bonus()).unwrap();
    let layout = layout();
    let attrs: Vec<u64> =
        header.attrs(&layout).map(|a| u64::from_le_bytes(a.unwrap().1.try_into().unwrap())).collect();
    // mode, size, gen, uid, gid, parent, flags
    assert_eq!(attrs, [0o100_644, 131_072, 10, 0, 0, 2, 0x8408_0000_0004]);
    let mut out = vec![0xff; 512];
    assert!(dnode.write_to(&mut out));
    assert_eq!(out, raw);
}

#[test]
fn micro_zap_in_cursor_order() {
    let raw = data!("microzap");
    let zap = MicroZap::from_bytes(&raw).unwrap();
    let all: Vec<_> = zap.sorted(|n| n).into_iter().map(|(_, e)| (e.name, e.value)).collect();
    let expected: [(&[u8], u64); 7] = [
        (b"ROOT", 34),
        (b"utf8only", 0),
        (b"DELETE_QUEUE", 33),
        (b"SA_ATTRS", 32),
        (b"casesensitivity", 0),
        (b"VERSION", 5),
        (b"normalization", 0),
    ];
    assert_eq!(all, expected);
}

#[test]
fn fat_zap_leaf() {
    let raw = data!("zap-leaf");
    let leaf = Leaf::from_bytes(&raw).unwrap();
    let entries = leaf.sorted();
    assert_eq!(entries.len(), usize::from(leaf.header().nentries));
    for entry in &entries {
        let name = leaf.name(entry).unwrap();
        assert_eq!(hash_name(0x871_9e65, &name, ZapFlags(0)), entry.hash);
        assert!(leaf.name_is(entry, &name) && !leaf.name_is(entry, &name[1..]));
        assert!(leaf.lookup(entry.hash).any(|found| found.as_ref() == Ok(entry)));
    }
    let first = &entries[0];
    assert_eq!(leaf.name(first).unwrap(), b"big");
    // A directory entry: file type 4 in the high bits, object 7.
    assert_eq!(leaf.value_ints(first).unwrap(), [4 << 60 | 7]);
}

fn log_pointer(little: bool) -> Blkptr {
    let prop = 9 << 40 | u64::from(little) << 63;
    let guids = [0xa47d_b217_f294_e2d1, 0xb2ba_1d7d_ea31_845a, 0x36, 0x25];
    let mut words = [0; 16];
    words[6] = prop;
    words[12..].copy_from_slice(&guids);
    Blkptr::from_words(words)
}

#[test]
fn intent_log_block() {
    let raw = data!("zil");
    let bp = log_pointer(true);
    let block = LogBlock::from_bytes(&raw, &bp).unwrap();
    assert_eq!((LogBlock::sequence(&bp), LogBlock::objset(&bp), block.chain.nused), (0x25, 0x36, 880));
    let records: Vec<_> = block.records().map(|(head, r)| (head.seq, r.unwrap())).collect();
    assert_eq!(records.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), (235..=241).collect::<Vec<_>>());
    let LogRecord::Create(mkdir) = &records[0].1 else { panic!() };
    assert_eq!((mkdir.name, mkdir.lr.doid, mkdir.lr.mode), (&b"dir"[..], 34, 0o40_755));
    let LogRecord::Write(write) = &records[2].1 else { panic!() };
    assert_eq!((write.lr.foid, write.data), (10, Some(&b"in\n"[..])));
    let LogRecord::Rename(rename) = &records[3].1 else { panic!() };
    assert_eq!((rename.source, rename.target), (&b"f"[..], &b"g"[..]));
    let LogRecord::Create(symlink) = &records[4].1 else { panic!() };
    assert_eq!((symlink.name, symlink.link), (&b"s"[..], Some(&b"t"[..])));
    let LogRecord::Link(link) = &records[5].1 else { panic!() };
    assert_eq!((link.name, link.lr.link_obj), (&b"h"[..], 10));
    let LogRecord::Remove(remove) = &records[6].1 else { panic!() };
    assert_eq!(remove.name, b"sync-3");
}

#[test]
fn an_intent_log_block_of_another_chain_is_refused() {
    let raw = data!("zil");
    assert!(LogBlock::from_bytes(&raw, &log_pointer(false)).is_err());
    let mut words = *log_pointer(true).words();
    words[15] += 1;
    assert!(LogBlock::from_bytes(&raw, &Blkptr::from_words(words)).is_err());
}

#[test]
fn stream_begin() {
    let raw = data!("stream-begin");
    let endian = Drr::detect(&raw).unwrap();
    let drr = Drr::from_bytes(&raw, endian).unwrap();
    let DrrBody::Begin(begin) = drr.body else { panic!() };
    assert_eq!(begin.name(), b"tank/src@b");
    use stream_feature as f;
    assert_eq!(begin.features(), f::SA_SPILL | f::EMBED_DATA | f::LZ4 | f::COMPRESSED);
    assert_eq!(drr.to_bytes(endian), raw);
}

#[test]
fn big_endian_objset() {
    let mut raw = data!("be-objset");
    byteswap::swap(Byteswap::Objset, &mut raw);
    let objset = Objset::from_bytes(&raw).unwrap();
    assert_eq!((objset.objset_type, objset.meta_dnode.nlevels), (ObjsetType::Zfs, 7));
    assert_eq!(objset.userused, None);
    let bp = objset.meta_dnode.blkptrs()[0];
    assert!(
        bp.to_string().starts_with("DVA[0]=<0:20c00:400> DVA[1]=<0:1220c00:400> DVA[2]=<0:2417c00:400> [L6")
    );
    assert!(bp.should_byteswap());
}

#[test]
fn big_endian_dnodes_with_a_znode() {
    let mut raw = data!("be-dnodes");
    byteswap::dnodes(&mut raw);
    let dnodes: Vec<_> = dnode::slots(&raw).map(|(_, b)| Dnode::from_bytes(b).unwrap()).collect();
    assert!(dnodes[0].is_free());
    assert_eq!(dnodes[1].object_type, ObjectType::MASTER_NODE);
    let root = &dnodes[3];
    assert_eq!((root.object_type, root.bonustype), (ObjectType::DIRECTORY_CONTENTS, ObjectType::ZNODE));
    let (znode, rest) = ZnodePhys::from_bonus(root.bonus()).unwrap();
    assert_eq!((znode.mode.get(), znode.links.get(), znode.parent.get()), (0o40_755, 2, 3));
    assert_eq!((znode.mtime[0].get(), rest.len()), (1_161_940_429, 0));
    let acl = &znode.acl;
    let aces = ondisk::acl::decode_aces(&acl.ace_data, acl.version.get(), acl.ace_count()).unwrap();
    assert_eq!(aces.len(), 6);
    assert_eq!((aces[1].flags, aces[1].access_mask), (ondisk::acl::ace_flags::OWNER, 786_743));
}

#[test]
fn big_endian_micro_zap() {
    let mut raw = data!("be-master-node");
    byteswap::zap(&mut raw);
    let zap = MicroZap::from_bytes(&raw).unwrap();
    let value = |name: &[u8]| zap.find(name).map(|e| e.value);
    assert_eq!([value(b"ROOT"), value(b"DELETE_QUEUE"), value(b"VERSION")], [Some(3), Some(2), Some(1)]);
}

#[test]
fn a_leaf_swapped_twice_is_itself() {
    let raw = data!("zap-leaf");
    let mut swapped = raw.clone();
    byteswap::words(&mut swapped[..8], byteswap::IntWidth::U64);
    let head: [u8; 8] = swapped[..8].try_into().unwrap();
    // The form that a big-endian machine would have written: swap all but the mark, which identifies the
    // kind.
    swapped = raw.clone();
    swapped[..8].copy_from_slice(&head);
    byteswap::zap(&mut swapped);
    let mut again = swapped.clone();
    again[..8].copy_from_slice(&head);
    byteswap::zap(&mut again);
    assert_eq!(again, raw);
    assert_ne!(swapped, raw);
}
