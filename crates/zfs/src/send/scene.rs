//! The pool that is sent from: imported, or in images.

use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::keys;
use clikit::session::why;
use clikit::source::PoolSource;
use clikit::target::Target;
use clikit::verb::Failure;
use daemon::Imported;
use engine::dsl::props::bookmarks::{BookmarkInfo, bookmarks};
use engine::dsl::props::stats::clone_origin;
use engine::dsl::write::LongHold;
use engine::dsl::{Dataset, Dir};
use engine::spa::{Pool, Quiet};
use engine::{Error, Kind, Result};

/// A pool to read datasets of.
#[derive(Debug)]
pub(super) struct Scene {
    /// The pool.
    pub pool: Arc<Pool>,
    live: Option<Arc<Imported>>,
}

impl Scene {
    /// The pool of dataset `name`.
    pub(super) fn open(source: &PoolSource, name: &str, ctx: &mut Ctx) -> std::result::Result<Self, Failure> {
        if ctx.session.is_some() && !source.is_offline() {
            let target = Target::of(name, ctx)?;
            return Ok(Self { pool: target.view, live: Some(target.pool) });
        }
        let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
        let pool = source.open(pool, ctx).map_err(|e| match e {
            e if e.is_no_pool(pool) => Failure::no_dataset(name),
            other => other,
        })?;
        Ok(Self { pool, live: None })
    }

    /// Keeps datasets as they are while several of them are looked at.
    pub(super) fn quiet(&self) -> Option<Quiet> {
        self.live.as_ref().and_then(|pool| pool.quiet())
    }

    /// A dataset by name.
    pub(super) fn dataset(&self, name: &str) -> Result<Dataset> {
        let _quiet = self.quiet();
        self.pool.dsl.dataset(name)
    }

    /// A dataset by name, or the message of `zfs` when there is none.
    pub(super) fn must(&self, name: &str) -> std::result::Result<Dataset, Failure> {
        self.dataset(name).map_err(|e| Failure::cannot("open", name, why(&e)))
    }

    /// A bookmark by its whole name.
    pub(super) fn bookmark(&self, name: &str) -> Result<BookmarkInfo> {
        let _quiet = self.quiet();
        let missing = || Error::not_found("dataset does not exist").in_dataset(name);
        let (head, mark) = name.split_once('#').ok_or_else(missing)?;
        let all = bookmarks(&self.pool.dsl.dataset(head)?)?;
        all.into_iter().find(|known| known.name == mark).ok_or_else(missing)
    }

    /// All directories at and below `name`, parents first.
    pub(super) fn below(&self, name: &str) -> Result<Vec<Dir>> {
        let _quiet = self.quiet();
        let all: Vec<Dir> = self.pool.dsl.walk(self.pool.dsl.dir(name)?).collect::<Result<_>>()?;
        Ok(all.into_iter().filter(|dir| !dir.is_internal()).collect())
    }

    /// Keeps a dataset while it is sent: a snapshot from being destroyed, a head from being changed. Its key stays loaded unless
    /// the stream is `raw`.
    ///
    /// # Errors
    /// `Busy` for a head that is in use or whose receive is unfinished, `Invalid` for a snapshot of such a head.
    pub(super) fn hold(&self, dataset: &Dataset, raw: bool) -> Result<Option<LongHold>> {
        let held = self.hold_partial(dataset, raw)?;
        let now = self.dataset(&dataset.name)?;
        match (now.is_inconsistent(), now.is_snapshot()) {
            (false, _) => Ok(held),
            (true, false) => Err(Error::new(Kind::Busy, "dataset is busy")),
            (true, true) => {
                Err(Error::new(Kind::Invalid, "the snapshot was made during an unfinished receive"))
            }
        }
    }

    /// The same, also of a head whose receive is unfinished.
    pub(super) fn hold_partial(&self, dataset: &Dataset, raw: bool) -> Result<Option<LongHold>> {
        let Some(Ok(spa)) = self.live.as_ref().map(|pool| pool.spa()) else { return Ok(None) };
        let hold = match dataset.is_snapshot() {
            true => spa.datasets.hold_long(dataset.number)?,
            false => spa.datasets.own(dataset.number)?,
        };
        Ok(Some(if raw { hold } else { hold.with_key() }))
    }

    /// Keeps redaction lists, by object number (0: none), while they are read.
    pub(super) fn hold_lists(&self, lists: impl Iterator<Item = u64>) -> Result<Vec<LongHold>> {
        let Some(Ok(spa)) = self.live.as_ref().map(|pool| pool.spa()) else { return Ok(Vec::new()) };
        lists.filter(|&list| list != 0).map(|list| spa.datasets.hold_list(list)).collect()
    }

    /// In images a key is loaded where it can be had.
    pub(super) fn ready(
        &self,
        dataset: &Dataset,
        raw: bool,
        ctx: &mut Ctx,
    ) -> std::result::Result<(), Failure> {
        if self.live.is_some() || raw {
            return Ok(());
        }
        let dir = dataset.dir()?;
        keys::ensure(&self.pool, &dir, ctx)
    }

    /// The snapshot that a head was cloned from. The caller keeps datasets as they are.
    pub(super) fn origin(&self, head: &Dataset) -> Result<Option<Dataset>> {
        let number = head.dir()?.phys.origin_obj;
        if number == 0 {
            return Ok(None);
        }
        let dsl = &self.pool.dsl;
        clone_origin(dsl, number)?.map(|name| dsl.dataset(&name)).transpose()
    }

    /// Whether `from` is an earlier snapshot in the history of `to`.
    #[doc(alias = "dsl_dataset_is_before")]
    pub(super) fn is_before(&self, from: &Dataset, to: &Dataset) -> Result<bool> {
        let _quiet = self.quiet();
        if from.phys.creation_txg >= to.phys.creation_txg && to.is_snapshot() {
            return Ok(false);
        }
        let mut at = to.clone();
        // Each origin is older than its clones, so this ends.
        loop {
            if at.phys.dir_obj == from.phys.dir_obj {
                return Ok(true);
            }
            let origin = at.dir()?.phys.origin_obj;
            if origin == 0 {
                return Ok(false);
            }
            let before = Dataset::open(&self.pool.dsl, origin, at.name.clone())?;
            if before.number == from.number {
                return Ok(true);
            }
            if before.phys.creation_txg <= from.phys.creation_txg
                || before.phys.creation_txg >= at.phys.creation_txg && at.is_snapshot()
            {
                return Ok(false);
            }
            // A snapshot's directory is found by number; its name does not matter here.
            at = before;
        }
    }
}

/// The text behind `cannot send 'X': ` for a failure.
pub(super) fn reason(e: &Error) -> String {
    match e.kind() {
        Kind::KeyMissing | Kind::KeyWrong => "dataset key must be loaded".to_owned(),
        Kind::Busy => "target is busy; if a filesystem, it must not be mounted".to_owned(),
        Kind::Unsupported | Kind::Invalid => e.what().to_owned(),
        Kind::NotFound | Kind::Exists | Kind::Suspended | Kind::Denied => why(e),
        _ => e.what().strip_prefix(engine::send::UNWRITTEN).map_or_else(|| e.to_string(), str::to_owned),
    }
}
