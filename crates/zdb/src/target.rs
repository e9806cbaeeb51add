//! Opens the operand of a zdb command line.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use engine::dsl::{Dataset, Dsl};
use engine::env::Env;
use engine::spa::{OpenOptions, Pool, Reach};
use engine::{Error, Kind};
use zutil::import;

use super::copying::copying;
use super::options::{Options, parse_number};

/// Cache size in bytes.
const ARC_MAX: u64 = 256 << 20;
/// Maximum size of a key file.
const MAX_KEY: u64 = 64 << 10;

/// The object named by the first operand.
#[derive(Debug, Clone)]
pub enum Target {
    /// The whole pool; if objects are given, its meta object set.
    Pool,
    /// A dataset or snapshot.
    Dataset(Dataset),
    /// A bookmark, by its full name.
    Bookmark(String),
}

/// One run on an open pool.
#[derive(Debug)]
pub struct Session {
    /// The command line.
    pub options: Options,
    /// The pool.
    pub pool: Arc<Pool>,
    /// The named part of the pool.
    pub target: Target,
    /// The operands after the first.
    pub rest: Vec<String>,
}

/// End of the name of a pool that is shown as at its checkpoint.
#[doc(alias = "BOGUS_SUFFIX")]
const CHECKPOINTED: &str = "_CHECKPOINTED_UNIVERSE";

/// The pool's name in `tank/a`, `tank@x`, `tank/a#b`.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

impl Session {
    /// Opens the pool of the first operand and resolves the operand in it.
    pub fn open(options: Options, ctx: &mut Ctx) -> Result<Self, Failure> {
        let mut operands = options.operands.iter().cloned();
        let name = operands.next().unwrap_or_default();
        let rest: Vec<String> = operands.collect();
        let pool = open_pool(&options, pool_of(&name))?;
        load_keys(&options, &pool, &name, ctx)?;
        let target = find(&options, &pool, &name)?;
        Ok(Self { options, pool, target, rest })
    }

    /// The number of times a letter was given.
    pub fn level(&self, letter: char) -> u32 {
        self.options.level(letter)
    }
}

/// Finds and opens a pool according to the options.
pub fn open_pool(options: &Options, name: &str) -> Result<Arc<Pool>, Failure> {
    let env = Env::system(ARC_MAX)?;
    let reach = match (options.has('X'), options.has('F')) {
        (true, _) => Reach::Extreme,
        (false, true) => Reach::Safe,
        (false, false) => Reach::Newest,
    };
    let how = OpenOptions {
        txg: options.txg,
        reach,
        checkpoint: options.has('k'),
        force: options.level('A') > 1,
        ..OpenOptions::default()
    };
    let cannot = |e: Error| Failure::failed(format!("zdb: can't open '{name}': {e}"));
    // An imported pool takes precedence over others of its name.
    let here = !options.has('e') && options.paths.is_empty();
    let candidate = match here.then(|| daemon::cached::cached(pool_of(name))).flatten() {
        Some(candidate) => candidate,
        None => import::select(import::candidates(&options.paths), name).map_err(cannot)?,
    };
    let mut source = import::source(&candidate);
    if how.checkpoint {
        source.name.push_str(CHECKPOINTED);
    }
    if let Some(dir) = &options.dump_dir {
        let devices = std::mem::take(&mut source.devices).into_iter();
        let copied = devices.map(|(guid, device)| Ok::<_, Failure>((guid, copying(device, dir)?)));
        source.devices = copied.collect::<Result<_, _>>()?;
    }
    engine::spa::open(&env, source, how).map_err(cannot)
}

/// Resolves `name` in the open pool: the pool itself, or an object in it.
fn find(options: &Options, pool: &Arc<Pool>, name: &str) -> Result<Target, Failure> {
    let whole = ['R', 'B', 'k'].into_iter().any(|letter| options.has(letter));
    if !name.contains(['/', '@', '#']) || whole {
        return Ok(Target::Pool);
    }
    if name.contains('#') {
        return Ok(Target::Bookmark(name.to_owned()));
    }
    let name = name.strip_suffix('/').unwrap_or(name);
    let id = name.split_once('/').and_then(|(_, id)| parse_number(id));
    let renamed = rename_pool(pool, name);
    let found = match id {
        Some(0) => return Ok(Target::Pool),
        Some(id) if options.has('N') => by_number(&pool.dsl, id),
        _ => match pool.dsl.dataset(&renamed) {
            Err(e) if e.kind() == Kind::NotFound => id.map_or(Err(e), |id| by_number(&pool.dsl, id)),
            found => found,
        },
    };
    found.map(Target::Dataset).map_err(|e| Failure::failed(format!("zdb: can't open '{name}': {e}")))
}

/// The name with the pool's own name as prefix: the pool may have been named by its guid.
fn rename_pool(pool: &Pool, name: &str) -> String {
    let rest = name.strip_prefix(pool_of(name)).unwrap_or_default();
    format!("{}{rest}", pool.name)
}

/// The dataset whose object number is `id`, with its name if it can be found.
pub fn by_number(dsl: &Arc<Dsl>, id: u64) -> engine::Result<Dataset> {
    for dir in dsl.walk(dsl.root()?).flatten() {
        let Ok(head) = dir.head() else { continue };
        if head.number == id {
            return Ok(head);
        }
        let mut snapshots = head.snapshots().unwrap_or_default().into_iter();
        if let Some(snapshot) = snapshots.find(|s| s.number == id) {
            return Ok(snapshot);
        }
    }
    Dataset::open(dsl, id, format!("{}/{id}", dsl.pool_name))
        .map_err(|e| Error::not_found(format!("no dataset has the number {id}")).because(e))
}

fn load_keys(options: &Options, pool: &Arc<Pool>, name: &str, ctx: &mut Ctx) -> Result<(), Failure> {
    for load in &options.load_key {
        let key = read_key(load.file.as_deref())
            .map_err(|e| Failure::failed(format!("cannot read the key of '{}': {e}", load.dataset)))?;
        load_key(pool, &load.dataset, &key)?;
    }
    if let Some(key) = options.key.as_ref().filter(|_| name.contains(['/', '@'])) {
        let dataset = name.split('@').next().unwrap_or(name);
        let root = load_key(pool, dataset.strip_suffix('/').unwrap_or(dataset), key.as_bytes())?;
        writeln!(ctx.out, "Unlocked encryption root: {root}")?;
    }
    Ok(())
}

fn load_key(pool: &Arc<Pool>, dataset: &str, key: &[u8]) -> Result<String, Failure> {
    let dir = pool.dsl.dir(&rename_pool(pool, dataset))?;
    let root = pool.dsl.keys.root_of(&dir)?;
    let root = root.ok_or_else(|| Failure::failed(format!("'{dataset}' is not encrypted")))?;
    pool.dsl.keys.load(&root, key)?;
    Ok(root.name)
}

fn read_key(file: Option<&std::path::Path>) -> std::io::Result<Vec<u8>> {
    let mut key = Vec::new();
    match file {
        Some(path) => File::open(path)?.take(MAX_KEY).read_to_end(&mut key)?,
        None => std::io::stdin().lock().take(MAX_KEY).read_to_end(&mut key)?,
    };
    Ok(key)
}
