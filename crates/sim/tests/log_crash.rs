//! Power cuts while an intent log is written: what a commit promised is there after import and replay. So it is in an
//! encrypted volume, whose log is claimed without the key.

use std::sync::Arc;

use crypt::{KeyFormat, Suite};
use engine::dmu::NewObject;
use engine::dsl::RootKey;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::spa::{ImportOptions, Spa, import};
use engine::zil::replay::{Record as LogRecord, Replayer, replay};
use engine::zil::{Itx, Zil};
use engine::{Error, Result};
use ondisk::{ObjectType, ObjsetType};
use sim::check;
use sim::disk::{Event, Record};
use sim::image::{Pages, Replay};
use sim::world::{self, POOL, Shape};
use stdx::rng::Rng;
use testkit::pools;

/// Where each step writes.
const REGION: u64 = 192 << 10;
const OBJECT: u64 = 40;

fn bytes(step: u64, random: &mut Rng) -> Vec<u8> {
    let most = if random.below(4) == 0 { 180 << 10 } else { 5000 };
    let mut bytes = vec![0; 8 + random.below(most) as usize];
    random.fill(&mut bytes);
    bytes[..8].copy_from_slice(&step.to_le_bytes());
    bytes
}

const SECRET: &str = "sim/secret";
const KEY: [u8; 32] = [7; 32];

/// An encrypted dataset.
fn make_secret(spa: &Spa) {
    let key = RootKey::create(KeyFormat::Raw, &KEY, None, &*spa.pool.env.secrets).unwrap();
    let key = Some(NewKey { key, location: Some("prompt".into()) });
    let encryption = Encryption { cipher: Cipher::Suite(Suite::ON), key };
    let made = pools::task(spa, move |t| {
        t.create_encrypted(SECRET, ObjsetType::Zvol, 0, encryption, &mut |_, _| Ok(()))
    });
    made.unwrap();
}

/// Writes and commits; gives what each step wrote.
fn run(spa: &Arc<Spa>, dataset: &str, record: &Record, steps: u64, seed: u64) -> Vec<Vec<u8>> {
    let head = spa.pool.dsl.dataset(dataset).unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&**spa, head).unwrap().objset);
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 16 << 10);
    let object = objset.create_object_at(&tx, OBJECT, new).unwrap();
    drop(tx);
    spa.sync().unwrap();
    let log = Zil::open(&objset, spa.log_host()).unwrap();
    record.mark(0);
    let (mut random, mut all) = (Rng::new(seed), Vec::new());
    for step in 1..=steps {
        let data = bytes(step, &mut random);
        let offset = step * REGION;
        let tx = spa.begin().unwrap();
        object.write(&tx, offset, &data).unwrap();
        let len = data.len() as u64;
        match random.below(3) {
            0 if len < 60_000 => log.assign(Itx::write(OBJECT, offset, &data), &tx),
            1 => log.assign(Itx::write_placed(OBJECT, offset, len), &tx),
            _ => log.assign(Itx::write_later(OBJECT, offset, len), &tx),
        }
        drop(tx);
        all.push(data);
        log.commit(OBJECT).unwrap();
        record.mark(step);
        if random.below(4) == 0 {
            spa.sync().unwrap();
        }
    }
    all
}

struct Writer<'a>(Arc<Spa>, &'a str);

impl Replayer for Writer<'_> {
    fn replay(&mut self, log: &Zil, record: &LogRecord<'_>) -> Result<()> {
        let (offset, data) = record.data.as_ref().ok_or_else(|| Error::corrupt("only writes were logged"))?;
        let head = self.0.pool.dsl.dataset(self.1)?.number;
        let objset = &self.0.datasets.open(&*self.0, head)?.objset;
        let tx = self.0.begin()?;
        objset.handle(OBJECT)?.write(&tx, *offset, data)?;
        log.replayed_in(&tx);
        Ok(())
    }
}

fn checked(
    image: &[Pages],
    dataset: &str,
    promised: u64,
    all: &[Vec<u8>],
) -> std::result::Result<u64, String> {
    let devices = world::as_devices(&world::disks_of(image));
    let source = world::found(&devices).ok_or("no pool is found")?;
    let env = world::env(2);
    let spa = import(&env, source, &ImportOptions { force: true, ..ImportOptions::default() })
        .map_err(|e| format!("import: {e}"))?;
    if dataset == SECRET {
        spa.load_key(SECRET, &KEY).map_err(|e| format!("key: {e}"))?;
    }
    let head = spa.pool.dsl.dataset(dataset).unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let log = Zil::open(&objset, spa.log_host()).unwrap();
    let done = replay(&log, &mut Writer(Arc::clone(&spa), dataset)).map_err(|e| format!("replay: {e}"))?;
    if let Some(e) = done.error {
        return Err(format!("replay: {e}"));
    }
    let object = objset.view().object(OBJECT).map_err(|e| e.to_string())?;
    for (step, data) in (1..=promised).zip(all) {
        let have = object.read_vec(step * REGION, data.len()).map_err(|e| format!("step {step}: {e}"))?;
        if have != *data {
            return Err(format!("step {step} of {promised} is lost"));
        }
    }
    // The log works on, and nothing leaks.
    let tx = spa.begin().unwrap();
    objset.handle(OBJECT).unwrap().write(&tx, 0, b"more").unwrap();
    log.assign(Itx::write(OBJECT, 0, b"more"), &tx);
    drop(tx);
    log.commit(OBJECT).map_err(|e| format!("commit: {e}"))?;
    log.close().map_err(|e| format!("close: {e}"))?;
    spa.export().map_err(|e| format!("export: {e}"))?;
    let pool = check::opened(&devices)?;
    check::whole(&pool)?;
    Ok(done.done)
}

fn survive(shape: Shape, dataset: &str, steps: u64, images: u64, seed: u64) {
    let env = world::env(seed);
    let record = Arc::new(Record::default());
    let (spa, _disks) = world::new_pool(&env, shape.into(), &record).unwrap();
    if dataset == SECRET {
        make_secret(&spa);
    }
    let all = run(&spa, dataset, &record, steps, seed);
    let events = record.take();
    let mut replay = Replay::new(vec![Pages::default(); shape.disks()]);
    let mut random = Rng::new(seed);
    let (mut begun, mut replayed, mut tried) = (false, 0, 0);
    let share = images as f64 / events.len() as f64;
    let mut due = 0.0;
    for (number, event) in events.iter().enumerate() {
        replay.step(event);
        begun |= matches!(event, Event::Mark(_));
        if !begun {
            continue;
        }
        due += share;
        // Just after a promise nothing may be at risk that was promised.
        let after = matches!(event, Event::Mark(_));
        while due >= 1.0 || after && due > 0.0 {
            let variant = random.below(replay.variants(32).max(1));
            let image = replay.image(variant, &mut random);
            match checked(&image, dataset, replay.promised, &all) {
                Ok(done) => replayed += done,
                Err(why) => panic!("{shape:?} seed {seed} event {number} variant {variant}: {why}"),
            }
            tried += 1;
            due -= 1.0;
        }
    }
    println!("{shape:?}: {tried} images, {replayed} records replayed");
    assert!(replayed > 0);
}

#[test]
fn what_a_commit_promised_survives_power_cuts() {
    for (shape, seed) in [(Shape::Single, 1), (Shape::Mirror, 2), (Shape::Raidz(1), 3)] {
        survive(shape, POOL, 12, 25, seed);
    }
}

#[test]
fn it_does_in_encrypted_datasets() {
    for (shape, seed) in [(Shape::Single, 4), (Shape::Raidz(1), 5)] {
        survive(shape, SECRET, 12, 25, seed);
    }
}
