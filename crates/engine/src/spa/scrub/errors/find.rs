//! Where the blocks are that the error log names.

use std::collections::HashMap;
use std::sync::Arc;

use ondisk::{Blkptr, ObjectType};

use crate::dmu::Objset;
use crate::dsl::write::MosTx;
use crate::error::Kind;
use crate::spa::errlog::{LoggedError, block_at};
use crate::zio::Form;

/// Level of an object set's root block in bookmarks, and of blocks of intent logs.
#[doc(alias("ZB_ROOT_LEVEL", "ZB_ZIL_LEVEL"))]
const ROOT_LEVEL: i64 = -1;
const LOG_LEVEL: i64 = -2;
/// Snapshots that one block is looked for in.
const MAX_SNAPSHOTS: usize = 1 << 12;
/// Object sets kept open.
const MAX_OPEN: usize = 64;

/// The known facts of a block.
#[derive(Debug)]
pub(in crate::spa) enum FoundBlock {
    /// No dataset has it any more, or it is a part of its pointer.
    Gone,
    /// It is to be read.
    Here(Blkptr),
    /// Something above it is damaged.
    Unknown,
}

/// An object set that is open, with its root pointer and the snapshot before it.
#[derive(Debug, Clone)]
struct Place {
    root: Blkptr,
    objset: Option<Arc<Objset>>,
    before: (u64, u64),
}

/// Looks for blocks; keeps what it has opened.
#[derive(Debug)]
pub(in crate::spa) struct Finder<'a> {
    at: &'a MosTx<'a>,
    open: HashMap<u64, Option<Place>>,
    looked: usize,
}

impl<'a> Finder<'a> {
    pub(in crate::spa) fn new(at: &'a MosTx<'a>) -> Self {
        Self { at, open: HashMap::new(), looked: 0 }
    }

    /// Number of datasets that were looked into, one counted as often as it was.
    pub(super) fn looked(&self) -> usize {
        self.looked
    }

    /// Looks for a block in the dataset that it is logged for, and then in the snapshots before it that are younger than the
    /// block: they share it. Needs no keys.
    ///
    /// # Errors
    /// When the MOS directory's datasets cannot be read.
    #[doc(alias("scrub_filesystem", "find_birth_txg"))]
    pub(in crate::spa) fn find(&mut self, error: &LoggedError) -> FoundBlock {
        // Old logs, and logs of datasets whose key was missing, do not tell the birth.
        let birth = error.birth.filter(|&birth| birth != 0);
        let mut unknown = false;
        let (mut number, mut hops) = (error.objset, 0);
        loop {
            self.looked = self.looked.saturating_add(1);
            let before = match self.place(number) {
                Ok(Some(place)) => {
                    match self.block(&place, number, error) {
                        Ok(Some(bp))
                            if birth.is_none_or(|birth| {
                                [bp.physical_birth(), bp.logical_birth()].contains(&birth)
                            }) =>
                        {
                            return if bp.is_embedded() { FoundBlock::Gone } else { FoundBlock::Here(bp) };
                        }
                        Ok(_) => {}
                        Err(()) => unknown = true,
                    }
                    place.before
                }
                Ok(None) => break,
                Err(()) => {
                    unknown = true;
                    break;
                }
            };
            let is_younger = birth.is_some_and(|birth| before.1 >= birth);
            if before.0 == 0 || before.0 == number || !is_younger {
                break;
            }
            hops += 1;
            if hops > MAX_SNAPSHOTS {
                unknown = true;
                break;
            }
            number = before.0;
        }
        if unknown { FoundBlock::Unknown } else { FoundBlock::Gone }
    }

    /// The dataset of that number; `None` if there is none.
    fn place(&mut self, number: u64) -> std::result::Result<Option<Place>, ()> {
        if let Some(place) = self.open.get(&number) {
            return Ok(place.clone());
        }
        let place = match number {
            0 => Some(Place { root: self.at.mos.rootbp(), objset: Some(self.at.mos.view()), before: (0, 0) }),
            _ if !self.is_dataset(number) => None,
            _ => match self.at.dataset(number) {
                Ok(phys) => Some(Place {
                    root: phys.bp,
                    objset: Objset::open(self.at.mos.arc(), number, &phys.bp, Form::NoKey).ok(),
                    before: (phys.prev_snap_obj, phys.prev_snap_txg),
                }),
                Err(e) if e.kind() == Kind::NotFound => None,
                Err(_) => return Err(()),
            },
        };
        if self.open.len() >= MAX_OPEN {
            self.open.clear();
        }
        self.open.insert(number, place.clone());
        Ok(place)
    }

    /// Whether the object is a dataset, as far as it can be read: the number of one that was destroyed may have come again.
    fn is_dataset(&self, number: u64) -> bool {
        match self.at.mos.view().object(number) {
            Ok(object) => object.dnode.bonustype == ObjectType::DSL_DATASET,
            Err(e) => e.kind() != Kind::NotFound,
        }
    }

    /// The block that stands at the logged place in this dataset.
    fn block(
        &self,
        place: &Place,
        number: u64,
        error: &LoggedError,
    ) -> std::result::Result<Option<Blkptr>, ()> {
        if error.level == ROOT_LEVEL {
            return Ok(Some(place.root).filter(|root| !root.is_hole()));
        }
        if place.root.is_hole() && number != 0 {
            return Ok(None);
        }
        let objset = place.objset.as_ref().ok_or(())?;
        if error.level == LOG_LEVEL {
            // A log that is there was not replayed: it may have the block still.
            return if objset.phys.zil_header.log.is_hole() { Ok(None) } else { Err(()) };
        }
        let Ok(level) = u8::try_from(error.level) else { return Ok(None) };
        match block_at(objset, error.object, level, error.blkid) {
            Ok(bp) => Ok(bp),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(_) => Err(()),
        }
    }
}
