//! Names of a micro ZAP, through the index that its object keeps, or by a search of the block where there is none.

use ondisk::zap::{MicroEntry, MicroIndex, MicroZap, ZapFlags, hash_name};

use super::fold;
use crate::dmu::Handle;

/// Slots up to which a search is as cheap as an index.
const FEW: usize = 31;
/// Maximum leaf chunks of a micro ZAP's entry.
#[doc(alias = "MZAP_ENT_CHUNKS")]
const ENTRY_CHUNKS: usize = 5;
/// Chunks of a leaf of the fat ZAP that a micro ZAP becomes.
#[doc(alias = "ZAP_LEAF_NUMCHUNKS_DEF")]
const LEAF_CHUNKS: usize = 638;

/// A micro ZAP, and the object that keeps its index.
pub(super) struct Names<'a> {
    zap: MicroZap<'a>,
    keeper: Option<(&'a Handle, u64)>,
}

/// The place of a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZapSlot {
    /// The hash of the name.
    pub(crate) hash: u64,
    /// The slot of the present entry; `None` if there is none.
    pub(crate) old: Option<usize>,
    /// The lowest free slot; `None` if all are taken.
    pub(crate) free: Option<usize>,
    /// The lowest unused `cd` of the name's hash; `None` if there are too many entries to fit into one leaf.
    pub(crate) cd: Option<u32>,
}

impl<'a> Names<'a> {
    /// `content`: the number of the content of `keeper` that the block was read from.
    pub(super) fn new(zap: MicroZap<'a>, keeper: Option<&'a Handle>, content: Option<u64>) -> Self {
        let keeper = keeper.zip(content).filter(|_| zap.slots() > FEW);
        Self { zap, keeper }
    }

    /// The hash of a name in this ZAP.
    fn hash(&self, name: &[u8]) -> u64 {
        hash_name(self.zap.salt(), &fold(name, self.zap.normflags()), ZapFlags::default())
    }

    /// Calls `work` with the index, if there is one or it is worth to be built.
    fn with_index<T>(&self, work: impl FnOnce(Option<&MicroIndex>) -> T) -> T {
        let Some((keeper, content)) = self.keeper else { return work(None) };
        if let Some(index) = keeper.names(content) {
            return work(Some(&index));
        }
        if !keeper.wants_names(content) {
            return work(None);
        }
        let index = MicroIndex::of(&self.zap, |name| self.hash(name));
        let done = work(Some(&index));
        keeper.keep_names(content, index);
        done
    }

    /// The entry with exactly this name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<MicroEntry<'a>> {
        self.with_index(|index| match index {
            Some(index) => index.find(&self.zap, name, self.hash(name)),
            None => self.zap.find(name),
        })
    }

    /// Where a name is, or would be put.
    pub(crate) fn place(&self, name: &[u8]) -> ZapSlot {
        let hash = self.hash(name);
        self.with_index(|index| match index {
            Some(index) => {
                let old = index.find(&self.zap, name, hash).map(|e| e.index);
                let same = index.of_hash(hash).filter_map(|slot| self.zap.entry(slot));
                ZapSlot { hash, old, free: index.free_slot(), cd: free_cd(same.map(|e| e.cd)) }
            }
            None => {
                let old = self.zap.find(name).map(|e| e.index);
                let same = self.zap.entries().filter(|e| self.hash(e.name) == hash);
                // Only a new entry gets a cd.
                let cd = if old.is_some() { None } else { free_cd(same.map(|e| e.cd)) };
                ZapSlot { hash, old, free: self.zap.free_slot(), cd }
            }
        })
    }
}

/// The lowest number that is not among the `cd`s of one hash; `None` if there are too many entries to fit into one leaf.
fn free_cd(cds: impl Iterator<Item = u32>) -> Option<u32> {
    let mut used: Vec<u32> = cds.collect();
    used.sort_unstable();
    used.dedup();
    let taken = used.iter().zip(0u32..).take_while(|(cd, i)| **cd == *i).count();
    ((used.len() + 1) * ENTRY_CHUNKS < LEAF_CHUNKS).then_some(u32::try_from(taken).unwrap_or(u32::MAX))
}
