//! Receiving into a pool of ours, and checks of the result.

use std::path::Path;
use std::sync::Arc;

use engine::Error;
use engine::dsl::write::Encryption;
use engine::env::Env;
use engine::recv::{Input, Receiver, Wish, begin};
use engine::send::{From, SendFlags, send};
use engine::spa::{Pool, Spa};
use ondisk::drr::DrrBody;
use testkit::pools::create_fs_dir;
use testkit::zdb::Judge;
use zutil::import::open_pool;

/// A pool to receive into.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub spa: Option<Arc<Spa>>,
}

/// A pool's name.
pub const POOL: &str = "ours";

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let spa = create_fs_dir(dir.path(), POOL, 256 << 20, Encryption::default()).expect("a pool");
        Self { dir, spa: Some(spa) }
    }

    pub fn spa(&self) -> &Arc<Spa> {
        self.spa.as_ref().expect("imported")
    }

    /// Receives a stream whole, or as far as it goes.
    pub fn receive(&self, stream: &[u8], target: &str, change: &dyn Fn(&mut Wish)) -> engine::Result<()> {
        receive_into(self.spa(), stream, target, change)
    }

    /// The pool as readers see it once it is exported, judged by both zdbs.
    pub fn exported(&mut self) -> Arc<Pool> {
        let pool = self.reopened();
        for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
            judge.verify(self.dir.path(), POOL).expect("a whole pool");
        }
        pool
    }

    /// The pool as readers see it once it is exported.
    pub fn reopened(&mut self) -> Arc<Pool> {
        let spa = self.spa.take().expect("imported");
        spa.export().expect("exported");
        drop(spa);
        self.open()
    }

    fn open(&self) -> Arc<Pool> {
        open(self.dir.path(), POOL)
    }
}

/// Begins to receive a stream: takes its first record.
pub fn begin_one(
    spa: &Arc<Spa>,
    input: &mut Input<'_>,
    target: &str,
    change: &dyn Fn(&mut Wish),
) -> engine::Result<Receiver> {
    let item = input.record()?.ok_or_else(|| Error::not_found("an empty stream"))?;
    let DrrBody::Begin(record) = item.drr.body else { return Err(Error::corrupt("the stream has no BEGIN")) };
    let (target, snapshot) = target.split_once('@').expect("a snapshot");
    let mut wish = Wish::of(&record, &item.payload, target, snapshot)?;
    change(&mut wish);
    begin(spa, wish, input.endian())
}

/// Receives a stream whole, or as far as it goes.
pub fn receive_into(
    spa: &Arc<Spa>,
    stream: &[u8],
    target: &str,
    change: &dyn Fn(&mut Wish),
) -> engine::Result<()> {
    let mut from = stream;
    let mut input = Input::new(&mut from);
    let mut receiver = begin_one(spa, &mut input, target, change)?;
    let filled = receiver.fill(&mut input, &mut |_| true).and_then(|()| receiver.end().map(drop));
    if filled.is_err() {
        receiver.abort(receiver.begun().wish.resumable).expect("what was begun is given up");
    }
    filled
}

/// An exported pool.
pub fn open(dir: &Path, name: &str) -> Arc<Pool> {
    let env = Env::system(64 << 20).expect("a world");
    let options = engine::spa::OpenOptions::default();
    open_pool(&env, &[dir.to_path_buf()], name, options).expect("the pool opens")
}

/// The stream of a snapshot.
pub fn stream(pool: &Pool, to: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let from = from.map(|name| From::snapshot(&pool.dsl.dataset(name).expect("from")).expect("from"));
    let mut out = Vec::new();
    send(&pool.dsl.dataset(to).expect("to"), from, flags, &mut out).expect("a stream");
    out
}
