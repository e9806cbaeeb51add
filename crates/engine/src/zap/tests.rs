//! Compares editors with a map, for every shape of ZAP.

use std::collections::BTreeMap;

use ondisk::zap::{HASH_POLY, ZapFlags, hash_name};
use stdx::rng::Rng;

use super::*;
use crate::dmu::edit::{Edit, MemObject};

const FORM_D: u64 = 0x10;

fn create(size: u64, flags: ZapFlags, normflags: u64) -> MemObject {
    let mut object = MemObject::new(9, size);
    ZapEdit::create(&mut object, &NewZap { flags, normflags, salt: 0x1234_5678_9abc }).unwrap();
    object
}

fn micro() -> MemObject {
    create(512, ZapFlags::default(), 0)
}

fn zap(object: &MemObject) -> Zap<&dyn Edit> {
    Zap::open(&(object as &dyn Edit)).unwrap()
}

fn is_fat(object: &MemObject) -> bool {
    zap(object).fat_header().is_some()
}

/// A random operation on both; their results must agree.
fn step(
    object: &mut MemObject,
    model: &mut BTreeMap<ZapKey, Value>,
    rng: &mut Rng,
    key: &ZapKey,
    value: Value,
) {
    let mut edit = ZapEdit::open(object).unwrap();
    let known = model.get(key).cloned();
    match rng.below(8) {
        0..=2 => {
            let done = edit.insert(key, value.clone());
            assert_eq!(done.is_ok(), known.is_none(), "{done:?}");
            model.entry(key.clone()).or_insert(value);
        }
        3..=4 => {
            edit.update(key, value.clone()).unwrap();
            model.insert(key.clone(), value);
        }
        5..=6 => {
            let done = edit.remove(key);
            assert_eq!(done.is_ok(), known.is_some(), "{done:?}");
            model.remove(key);
        }
        _ => assert_eq!(edit.lookup(key).unwrap(), known),
    }
}

fn compare(object: &MemObject, model: &BTreeMap<ZapKey, Value>) {
    let zap = zap(object);
    zap.verify().unwrap();
    assert_eq!(zap.count().unwrap(), model.len() as u64);
    let all: BTreeMap<ZapKey, Value> = zap.to_vec().unwrap().into_iter().map(|e| (e.key, e.value)).collect();
    assert_eq!(all.len(), model.len());
    assert!(all == *model);
    for (key, value) in model.iter().take(50) {
        assert_eq!(zap.get(key).unwrap().as_ref(), Some(value));
    }
}

fn run(
    mut object: MemObject,
    ops: u64,
    seed: u64,
    key: impl Fn(&mut Rng) -> ZapKey,
    value: impl Fn(&mut Rng) -> Value,
) -> MemObject {
    let mut rng = Rng::new(seed);
    let mut model = BTreeMap::new();
    for i in 0..ops {
        let (key, value) = (key(&mut rng), value(&mut rng));
        step(&mut object, &mut model, &mut rng, &key, value);
        if i % (ops / 8).max(1) == 0 {
            compare(&object, &model);
        }
    }
    compare(&object, &model);
    object
}

fn any_value(rng: &mut Rng) -> Value {
    let len = if rng.below(20) == 0 { rng.below(600) } else { rng.below(6) };
    ints(rng, len)
}

fn small_value(rng: &mut Rng) -> Value {
    let len = rng.below(6);
    ints(rng, len)
}

fn ints(rng: &mut Rng, len: u64) -> Value {
    let width = 1u8 << rng.below(4);
    let mask = u64::MAX >> (64 - 8 * u32::from(width));
    Value { width, ints: (0..len).map(|_| rng.next_u64() & mask).collect() }
}

fn word(rng: &mut Rng) -> Value {
    rng.next_u64().into()
}

fn short_name(rng: &mut Rng, names: u64) -> ZapKey {
    ZapKey::Name(format!("name-{}", rng.below(names)).into_bytes())
}

#[test]
fn micro_zaps_match_a_map() {
    let object = run(micro(), 4000, 1, |rng| short_name(rng, 300), word);
    assert!(!is_fat(&object));
    assert_eq!(object.block_size() % 512, 0);
}

#[test]
fn a_micro_zap_grows_and_turns_fat_at_its_limit() {
    let mut object = micro();
    let mut edit = ZapEdit::open(&mut object).unwrap().micro_max(2048);
    for i in 0..31u64 {
        edit.insert(&format!("n{i}"), i).unwrap();
    }
    assert_eq!(edit.read().unwrap().object().block_size(), 2048);
    edit.insert("one more", 31).unwrap();
    assert!(is_fat(&object));
    assert_eq!(object.block_size(), 16384);
    assert_eq!(zap(&object).count().unwrap(), 32);
    zap(&object).verify().unwrap();
}

#[test]
fn an_entry_too_large_for_a_micro_zap_turns_it_fat() {
    let long = "x".repeat(50);
    for (name, value) in [("a", Value::from("text")), (&long, Value::from(1u64)), ("b", vec![1, 2].into())] {
        let mut object = micro();
        let mut edit = ZapEdit::open(&mut object).unwrap();
        edit.insert("other", 7).unwrap();
        edit.insert(&long[1..], 8).unwrap();
        edit.insert(name, value.clone()).unwrap();
        assert!(is_fat(&object));
        assert_eq!(zap(&object).get(name).unwrap(), Some(value));
        assert_eq!(zap(&object).u64("other").unwrap(), Some(7));
        zap(&object).verify().unwrap();
    }
}

#[test]
fn fat_zaps_match_a_map() {
    let name = |rng: &mut Rng| {
        let pad = "-".repeat(rng.below(200) as usize);
        ZapKey::Name(format!("{}{pad}", rng.below(3000)).into_bytes())
    };
    let object = run(micro(), 6000, 2, name, any_value);
    assert!(is_fat(&object));
}

#[test]
fn small_blocks_split_and_outgrow_the_embedded_table() {
    let flags = ZapFlags::HASH64;
    let object = run(create(4096, flags, 0), 30_000, 3, |rng| short_name(rng, 40_000), small_value);
    let header = *zap(&object).fat_header().unwrap();
    assert!(header.ptrtbl.numblks > 0 && header.num_leafs > 100, "{header:?}");
}

#[test]
fn keys_of_words_and_hashes_that_collide() {
    let words = ZapFlags(3);
    let key = |rng: &mut Rng| ZapKey::Words(vec![rng.below(900), rng.below(3), rng.below(2)]);
    run(create(4096, words, 0), 6000, 4, key, small_value);
    let prehashed = ZapFlags(7);
    // Nearly equal hashes: the table grows to tell them apart; equal ones get cds.
    let key = |rng: &mut Rng| ZapKey::Words(vec![rng.below(12) << 48 | rng.below(4), rng.below(30)]);
    let value = |rng: &mut Rng| Value::from(rng.below(9));
    run(create(16384, prehashed, 0), 6000, 5, key, value);
}

/// A name with the high hash bits of `wanted` after any prefix.
fn colliding(salt: u64, prefix: &[u8], wanted: u64, rng: &mut Rng) -> Vec<u8> {
    let table: Vec<u64> = (0..256)
        .map(|i| (0..8).fold(i, |c: u64, _| if c & 1 == 1 { c >> 1 ^ HASH_POLY } else { c >> 1 }))
        .collect();
    let step = |crc: u64, b: u8| (crc >> 8) ^ table[usize::from(crc as u8 ^ b)];
    let state = prefix.iter().fold(salt, |crc, b| step(crc, *b));
    loop {
        let target = wanted & !(u64::MAX >> 28) | rng.below(1 << 36);
        let before = (0..8).fold(target, |crc, _| {
            let i = table.iter().position(|t| t >> 56 == crc >> 56).unwrap();
            (crc ^ table[i]) << 8 | i as u64
        });
        let tail = (before ^ state).to_le_bytes();
        if !tail.contains(&0) {
            return [prefix, &tail].concat();
        }
    }
}

fn names_of_one_hash(count: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(6);
    (0..count)
        .map(|i| colliding(0x1234_5678_9abd, format!("n{i}").as_bytes(), 0xabcd_ef01 << 32, &mut rng))
        .collect()
}

#[test]
fn names_of_one_hash_live_side_by_side() {
    let names = names_of_one_hash(60);
    let hashes: Vec<u64> =
        names.iter().map(|n| hash_name(0x1234_5678_9abd, n, ZapFlags::default())).collect();
    assert!(hashes.windows(2).all(|h| h[0] == h[1]));
    let pick = |rng: &mut Rng| ZapKey::Name(names[rng.below(60) as usize].clone());
    let object = run(micro(), 3000, 7, pick, word);
    assert!(!is_fat(&object));
    let object = run(micro(), 3000, 8, pick, small_value);
    assert!(is_fat(&object));
}

#[test]
fn more_names_of_one_hash_than_a_leaf_holds_are_refused_without_growing() {
    let names = names_of_one_hash(400);
    let mut object = micro();
    let mut edit = ZapEdit::open(&mut object).unwrap();
    let stored = names.iter().take_while(|n| edit.insert(n.as_slice(), 1).is_ok()).count();
    assert!((100..400).contains(&stored), "{stored}");
    let error = edit.insert(names[stored].as_slice(), 1).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    edit.insert("another", 1).unwrap();
    assert!(object.max_block() < 40, "{}", object.max_block());
    zap(&object).verify().unwrap();
    assert_eq!(zap(&object).count().unwrap(), stored as u64 + 1);
}

#[test]
fn names_without_case_and_in_normal_form() {
    for size in [512, 16384] {
        let mut object = create(512, ZapFlags::default(), TOUPPER | FORM_D);
        let mut edit = ZapEdit::open(&mut object).unwrap();
        if size > 512 {
            edit.insert(&"long".repeat(20), 0).unwrap();
        }
        edit.insert("ReadMe", 1).unwrap();
        edit.insert("README", 2).unwrap();
        edit.insert("caf\u{e9}", 3).unwrap();
        let found = edit.lookup_norm(b"readme", Match::Normalized).unwrap().unwrap();
        assert_eq!(
            (found.name.as_slice(), found.value.first(), found.conflict),
            (&b"ReadMe"[..], Some(1), true)
        );
        let found = edit.lookup_norm(b"README", Match::NormalizedCase).unwrap().unwrap();
        assert_eq!((found.value.first(), found.conflict), (Some(2), false));
        assert_eq!(edit.lookup_norm(b"readme", Match::NormalizedCase).unwrap(), None);
        assert_eq!(edit.lookup("readme").unwrap(), None);
        assert_eq!(edit.lookup("ReadMe").unwrap(), Some(1.into()));
        let found = edit.lookup_norm("CAFE\u{301}".as_bytes(), Match::Normalized).unwrap().unwrap();
        assert_eq!((found.value.first(), found.conflict), (Some(3), false));
        edit.read().unwrap().verify().unwrap();
        assert_eq!(edit.remove_norm(b"rEADmE", Match::Normalized).unwrap(), b"ReadMe");
        assert_eq!(edit.lookup_norm(b"readme", Match::Normalized).unwrap().unwrap().name, b"README");
        assert_eq!(edit.count().unwrap(), if size > 512 { 3 } else { 2 });
        edit.read().unwrap().verify().unwrap();
    }
}

#[test]
fn counters_and_sets_of_integers() {
    let mut object = micro();
    let mut edit = ZapEdit::open(&mut object).unwrap();
    assert_eq!(edit.increment_int(0xab, 5).unwrap(), 5);
    assert_eq!(edit.increment_int(0xab, -2).unwrap(), 3);
    assert_eq!(edit.lookup("ab").unwrap().unwrap().first(), Some(3));
    assert_eq!(edit.increment(b"ab", -3).unwrap(), 0);
    assert_eq!(edit.lookup("ab").unwrap(), None);
    edit.add_int(255).unwrap();
    assert!(edit.has_int(255).unwrap() && edit.lookup("ff").unwrap().is_some());
    assert_eq!(edit.add_int(255).unwrap_err().kind(), Kind::Exists);
    let other = edit.to_vec().unwrap();
    assert_eq!(edit.join(&other).unwrap_err().kind(), Kind::Exists);
    edit.remove_int(255).unwrap();
    assert_eq!(edit.remove_int(255).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn values_that_cannot_be_stored_are_refused() {
    let mut object = micro();
    let mut edit = ZapEdit::open(&mut object).unwrap();
    assert_eq!(edit.insert("", 1).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(edit.insert("a\0b", 1).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(edit.insert(&"x".repeat(1024), 1).unwrap_err().kind(), Kind::TooLong);
    assert_eq!(edit.insert("x", vec![0; 1025]).unwrap_err().kind(), Kind::TooLong);
    assert_eq!(edit.insert(&[1u64][..], 1).unwrap_err().kind(), Kind::Invalid);
    assert!(!is_fat(&object));
    ZapEdit::open(&mut object).unwrap().insert(&"x".repeat(1023), vec![7; 1024]).unwrap();
    zap(&object).verify().unwrap();
}

/// A listing in small steps, while the ZAP is changed and becomes fat, returns all entries that stay once.
#[test]
fn a_listing_goes_on_where_it_was() {
    let mut object = micro();
    let mut edit = ZapEdit::open(&mut object).unwrap();
    let stays: Vec<String> = (0..150).map(|i| format!("stays{i}")).collect();
    for (i, name) in (0u64..).zip(&stays) {
        edit.insert(name, i).unwrap();
        edit.insert(&format!("goes{i}"), i).unwrap();
    }
    for name in names_of_one_hash(20) {
        edit.insert(name.as_slice(), 1).unwrap();
    }
    let (mut cookie, mut met, mut round) = (0, Vec::new(), 0u64);
    loop {
        let zap = edit.read().unwrap();
        let some: Vec<ZapEntry> = zap.entries_from(cookie).take(7).map(Result::unwrap).collect();
        let Some(last) = some.last() else { break };
        cookie = zap.cookie_after(last);
        met.extend(some.into_iter().filter(|e| !e.name().starts_with(b"goes") && e.name() != b"new"));
        let _ = edit.remove(&format!("goes{round}"));
        if round == 9 {
            edit.insert("new", "long").unwrap();
        }
        round += 1;
    }
    assert!(edit.read().unwrap().fat_header().is_some());
    assert_eq!(met.len(), stays.len() + 20);
    met.sort_by(|a, b| a.name().cmp(b.name()));
    met.dedup_by(|a, b| a.name() == b.name());
    assert_eq!(met.len(), stays.len() + 20);
}

/// A listing in steps of many sizes, while entries are added and removed at random: entries that stay are returned
/// once, and none twice without having been removed in between. Cookies are signed offsets, and never small
/// numbers.
#[test]
fn a_listing_is_held_to_a_model_while_the_zap_changes() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let normflags = if seed % 3 == 0 { TOUPPER } else { 0 };
        let mut object = create(512, ZapFlags::default(), normflags);
        let mut edit = ZapEdit::open(&mut object).unwrap();
        let mut there: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
        // 900 entries need steps within one micro ZAP; later rounds turn it fat.
        for i in 0..900u64 {
            let name = format!("Name-{i}");
            edit.insert(&name, i).unwrap();
            there.insert(name.into_bytes(), true);
        }
        for name in names_of_one_hash(if normflags == 0 { 20 } else { 0 }) {
            edit.insert(name.as_slice(), 1).unwrap();
            there.insert(name, true);
        }
        let (mut cookie, mut met) = (0, BTreeMap::<Vec<u8>, u32>::new());
        loop {
            let zap = edit.read().unwrap();
            let step = 1 + rng.below(90) as usize;
            let some: Vec<ZapEntry> = zap.entries_from(cookie).take(step).map(Result::unwrap).collect();
            let Some(last) = some.last() else { break };
            cookie = zap.cookie_after(last);
            assert!((1 << 28..1 << 63).contains(&cookie));
            some.iter().for_each(|e| *met.entry(e.name().to_vec()).or_default() += 1);
            for _ in 0..rng.below(30) {
                let name = format!("Name-{}", rng.below(2000)).into_bytes();
                // `false`: it was not present the whole time.
                let known = there.insert(name.clone(), false).is_some();
                if edit.remove(name.as_slice()).is_err() {
                    let long = rng.below(200) == 0;
                    assert!(!known || edit.lookup(name.as_slice()).unwrap().is_none());
                    edit.insert(name.as_slice(), if long { vec![1, 2] } else { vec![1] }).unwrap();
                }
            }
        }
        for (name, stayed) in &there {
            let times = met.get(name).copied().unwrap_or(0);
            assert!(if *stayed { times == 1 } else { times <= 1 }, "{seed}: {name:?} {times}");
        }
    }
}

/// Forged positions of entries end a listing: none leads back.
#[test]
fn cookies_of_forged_entries_end() {
    let object = create(4096, ZapFlags::HASH64, 0);
    let zap = zap(&object);
    let at = |hash, cd| ZapEntry { key: ZapKey::Name(b"x".to_vec()), value: 1.into(), hash, cd };
    for entry in [at(0, 1 << 15), at(0, u32::MAX), at(!0 << 16, u32::MAX)] {
        let cookie = zap.cookie_after(&entry);
        assert!(cookie < 1 << 63 && (cookie << 16 > entry.hash || cookie == (1 << 63) - 1));
    }
    assert_eq!(zap.entries_from((1 << 63) - 1).count(), 0);
}

/// Damages a ZAP at random locations and continues editing: any error is fine, a panic is not.
#[test]
fn a_damaged_zap_gives_errors_only() {
    let mut rng = Rng::new(11);
    let fat = run(create(4096, ZapFlags::HASH64, 0), 400, 12, |rng| short_name(rng, 400), small_value);
    let small = run(micro(), 100, 13, |rng| short_name(rng, 30), word);
    let normal = create(512, ZapFlags::default(), TOUPPER);
    for round in 0..3000 {
        let mut object = [&fat, &small, &normal][round % 3].clone();
        for _ in 0..=rng.below(6) {
            let blkid = rng.below(object.max_block() + 1);
            let mut block = object.read_block(blkid).unwrap().into_owned();
            let within = if rng.below(2) == 0 { 128 } else { block.len() as u64 };
            let at = rng.below(within) as usize;
            block[at] = [0, 1, 0xff, 0x80, rng.next_u64() as u8][rng.below(5) as usize];
            object.write_block(blkid, block).unwrap();
        }
        let Ok(mut edit) = ZapEdit::open(&mut object) else { continue };
        for _ in 0..20 {
            let key = short_name(&mut rng, 500);
            let _ = match rng.below(4) {
                0 => edit.insert(&key, any_value(&mut rng)),
                1 => edit.update(&key, word(&mut rng)),
                2 => edit.remove(&key),
                _ => edit.lookup_norm(b"name-1", Match::Normalized).map(drop),
            };
        }
        let _ = edit.read().and_then(|zap| zap.verify());
        let _ = edit.to_vec();
    }
}

/// Leaves that become empty are given back, and their blocks are used again.
#[test]
fn a_zap_shrinks_when_its_entries_go() {
    let mut object = micro();
    let name = |n: u64| format!("an entry with quite a long name, number {n}");
    let leaves = |object: &MemObject| zap(object).fat_header().unwrap().num_leafs;
    // More than one block of names has.
    for round in 0..3_u64 {
        let mut edit = ZapEdit::open(&mut object).unwrap();
        (0..3000).for_each(|n| edit.insert(&name(n), n).unwrap());
        zap(&object).verify().unwrap();
        assert!(leaves(&object) > 10, "round {round}");
        let mut edit = ZapEdit::open(&mut object).unwrap();
        (0..2999).for_each(|n| edit.remove(&name(n)).unwrap());
        zap(&object).verify().unwrap();
        assert!(leaves(&object) < 10, "only the siblings on one path stay: {}", leaves(&object));
        assert_eq!(zap(&object).lookup(name(2999).as_bytes()).unwrap(), Some(2999.into()));
        ZapEdit::open(&mut object).unwrap().remove(&name(2999)).unwrap();
        zap(&object).verify().unwrap();
        assert_eq!(leaves(&object), 1);
    }
    let header = *zap(&object).fat_header().unwrap();
    assert!(header.freeblk < 100, "blocks are used again: {}", header.freeblk);
}
