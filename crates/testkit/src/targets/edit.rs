//! Changes of structures with arbitrary bytes.

use engine::dmu::edit::{Edit, MemObject};
use engine::sa::{SaAttrs, SaTables};
use engine::zap::{KeyRef, Match, Value, ZapEdit};
use ondisk::zap::{BlockKind, LeafArray, LeafMut, NewEntry};
use stdx::AlignedBuf;

/// Any bytes as a leaf, a micro ZAP, or a fat ZAP with valid leaves after an arbitrary header: entries are added,
/// changed, removed.
pub fn zap_edit(bytes: &[u8]) {
    let size = bytes.len().clamp(512, 1 << 16);
    let size =
        if BlockKind::of(bytes) == BlockKind::Micro { size / 512 * 512 } else { size.next_power_of_two() };
    let mut block = AlignedBuf::zeroed(size);
    for (to, from) in block.iter_mut().zip(bytes) {
        *to = *from;
    }
    if BlockKind::of(bytes) == BlockKind::Leaf {
        leaf(&mut block);
        return;
    }
    let mut object = MemObject::new(1, u64::try_from(size).unwrap_or(512));
    if BlockKind::of(bytes) == BlockKind::Header {
        for blkid in 1..3 {
            let mut leaf = AlignedBuf::zeroed(size);
            let _ = (LeafMut::init(&mut leaf, false).is_ok(), object.write_block(blkid, leaf));
        }
    }
    let _ = object.write_block(0, block);
    edit(&mut object);
}

fn leaf(block: &mut [u8]) {
    let mut other = vec![0; block.len()];
    let Ok(mut new) = LeafMut::init(&mut other, true) else { return };
    if let Ok(mut leaf) = LeafMut::from_bytes(block) {
        for chunk in 0..40u16 {
            let name = LeafArray { intlen: 1, bytes: &[b'x'; 30] };
            let value = LeafArray { intlen: 8, bytes: &[7; 64] };
            let hash = u64::from(chunk) << 40;
            let _ = leaf.insert(&NewEntry { hash, cd: None, name, value });
            let _ = (leaf.set_value(chunk, value), leaf.remove(chunk));
        }
        let _ = leaf.split(&mut new, true);
    }
    for block in [&*block, &other] {
        let _ = ondisk::zap::Leaf::from_bytes(block).map(|leaf| leaf.verify(false).is_ok());
    }
}

fn edit(object: &mut MemObject) {
    let Ok(mut edit) = ZapEdit::open(object) else { return };
    for i in 0..24u64 {
        let long = "long".repeat(usize::try_from(i).unwrap_or(0));
        let _ = (edit.insert(&format!("name{i}"), i), edit.update(&long, Value::from("text")));
        let _ = edit.insert(&[i << 50, i][..], Value::from(&[1u8, 2, 3][..]));
        let _ = (edit.increment(b"name7", 3), edit.remove(KeyRef::Name(b"name3")));
        let _ = edit.lookup_norm(b"NAME9", Match::Normalized);
    }
    if let Ok(zap) = edit.read() {
        let _ = (zap.verify(), zap.count(), zap.entries().take(2000).count());
    }
}

/// Any bytes as a file's attributes under the layouts of a new file system: decoded attributes are changed and
/// built.
pub fn sa_edit(bytes: &[u8]) {
    let mut tables = SaTables::new(1);
    let known: Vec<_> = ondisk::sa::ZPL_ATTRS.iter().filter_map(|a| tables.attr(a.name)).collect();
    for pick in bytes.iter().take(6) {
        let layout: Vec<_> = known.iter().cycle().skip(usize::from(*pick)).take(12).copied().collect();
        let _ = tables.number_of(&layout);
    }
    let (bonus, spill) = bytes.split_at_checked(320).unwrap_or((bytes, &[]));
    for decoded in [SaAttrs::decode(&tables, bonus, Some(spill)), SaAttrs::decode_znode(bytes)] {
        let Ok(mut attrs) = decoded else { continue };
        for attr in &known {
            let _ = attrs.set_word(*attr, 7);
        }
        let built = attrs.encode(&mut tables, 320);
        let again = built.and_then(|b| SaAttrs::decode(&tables, &b.bonus, b.spill.as_deref()));
        let _ = again.map(|again| again == attrs);
    }
}
