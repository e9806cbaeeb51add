//! ZAPs that we write, read by real zdb.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use blkdev::{FileDevice, OpenMode, OpenOptions};
use engine::dmu::NewObject;
use engine::dmu::edit::Objects;
use engine::env::Env;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, create};
use engine::vdev::config::AllocBias;
use engine::zap::{NewZap, ZapEdit, ZapKey};
use ondisk::ObjectType;
use ondisk::zap::ZapFlags;
use stdx::rng::Rng;

fn pool(dir: &Path) -> Arc<Spa> {
    let env = Env::system(64 << 20).unwrap();
    let path = dir.join("disk");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let vdev = VdevSpec::Leaf(LeafSpec {
        path: path.to_str().unwrap().to_owned(),
        is_disk: false,
        whole_disk: None,
        devid: None,
        device: Arc::new(FileDevice::open(&path, options).unwrap()),
    });
    let spec = PoolSpec {
        tops: vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }],
        ..PoolSpec::default()
    };
    let new = NewPool {
        name: "oracle".into(),
        label_name: None,
        version: 5000,
        features: Vec::new(),
        layout: spec.lay_out(0, 4, &mut || env.guid()).unwrap(),
        hostid: 1,
        hostname: "host".into(),
        command: "zpool create oracle".into(),
    };
    create(&env, new, &|_, _| Ok(())).unwrap()
}

/// Output of zdb; `None`, with a notice, where it is not installed.
fn zdb(dir: &Path, args: &[&str]) -> Option<String> {
    let out = testkit::zdb::command("zdb").args(["-e", "-p"]).arg(dir).args(args).output();
    let Ok(out) = out else {
        eprintln!("SKIPPED: zdb is not installed");
        return None;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {}\n{text}{errors}", out.status);
    Some(text)
}

/// A ZAP and its expected entries.
struct Table {
    number: u64,
    model: BTreeMap<ZapKey, u64>,
    names: fn(&mut Rng) -> ZapKey,
}

fn short(rng: &mut Rng) -> ZapKey {
    ZapKey::Name(format!("name-{}", rng.below(300)).into_bytes())
}

fn many(rng: &mut Rng) -> ZapKey {
    ZapKey::Name(format!("entry.{}", rng.below(60_000)).into_bytes())
}

fn long(rng: &mut Rng) -> ZapKey {
    ZapKey::Name(format!("{:0200}", rng.below(500)).into_bytes())
}

fn words(rng: &mut Rng) -> ZapKey {
    ZapKey::Words(vec![rng.below(9000) << 40 | 77])
}

fn shown(key: &ZapKey) -> String {
    match key {
        ZapKey::Name(name) => String::from_utf8_lossy(name).into_owned(),
        ZapKey::Words(words) => format!("0x{:010}x", words.first().unwrap()),
    }
}

#[test]
fn zdb_reads_zaps_that_were_edited_over_many_txgs() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pool(dir.path());
    let shapes: [(u64, u64, u64, fn(&mut Rng) -> ZapKey); 5] =
        [(512, 0, 0, short), (512, 0, 2, long), (512, 0, 0, many), (4096, 1, 0, many), (16384, 3, 0, words)];
    let mut tables: Vec<Table> = Vec::new();
    for (size, flags, normflags, names) in shapes {
        let number = spa
            .sync_task(move |spa, tx| {
                let objects = spa.mos.within(tx);
                let number = objects.create(&NewObject::plain(ObjectType::ZAP_OTHER, size))?;
                let new = NewZap { flags: ZapFlags(flags), normflags, salt: 77 + size };
                ZapEdit::create(&mut *objects.edit(number)?, &new)?;
                Ok(number)
            })
            .unwrap();
        tables.push(Table { number, model: BTreeMap::new(), names });
    }
    let mut rng = Rng::new(9);
    for round in 0..6 {
        for table in &mut tables {
            let (number, names, seed) = (table.number, table.names, rng.next_u64());
            let mut model = table.model.clone();
            let work = move |spa: &Spa, tx: &engine::dmu::Tx| {
                let mut rng = Rng::new(seed);
                let mut edit = spa.mos.within(tx);
                let edit = &mut edit;
                let mut object = edit.edit(number)?;
                let mut zap = ZapEdit::open(&mut *object)?;
                for _ in 0..2500 {
                    let key = names(&mut rng);
                    if rng.below(4) == 0 {
                        let known = model.remove(&key).is_some();
                        assert_eq!(zap.remove(&key).is_ok(), known);
                    } else {
                        let value = rng.next_u64() >> 1;
                        zap.update(&key, value)?;
                        model.insert(key, value);
                    }
                }
                zap.read()?.verify()?;
                Ok(model)
            };
            table.model = spa.sync_task(work).unwrap();
        }
        if round % 2 == 1 {
            let number: Vec<String> = tables.iter().map(|t| t.number.to_string()).collect();
            let mut args = vec!["-dddd", "oracle"];
            args.extend(number.iter().map(String::as_str));
            let Some(text) = zdb(dir.path(), &args) else { return };
            if std::env::var_os("SHOW").is_some() {
                println!("{}", text.lines().filter(|l| !l.contains(" = ")).collect::<Vec<_>>().join("\n"));
            }
            for (table, part) in tables.iter().zip(text.split("Object  lvl").skip(1)) {
                let mut wanted: Vec<String> =
                    table.model.iter().map(|(k, v)| format!("{} = {v} ", shown(k))).collect();
                let mut got: Vec<String> =
                    part.lines().filter(|l| l.contains(" = ")).map(|l| l.trim_start().to_owned()).collect();
                wanted.sort();
                got.sort();
                assert!(got == wanted, "{:?}\n{:?}", &got[..5.min(got.len())], &wanted[..5]);
            }
        }
    }
    drop(spa);
    if let Some(text) = zdb(dir.path(), &["-bcc", "oracle"]) {
        assert!(text.contains("No leaks"), "{text}");
    }
}
