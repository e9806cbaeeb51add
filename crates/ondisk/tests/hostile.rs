//! No bytes make a decoder or a byte swap panic, and none makes it run or allocate without bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::indexing_slicing, reason = "a test")]

use ondisk::*;
use proptest::prelude::*;

const SEEDS: &[&[u8]] = &[
    include_bytes!("data/objset.bin"),
    include_bytes!("data/dnode.bin"),
    include_bytes!("data/microzap.bin"),
    include_bytes!("data/zap-leaf.bin"),
    include_bytes!("data/zil.bin"),
    include_bytes!("data/uberblock.bin"),
    include_bytes!("data/stream-begin.bin"),
    include_bytes!("data/be-objset.bin"),
    include_bytes!("data/be-dnodes.bin"),
    include_bytes!("data/be-master-node.bin"),
    include_bytes!("data/be-uberblock.bin"),
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (
        0..SEEDS.len(),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        0..4usize,
    )
        .prop_map(|(seed, edits, cut)| {
            let mut bytes = SEEDS[seed].to_vec();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let len = if cut == 0 { bytes.len() / 3 } else { bytes.len() };
            bytes.truncate(len);
            bytes
        });
    prop_oneof![damaged, prop::collection::vec(any::<u8>(), 0..2048)]
}

fn decode_pointers(b: &[u8]) {
    if let Some(bp) = Blkptr::from_bytes(b) {
        let _ = (bp.to_string(), bp.compact(true), bp.compact(false), bp.asize(), bp.mac(), bp.iv_bytes());
        let _ = (bp.verify(&BlkptrLimits::default()), bp.embedded_payload(), bp.same_block(&bp));
        let limits = BlkptrLimits { vdev_asize: Some(&[1 << 30, 0]), ..Default::default() };
        let _ = bp.verify(&limits);
        assert_eq!(Blkptr::from_bytes(&bp.to_bytes()), Some(bp));
    }
    if let Ok(ub) = Uberblock::from_bytes(b) {
        assert_eq!(&ub.to_bytes()[..], &b[..Uberblock::SIZE]);
    }
    let _ = (Eck::from_trailer(b), gang::GangHeader::from_bytes(b), bootenv::Bootenv::from_bytes(b));
}

fn decode_objects(b: &[u8]) {
    let _ = Objset::from_bytes(b);
    for (_, slot) in dnode::slots(b) {
        if let Ok(dn) = Dnode::from_bytes(slot) {
            let mut out = vec![0; dn.size()];
            assert!(dn.write_to(&mut out));
            let _ = (dn.max_offset(), dn.used_bytes(), dn.indirect_size(), dn.datablkshift());
        }
    }
    let attr = |num, len| sa::SaAttr { num, len, byteswap: sa::SaByteswap::Acl };
    let layout = [attr(1, 8), attr(2, 0), attr(3, 88), attr(4, 0)];
    if let Ok(header) = sa::SaHeader::from_bytes(b) {
        let _ = header.attrs(&layout).count();
    }
    let _ = sa::to_little_endian(&mut b.to_vec(), &layout);
    let _ = ZnodePhys::from_bonus(b);
    for version in 0..2 {
        let _ = acl::decode_aces(b, version, u32::MAX);
    }
}

fn decode_zaps(b: &[u8]) {
    if let Ok(zap) = zap::MicroZap::from_bytes(b) {
        let _ = zap.sorted(|n| n);
    }
    if let Ok(fat) = zap::FatHeader::from_bytes(b) {
        let _ = (fat.ptr_location(0), fat.ptr_location(fat.ptrtbl_len() - 1), fat.ptr_location(u64::MAX));
    }
    if let Ok(leaf) = zap::Leaf::from_bytes(b) {
        for entry in leaf.entries().flatten() {
            let _ = (leaf.name(&entry), leaf.value_ints(&entry), leaf.key_words(&entry));
            let _ = (leaf.name_is(&entry, b"x"), leaf.covers(entry.hash));
            let _ = leaf.lookup(entry.hash).count();
        }
    }
}

fn decode_logs(b: &[u8]) {
    for checksum in [5u64, 9] {
        for little in [0u64, 1] {
            let mut words = [0; 16];
            words[6] = checksum << 40 | little << 63;
            words[12..].copy_from_slice(&[0xa47d_b217_f294_e2d1, 0xb2ba_1d7d_ea31_845a, 0x36, 0x25]);
            if let Ok(block) = zil::LogBlock::from_bytes(b, &Blkptr::from_words(words)) {
                let _ = block.records().count();
            }
        }
    }
    for txtype in 0..26 {
        for endian in [Endian::Little, Endian::Big] {
            let _ = zil::LogRecord::decode(zil::TxType(txtype), b, endian);
            let _ = zil::decode_log_aces(b, endian);
        }
    }
    for endian in [Endian::Little, Endian::Big] {
        if let Ok(drr) = drr::Drr::from_bytes(b, endian) {
            let _ = (drr.payload_size(), drr.to_bytes(endian).len());
        }
    }
}

fn decode_others(b: &[u8]) {
    let _ = space_map::SpaceMapDecoder::new(9, 0, 1 << 40).entries(b).count();
    let _ = space_map::SpaceMapDecoder::new(200, u64::MAX, u64::MAX).entries(b).count();
    let _ = space_map::SpaceMapDecoder::for_log().raw(b).count();
    let _ = (bpobj::Bpobj::from_bonus(b), dsl::DslDir::from_bytes(b), dsl::DslDataset::from_bytes(b));
    let _ = (dsl::RedactionList::from_bytes(b), Bookmark::from_name(b), ErrBookmark::from_name(b));
    let _ = (l2arc::L2arcDevHdr::from_either(b), l2arc::decode_log_block(b));
    for flat in [false, true] {
        let _ = (ddt::decode_value(flat, b), ddt::log_entries(flat, b).count());
    }
    let _ = ddt::decompress_value(b, 256);
    let _ = pool::history_records(b).count();
    if let Ok(history) = pool::SpaHistory::from_bytes(b) {
        let _ = (history.log_to_phys(0), history.log_to_phys(u64::MAX));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn decoders_take_any_bytes(b in bytes()) {
        decode_pointers(&b);
        decode_objects(&b);
        decode_zaps(&b);
        decode_logs(&b);
        decode_others(&b);
    }

    #[test]
    fn swaps_take_any_bytes(b in bytes()) {
        for raw in 0..10 {
            let mut copy = b.clone();
            byteswap::swap(Byteswap::from_raw(raw).unwrap(), &mut copy);
            decode_objects(&copy);
            decode_zaps(&copy);
        }
        for raw in 0..=255 {
            let mut copy = b.clone();
            let known = byteswap::swap_block(ObjectType(raw), 0, &mut copy);
            prop_assert_eq!(known, ObjectType(raw).is_valid());
        }
    }

    #[test]
    fn dvas_round_trip(w0: u64, w1: u64) {
        // Offsets of 2^64 bytes and more don't exist.
        let w1 = w1 & !(0x1ff << 54);
        prop_assert_eq!(Dva::from_words(w0, w1).to_words(), [w0, w1]);
    }
}
