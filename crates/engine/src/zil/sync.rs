//! The log in syncing context: frees the blocks that txgs on disk cover, and advances its header.

use std::sync::Arc;

use ondisk::objset::ZilHeader;
use ondisk::zil::LogBlock;
use ondisk::{Blkptr, Dva};

use super::held_by;
use super::log::{LwbState, Mode, Zil};
use crate::dmu::dirty::IntentLog;
use crate::dmu::{Objset, Tx};
use crate::error::Result;
use crate::txg::{SIZE, slot};
use crate::zio::parts_to_free;

/// The pending end of a chain, to be done with a txg.
#[derive(Debug)]
pub(super) struct Destroy {
    pub(crate) txg: u64,
    pub(crate) space: Vec<LogSpace>,
    /// References that end.
    pub(crate) clones: Vec<Blkptr>,
    /// The first block, if it is kept to begin the next chain.
    pub(crate) first: Option<Blkptr>,
}

/// Space of a block, and the txg of its allocation.
pub(super) type LogSpace = (Dva, u64);

/// A pointer, if it is not a hole.
pub(super) trait Filled: Sized {
    fn filled(self) -> Option<Self>;
}

impl Filled for Blkptr {
    fn filled(self) -> Option<Self> {
        (!self.is_hole()).then_some(self)
    }
}

/// All space of a claimed log, and the references that its records hold.
pub(super) fn space_of(view: &Arc<Objset>) -> Result<(Vec<LogSpace>, Vec<Blkptr>)> {
    let (mut space, held) = (Vec::new(), held_by(view)?);
    for bp in held.blocks {
        take(view, &bp, &mut space)?;
    }
    Ok((space, held.clones))
}

pub(super) fn places(bp: &Blkptr) -> impl Iterator<Item = LogSpace> + '_ {
    bp.dvas().map(|dva| (dva, bp.physical_birth()))
}

fn take(view: &Arc<Objset>, bp: &Blkptr, space: &mut Vec<LogSpace>) -> Result<()> {
    if bp.is_gang() {
        // Pieces that a damaged header named are lost.
        let (parts, _) = parts_to_free(view.arc().zio(), bp)?;
        parts.iter().for_each(|part| space.extend(places(part)));
    } else {
        space.extend(places(bp));
    }
    Ok(())
}

impl IntentLog for Zil {
    fn sync(&self, tx: &Tx, header: &mut ZilHeader) -> Result<()> {
        let allocator = self.objset()?.arc().zio().allocator()?;
        let txg = tx.txg();
        let mut chain = self.chain.lock();
        if let Some(seq) = chain.replayed.get_mut(slot(txg)).map(std::mem::take) {
            header.replay_seq = header.replay_seq.max(seq);
        }
        if let Some(end) = chain.destroy.take_if(|end| end.txg == txg) {
            end.space.iter().for_each(|(dva, birth)| allocator.free_born(dva, *birth, txg));
            end.clones.iter().try_for_each(|bp| self.host.free(bp, tx))?;
            *header = ZilHeader::default();
            chain.replayed = [0; SIZE];
            if let Some(mut first) = end.first {
                // A new log guid, so that no old block after it belongs to the chain.
                first.set_checksum([self.host.random(), self.host.random(), LogBlock::objset(&first), 1]);
                header.log = first;
            }
        }
        let broken = chain.mode == Mode::Broken;
        while let Some(lwb) = chain.lwbs.front() {
            header.log = lwb.bp;
            let over = lwb.state == LwbState::Done || broken && lwb.state == LwbState::Open;
            if !over || lwb.alloc_txg > txg || lwb.max_txg > txg {
                break;
            }
            let birth = lwb.bp.physical_birth();
            lwb.bp.dvas().for_each(|dva| allocator.free_born(&dva, birth, txg));
            chain.lwbs.pop_front();
            if chain.lwbs.is_empty() {
                header.log = Blkptr::default();
            }
        }
        if broken && chain.lwbs.is_empty() {
            chain.mode = Mode::Ready;
        }
        drop(chain);
        self.itxs.lock().forget_synced(txg.saturating_sub(1).min(self.host.synced()));
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        Self::suspend(self)
    }

    fn resume(&self) {
        Self::resume(self);
    }
}
