//! Streams of big-endian systems: every file equals that of the little-endian sender, and the pool is whole.

use engine::sa::SaTables;
use engine::send::SendFlags;
use ondisk::names::master_node;
use testkit::big_endian;
use testkit::golden::{self, Golden};

use crate::golden::{assert_holds, read};
use crate::tools::{Place, stream};

/// The layouts of attributes that a snapshot has.
fn tables(pool: &Golden, snapshot: &str) -> SaTables {
    let opened = pool.open().expect("the pool");
    let objset = opened.dsl.dataset(snapshot).expect("a snapshot").objset().expect("its objects");
    let master = engine::zap::Zap::open(&objset.object(1).expect("a master node")).expect("a ZAP");
    let master = master.lookup(master_node::SA_ATTRS.as_bytes()).expect("read").expect("attributes");
    SaTables::load(&objset, master.first().expect("a number")).expect("the tables")
}

fn turned(pool: &Golden, name: &str, snapshot: &str) -> Vec<u8> {
    big_endian::of(&read(pool, name), Some(&tables(pool, snapshot)))
}

#[test]
fn full_and_incremental_streams_become_what_was_sent() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let (full, more) = (turned(&pool, "full-a", "tank/src@a"), turned(&pool, "incr-a-b", "tank/src@b"));
    place.receive(&full, "ours/src@a", &|_| ()).expect("a full stream");
    place.receive(&more, "ours/src@b", &|_| ()).expect("an incremental stream");
    let opened = place.exported();
    assert_holds(&opened, &pool, "at-a", "ours/src@a");
    assert_holds(&opened, &pool, "at-b", "ours/src@b");
}

/// Compressed and embedded blocks that are not plain bytes are swapped or marked as of the other order. Streams sent on are of
/// this machine's order, but for the attributes, which say of themselves what they are.
#[test]
fn compressed_and_embedded_blocks_are_received_and_sent_on() {
    let Some(pool) = golden::get("streams") else { return };
    let mut place = Place::new();
    let full = turned(&pool, "full-b-Lec", "tank/src@b");
    place.receive(&full, "ours/src@b", &|_| ()).expect("a stream");
    let opened = place.exported();
    assert_holds(&opened, &pool, "at-b", "ours/src@b");
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    let again = stream(&opened, "ours/src@b", None, flags);
    let mut other = Place::new();
    other.receive(&again, "ours/src@b", &|_| ()).expect("a stream");
    assert_holds(&other.exported(), &pool, "at-b", "ours/src@b");
}
