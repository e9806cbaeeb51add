//! Blocks with more than one owner: writes that share a stored block; frees, which end a reference or release space.

use std::sync::{Arc, Weak};

use ondisk::Blkptr;
use zcommon::features::Feature;

use super::Spa;
use super::pool::Pool;
use crate::dmu::dirty::within::Within;
use crate::dmu::edit::Objects;
use crate::dmu::{Objset, Tx};
use crate::dsl::write::Hooks;
use crate::error::Result;
use crate::zio::dedup::{Again, Claim, DedupTables, Want};
use crate::{brt, ddt, zio};

/// The tables of blocks with more than one owner.
#[derive(Debug, Default)]
pub struct Shared {
    ddt: ddt::write::Tables,
    brt: brt::write::Tables,
}

impl Shared {
    /// The tables of an existing pool.
    pub(super) fn load(pool: &Pool) -> Result<Self> {
        let tree = pool.tree();
        let dsize = |bp: &Blkptr| zio::deflated(&tree, bp);
        let words = pool.features.is_active(Feature::BlockCloningEndian.info().guid);
        Ok(Self {
            ddt: ddt::write::Tables::load(&pool.mos, &dsize)?,
            brt: brt::write::Tables::load(&pool.mos, words)?,
        })
    }

    /// Bytes that the pool would need more if every block had one owner.
    pub fn saved(&self) -> u64 {
        self.ddt.saved().saturating_add(self.brt.saved())
    }
}

struct TablesAt<'a> {
    spa: &'a Spa,
    within: Within<'a>,
}

impl ddt::write::Host for TablesAt<'_> {
    fn objects(&self) -> &dyn Objects {
        &self.within
    }

    fn view(&self) -> Arc<Objset> {
        self.spa.mos.view()
    }

    fn dsize(&self, bp: &Blkptr) -> u64 {
        zio::deflated(&self.spa.pool.zio.tree(), bp)
    }

    fn salt(&self) -> u64 {
        self.spa.pool.env.guid()
    }

    fn now(&self) -> u64 {
        self.spa.pool.env.now()
    }

    fn count_feature(&self, feature: Feature, delta: i64) -> Result<()> {
        self.spa.count_feature(feature, delta, self.within.tx)
    }
}

impl ddt::write::Source for Spa {
    fn view(&self) -> Result<Arc<Objset>> {
        Ok(self.mos.view())
    }

    fn makes_fast(&self) -> bool {
        self.features.is_enabled(Feature::FastDedup)
    }
}

/// The dedup tables for the write path, which does not keep the pool open.
#[derive(Debug)]
pub(super) struct DedupOf(pub Weak<Spa>);

impl DedupTables for DedupOf {
    fn claim(&self, bp: &Blkptr, want: &Want, again: &mut Option<Again>) -> Result<Claim> {
        let Some(spa) = self.0.upgrade() else { return Ok(Claim::Refused) };
        spa.shared.ddt.claim(&*spa, bp, want, again)
    }

    fn written(&self, bp: &Blkptr, want: &Want, written: Option<&Blkptr>) -> Option<Blkptr> {
        self.0.upgrade()?.shared.ddt.written(bp, want, written)
    }
}

impl Spa {
    /// A reference to a block ends (syncing context); the last one takes its space back.
    #[doc(alias = "zio_free")]
    pub fn free_block(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let tables = TablesAt { spa: self, within: self.mos.within(tx) };
        if !bp.dedup() {
            return self.release(&tables, bp, tx);
        }
        // Of a listed block only the entry knows when it is free.
        if self.shared.ddt.free(self, bp)? { Ok(()) } else { self.release(&tables, bp, tx) }
    }

    fn release(&self, tables: &TablesAt<'_>, bp: &Blkptr, tx: &Tx) -> Result<()> {
        match self.shared.brt.release(tables, bp)? {
            true => Ok(()),
            false => self.free_places(bp, tx),
        }
    }

    /// Takes a block's space back.
    pub(super) fn free_places(&self, bp: &Blkptr, tx: &Tx) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if bp.is_gang() {
            for member in zio::gang_members(&self.pool.zio, bp)?.members {
                self.free_places(&member, tx)?;
            }
        }
        let allocator = self.pool.zio.allocator()?;
        self.pool.arc.freed(bp);
        // A clone is younger than its bytes: what counts for a checkpoint is when they were written.
        bp.dvas().for_each(|dva| allocator.free_born(&dva, bp.physical_birth(), tx.txg()));
        Ok(())
    }

    /// Writes what changed in the tables, and frees blocks that lost their last reference.
    pub(super) fn sync_shared(&self, tx: &Tx) -> Result<()> {
        let tables = TablesAt { spa: self, within: self.mos.within(tx) };
        let freed = self.shared.ddt.sync(&tables)?;
        freed.iter().try_for_each(|bp| self.release(&tables, bp, tx))?;
        self.shared.brt.sync(&tables)
    }
}
