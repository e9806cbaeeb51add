//! Datasets that a changing verb is about.

use std::sync::Arc;

use daemon::Imported;
use engine::dsl::{Dataset, DatasetKind, Dir};
use engine::spa::Pool;
use engine::{Error, Kind};
use zcommon::names::NameError;
use zcommon::props::DatasetTypes;

use crate::ctx::Ctx;
use crate::session::why;
use crate::verb::Failure;
use crate::words::why_no_dataset;

/// OpenZFS's message for a verb that a dataset's type does not have.
pub const NOT_OF_THIS_TYPE: &str = "operation not applicable to datasets of this type";

/// A dataset's pool, and the pool as it is now.
#[derive(Debug, Clone)]
pub struct Target {
    /// The pool, for change.
    pub pool: Arc<Imported>,
    /// The pool, for reading.
    pub view: Arc<Pool>,
    /// The dataset's name.
    pub name: String,
}

impl Target {
    /// The pool that `name` is in; whether the dataset exists is not looked at.
    pub fn of(name: &str, ctx: &mut Ctx) -> Result<Self, Failure> {
        let Some(pool) = ctx.pool_of(name) else {
            return Err(Failure::cannot("open", name, ctx.why_no_pool_of(name, why_no_dataset(name))));
        };
        let view = {
            let _quiet = pool.quiet();
            pool.view()?
        };
        Ok(Self { pool, view, name: name.to_owned() })
    }

    /// The same for verbs that snapshots and bookmarks do not have.
    pub fn head_of(name: &str, ctx: &mut Ctx) -> Result<Self, Failure> {
        let unexpected = [('@', NameError::UnexpectedSnapshot), ('#', NameError::UnexpectedBookmark)];
        match unexpected.iter().find(|(delimiter, _)| name.contains(*delimiter)) {
            Some((_, fault)) => Err(Failure::cannot("open", name, fault)),
            None => Self::of(name, ctx),
        }
    }

    /// A pool's root.
    pub fn root(pool: &Arc<Imported>, view: Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), view, name: pool.name() }
    }

    /// The dataset, which must exist.
    pub fn dataset(&self) -> Result<Dataset, Failure> {
        let _quiet = self.pool.quiet();
        self.view.dsl.dataset(&self.name).map_err(|e| self.unopened(&e))
    }

    /// The directory, which must exist.
    pub fn dir(&self) -> Result<Dir, Failure> {
        let _quiet = self.pool.quiet();
        self.find_dir()
    }

    fn find_dir(&self) -> Result<Dir, Failure> {
        let name = self.name.split(['@', '#']).next().unwrap_or_default();
        self.view.dsl.dir(name).map_err(|e| self.unopened(&e))
    }

    fn unopened(&self, e: &Error) -> Failure {
        match e.kind() {
            Kind::NotFound => Failure::no_dataset(&self.name),
            _ => Failure::cannot("open", &self.name, why(e)),
        }
    }

    /// The parts after the `@` of a directory's snapshots.
    pub fn snapshots(&self, dir: &Dir) -> Result<Vec<String>, Failure> {
        let _quiet = self.pool.quiet();
        let all = dir.head()?.snapshots()?;
        let part = |s: &Dataset| s.name.split_once('@').map(|(_, part)| part.to_owned());
        Ok(all.iter().filter_map(part).collect())
    }

    /// Whether a dataset of that name exists.
    pub fn exists(&self) -> bool {
        let _quiet = self.pool.quiet();
        self.view.dsl.dataset(&self.name).is_ok()
    }

    /// Dataset types that determine its properties.
    pub fn types(&self) -> Result<DatasetTypes, Failure> {
        if self.name.contains('@') {
            self.dataset()?;
            return Ok(DatasetTypes::SNAPSHOT);
        }
        let dataset = self.dataset()?;
        let _quiet = self.pool.quiet();
        let kind = dataset.kind().map_err(|e| Failure::cannot("open", &self.name, e.what()))?;
        Ok(match kind {
            DatasetKind::Filesystem => DatasetTypes::FILESYSTEM,
            DatasetKind::Volume => DatasetTypes::VOLUME,
        })
    }

    /// All directories at and below the dataset, parents first.
    pub fn tree(&self) -> Result<Vec<Dir>, Failure> {
        let _quiet = self.pool.quiet();
        let walk = self.view.dsl.walk(self.find_dir()?);
        let all: Vec<Dir> = walk.collect::<engine::Result<_>>()?;
        Ok(all.into_iter().filter(|dir| !dir.is_internal()).collect())
    }
}
