//! Targets of fuzzers: each accepts any bytes and must return soon and without panic.
//!
//! `fuzz/` wraps them for libFuzzer; the test `hostile` runs them over mutated seeds in bounded time.

mod edit;

pub use edit::{sa_edit, zap_edit};

use blkdev::MemDevice;
use compress::Algorithm;
use crypt::{KeyFormat, Pbkdf2, Suite, WrappedKey, WrappingKey};
use nvpair::NvList;
use ondisk::*;

use crate::hostile::forge::{seal, set};

/// A target: its name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All decoders. `whole_image` is [`crate::hostile::exercise`]'s.
pub const ALL: &[Target] = &[
    ("nvlist", nvlist),
    ("label", label),
    ("blkptr", blkptr),
    ("dnode", dnode),
    ("objset", objset),
    ("zap", zap),
    ("zap_edit", zap_edit),
    ("sa", sa),
    ("sa_edit", sa_edit),
    ("acl", acl),
    ("zil", zil),
    ("space_map", space_map),
    ("bpobj", bpobj),
    ("ddt", ddt),
    ("drr", drr),
    ("decompress", decompress),
    ("gang", gang),
    ("indirect", indirect),
    ("bookmark", bookmark),
    ("history", history),
    ("key", key),
    ("swap", swap),
];

/// The target of that name.
pub fn run(name: &str, bytes: &[u8]) {
    ALL.iter().filter(|(n, _)| *n == name).for_each(|(_, target)| target(bytes));
}

/// Packed name-value lists, native and XDR; decoded lists are encoded again.
pub fn nvlist(bytes: &[u8]) {
    if let Ok(list) = NvList::decode(bytes) {
        let _ = list.encode_native().map(|packed| NvList::decode(&packed).is_ok());
        let _ = (list.encode_xdr(), format!("{list:?}").len());
    }
}

/// A device's labels, sealed so that the decoder after the checksum is reached, and its uberblocks.
pub fn label(bytes: &[u8]) {
    let mut device = vec![0; 1 << 20];
    let sealed = bytes.first().is_some_and(|b| b & 1 == 1);
    let body = bytes.get(1..).unwrap_or_default();
    let at = label::PHYS_OFFSET;
    let (start, len) = (at as usize, label::PHYS_SIZE as usize);
    if let Some(block) = device.get_mut(start..start + len) {
        set(block, 0, body);
        if sealed {
            seal(block, label::label_verifier(at));
        }
    }
    set(&mut device, label::RING_OFFSET as usize, body);
    if let Some(slot) = device.get_mut(label::RING_OFFSET as usize..).and_then(|r| r.get_mut(..1024)) {
        seal(slot, label::label_verifier(label::RING_OFFSET));
    }
    let device = MemDevice::new("m", device);
    let labels = zutil::DeviceLabels::read(&device);
    let _ = (labels.best().map(NvList::len), labels.others(), labels.ashift());
    if let Some(config) = labels.best().and_then(|c| c.nvlist("vdev_tree")) {
        let _ = engine::vdev::config::VdevConfig::parse(config);
    }
    zutil::ring::read_uberblocks(&device, Some(10));
    let _ = bootenv::Bootenv::from_bytes(body);
}

/// Block pointers: checked, and printed in every form.
pub fn blkptr(bytes: &[u8]) {
    for raw in bytes.chunks(128) {
        let Some(bp) = Blkptr::from_bytes(raw) else { continue };
        let limits = BlkptrLimits { vdev_asize: Some(&[1 << 30, 0]), ..BlkptrLimits::default() };
        let _ = (bp.verify(&BlkptrLimits::default()), bp.verify(&limits), bp.to_string());
        let _ = (bp.compact(true), bp.compact(false), bp.asize(), bp.mac(), bp.embedded_payload());
    }
}

/// A block of dnodes.
pub fn dnode(bytes: &[u8]) {
    for (_, slot) in dnode::slots(bytes) {
        if let Ok(dnode) = Dnode::from_bytes(slot) {
            let mut out = vec![0; dnode.size()];
            dnode.write_to(&mut out);
            let _ = (dnode.max_offset(), dnode.used_bytes(), dnode.indirect_size(), dnode.datablkshift());
        }
    }
}

/// The root block of an object set; bonus buffers of the dsl.
pub fn objset(bytes: &[u8]) {
    let _ = Objset::from_bytes(bytes);
    let _ = (dsl::DslDir::from_bytes(bytes), dsl::DslDataset::from_bytes(bytes));
    let _ = (
        dsl::RedactionList::from_bytes(bytes),
        dsl::Deadlist::from_bytes(bytes),
        dsl::Bptree::from_bytes(bytes),
    );
}

/// Micro ZAPs, headers and leaves of fat ones.
pub fn zap(bytes: &[u8]) {
    if let Ok(micro) = zap::MicroZap::from_bytes(bytes) {
        let _ = (micro.sorted(|n| n).len(), micro.find(b"x"));
    }
    if let Ok(fat) = zap::FatHeader::from_bytes(bytes) {
        let _ = (fat.ptr_location(0), fat.ptr_location(u64::MAX), fat.ptr_location(fat.ptrtbl_len() / 2));
    }
    let Ok(leaf) = zap::Leaf::from_bytes(bytes) else { return };
    for entry in leaf.entries().flatten().take(200) {
        let _ = (leaf.name(&entry), leaf.value_ints(&entry), leaf.key_words(&entry));
        let _ = (leaf.name_is(&entry, b"x"), leaf.lookup(entry.hash).count());
    }
    let _ = leaf.sorted();
}

/// System attributes, and the znodes before them.
pub fn sa(bytes: &[u8]) {
    let (head, body) = bytes.split_at_checked(8).unwrap_or((&[], bytes));
    let attr = |(num, &len): (u16, &u8)| {
        let len = if len & 1 == 0 { 0 } else { u16::from(len) };
        let attr = sa::SaAttr::from_registry(u64::from(num) | u64::from(len) << 24);
        attr.unwrap_or(sa::SaAttr { num, len, byteswap: sa::SaByteswap::Acl })
    };
    let layout: Vec<sa::SaAttr> = (0..).zip(head).map(attr).collect();
    if let Ok(header) = sa::SaHeader::from_bytes(body) {
        let _ = header.attrs(&layout).count();
    }
    let _ = (sa::to_little_endian(&mut body.to_vec(), &layout), ZnodePhys::from_bonus(body).is_ok());
}

/// Access control lists of both versions.
pub fn acl(bytes: &[u8]) {
    for version in 0..2 {
        let _ = acl::decode_aces(bytes, version, u32::MAX);
    }
    for endian in [Endian::Little, Endian::Big] {
        let _ = zil::decode_log_aces(bytes, endian);
    }
}

/// Intent-log blocks of both kinds and orders, and every record.
pub fn zil(bytes: &[u8]) {
    for (checksum, little) in [(5_u64, 0_u64), (5, 1), (9, 0), (9, 1)] {
        let mut words = [0; 16];
        words[6] = checksum << 40 | little << 63;
        if let Ok(block) = zil::LogBlock::from_bytes(bytes, &Blkptr::from_words(words)) {
            let _ = block.records().count();
        }
    }
    for txtype in 0..26 {
        for endian in [Endian::Little, Endian::Big] {
            let _ = zil::LogRecord::decode(zil::TxType(txtype), bytes, endian);
        }
    }
}

/// Space maps of one metaslab, and logs of many.
pub fn space_map(bytes: &[u8]) {
    let shift = bytes.first().map_or(9, |b| u32::from(*b));
    let _ = space_map::SpaceMapDecoder::new(shift, 0, 1 << 40).entries(bytes).count();
    let _ = space_map::SpaceMapDecoder::new(9, u64::MAX, u64::MAX).entries(bytes).count();
    let _ = space_map::SpaceMapDecoder::for_log().raw(bytes).count();
    let _ = space_map::SpaceMapPhys::from_bytes(bytes);
}

/// Headers of block lists.
pub fn bpobj(bytes: &[u8]) {
    let _ = (bpobj::Bpobj::from_bonus(bytes), dsl::BptreeEntry::from_bytes(bytes));
}

/// Dedup table values and logs, both kinds.
pub fn ddt(bytes: &[u8]) {
    for flat in [false, true] {
        for value in ddt::decode_value(flat, bytes).into_iter().flatten() {
            let _ = (value.dvas(true).count(), value.dvas(false).count());
        }
        let _ = ddt::log_entries(flat, bytes).count();
    }
    let _ = (ddt::decompress_value(bytes, 256), ddt::decompress_value(bytes, 1 << 16));
}

/// Records of send streams.
pub fn drr(bytes: &[u8]) {
    for raw in bytes.chunks(312) {
        for endian in [Endian::Little, Endian::Big] {
            if let Ok(record) = drr::Drr::from_bytes(raw, endian) {
                let _ = (record.payload_size(), record.to_bytes(endian).len());
            }
        }
    }
}

/// Each decompressor.
pub fn decompress(bytes: &[u8]) {
    let (head, body) = bytes.split_at_checked(2).unwrap_or((&[0, 0], bytes));
    let all =
        [Algorithm::Lzjb, Algorithm::Gzip, Algorithm::Zle, Algorithm::Lz4, Algorithm::Zstd, Algorithm::Off];
    let pick = head.first().map_or(0, |b| usize::from(*b));
    let size = 512 * (1 + head.get(1).map_or(0, |b| usize::from(*b)));
    let mut out = vec![0; size];
    if let Some(algorithm) = all.get(pick % all.len()) {
        let _ = compress::decompress(*algorithm, body, &mut out);
    }
}

/// Gang headers.
pub fn gang(bytes: &[u8]) {
    if let Ok(header) = gang::GangHeader::from_bytes(bytes) {
        let _ = header.members().map(Blkptr::psize).fold(0, u64::saturating_add);
    }
    let _ = Eck::from_trailer(bytes);
}

/// Mappings of removed vdevs, looked up at their own entries.
pub fn indirect(bytes: &[u8]) {
    use engine::vdev::indirect::{IndirectMapping, MappingEntry};
    let _ = indirect::IndirectMapping::from_bytes(bytes);
    let mut mapping = IndirectMapping::default();
    for raw in bytes.chunks_exact(24) {
        let Ok(phys) = indirect::IndirectMappingEntryPhys::from_bytes(raw) else { continue };
        let entry = indirect::IndirectMappingEntry::from(phys);
        let (vdev, offset, len) = (u64::from(entry.dst.vdev), entry.dst.offset, entry.dst.asize);
        let _ = mapping.push(MappingEntry { source: entry.src_offset, vdev, offset, len });
        let _ = (mapping.resolve(entry.src_offset, len), mapping.resolve(entry.src_offset, 1 << 24));
    }
}

/// Bookmarks and entries of the error log.
pub fn bookmark(bytes: &[u8]) {
    let _ = (Bookmark::from_name(bytes), ErrBookmark::from_name(bytes));
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let _ = dsl::ZfsBookmark::from_words(&words);
    let _ = (l2arc::L2arcDevHdr::from_either(bytes), l2arc::decode_log_block(bytes));
}

/// The pool's history.
pub fn history(bytes: &[u8]) {
    for record in pool::history_records(bytes).flatten() {
        let _ = NvList::decode(record);
    }
    if let Ok(head) = pool::SpaHistory::from_bytes(bytes) {
        let _ = (head.log_to_phys(0), head.log_to_phys(u64::MAX));
    }
}

/// Keys: the user's input, and their stored form.
pub fn key(bytes: &[u8]) {
    for format in [KeyFormat::Raw, KeyFormat::Hex, KeyFormat::Passphrase] {
        let material = crypt::read_material(format, bytes);
        let _ = WrappingKey::derive(format, &material, Some(Pbkdf2 { salt: 1, iters: 1 }));
    }
    let mut stored = WrappedKey {
        suite: Suite::from_id(3).unwrap_or(Suite::Aes256Gcm),
        guid: 1,
        version: 1,
        iv: Default::default(),
        mac: Default::default(),
        master: [0; _],
        hmac: [0; _],
    };
    let (head, rest) = bytes.split_at_checked(1).unwrap_or((&[3], bytes));
    stored.suite = Suite::from_id(head.first().map_or(3, |b| u64::from(*b))).unwrap_or(stored.suite);
    set(&mut stored.master, 0, rest);
    set(&mut stored.hmac, 0, rest.get(32..).unwrap_or_default());
    set(&mut stored.iv, 0, rest.get(96..).unwrap_or_default());
    set(&mut stored.mac, 0, rest.get(108..).unwrap_or_default());
    let _ = stored.unwrap_with(&WrappingKey::from_bytes([7; 32]));
}

/// Swaps of the byte order, by every kind of object.
pub fn swap(bytes: &[u8]) {
    let (kind, body) = bytes.split_first().unwrap_or((&0, bytes));
    let mut copy = body.to_vec();
    let _ = byteswap::swap_block(ObjectType(*kind), 0, &mut copy);
    dnode(&copy);
    zap(&copy);
}
