//! Raw streams of big-endian systems: with blocks that a little-endian system wrote, and with blocks of their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crypt::{BlockKind, BlockParams, ByteOrder, DatasetKey, Pbkdf2, Suite, WrappedKey, WrappingKey};
use engine::dmu::{Objset, SpecialObject};
use engine::recv::Item;
use engine::sa::SaTables;
use engine::send::SendFlags;
use engine::spa::{OpenOptions, Pool};
use engine::types::Bookmark;
use engine::zio::{Form, ReadOptions};
use nvpair::{NvList, NvValue};
use ondisk::drr::{DrrBody, DrrObjectRange};
use ondisk::names::crypto_key;
use ondisk::{Blkptr, Endian, ObjectType};
use testkit::big_endian::{self, native_list, turn, unpacked};
use testkit::golden::{self, Golden};
use testkit::hostile::streams::{encode, items};
use testkit::zdb::{Judge, command};

use crate::golden::{assert_holds, assert_same, read};
use crate::tools::{POOL, Place, stream};

const PASSPHRASE: &[u8] = b"correct horse battery";
const RAW: fn() -> SendFlags = || SendFlags { raw: true, ..SendFlags::default() };

fn load_key(pool: &Pool) {
    let root = pool.dsl.keys.root_of(&pool.dsl.dir("ours/r").unwrap()).unwrap().expect("encrypted");
    pool.dsl.keys.load(&root, PASSPHRASE).expect("the key");
}

#[test]
fn blocks_of_a_little_endian_system_stay_as_they_are() {
    let Some(pool) = golden::get("raw-received") else { return };
    let mut place = Place::new();
    let (full, more) = (read(&pool, "raw-a"), read(&pool, "raw-a-b"));
    place.receive(&big_endian::of(&full, None), "ours/r@a", &|_| ()).expect("a raw stream");
    place.receive(&big_endian::of(&more, None), "ours/r@b", &|_| ()).expect("an incremental raw stream");
    let opened = place.exported();
    assert_same(&stream(&opened, "ours/r@a", None, RAW()), &full);
    assert_same(&stream(&opened, "ours/r@b", Some("ours/r@a"), RAW()), &more);
    load_key(&opened);
    assert_holds(&opened, &pool, "at-src-b", "ours/r@b");
}

/// The streams as a big-endian system with the key would have made them. Blocks of dnodes authenticate the pointers in them, and
/// the root block those of the blocks of dnodes, so both MACs are computed over what a receive without them has written.
#[test]
fn blocks_of_a_big_endian_system_open_with_the_key() {
    let Some(pool) = golden::get("raw-received") else { return };
    let sender = Sender::of(&pool);
    let mut all = [("a", "raw-a"), ("b", "raw-a-b")].map(|(snapshot, name)| {
        (snapshot, sender.rewritten(items(&read(&pool, name)), &format!("tank/r@{snapshot}")))
    });
    let (_place, received) = receive(&all);
    for (snapshot, items) in &mut all {
        sender.seal_dnodes(items, &opened(&received, snapshot));
    }
    let (_place, received) = receive(&all);
    for (snapshot, items) in &mut all {
        sender.seal_root(items, &opened(&received, snapshot));
    }
    let (place, received) = receive(&all);
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(place.dir.path(), POOL).expect("a whole pool");
    }
    load_key(&received);
    for path in ["f/text-long", "f/overwritten", "f/sub/deep/hard-c"] {
        let theirs = read_by_zdb(&pool.dir, "tank/r", path);
        assert_eq!(read_by_zdb(place.dir.path(), "ours/r", path), theirs, "{path}");
    }
    assert_holds(&received, &pool, "at-src-b", "ours/r@b");
    // The stream that is sent on marks each block as one of the other byte order.
    let [full, more] = [("ours/r@a", None), ("ours/r@b", Some("ours/r@a"))]
        .map(|(to, from)| stream(&received, to, from, RAW()));
    let mut again = Place::new();
    again.receive(&full, "ours/r@a", &|_| ()).expect("a raw stream");
    again.receive(&more, "ours/r@b", &|_| ()).expect("an incremental raw stream");
    let again = again.exported();
    load_key(&again);
    assert_holds(&again, &pool, "at-src-b", "ours/r@b");
}

/// A file's content as OpenZFS decrypts it; empty where its zdb is not installed.
fn read_by_zdb(dir: &Path, dataset: &str, path: &str) -> Vec<u8> {
    if !Judge::USUAL.installed() {
        return Vec::new();
    }
    let copy = tempfile::NamedTempFile::new().unwrap();
    let key = str::from_utf8(PASSPHRASE).unwrap();
    let mut zdb = command("zdb");
    zdb.args(["-e", "-p"]).arg(dir).args(["-K", key, "-r", dataset, path]).arg(copy.path());
    let out = zdb.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let bytes = std::fs::read(copy.path()).unwrap();
    assert!(!bytes.is_empty(), "{path}");
    bytes
}

fn receive(all: &[(&str, Vec<Item>)]) -> (Place, Arc<Pool>) {
    let mut place = Place::new();
    for (snapshot, items) in all {
        let stream = encode(items, Endian::Big, &mut |at, _, payload| {
            if at == 0 {
                native_list(payload);
            }
        });
        place.receive(&stream, &format!("ours/r@{snapshot}"), &|_| ()).expect("a raw stream");
    }
    let pool = place.reopened();
    (place, pool)
}

fn opened(pool: &Pool, snapshot: &str) -> Arc<Objset> {
    pool.dsl.dataset(&format!("ours/r@{snapshot}")).unwrap().objset_as(Form::NoKey).unwrap()
}

fn physical(objset: &Objset, bp: &Blkptr, object: u64, blkid: u64) -> Vec<u8> {
    let options = ReadOptions { form: Form::Physical, ..ReadOptions::default() };
    let at = Bookmark::new(objset.id, object, 0, blkid);
    objset.arc().zio().read_wait(bp, at, options).data.expect("a block").to_vec()
}

/// Block `blkid` of the dnodes, as it is on disk.
fn dnode_block(objset: &Arc<Objset>, blkid: u64) -> Vec<u8> {
    let meta = objset.special(SpecialObject::Meta).expect("dnodes");
    let bp = meta.blkptr(0, blkid).expect("read").expect("a pointer");
    physical(objset, &bp, 0, blkid)
}

/// The bonus buffer of a slot of a block of dnodes.
fn bonus(block: &[u8], slot: usize) -> &[u8] {
    let dnode = &block[slot * 512..][..512 * (1 + usize::from(block[slot * 512 + 12]))];
    let spill = if dnode[7] & 4 != 0 { 128 } else { 0 };
    &dnode[64 + 128 * usize::from(dnode[3])..dnode.len() - spill]
}

fn params(range: &DrrObjectRange) -> BlockParams {
    BlockParams { salt: range.salt.0, iv: range.iv.0, mac: range.mac.0 }
}

struct Sender {
    pool: Arc<Pool>,
    key: DatasetKey,
    tables: SaTables,
}

impl Sender {
    fn of(golden: &Golden) -> Self {
        let pool = golden.open_with_keys(OpenOptions::default()).expect("the pool");
        let objset = pool.dsl.dataset("tank/r@b").unwrap().objset().unwrap();
        let master = engine::zap::Zap::open(&objset.object(1).unwrap()).unwrap();
        let attrs = master.lookup(ondisk::names::master_node::SA_ATTRS.as_bytes()).unwrap().unwrap();
        let tables = SaTables::load(&objset, attrs.first().unwrap()).expect("the tables");
        let begin = items(&read(golden, "raw-a")).remove(0);
        let list = NvList::decode(&begin.payload).expect("a list");
        Self { pool, key: key_of(list.nvlist("crypt_keydata").expect("a key")), tables }
    }

    /// The records with data and spill blocks in the other order, and bonus buffers in it, not encrypted yet.
    fn rewritten(&self, mut all: Vec<Item>, snapshot: &str) -> Vec<Item> {
        let objset = self.pool.dsl.dataset(snapshot).unwrap().objset_as(Form::NoKey).unwrap();
        let (mut plain, mut first, mut bonuses) = (Vec::new(), 0, BTreeMap::new());
        for Item { drr, payload, .. } in &mut all {
            match &mut drr.body {
                DrrBody::ObjectRange(range) => {
                    first = range.firstobj;
                    plain = dnode_block(&objset, first / 32);
                    let opened =
                        self.key.decrypt(BlockKind::Dnode, ByteOrder::Little, &params(range), &mut plain);
                    opened.expect("a block of dnodes");
                }
                DrrBody::Object(object) => {
                    let kind = ObjectType(object.bonustype as u8);
                    bonuses.insert(object.object, kind);
                    if object.raw_bonuslen > 0 {
                        *payload = bonus(&plain, (object.object - first) as usize).to_vec();
                        turn(kind, payload, Some(&self.tables));
                    }
                }
                DrrBody::Write(write) => {
                    let kind = ObjectType(write.object_type as u8);
                    let form = BlockParams { salt: write.salt.0, iv: write.iv.0, mac: write.mac.0 };
                    let packed = (&mut write.compressiontype, &mut write.compressed_size, write.logical_size);
                    write.mac.0 = self.turned(kind, packed, &form, payload);
                }
                DrrBody::Spill(spill) => {
                    let form = BlockParams { salt: spill.salt.0, iv: spill.iv.0, mac: spill.mac.0 };
                    let packed = (&mut spill.compressiontype, &mut spill.compressed_size, spill.length);
                    spill.mac.0 = self.turned(bonuses[&spill.object], packed, &form, payload);
                }
                _ => {}
            }
        }
        all
    }

    /// Turns the content of a block. Returns its MAC.
    fn turned(
        &self,
        kind: ObjectType,
        (compression, size, lsize): (&mut u8, &mut u64, u64),
        form: &BlockParams,
        payload: &mut Vec<u8>,
    ) -> [u8; 16] {
        let encrypted = crypt::is_encrypted_type(kind.raw());
        if encrypted {
            self.key.decrypt(BlockKind::Data, ByteOrder::Little, form, payload).expect("a block");
        }
        if !matches!(*compression, 0 | 2) {
            *payload = unpacked(*compression, payload, lsize);
            (*compression, *size) = (2, lsize);
        }
        turn(kind, payload, Some(&self.tables));
        match encrypted {
            true => self
                .key
                .encrypt(BlockKind::Data, ByteOrder::Big, &form.salt, &form.iv, payload)
                .expect("a MAC"),
            false => self.key.authenticated_mac(payload),
        }
    }

    /// Encrypts the bonus buffers, as parts of the blocks that a receiver has made.
    fn seal_dnodes(&self, all: &mut [Item], received: &Arc<Objset>) {
        let (mut block, mut first) = (Vec::new(), 0);
        for Item { drr, payload, .. } in all {
            match &mut drr.body {
                DrrBody::ObjectRange(range) => {
                    first = range.firstobj;
                    block = dnode_block(received, first / 32);
                    let BlockParams { salt, iv, .. } = params(range);
                    let mac = self.key.encrypt(BlockKind::Dnode, ByteOrder::Big, &salt, &iv, &mut block);
                    range.mac.0 = mac.expect("a MAC");
                }
                DrrBody::Object(object) if object.raw_bonuslen > 0 => {
                    *payload = bonus(&block, (object.object - first) as usize).to_vec();
                }
                _ => {}
            }
        }
    }

    /// Puts the MAC of the root block that a receiver has made into the list in front of the stream.
    fn seal_root(&self, all: &mut [Item], received: &Arc<Objset>) {
        let root = physical(received, &received.rootbp, 0, 0);
        let macs = self.key.objset_macs(ByteOrder::Little, &root).expect("MACs");
        let mut list = NvList::decode(&all[0].payload).expect("a list");
        let Some(NvValue::List(key)) = list.get_mut("crypt_keydata") else { panic!("no key") };
        *key.get_mut("portable_mac").expect("a MAC") = NvValue::Uint8Array(macs.portable.to_vec());
        all[0].payload = list.encode_native().expect("a list");
    }
}

fn key_of(list: &NvList) -> DatasetKey {
    let bytes = |name: &str| match list.get(name) {
        Some(NvValue::Uint8Array(bytes)) => bytes.clone(),
        other => panic!("{name} is {other:?}"),
    };
    let word = |name: &str| list.u64(name).expect("a number");
    let wrapped = WrappedKey {
        suite: Suite::from_id(word(crypto_key::SUITE)).unwrap(),
        guid: word(crypto_key::GUID),
        version: word(crypto_key::VERSION),
        iv: bytes(crypto_key::IV).try_into().unwrap(),
        mac: bytes(crypto_key::MAC).try_into().unwrap(),
        master: bytes(crypto_key::MASTER_KEY).try_into().unwrap(),
        hmac: bytes(crypto_key::HMAC_KEY).try_into().unwrap(),
    };
    let stretch = Pbkdf2 { salt: word(crypto_key::PBKDF2_SALT), iters: word(crypto_key::PBKDF2_ITERS) };
    wrapped.unwrap_with(&WrappingKey::from_passphrase(PASSPHRASE, stretch).unwrap()).expect("the key")
}
