//! Changes of a pool are posted as events, and lost blocks are written to its error log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use engine::dmu::NewObject;
use engine::spa::{Spa, errlog};
use ondisk::{ObjectType, ObjsetType};
use testkit::pools;

const POOL: &str = "told";

fn classes(spa: &Spa) -> Vec<String> {
    spa.reports().events().after(0).iter().map(|event| event.class.clone()).collect()
}

/// A file that reads can't have any more: its one copy is overwritten on the device.
fn spoil(spa: &Arc<Spa>, image: &std::path::Path) -> (u64, u64) {
    let number = spa.dsl_task(|t| t.create("told/a", ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    let dataset = spa.datasets.open(&**spa, number).unwrap();
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 4096);
    let object = dataset.objset.create_object(&tx, new).unwrap();
    let bytes: Vec<u8> = (0..4096_u32).map(|i| (i * i / 7) as u8).collect();
    object.write(&tx, 0, &bytes).unwrap();
    drop(tx);
    spa.sync().unwrap();
    let stored = dataset.objset.view().object(object.number).unwrap();
    let dva = stored.dnode.blkptrs()[0].dva(0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    // Behind two labels and the boot area.
    file.write_all_at(&[0x5a; 512], dva.offset + (4 << 20)).unwrap();
    (number, object.number)
}

#[test]
fn events_are_reported_and_losses_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), POOL, 128 << 20).unwrap();
    let (objset, object) = spoil(&spa, &dir.path().join("disk1"));
    let before = classes(&spa);
    assert!(before.iter().any(|class| class == "sysevent.fs.zfs.pool_create"));
    let history =
        spa.reports().events().after(0).into_iter().rfind(|e| e.class.ends_with("history_event")).unwrap();
    assert_eq!(history.payload.str("history_internal_name"), Some("create"));
    assert_eq!(history.payload.str("history_dsname"), Some("told/a"));
    spa.export().unwrap();
    assert_eq!(classes(&spa).last().map(String::as_str), Some("sysevent.fs.zfs.pool_export"));
    drop(spa);

    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let dataset = spa.datasets.open(&*spa, objset).unwrap();
    assert!(dataset.objset.view().object(object).unwrap().read_vec(0, 4096).is_err());
    let told = classes(&spa);
    for class in ["sysevent.fs.zfs.pool_import", "ereport.fs.zfs.checksum", "ereport.fs.zfs.data"] {
        assert!(told.iter().any(|told| told == class), "{class}: {told:?}");
    }
    let wrong =
        spa.reports().events().after(0).into_iter().find(|e| e.class == "ereport.fs.zfs.checksum").unwrap();
    let (text, number) = (|key| wrong.payload.str(key), |key| wrong.payload.u64(key));
    assert_eq!([text("vdev_type"), text("parent_type")], [Some("file"), Some("root")]);
    assert!(number("vdev_ashift").is_some() && number("vdev_delays") == Some(0), "{wrong:?}");
    assert_eq!(number("parent_guid"), Some(spa.guid()));
    assert_eq!(wrong.payload.get("zio_err"), Some(&nvpair::NvValue::Int32(52)));
    spa.sync().unwrap();
    spa.export().unwrap();
    drop(spa);

    let env = engine::env::Env::system(64 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &[dir.path().to_owned()], POOL, Default::default()).unwrap();
    let mut notes = Vec::new();
    let logged = errlog::errors(&pool, &mut notes);
    assert!(notes.is_empty() && logged.len() == 1, "{logged:?} {notes:?}");
    assert_eq!((logged[0].objset, logged[0].object, logged[0].blkid), (objset, object, 0));
    if testkit::zdb::installed() {
        testkit::zdb::run(dir.path(), POOL, &["-b", "-L"]).unwrap();
    }
}

/// The guid that a pool got while it is imported is that of its events at once.
#[test]
fn a_report_after_a_change_of_the_guid_has_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), POOL, 128 << 20).unwrap();
    let (objset, object) = spoil(&spa, &dir.path().join("disk1"));
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let old = spa.guid();
    let new = spa.reguid(None).unwrap();
    assert!(new != old && spa.guid() == new);
    let dataset = spa.datasets.open(&*spa, objset).unwrap();
    assert!(dataset.objset.view().object(object).unwrap().read_vec(0, 4096).is_err());
    for class in ["ereport.fs.zfs.checksum", "ereport.fs.zfs.data"] {
        let report = spa.reports().events().after(0).into_iter().find(|event| event.class == class).unwrap();
        let detector = report.payload.nvlist("detector").unwrap();
        assert_eq!(
            (report.payload.u64("pool_guid"), detector.u64("pool")),
            (Some(new), Some(new)),
            "{report:?}"
        );
    }
    spa.export().unwrap();
}
