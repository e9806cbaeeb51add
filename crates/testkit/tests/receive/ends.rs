//! Targets that change while a stream is received into them.

use std::sync::Arc;

use engine::Kind;
use engine::dsl::write::{Encryption, Tasks};
use engine::recv::{Input, Receiver, Wish};
use engine::send::SendFlags;
use engine::spa::Spa;
use ondisk::ObjsetType;
use testkit::pools;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, create_fs, mount};

use super::tools::{Place, begin_one, receive_into, stream};

fn make(spa: &Arc<Spa>, name: &'static str) {
    let fs = pools::new_fs(&spa.pool.env);
    spa.dsl_task(move |tasks| {
        tasks.create_encrypted(name, ObjsetType::Zfs, 0, Encryption::default(), &mut |live, tx| {
            create_fs(&live.objset, tx, &fs)
        })
    })
    .unwrap();
}

fn write(spa: &Arc<Spa>, name: &str, file: &str, len: usize) {
    let fs = mount(spa, name, Overrides::default()).unwrap();
    let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let file = fs.dirs().create(fs.root, file.as_bytes(), &node).unwrap();
    fs.data().write(file, 0, &vec![7; len], true).unwrap();
    fs.unmount().unwrap();
}

fn task(spa: &Arc<Spa>, what: impl Fn(&Tasks<'_>) -> engine::Result<()> + Send + Sync + 'static) {
    spa.dsl_task(what).unwrap();
}

/// A pool with `ours/from@a` and `@b`, and the stream of the first received as `ours/to@a`; returns the stream between them.
fn place() -> (Place, Vec<u8>) {
    let place = Place::new();
    let spa = place.spa();
    make(spa, "ours/from");
    write(spa, "ours/from", "one", 300_000);
    task(spa, |tasks| tasks.snapshot(&["ours/from@a"], &[]));
    write(spa, "ours/from", "two", 500_000);
    task(spa, |tasks| tasks.snapshot(&["ours/from@b"], &[]));
    let full = stream(&spa.view().unwrap(), "ours/from@a", None, SendFlags::default());
    let more = stream(&spa.view().unwrap(), "ours/from@b", Some("ours/from@a"), SendFlags::default());
    receive_into(spa, &full, "ours/to@a", &|_| ()).unwrap();
    (place, more)
}

/// Receives `stream` into `ours/to@b`; `meanwhile` happens before the end. Returns how it ended.
fn receive_while(
    spa: &Arc<Spa>,
    mut stream: &[u8],
    change: &dyn Fn(&mut Wish),
    meanwhile: &dyn Fn(&Receiver),
) -> Result<(), Kind> {
    let mut input = Input::new(&mut stream);
    let mut receiver = begin_one(spa, &mut input, "ours/to@b", change).unwrap();
    receiver.fill(&mut input, &mut |_| true).unwrap();
    meanwhile(&receiver);
    let ended = receiver.end().map(drop).map_err(|e| e.kind());
    if ended.is_err() {
        receiver.abort(false).unwrap();
    }
    ended
}

fn has(spa: &Arc<Spa>, name: &str) -> bool {
    spa.pool.dsl.dataset(name).is_ok()
}

#[test]
fn a_target_that_was_replaced_is_left_alone() {
    let (mut place, more) = place();
    let spa = place.spa();
    let ended = receive_while(spa, &more, &|wish| wish.force = true, &|_| {
        task(spa, |tasks| tasks.rename("ours/to", "ours/moved"));
        make(spa, "ours/to");
    });
    assert_eq!(ended, Err(Kind::Invalid));
    // Its base snapshot went to another dataset.
    task(spa, |tasks| tasks.destroy("ours/to", false));
    task(spa, |tasks| tasks.rename("ours/moved", "ours/to"));
    let ended = receive_while(spa, &more, &|wish| wish.force = true, &|_| {
        task(spa, |tasks| tasks.snapshot(&["ours/to@x"], &[]));
        task(spa, |tasks| tasks.clone_snapshot("ours/to@x", "ours/clone").map(drop));
        task(spa, |tasks| tasks.promote("ours/clone"));
    });
    assert_eq!(ended, Err(Kind::Invalid));
    place.exported();
}

#[test]
fn a_receive_is_not_taken_away_while_it_runs() {
    let (mut place, more) = place();
    let spa = place.spa();
    let ended = receive_while(spa, &more, &|_| (), &|receiver| {
        let dataset = receiver.begun().dataset();
        let other = spa.dsl_task(move |tasks| tasks.abort_receive(dataset, "ours/to", false));
        assert_eq!(other.unwrap_err().kind(), Kind::Busy);
    });
    assert_eq!(ended, Ok(()));
    // The number of a dataset that is complete, and one that another dataset has by now.
    let head = spa.pool.dsl.dataset("ours/from").unwrap();
    for dataset in [(head.number, head.phys.guid), (head.number, 1)] {
        let gone = spa.dsl_task(move |tasks| tasks.abort_receive(dataset, "ours/from", false));
        assert_eq!(gone.unwrap_err().kind(), Kind::NotFound);
    }
    place.exported();
}

#[test]
fn newer_snapshots_without_changes_stay() {
    let (mut place, more) = place();
    let spa = place.spa();
    task(spa, |tasks| tasks.snapshot(&["ours/to@kept"], &[]));
    receive_while(spa, &more, &|_| (), &|_| ()).unwrap();
    assert!(has(spa, "ours/to@kept") && has(spa, "ours/to@b"));
    place.exported();
}

/// The received part of a stream that breaks off stays where it has children: they are not lost with it.
#[test]
fn a_receive_that_fails_spares_what_was_made_below_it() {
    for resumable in [false, true] {
        let (mut place, _) = place();
        let spa = place.spa();
        let whole = stream(&spa.view().unwrap(), "ours/from@a", None, SendFlags::default());
        let part = &whole[..whole.len() / 2];
        let mut input_of = part;
        let mut input = Input::new(&mut input_of);
        let mut receiver =
            begin_one(spa, &mut input, "ours/new@a", &|wish| wish.resumable = resumable).unwrap();
        receiver.fill(&mut input, &mut |_| true).unwrap_err();
        make(spa, "ours/new/kid");
        write(spa, "ours/new/kid", "kept", 100_000);
        task(spa, |tasks| tasks.snapshot(&["ours/new/kid@s"], &[]));
        assert_eq!(receiver.abort(false).unwrap_err().kind(), Kind::Exists);
        assert!(has(spa, "ours/new") && has(spa, "ours/new/kid@s"));
        let pool = place.exported();
        assert!(pool.dsl.dataset("ours/new/kid@s").is_ok() && pool.dsl.dataset("ours/new").is_ok());
    }
}

/// A snapshot of a partly received dataset would pass as one that was sent.
#[test]
fn no_snapshot_is_taken_of_what_is_being_received() {
    let (mut place, more) = place();
    let spa = place.spa();
    let whole = stream(&spa.view().unwrap(), "ours/from@a", None, SendFlags::default());
    let snapshot = |name: &'static str| spa.dsl_task(move |tasks| tasks.snapshot(&[name], &[]));
    let failed = receive_into(spa, &whole[..whole.len() / 2], "ours/new@a", &|wish| wish.resumable = true)
        .unwrap_err();
    assert_eq!(failed.kind(), Kind::Io, "{failed}");
    assert_eq!(snapshot("ours/new@x").unwrap_err().kind(), Kind::Busy);
    receive_while(spa, &more, &|_| (), &|_| {
        assert_eq!(snapshot("ours/to/%recv@x").unwrap_err().kind(), Kind::Busy);
    })
    .unwrap();
    snapshot("ours/to@x").unwrap();
    place.exported();
}
