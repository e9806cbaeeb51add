//! A dataset: a head or a snapshot.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::ObjsetType;
use ondisk::dsl::DslDataset;

use super::dir::zapified;
use super::{Dir, Dsl, lookup, malformed};
use crate::dmu::{Object, Objset};
use crate::error::{Error, Kind, Result};
use crate::zap::{Cursor, Value, Zap};
use crate::zio::Form;

/// Type of a dataset's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A POSIX file system.
    Filesystem,
    /// A block device.
    Volume,
}

/// A dataset, read.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The pool it is in.
    pub dsl: Arc<Dsl>,
    /// Its object number in the MOS, which is also its object set's id.
    pub number: u64,
    /// Its full name.
    pub name: String,
    /// Its content.
    pub phys: DslDataset,
    object: Object,
}

impl Dataset {
    /// Reads dataset `number`, which is called `name`.
    pub fn open(dsl: &Arc<Dsl>, number: u64, name: String) -> Result<Self> {
        let object = dsl.mos.object(number).map_err(|e| e.in_dataset(&name))?;
        let bonus = object.dnode.bonus();
        let phys = DslDataset::from_bytes(bonus).map_err(|e| malformed(number, &e).in_dataset(&name))?;
        Ok(Self { dsl: Arc::clone(dsl), number, name, phys, object })
    }

    /// Whether a stream has brought a part of it only: a receive that has not ended, or was interrupted.
    pub fn is_inconsistent(&self) -> bool {
        self.phys.flags & DslDataset::FLAG_INCONSISTENT != 0
    }

    /// True for a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.phys.is_snapshot()
    }

    /// Its directory.
    pub fn dir(&self) -> Result<Dir> {
        let name = self.name.split('@').next().unwrap_or_default();
        Dir::open(&self.dsl, self.phys.dir_obj, name.to_owned())
    }

    /// The snapshot of this head called `snap`.
    pub fn snapshot(&self, snap: &str) -> Result<Option<Self>> {
        let found = lookup::snapshot(self.dsl.as_ref(), &self.phys, snap)?;
        let Some((number, snap)) = found else { return Ok(None) };
        Self::open(&self.dsl, number, format!("{}@{snap}", self.name)).map(Some)
    }

    /// All snapshots of this head, oldest first.
    pub fn snapshots(&self) -> Result<Vec<Self>> {
        let Some(zap) = self.dsl.zap(self.phys.snapnames_zapobj)? else { return Ok(Vec::new()) };
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        for entry in zap.to_vec()? {
            let number =
                entry.value.first().ok_or_else(|| Error::corrupt("snapshot name without a number"))?;
            if !seen.insert(number) {
                let what = format!("two snapshots are object {number}");
                return Err(Error::new(Kind::Loop, what).in_dataset(&self.name));
            }
            all.push(Self::open(&self.dsl, number, format!("{}@{}", self.name, entry.name_lossy()))?);
        }
        all.sort_by_key(|s| s.phys.creation_txg);
        Ok(all)
    }

    /// Names of its snapshots, each with its object, from the place of a cookie on; `None`: it can't have any.
    pub fn snapshot_names(&self, cookie: u64) -> Result<Option<Cursor>> {
        Ok(self.dsl.zap(self.phys.snapnames_zapobj)?.map(|zap| zap.entries_from(cookie)))
    }

    /// Its object set, as its readers want it.
    pub fn objset(&self) -> Result<Arc<Objset>> {
        self.objset_as(Form::Logical)
    }

    /// Its object set in the given form: `Form::NoKey` for the parts that are readable without a key.
    pub fn objset_as(&self, form: Form) -> Result<Arc<Objset>> {
        if let Some(objset) = self.unwritten() {
            return Ok(objset);
        }
        let open = Objset::open(&self.dsl.arc, self.number, &self.phys.bp, form);
        open.map_err(|e| self.name_the_key(e).in_dataset(&self.name))
    }

    /// The object set as it is in memory while its first txg is not on disk: a suspended pool stays so.
    fn unwritten(&self) -> Option<Arc<Objset>> {
        let writer = self.phys.bp.is_hole().then(|| self.dsl.writer.get()).flatten()?;
        Some(writer.upgrade()?.opened(self.number)?.objset.view())
    }

    /// Adds the name of a missing key to an error.
    fn name_the_key(&self, e: Error) -> Error {
        if e.kind() != Kind::KeyMissing {
            return e;
        }
        let root = self.dir().and_then(|dir| self.dsl.keys.root_of(&dir)).ok().flatten();
        let Some(root) = root else { return e };
        let (name, format, location) = (&root.name, root.format.name(), &root.location);
        Error::new(
            Kind::KeyMissing,
            format!("the {format} key of '{name}' is needed (keylocation={location})"),
        )
    }

    /// Whether it is a file system or a volume. Needs no key.
    pub fn kind(&self) -> Result<DatasetKind> {
        match self.objset_as(Form::NoKey)?.phys.objset_type {
            ObjsetType::Zfs => Ok(DatasetKind::Filesystem),
            ObjsetType::Zvol => Ok(DatasetKind::Volume),
            other => {
                let what = format!("object set of type {} is neither file system nor volume", other.name());
                Err(Error::unsupported(what).in_dataset(&self.name))
            }
        }
    }

    /// An entry of the dataset's own ZAP (`com.datto:ivset_guid`, per-dataset features).
    pub fn extra(&self, name: &str) -> Result<Option<Value>> {
        match self.extras()? {
            Some(zap) => zap.lookup(name.as_bytes()),
            None => Ok(None),
        }
    }

    /// The dataset's own ZAP.
    pub fn extras(&self) -> Result<Option<Zap>> {
        zapified(&self.object)
    }
}
