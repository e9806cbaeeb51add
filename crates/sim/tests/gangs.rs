//! Space so fragmented that also the blocks of the MOS are gangs: every pass over it writes them again where they are,
//! or a txg never converges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Arc;

use engine::spa::Spa;
use engine::taskq::Promise;
use engine::types::Bookmark;
use engine::vdev::stats::IoClass;
use engine::zio::alloc::MetaslabClass;
use engine::zio::dedup::Dedup;
use engine::zio::write::{AsStored, WriteProps, WriteRequest};
use engine::zio::{gang_members, gang_parts};
use ondisk::{Blkptr, ChecksumType, CompressType, Eck, Endian, ObjectType};
use sim::actor::Actor;
use sim::check;
use sim::disk::Record;
use sim::image::Pages;
use sim::model::{Known, compare};
use sim::world::{Shape, as_devices, disks_of, env, new_pool};
use stdx::rng::Rng;
use testkit::hostile::forge::seal;
use testkit::zdb::Judge;

/// Blocks of as many bytes are gangs, and their larger pieces are, too.
const SMALLEST: u64 = 1024;
/// Steps of the work.
const STEPS: u64 = 12;

#[test]
fn the_mos_of_a_fragmented_pool_is_written_to_an_end() {
    for shape in [Shape::Single, Shape::Raidz(1)] {
        let (spa, disks) = new_pool(&env(7), shape.into(), &Arc::new(Record::default())).unwrap();
        spa.space.force_ganging(SMALLEST);
        let mut actor = Actor::new(spa, Rng::new(7)).unwrap();
        for _ in 0..STEPS {
            actor.step().unwrap_or_else(|e| panic!("{shape:?}: {e}{}", actor.story()));
        }
        actor.unmount_all().unwrap();
        actor.spa.export().unwrap();
        let pages: Vec<Pages> = disks.iter().map(|disk| disk.pages()).collect();
        let pool = check::opened(&as_devices(&disks_of(&pages))).unwrap();
        compare(&pool, &actor.model, &Known::default()).unwrap();
        check::whole(&pool).unwrap();
        let gangs = pool.mos.phys.meta_dnode.blkptrs().iter().filter(|bp| bp.is_gang()).count();
        assert!(gangs > 0, "{shape:?}: no block of the MOS is a gang");
        common::show(&pages, &[Judge::NEWEST]);
    }
}

const PROPS: WriteProps = WriteProps {
    small: 0,
    uncached: false,
    paged: false,
    object_type: ObjectType::PLAIN_FILE_CONTENTS,
    level: 0,
    checksum: ChecksumType::Fletcher4,
    compress: CompressType::Off,
    complevel: 0,
    copies: 1,
    gang_copies: 0,
    narrow_gang: false,
    class: MetaslabClass::Normal,
    embed: false,
    hole_birth: true,
    nopwrite: false,
    dedup: Dedup::Off,
    encrypt: false,
    evens_out: false,
};

/// Writes a block that is too large for any free piece.
fn gang(spa: &Spa, props: WriteProps, when: (u64, bool)) -> engine::Result<Blkptr> {
    gang_as(spa, props, when, None)
}

fn gang_as(
    spa: &Spa,
    props: WriteProps,
    (txg, may_wait): (u64, bool),
    stored: Option<AsStored>,
) -> engine::Result<Blkptr> {
    let promise = Promise::default();
    let theirs = promise.clone();
    let data = vec![1; 8 << 10].as_slice().into();
    let (old, at) = (Blkptr::default(), Bookmark::default());
    let (placed, keeps_birth) = (None, false);
    let request = WriteRequest { stored, data, props, old, placed, keeps_birth, txg, at, may_wait };
    spa.pool.zio.write(request, Box::new(move |end| theirs.set(end)));
    promise.wait(&**spa.pool.zio.executor())
}

/// Whatever the copies of its headers, the pointer of a gang of gangs counts all space that was allocated for it.
#[test]
fn the_pointer_of_a_gang_counts_all_of_its_space() {
    for (copies, gang_copies) in [(1, 0), (1, 1), (2, 2), (2, 0), (3, 0)] {
        let (spa, _disks) = new_pool(&env(7), Shape::Single.into(), &Arc::new(Record::default())).unwrap();
        spa.space.force_ganging(SMALLEST);
        let hold = spa.begin().unwrap();
        let free = || spa.space.allocatable(0).covered();
        let before = free();
        let bp = gang(&spa, WriteProps { copies, gang_copies, ..PROPS }, (hold.txg(), true)).unwrap();
        let counted: u64 = bp.dvas().map(|dva| dva.asize).sum();
        assert_eq!(counted, before - free(), "{copies} copies, {gang_copies} of headers");
    }
}

/// A commit holds a transaction while it places a block: a block that would be a gang goes into the log instead, as its
/// pieces would wait for devices.
#[test]
fn blocks_that_must_not_wait_are_no_gangs() {
    let (spa, _disks) = new_pool(&env(7), Shape::Single.into(), &Arc::new(Record::default())).unwrap();
    spa.space.force_ganging(SMALLEST);
    let hold = spa.begin().unwrap();
    let written = |may_wait| gang(&spa, PROPS, (hold.txg(), may_wait));
    assert!(written(true).unwrap().is_gang());
    assert_eq!(written(false).unwrap_err().kind(), engine::Kind::Fragmented);
}

/// A header that names itself has a good checksum, as it covers the place and not the pointers to it.
#[test]
fn a_gang_that_names_itself_is_freed_once() {
    let (spa, _disks) = new_pool(&env(7), Shape::Single.into(), &Arc::new(Record::default())).unwrap();
    spa.space.force_ganging(SMALLEST);
    let hold = spa.begin().unwrap();
    let bp = gang(&spa, PROPS, (hold.txg(), true)).unwrap();
    let zio = &spa.pool.zio;
    let places = |parts: &[Blkptr]| -> Vec<_> {
        parts.iter().flat_map(|part| part.dvas()).map(|dva| (dva.vdev, dva.offset)).collect()
    };
    let honest = places(&gang_parts(zio, &bp).unwrap());
    assert!(honest.len() > 4, "gangs within a gang: {honest:?}");
    let piece = gang_members(zio, &bp).unwrap().members[0];
    let mut header: Vec<u8> = [bp, bp, piece].iter().flat_map(Blkptr::to_bytes).collect();
    header.resize(512, 0);
    seal(&mut header, ondisk::label::gang_verifier(&bp));
    for dva in bp.dvas() {
        let promise = Promise::default();
        let theirs = promise.clone();
        let top = zio.tree().top(u64::from(dva.vdev)).unwrap();
        let done = Box::new(move |end: engine::Result<Vec<u64>>| theirs.set(end.is_ok()));
        top.write_as(IoClass::AsyncWrite, dva.offset, header.as_slice().into(), hold.txg(), done);
        assert!(promise.wait(&**zio.executor()));
    }
    let mut forged = places(&gang_parts(zio, &bp).unwrap());
    assert!(forged.len() > 1 && forged.iter().all(|place| honest.contains(place)));
    let count = forged.len();
    forged.sort();
    forged.dedup();
    assert_eq!(forged.len(), count, "each place once");
}

/// OpenZFS swaps the header of a gang by the byte order of its pointer.
#[test]
fn a_header_has_the_byte_order_of_its_pointer() {
    let (spa, _disks) = new_pool(&env(7), Shape::Single.into(), &Arc::new(Record::default())).unwrap();
    spa.space.force_ganging(4096);
    let hold = spa.begin().unwrap();
    let stored = AsStored { lsize: 8 << 10, compress: CompressType::Off, crypt: None, endian: Endian::Big };
    let bp = gang_as(&spa, PROPS, (hold.txg(), true), Some(stored)).unwrap();
    assert!(bp.is_gang() && !bp.byteorder_is_little());
    let dva = bp.dvas().next().unwrap();
    let header = spa.pool.zio.read_physical(u64::from(dva.vdev), dva.offset, 512).unwrap();
    assert_eq!(Eck::from_trailer(&header).unwrap().endian, Endian::Big);
    let mut first = header[..128].to_vec();
    first.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    let members = gang_members(&spa.pool.zio, &bp).unwrap().members;
    assert_eq!(Blkptr::from_bytes(&first).unwrap(), members[0]);
    let read = spa.pool.zio.read_wait(&bp, Bookmark::default(), engine::zio::ReadOptions::default());
    assert!(read.data.unwrap().iter().all(|byte| *byte == 1));
}
