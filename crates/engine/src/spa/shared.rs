//! Freeing blocks: those with more than one owner lose a reference, others their space.

use std::sync::Arc;

use ondisk::Blkptr;
use zcommon::features::Feature;

use super::Spa;
use super::pool::Pool;
use crate::dmu::dirty::within::Within;
use crate::dmu::edit::Objects;
use crate::dmu::{Objset, Tx};
use crate::dsl::write::Hooks;
use crate::error::Result;
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

    fn feature_unused(&self, feature: Feature) -> Result<()> {
        self.spa.count_feature(feature, -1, self.within.tx)
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
        let freed = self.shared.ddt.free(&tables, bp)?;
        freed.blocks.iter().try_for_each(|bp| self.release(&tables, bp, tx))?;
        if freed.known { Ok(()) } else { self.release(&tables, bp, tx) }
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

    /// Writes what frees changed in the tables, apart from their entries.
    pub(super) fn sync_shared(&self, tx: &Tx) -> Result<()> {
        let tables = TablesAt { spa: self, within: self.mos.within(tx) };
        self.shared.ddt.sync(&tables)?;
        self.shared.brt.sync(&tables)
    }
}
