//! Resolves a target to the file or volume that it names.

use std::collections::HashMap;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::keys;
use clikit::source::PoolSource;
use clikit::verb::Failure;
use engine::Kind;
use engine::dsl::{Dataset, DatasetKind};
use engine::spa::Pool;
use engine::zil::in_memory::MemoryReplay;
use zpl::{Filesystem, Inode};
use zvol::Volume;

use super::target::Target;

/// The object that a target names.
#[derive(Debug, Clone)]
pub enum Named {
    /// A file of a file system, and its path as the user wrote it.
    File(Inode, Vec<u8>),
    /// A volume.
    Volume(Arc<Volume>),
}

/// Pools and file systems opened so far.
#[derive(Debug)]
pub struct Access<'a> {
    source: &'a PoolSource,
    pools: HashMap<String, Arc<Pool>>,
    filesystems: HashMap<String, Arc<Filesystem>>,
}

impl<'a> Access<'a> {
    /// No pool is open yet.
    pub fn new(source: &'a PoolSource) -> Self {
        Self { source, pools: HashMap::new(), filesystems: HashMap::new() }
    }

    fn pool(&mut self, name: &str, ctx: &mut Ctx) -> Result<Arc<Pool>, Failure> {
        if let Some(pool) = self.pools.get(name) {
            return Ok(Arc::clone(pool));
        }
        let pool = self.source.open(name, ctx)?;
        self.pools.insert(name.to_owned(), Arc::clone(&pool));
        Ok(pool)
    }

    /// The dataset that the target names, and the path if one was given.
    fn dataset(
        &mut self,
        target: &Target,
        ctx: &mut Ctx,
    ) -> Result<(Arc<Pool>, Dataset, Option<Vec<u8>>), Failure> {
        let pool = self.pool(target.pool(), ctx)?;
        for (name, path) in &target.readings {
            match pool.dsl.dataset(name) {
                Ok(dataset) => return Ok((pool, dataset, path.clone())),
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(Failure::cannot("open", name, e)),
            }
        }
        let name = target.readings.first().map_or(target.text.as_str(), |(name, _)| name);
        Err(Failure::cannot("open", name, "dataset does not exist"))
    }

    /// Opens the target. With `follow`, a symbolic link at the end of the path is followed.
    pub fn open(&mut self, target: &Target, follow: bool, ctx: &mut Ctx) -> Result<Named, Failure> {
        let (pool, dataset, path) = self.dataset(target, ctx)?;
        keys::ensure(&pool, &dataset.dir()?, ctx)?;
        let why = |e| Failure::cannot("open", &target.text, e);
        if dataset.kind().map_err(why)? == DatasetKind::Volume {
            if path.is_some_and(|p| !p.is_empty()) {
                return Err(Failure::cannot("open", &target.text, "a volume has no paths inside"));
            }
            return Ok(Named::Volume(self.volume(&dataset, ctx).map_err(why)?));
        }
        let fs = self.filesystem(&dataset, ctx).map_err(why)?;
        let path = path.unwrap_or_default();
        let inode = fs.resolve(&path, follow).map_err(why)?;
        Ok(Named::File(inode, path))
    }

    /// Like [`Access::open`], for verbs that do not accept volumes.
    pub fn open_file(
        &mut self,
        target: &Target,
        follow: bool,
        ctx: &mut Ctx,
    ) -> Result<(Inode, Vec<u8>), Failure> {
        match self.open(target, follow, ctx)? {
            Named::File(inode, path) => Ok((inode, path)),
            Named::Volume(_) => Err(Failure::cannot("open", &target.text, "it is a volume")),
        }
    }

    /// With an explicit txg the file system is opened as of that txg; otherwise its intent log is replayed in
    /// memory, too.
    fn filesystem(&mut self, dataset: &Dataset, ctx: &mut Ctx) -> engine::Result<Arc<Filesystem>> {
        if let Some(fs) = self.filesystems.get(&dataset.name) {
            return Ok(Arc::clone(fs));
        }
        let fs =
            if self.is_older() { Filesystem::open_committed(dataset)? } else { Filesystem::open(dataset)? };
        tell(&dataset.name, fs.replayed(), ctx);
        self.filesystems.insert(dataset.name.clone(), Arc::clone(&fs));
        Ok(fs)
    }

    /// As [`Access::filesystem`], for a volume.
    fn volume(&self, dataset: &Dataset, ctx: &mut Ctx) -> engine::Result<Arc<Volume>> {
        let volume = if self.is_older() { Volume::open_committed(dataset)? } else { Volume::open(dataset)? };
        tell(&dataset.name, volume.replayed(), ctx);
        Ok(volume)
    }

    fn is_older(&self) -> bool {
        self.source.txg.is_some() || self.source.rewind_to_checkpoint
    }
}

/// Says that an intent log was replayed in memory, and its records that were not.
fn tell(name: &str, replayed: Option<&MemoryReplay>, ctx: &mut Ctx) {
    let Some(replayed) = replayed else { return };
    let n = replayed.applied;
    ctx.warn(format!("{name}: the pool was not exported: {n} records of its intent log are included"));
    for note in &replayed.notes {
        ctx.warn(format!("{name}: not replayed: {note}"));
    }
}
