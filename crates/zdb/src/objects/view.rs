//! One object set for printing.

use std::sync::Arc;

use clikit::paths::Paths;
use engine::Kind;
use engine::dmu::{Object, Objset};
use engine::dsl::props::Settings;
use engine::dsl::props::settings::PropRules;
use engine::dsl::{Dataset, Dsl};
use engine::spa::Pool;
use engine::zap::Zap;
use engine::zio::Form;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{CompressType, ObjectType};
use zcommon::features::Feature;
use zcommon::props::ZfsProp;
use zpl::Filesystem;

use super::dump::Dump;

/// An object set and the state for printing its objects.
pub struct View {
    /// The object set.
    pub objset: Arc<Objset>,
    /// Its dataset; `None` for the MOS.
    pub dataset: Option<Dataset>,
    /// Its name: `mos`, or the dataset's.
    pub name: String,
    /// The compression of new blocks, under zdb's name.
    pub compress: String,
    /// Encrypted, and the key is not loaded.
    pub locked: bool,
    /// The file system, if it can be opened.
    pub fs: Option<Arc<Filesystem>>,
    /// Paths found so far.
    pub paths: Paths,
}

impl View {
    /// The meta object set.
    pub fn mos(pool: &Arc<Pool>) -> Self {
        Self {
            objset: Arc::clone(&pool.mos),
            dataset: None,
            name: "mos".to_owned(),
            compress: "on".to_owned(),
            locked: false,
            fs: None,
            paths: Paths::default(),
        }
    }

    /// A dataset; parts that need an unloaded key are omitted.
    pub fn dataset(dump: &mut Dump<'_>, dataset: &Dataset) -> engine::Result<Self> {
        let (objset, locked) = match dataset.objset() {
            Ok(objset) => (objset, false),
            Err(e) if e.kind() == Kind::KeyMissing => (dataset.objset_as(Form::NoKey)?, true),
            Err(e) => return Err(e),
        };
        let locked = locked || !key_opens(dataset);
        let objset = if locked { dataset.objset_as(Form::NoKey)? } else { objset };
        let zpl = objset.phys.objset_type == ondisk::ObjsetType::Zfs;
        let fs = if zpl && !locked && dump.verbosity() >= 4 {
            dump.read(Filesystem::open_committed(dataset))
        } else {
            None
        };
        Ok(Self {
            name: dataset.name.clone(),
            compress: compression(&dataset.dsl, dataset),
            dataset: Some(dataset.clone()),
            objset,
            locked,
            fs,
            paths: Paths::default(),
        })
    }

    /// A dataset whose file system is already open.
    pub fn file(dataset: &Dataset, fs: &Arc<Filesystem>) -> Self {
        Self {
            objset: Arc::clone(&fs.objset),
            dataset: Some(dataset.clone()),
            name: dataset.name.clone(),
            compress: compression(&dataset.dsl, dataset),
            locked: false,
            fs: Some(Arc::clone(fs)),
            paths: Paths::default(),
        }
    }

    /// Whether content of this type cannot be read because the key is missing.
    pub fn hides(&self, object_type: ObjectType) -> bool {
        self.locked && object_type.is_encrypted()
    }

    /// The object of that number in the MOS or here.
    pub fn object(&self, number: u64) -> engine::Result<Object> {
        self.objset.object(number)
    }
}

/// Whether the dataset is unencrypted, or its key is loaded.
fn key_opens(dataset: &Dataset) -> bool {
    let dir = match dataset.dir() {
        Ok(dir) => dir,
        Err(_) => return true,
    };
    match dataset.dsl.keys.root_of(&dir) {
        Ok(Some(root)) => dataset.dsl.keys.is_loaded(&root),
        _ => true,
    }
}

/// Name of the compression of a head dataset's new blocks. Snapshots get no blocks.
fn compression(dsl: &Dsl, dataset: &Dataset) -> String {
    if dataset.is_snapshot() {
        return CompressType::Inherit.name().to_owned();
    }
    let rules = PropRules { is_inherited: |name| name == "compression", is_for_snapshots: |_| false };
    let settings = Settings::of(dataset, rules).ok();
    let value = settings.as_ref().and_then(|s| s.get("compression")).and_then(|s| s.value.number());
    // The default is "on" since 2.2.
    let value = value.unwrap_or(1);
    let lz4 = uses_lz4(dsl);
    let default = if lz4 { CompressType::Lz4 } else { CompressType::Lzjb };
    match CompressType::from_raw((value & 0x7f) as u8) {
        Some(CompressType::On) => default.name().to_owned(),
        Some(CompressType::Zstd) => zstd_name(value),
        // zdb also looks for a level in gzip, and finds none.
        Some(kind) if (CompressType::Gzip1..=CompressType::Gzip9).contains(&kind) => {
            format!("{}-unknown", kind.name())
        }
        Some(kind) => kind.name().to_owned(),
        None => "UNKNOWN".to_owned(),
    }
}

/// Whether the pool has lz4, which is then the meaning of "on".
fn uses_lz4(dsl: &Dsl) -> bool {
    let guid = Feature::Lz4Compress.info().guid;
    let directory = dsl.mos.object(MOS_DIRECTORY_OBJECT).and_then(|object| Zap::open(&object));
    let number = directory.and_then(|zap| zap.u64(mos::FEATURES_FOR_READ)).ok().flatten();
    let features = number.and_then(|n| dsl.zap(n).ok().flatten());
    features.and_then(|zap| zap.u64(guid).ok().flatten()).is_some_and(|n| n > 0)
}

/// zstd includes its level; zdb does not recognise it without one.
fn zstd_name(value: u64) -> String {
    let word = ZfsProp::from_name("compression").and_then(|p| p.info().word(value));
    let word = word.filter(|_| value >> 7 != 0);
    word.map_or_else(|| "zstd-unknown".to_owned(), str::to_owned)
}
