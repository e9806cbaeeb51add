//! Forged streams: whatever they say, the target stays as it was, the error names the record, and the pool stays whole.
//!
//! `AQUIFER_RECEIVE_ROUNDS` and `AQUIFER_RECEIVE_SEED` set the number of forgeries of each test and the first seed.

use engine::send::SendFlags;
use ondisk::Endian;
use ondisk::drr::DrrBody;
use testkit::golden;
use testkit::hostile::streams::{Victim, changes, encode, head};
use testkit::zdb::Judge;

use crate::golden::{assert_same, read};
use crate::tools::{Place, open, receive_into, stream};

/// Records of a stream that are forged: the first ones have all kinds.
const RECORDS: usize = 400;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Receives `count` forgeries of a stream into one pool, and after them the stream itself. `base`: the full stream that the
/// stream builds on.
fn forge(pool: &str, (base, file): (Option<&str>, &str), flags: SendFlags, count: u64) {
    let Some(golden) = golden::get(pool) else { return };
    let real = read(&golden, file);
    let base = base.map(|base| read(&golden, base));
    let mut victim = Victim::new(base.as_deref(), head(&real, RECORDS));
    let (first, count) = (setting("AQUIFER_RECEIVE_SEED", 0), setting("AQUIFER_RECEIVE_ROUNDS", count));
    let mut taken = 0;
    for seed in first..first + count {
        let number = usize::try_from(seed % 4).unwrap() + 1;
        match victim.attack(&changes(seed, number)) {
            Ok(took) => taken += u64::from(took),
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    // Forgeries must neither be refused all nor be harmless all.
    assert!(count < 40 || (taken > 0 && taken < count), "{taken} of {count} were received");
    let target = if base.is_some() { "ours/base@real" } else { "ours/real@s" };
    receive_into(&victim.spa, &real, target, &|wish| wish.force = base.is_some()).expect("the stream itself");
    victim.spa.export().expect("exported");
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(victim.dir(), "ours").expect("a whole pool");
    }
    let opened = open(victim.dir(), "ours");
    let from = base.as_ref().map(|_| "ours/base@a");
    assert_same(&stream(&opened, target, from, flags), &real);
}

/// The meta dnode, and the objects with the space used by users, groups and projects, are not a stream's: a write there
/// suspended the pool at its next sync.
#[test]
fn no_stream_writes_objects_of_the_pool() {
    let Some(golden) = golden::get("streams") else { return };
    let victim = Victim::new(Some(&read(&golden, "full-a")), Vec::new());
    let all = head(&read(&golden, "incr-a-b"), RECORDS);
    let first =
        |what: fn(&DrrBody) -> bool| all.iter().position(|item| what(&item.drr.body)).expect("a record");
    let write = first(|body| matches!(body, DrrBody::Write(_)));
    let free = first(|body| matches!(body, DrrBody::Free(_)));
    for (at, number) in
        [write, free].into_iter().flat_map(|at| [0, u64::MAX, u64::MAX - 1, u64::MAX - 2].map(|n| (at, n)))
    {
        let mut some = all.clone();
        match &mut some[at].drr.body {
            DrrBody::Write(body) => body.object = number,
            DrrBody::Free(body) => body.object = number,
            _ => {}
        }
        let forged = encode(&some, Endian::Little, &mut |_, _, _| ());
        let done = receive_into(&victim.spa, &forged, "ours/base@b", &|_| ());
        let what = done.expect_err("no object of a stream").to_string();
        assert!(what.contains(&format!("record {}", at + 1)), "{what}");
        victim.spa.sync().expect("the pool is written");
    }
    victim.spa.export().expect("exported");
}

/// A range of freed objects may lie beyond all object numbers.
#[test]
fn objects_beyond_the_last_number_are_no_panic() {
    let Some(golden) = golden::get("streams") else { return };
    let all = head(&read(&golden, "full-a"), RECORDS);
    let at = all.iter().position(|item| matches!(item.drr.body, DrrBody::Freeobjects(_))).expect("a range");
    let place = Place::new();
    for (name, first) in [("a", 1 << 48), ("b", 1 << 60), ("c", u64::MAX)] {
        let mut some = all.clone();
        if let DrrBody::Freeobjects(body) = &mut some[at].drr.body {
            (body.firstobj, body.numobjs) = (first, 1);
        }
        let forged = encode(&some, Endian::Little, &mut |_, _, _| ());
        let done = place.receive(&forged, &format!("ours/{name}@s"), &|_| ());
        assert_eq!(done.is_ok(), first != u64::MAX, "{done:?}");
    }
}

#[test]
fn forged_streams_leave_the_pool_whole() {
    forge("streams", (None, "full-a"), SendFlags::default(), 60);
}

#[test]
fn forged_incremental_streams_leave_their_target_as_it_was() {
    forge("streams", (Some("full-a"), "incr-a-b"), SendFlags::default(), 60);
}

#[test]
fn forged_streams_of_compressed_blocks_leave_the_pool_whole() {
    let flags = SendFlags { embed: true, large_blocks: true, compressed: true, ..SendFlags::default() };
    forge("streams", (None, "full-b-Lec"), flags, 40);
}

#[test]
fn forged_raw_streams_leave_the_pool_whole() {
    forge("raw-received", (None, "raw-a"), SendFlags { raw: true, ..SendFlags::default() }, 40);
}

#[test]
fn forged_incremental_raw_streams_leave_their_target_as_it_was() {
    forge("raw-received", (Some("raw-a"), "raw-a-b"), SendFlags { raw: true, ..SendFlags::default() }, 40);
}
