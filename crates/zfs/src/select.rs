//! Which datasets a verb is about: names, types, recursion, depth.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::row::DatasetKind;
use clikit::parallel;
use clikit::session::Home;
use clikit::source::PoolSource;
use clikit::verb::Failure;
use engine::dsl::props::bookmarks::bookmarks;
use engine::dsl::{Dataset, DatasetKind as HeadKind, Dir};
use engine::spa::Pool;
use engine::spa::space::PoolSpace;
use engine::{Error, Kind};
use zcommon::names::{NamePart, ZfsName};

use super::by_path;
use super::entry::Entry;
use super::prop::Node;

/// A set of dataset types, as `-t` takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// File systems.
    pub filesystem: bool,
    /// Volumes.
    pub volume: bool,
    /// Snapshots.
    pub snapshot: bool,
    /// Bookmarks.
    pub bookmark: bool,
}

impl Types {
    /// Nothing.
    pub const NONE: Types = Types { filesystem: false, volume: false, snapshot: false, bookmark: false };
    /// Everything that has data.
    pub const DATASETS: Types = Types { filesystem: true, volume: true, snapshot: true, bookmark: false };
    /// Everything.
    pub const ALL: Types = Types { bookmark: true, ..Types::DATASETS };

    /// Reads the words of `-t`.
    pub fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut types = Types::NONE;
        for word in words.iter().flat_map(|w| w.split(',')) {
            match word {
                "filesystem" | "fs" => types.filesystem = true,
                "volume" | "vol" => types.volume = true,
                "snapshot" | "snap" => types.snapshot = true,
                "bookmark" => types.bookmark = true,
                "all" => types = Types::ALL,
                other => return Err(Failure::usage(format!("invalid type '{other}'"))),
            }
        }
        Ok(types)
    }

    /// Whether this type is in the set.
    pub fn has(&self, kind: DatasetKind) -> bool {
        match kind {
            DatasetKind::Filesystem => self.filesystem,
            DatasetKind::Volume => self.volume,
            DatasetKind::Snapshot => self.snapshot,
            DatasetKind::Bookmark => self.bookmark,
        }
    }

    /// Whether only snapshots, or only bookmarks, are wanted.
    pub fn is_leaves_only(&self) -> bool {
        let snapshots = Types { snapshot: true, ..Types::NONE };
        let bookmarks = Types { bookmark: true, ..Types::NONE };
        *self == snapshots || *self == bookmarks
    }
}

/// The datasets to walk over.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Types that make a row.
    pub types: Types,
    /// Descend.
    pub recurse: bool,
    /// How deep; `None`: all the way.
    pub depth: Option<u32>,
    /// Snapshots found on the way make rows only where the pool's `listsnapshots` is on.
    pub snapshots_by_pool: bool,
}

/// A pool that is open, with the space that its datasets may use in all.
#[derive(Debug)]
pub struct OpenPool {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Bytes.
    pub usable: u64,
}

/// Result of a walk: rows, and whether something could not be opened.
#[derive(Debug, Default)]
pub struct Found {
    /// The datasets, snapshots and bookmarks.
    pub entries: Vec<Entry>,
    /// The pools.
    pub pools: Vec<OpenPool>,
    /// A named object does not exist; it was reported on standard error.
    pub failed: bool,
    seen: HashSet<String>,
    /// Names that were found.
    named: HashSet<String>,
    /// Directories met on the walk from one name: a tree that contains itself ends here.
    met: HashSet<u64>,
    /// Directories visited.
    visited: usize,
    /// Counts pauses during which changes could reach the disk: after one, opened datasets must be looked up
    /// again.
    round: u64,
}

/// Children that are opened before the first of them is visited.
const AT_ONCE: usize = 512;
/// Directories that are visited before changes may reach the disk.
const PIECE: usize = 256;

/// A directory, its head, and the head's type.
struct Opened {
    dir: Dir,
    head: engine::Result<(HeadKind, Dataset)>,
    /// The round in which it was opened.
    round: u64,
}

impl Opened {
    fn new(dir: Dir, round: u64) -> Self {
        let head = dir.head().and_then(|head| Ok((head.kind()?, head)));
        Self { dir, head, round }
    }

    /// The same as it is in a later round; `None` when it is gone.
    fn again(self, round: u64) -> Option<Self> {
        if self.round == round {
            return Some(self);
        }
        match self.dir.dsl.dir(&self.dir.name) {
            Ok(dir) => Some(Self::new(dir, round)),
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => Some(Self { head: Err(e), round, ..self }),
        }
    }
}

/// Opens the pools that `names` are in (all that are found, without names) and walks.
pub fn walk(
    source: &PoolSource,
    names: &[String],
    selection: &Selection,
    ctx: &mut Ctx,
) -> Result<Found, Failure> {
    let mut found = Found::default();
    if names.is_empty() {
        let everywhere = Selection { recurse: true, ..selection.clone() };
        let mut candidates = source.candidates(ctx);
        candidates.sort_by(|a, b| a.name.cmp(&b.name));
        found.failed |= source.lacks_some(ctx);
        for candidate in &candidates {
            match source.open_candidate(candidate, ctx) {
                Ok(pool) => found.root(pool, &everywhere, ctx)?,
                Err(e) => found.fail(ctx, e.message().unwrap_or_default()),
            }
        }
        return Ok(found);
    }
    let (names, missed) = by_path::datasets(names, ctx);
    found.failed |= missed;
    let mut by_pool: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for (count, name) in names.iter().enumerate() {
        if count > 0 && count % AT_ONCE == 0 {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            ctx.breathe();
        }
        // It is a row already, with all below it.
        if found.named.contains(name) {
            continue;
        }
        let pool_name = name.split(['/', '@', '#']).next().unwrap_or_default().to_owned();
        let index = match by_pool.get(&pool_name) {
            Some(index) => *index,
            None => {
                let index = found.open(source, &pool_name, name, ctx);
                by_pool.insert(pool_name, index);
                index
            }
        };
        if let Some(index) = index {
            let missed = std::mem::take(&mut found.failed);
            found.named(index, name, selection, ctx)?;
            if !found.failed {
                found.named.insert(name.clone());
            }
            found.failed |= missed;
        }
    }
    Ok(found)
}

impl Found {
    fn fail(&mut self, ctx: &mut Ctx, message: String) {
        ctx.warn(message);
        self.failed = true;
    }

    fn open(&mut self, source: &PoolSource, pool: &str, name: &str, ctx: &mut Ctx) -> Option<usize> {
        match source.open(pool, ctx) {
            Ok(pool) => Some(self.add(pool, ctx)),
            Err(failure) if failure.is_no_pool(pool) => {
                self.fail(ctx, Failure::no_dataset(name).message().unwrap_or_default());
                None
            }
            Err(e) => {
                self.fail(ctx, e.message().unwrap_or_default());
                None
            }
        }
    }

    fn add(&mut self, pool: Arc<Pool>, ctx: &mut Ctx) -> usize {
        let mut notes = Vec::new();
        let live = if ctx.home == Home::Here { None } else { ctx.pool(&pool.guid.to_string()) };
        let dedup = live.and_then(|live| live.spa().ok().map(|spa| spa.sharing().dedup_totals()));
        let usable = PoolSpace::usable_of(&pool, dedup, &mut notes);
        notes.iter().for_each(|note| ctx.warn(format!("{}: {note}", pool.name)));
        self.pools.push(OpenPool { pool, usable });
        self.pools.len() - 1
    }

    fn root(&mut self, pool: Arc<Pool>, selection: &Selection, ctx: &mut Ctx) -> Result<(), Failure> {
        let dir = pool.dsl.root()?;
        let index = self.add(pool, ctx);
        self.visit_tree(index, dir, selection, ctx)
    }

    fn named(
        &mut self,
        index: usize,
        name: &str,
        selection: &Selection,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        match self.lookup(index, name) {
            Ok(node) if !admits(selection, node.kind()) => {
                let why = "operation not applicable to datasets of this type";
                self.fail(ctx, format!("cannot open '{name}': {why}"));
                Ok(())
            }
            Ok(node) if matches!(node.kind(), DatasetKind::Filesystem | DatasetKind::Volume) => {
                let dir = self.pool(index)?.dsl.dir(name)?;
                self.visit_tree(index, dir, selection, ctx)
            }
            Ok(node) => {
                self.push(index, node);
                Ok(())
            }
            Err(Failure::Failed(why)) => {
                self.fail(ctx, format!("cannot open '{name}': {why}"));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn pool(&self, index: usize) -> Result<&Arc<Pool>, Failure> {
        self.pools.get(index).map(|p| &p.pool).ok_or_else(|| Failure::failed("no such pool"))
    }

    fn lookup(&self, index: usize, name: &str) -> Result<Node, Failure> {
        let parsed: ZfsName = name.parse().map_err(|e| Failure::failed(format!("{e}")))?;
        let dsl = &self.pool(index)?.dsl;
        let missing = |e: Error| match e.kind() {
            Kind::NotFound => Failure::failed("dataset does not exist"),
            _ => Failure::failed(e.to_string()),
        };
        let head = dsl.dir(parsed.dataset()).and_then(|dir| dir.head()).map_err(missing)?;
        let kind = head.kind().map_err(missing)?;
        match parsed.part() {
            NamePart::Dataset => Ok(Node::Dataset(head, kind)),
            NamePart::Snapshot(_) => Ok(Node::Dataset(dsl.dataset(name).map_err(missing)?, kind)),
            NamePart::Bookmark(mark) => {
                let found = bookmarks(&head).map_err(missing)?.into_iter().find(|b| b.name == mark);
                let found = found.ok_or_else(|| Failure::failed("dataset does not exist"))?;
                Ok(Node::Bookmark(head.name, found))
            }
        }
    }

    fn push(&mut self, index: usize, node: Node) {
        if self.seen.insert(node.name()) {
            self.entries.push(Entry::new(index, node));
        }
    }

    fn visit_tree(
        &mut self,
        index: usize,
        dir: Dir,
        selection: &Selection,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        self.met.clear();
        self.visit_dir(index, Opened::new(dir, self.round), selection, 0, ctx)
    }

    /// Lets changes reach the disk now and then, see [`Ctx::breathe`].
    fn breathe(&mut self, ctx: &mut Ctx) {
        self.visited += 1;
        if self.visited.is_multiple_of(PIECE) && ctx.breathe() {
            self.round += 1;
        }
    }

    /// Visits a directory's head and, as far as wanted, its snapshots and bookmarks.
    fn visit_dir(
        &mut self,
        index: usize,
        opened: Opened,
        selection: &Selection,
        depth: u32,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        self.breathe(ctx);
        let Some(Opened { dir, head, round }) = opened.again(self.round) else { return Ok(()) };
        if !self.met.insert(dir.number) {
            self.fail(ctx, format!("cannot open '{}': the dataset tree contains itself", dir.name));
            return Ok(());
        }
        let (kind, head) = match head {
            Ok(read) => read,
            Err(e) => {
                self.fail(ctx, format!("cannot open '{}': {e}", dir.name));
                return Ok(());
            }
        };
        let node = Node::Dataset(head.clone(), kind);
        if selection.types.has(node.kind()) {
            self.push(index, node);
        }
        if !selection.recurse || selection.depth.is_some_and(|limit| depth >= limit) {
            return Ok(());
        }
        if kind == HeadKind::Filesystem {
            self.visit_children(index, &dir, selection, depth + 1, ctx)?;
        }
        let opened = Opened { dir, head: Ok((kind, head)), round };
        match opened.again(self.round).and_then(|opened| opened.head.ok()) {
            Some((kind, head)) => self.visit_leaves(index, &head, kind, selection, ctx),
            None => Ok(()),
        }
    }

    fn visit_children(
        &mut self,
        index: usize,
        dir: &Dir,
        selection: &Selection,
        depth: u32,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        if usize::try_from(depth).unwrap_or(usize::MAX) > engine::dsl::MAX_NESTING {
            return Err(Failure::failed(format!("'{}' is nested too deeply", dir.name)));
        }
        let began = self.round;
        for some in dir.children()?.chunks(AT_ONCE) {
            let round = self.round;
            let opened = parallel::map(some, &ctx.interrupt, |(part, number)| {
                let name = format!("{}/{part}", dir.name);
                let child = match round == began {
                    true => Dir::open(&dir.dsl, *number, name),
                    false => match dir.dsl.dir(&name) {
                        Err(e) if e.kind() == Kind::NotFound => return Ok(None),
                        found => found,
                    },
                };
                child.map(|child| (!child.is_internal()).then(|| Opened::new(child, round)))
            });
            for ((part, _), child) in some.iter().zip(opened.ok_or(Failure::Interrupted)?) {
                match child {
                    Ok(None) => {}
                    Ok(Some(child)) => self.visit_dir(index, child, selection, depth, ctx)?,
                    Err(e) => self.fail(ctx, format!("cannot open '{}/{part}': {e}", dir.name)),
                }
            }
        }
        Ok(())
    }

    fn visit_leaves(
        &mut self,
        index: usize,
        head: &Dataset,
        kind: HeadKind,
        selection: &Selection,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let by_pool = selection.snapshots_by_pool;
        if if by_pool { lists_snapshots(self.pool(index)?) } else { selection.types.snapshot } {
            match head.snapshots() {
                Ok(all) => all.into_iter().for_each(|s| self.push(index, Node::Dataset(s, kind))),
                Err(e) => self.fail(ctx, format!("cannot list snapshots of '{}': {e}", head.name)),
            }
        }
        if selection.types.bookmark {
            match bookmarks(head) {
                Ok(all) => {
                    all.into_iter().for_each(|b| self.push(index, Node::Bookmark(head.name.clone(), b)));
                }
                Err(e) => self.fail(ctx, format!("cannot list bookmarks of '{}': {e}", head.name)),
            }
        }
        Ok(())
    }
}

/// With recursion a file system can be named although it makes no row itself.
fn admits(selection: &Selection, kind: DatasetKind) -> bool {
    let types = selection.types;
    let way = match kind {
        DatasetKind::Filesystem => true,
        DatasetKind::Volume => types.snapshot || types.bookmark,
        _ => false,
    };
    types.has(kind) || (selection.recurse && way)
}

/// The pool property `listsnapshots`.
fn lists_snapshots(pool: &Pool) -> bool {
    let read = || {
        let number = pool.directory().ok()?.u64(ondisk::names::mos::PROPS).ok()??;
        let zap = pool.dsl.zap(number).ok()??;
        zap.u64("listsnapshots").ok()?
    };
    read().unwrap_or(0) != 0
}
