//! Streams of objects without data.

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::send::SendFlags;
use testkit::zdb::Judge;
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{NewNode, Overrides, mount};

use super::moved::{KEY, SOURCE, source};
use super::tools::{POOL, Place, receive_into, stream};

/// The block size of a file of holes is authenticated: the raw copy opens, and the key reads its objects.
#[test]
fn raw_streams_keep_block_sizes_of_files_that_are_one_hole() {
    let place = Place::new();
    let spa = place.spa();
    source(spa, true);
    let record = ("recordsize", Some(PropValue::Number(1 << 20)));
    spa.dsl_task(move |tasks| tasks.set(SOURCE, std::slice::from_ref(&record), SettingSource::Local))
        .unwrap();
    let fs = mount(spa, SOURCE, Overrides::default()).unwrap();
    let create =
        |name: &[u8]| fs.dirs().create(fs.root, name, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(create(b"text"), 0, b"precious", true).unwrap();
    fs.data().truncate(create(b"image"), 10 << 20).unwrap();
    fs.unmount().unwrap();
    spa.dsl_task(move |tasks| tasks.snapshot(&["ours/from@a"], &[])).unwrap();
    let raw =
        stream(&spa.view().unwrap(), "ours/from@a", None, SendFlags { raw: true, ..SendFlags::default() });
    receive_into(spa, &raw, "ours/to@a", &|_| ()).unwrap();
    spa.dsl().load_key("ours/to", &KEY).unwrap();
    for name in [SOURCE, "ours/to"] {
        let dataset = spa.pool.dsl.dataset(name).unwrap();
        assert!(dataset.extra(Feature::LargeBlocks.info().guid).unwrap().is_some(), "{name}");
        let fs = zpl::Filesystem::open(&dataset).unwrap();
        let mut text = [0; 8];
        fs.resolve(b"text", true).unwrap().read_at(0, &mut text).unwrap();
        assert_eq!(&text, b"precious");
        let image = fs.resolve(b"image", true).unwrap().number();
        assert_eq!(dataset.objset().unwrap().object(image).unwrap().dnode.datablksz(), 1 << 20);
    }
    spa.export().unwrap();
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(place.dir.path(), POOL).expect("a whole pool");
    }
}
