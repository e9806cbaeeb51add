//! A DSL directory: the object behind a dataset's name.

use std::sync::Arc;

use ondisk::dsl::DslDir;
use ondisk::names::dsl_dir;

use super::{Dataset, Dsl, malformed};
use crate::dmu::Object;
use crate::error::{Error, Result};
use crate::zap::{Value, Zap};

/// A directory, read.
#[derive(Debug, Clone)]
pub struct Dir {
    /// The pool it is in.
    pub dsl: Arc<Dsl>,
    /// Its object number in the MOS.
    pub number: u64,
    /// Its full name.
    pub name: String,
    /// Its content.
    pub phys: DslDir,
    object: Object,
}

impl Dir {
    /// Reads directory `number`, which is called `name`.
    pub fn open(dsl: &Arc<Dsl>, number: u64, name: String) -> Result<Self> {
        let object = dsl.mos.object(number).map_err(|e| e.in_dataset(&name))?;
        let phys =
            DslDir::from_bytes(object.dnode.bonus()).map_err(|e| malformed(number, &e).in_dataset(&name))?;
        Ok(Self { dsl: Arc::clone(dsl), number, name, phys, object })
    }

    /// The child called `part` (the last component alone).
    pub fn child(&self, part: &str) -> Result<Option<Self>> {
        let Some(zap) = self.dsl.zap(self.phys.child_dir_zapobj)? else { return Ok(None) };
        let Some(number) = zap.u64(part)? else { return Ok(None) };
        Self::open(&self.dsl, number, format!("{}/{part}", self.name)).map(Some)
    }

    /// Names (last components) and object numbers of all children, in the order of their names. Those
    /// that start with `$` or contain `%` are the pool's own.
    pub fn children(&self) -> Result<Vec<(String, u64)>> {
        let mut all = self.children_as_stored()?;
        all.sort();
        Ok(all)
    }

    /// As [`Dir::children`], in the order of their ZAP, in which OpenZFS lists them.
    pub fn children_as_stored(&self) -> Result<Vec<(String, u64)>> {
        let Some(zap) = self.dsl.zap(self.phys.child_dir_zapobj)? else { return Ok(Vec::new()) };
        let entries = zap.to_vec()?;
        Ok(entries.iter().filter_map(|e| Some((e.name_lossy(), e.value.first()?))).collect())
    }

    /// The live file system or volume.
    pub fn head(&self) -> Result<Dataset> {
        if self.phys.head_dataset_obj == 0 {
            return Err(Error::not_found("the directory has no dataset").in_dataset(&self.name));
        }
        Dataset::open(&self.dsl, self.phys.head_dataset_obj, self.name.clone())
    }

    /// True for directories that the pool keeps for itself (`$MOS`, `$FREE`, `$ORIGIN`, temporaries).
    pub fn is_internal(&self) -> bool {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        last.starts_with('$') || last.contains('%')
    }

    /// An entry of the directory's own ZAP (`com.datto:crypto_key_obj` and the like), which only
    /// directories with such entries have.
    pub fn extra(&self, name: &str) -> Result<Option<Value>> {
        match self.extras()? {
            Some(zap) => zap.lookup(name.as_bytes()),
            None => Ok(None),
        }
    }

    /// When a snapshot of its dataset came or went the last time, in seconds since 1970; `None`: it is not known.
    pub fn snapshots_changed(&self) -> Result<Option<u64>> {
        Ok(self.extra(dsl_dir::SNAPSHOTS_CHANGED)?.and_then(|value| value.first()))
    }

    /// The directory's own ZAP.
    pub fn extras(&self) -> Result<Option<Zap>> {
        zapified(&self.object)
    }
}

/// The ZAP of a "zapified" object: one whose bonus is a dsl structure and whose data is a ZAP.
pub(super) fn zapified(object: &Object) -> Result<Option<Zap>> {
    if object.dnode.object_type.byteswap() != Some(ondisk::Byteswap::Zap) {
        return Ok(None);
    }
    Zap::open(object).map(Some)
}
