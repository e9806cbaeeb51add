//! Statistics that the pool computes of a dataset.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::{crypto_key, dsl_dataset as ds_field, dsl_dir as dd_field};

use super::names::{dataset_name, dir_name};
use super::{space, written};
use crate::dsl::{Dataset, Dir, Dsl};
use crate::error::Result;

/// Entry of a dataset's own ZAP: guids of the snapshots that it was redacted with.
pub(super) const REDACTED: &str = "com.delphix:redacted_datasets";

/// Statistics that heads and snapshots have in common.
#[derive(Debug, Clone)]
pub struct DslDatasetStats {
    /// Bytes: for a head with its snapshots and descendants, for a snapshot those that only it refers to.
    pub used: u64,
    /// In hundredths.
    pub compressratio: u64,
    /// In hundredths.
    pub refcompressratio: u64,
    /// Bytes written since the snapshot before it; `None` without one.
    pub written: Option<u64>,
    /// Guids of the snapshots that it was redacted with.
    pub redact_snaps: Option<Vec<u64>>,
    /// A receive has not finished.
    pub inconsistent: bool,
    /// Encryption; `None` for a clear dataset.
    pub crypto: Option<Crypto>,
    /// Statistics of heads only.
    pub head: Option<HeadStats>,
    /// Statistics of snapshots only.
    pub snapshot: Option<SnapshotStats>,
}

/// Statistics of a head.
#[derive(Debug, Clone)]
pub struct HeadStats {
    /// Bytes that can still be written.
    pub available: u64,
    /// Bytes used before compression.
    pub logicalused: u64,
    /// Quota of the directory, 0: none.
    pub quota: u64,
    /// Reservation of the directory, 0: none.
    pub reservation: u64,
    /// Bytes used by kind; `None` on pools that never recorded it.
    pub breakdown: Option<Breakdown>,
    /// File systems below, counted only where a limit is in force.
    pub filesystem_count: Option<u64>,
    /// Snapshots here and below, counted only where a limit is in force.
    pub snapshot_count: Option<u64>,
    /// The snapshot that a clone came from.
    pub origin: Option<String>,
    /// When a snapshot was last made, destroyed or renamed, seconds since 1970; 0: never recorded.
    pub snapshots_changed: u64,
}

/// Space used by a head, by kind, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakdown {
    /// By snapshots alone.
    pub snapshots: u64,
    /// By the dataset itself.
    pub dataset: u64,
    /// By descendants and their reservations.
    pub children: u64,
    /// By the part of the refreservation that is not filled.
    pub refreservation: u64,
}

/// Statistics of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotStats {
    /// Names of its clones.
    pub clones: Vec<String>,
    /// Number of holds.
    pub userrefs: u64,
    /// To be destroyed when the last hold or clone is gone.
    pub defer_destroy: bool,
}

/// Encryption of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crypto {
    /// The `encryption` property's index.
    pub suite: u64,
    /// Guid of the key.
    pub key_guid: u64,
    /// The `keyformat` property's index.
    pub keyformat: u64,
    /// Rounds of PBKDF2, 0 when the key is no passphrase.
    pub iterations: u64,
    /// Salt of PBKDF2; `None` when the key never had one.
    pub salt: Option<u64>,
    /// The dataset whose key opens it.
    pub root: String,
    /// Distinguishes the IVs of received snapshots.
    pub ivset_guid: Option<u64>,
}

impl DslDatasetStats {
    /// Computes the statistics of `dataset`. `pool_space` is the capacity of the pool; `refquota` and
    /// `refreservation` are the dataset's own settings.
    #[doc(alias = "dsl_dataset_stats")]
    pub fn of(dataset: &Dataset, pool_space: u64, refquota: u64, refreservation: u64) -> Result<Self> {
        let phys = &dataset.phys;
        let dir = dataset.dir()?;
        let refcompressratio = ratio(phys.uncompressed_bytes, phys.compressed_bytes);
        let (head, snapshot) = if dataset.is_snapshot() {
            (None, Some(SnapshotStats::of(dataset)?))
        } else {
            let available = space::available(dataset, pool_space, refquota, refreservation)?;
            (Some(HeadStats::of(&dir, available)?), None)
        };
        Ok(Self {
            used: if head.is_some() { dir.phys.used_bytes } else { phys.unique_bytes },
            compressratio: match head {
                Some(_) => ratio(dir.phys.uncompressed_bytes, dir.phys.compressed_bytes),
                None => refcompressratio,
            },
            refcompressratio,
            written: written::since_previous(dataset)?,
            redact_snaps: dataset.extra(REDACTED)?.map(|v| v.ints),
            inconsistent: phys.flags & DslDataset::FLAG_INCONSISTENT != 0,
            crypto: Crypto::of(dataset, &dir)?,
            head,
            snapshot,
        })
    }
}

impl HeadStats {
    fn of(dir: &Dir, available: u64) -> Result<Self> {
        let phys = &dir.phys;
        let number = |name| Ok::<_, crate::Error>(dir.extra(name)?.and_then(|v| v.first()));
        let origin = match phys.origin_obj {
            0 => None,
            snapshot => clone_origin(&dir.dsl, snapshot)?,
        };
        Ok(Self {
            available,
            logicalused: phys.uncompressed_bytes,
            quota: phys.quota,
            reservation: phys.reserved,
            breakdown: (phys.flags & DslDir::FLAG_USED_BREAKDOWN != 0).then(|| breakdown(phys)),
            filesystem_count: number(dd_field::FILESYSTEM_COUNT)?,
            snapshot_count: number(dd_field::SNAPSHOT_COUNT)?,
            origin,
            snapshots_changed: dir.snapshots_changed()?.unwrap_or(0),
        })
    }
}

/// The name of a clone's origin; every dataset comes from the pool's hidden first snapshot, which is none.
pub fn clone_origin(dsl: &Arc<Dsl>, snapshot: u64) -> Result<Option<String>> {
    let name = dataset_name(dsl, snapshot)?;
    Ok((!name.contains("/$")).then_some(name))
}

fn breakdown(phys: &DslDir) -> Breakdown {
    let of = |kind: usize| phys.used_breakdown.get(kind).copied().unwrap_or(0);
    Breakdown {
        snapshots: of(DslDir::USED_SNAP),
        dataset: of(DslDir::USED_HEAD),
        children: of(DslDir::USED_CHILD).wrapping_add(of(DslDir::USED_CHILD_RSRV)),
        refreservation: of(DslDir::USED_REFRSRV),
    }
}

impl SnapshotStats {
    fn of(dataset: &Dataset) -> Result<Self> {
        let phys = &dataset.phys;
        let dsl = &dataset.dsl;
        let (mut clones, mut met) = (Vec::new(), HashSet::new());
        if let Some(zap) = dsl.zap(phys.next_clones_obj)? {
            for entry in zap.to_vec()? {
                // The entry may be a snapshot of the clone: use the directory that it is in.
                let number = entry.value.first().unwrap_or(0);
                let clone = Dataset::open(dsl, number, String::new())?;
                if met.insert(clone.phys.dir_obj) {
                    clones.push(dir_name(dsl, clone.phys.dir_obj)?);
                }
            }
        }
        let userrefs = dsl.zap(phys.userrefs_obj)?.map_or(Ok(0), |zap| zap.count())?;
        Ok(Self { clones, userrefs, defer_destroy: phys.flags & DslDataset::FLAG_DEFER_DESTROY != 0 })
    }
}

impl Crypto {
    #[doc(alias = "dsl_dataset_crypt_stats")]
    fn of(dataset: &Dataset, dir: &Dir) -> Result<Option<Self>> {
        let dsl = &dataset.dsl;
        let Some(number) = dir.extra(dd_field::CRYPTO_KEY_OBJ)?.and_then(|v| v.first()) else {
            return Ok(None);
        };
        let Some(key) = dsl.zap(number)? else { return Ok(None) };
        let root = key.need(crypto_key::ROOT_DDOBJ)?;
        Ok(Some(Self {
            suite: key.need(crypto_key::SUITE)?,
            key_guid: key.need(crypto_key::GUID)?,
            keyformat: key.u64(crypto_key::KEYFORMAT)?.unwrap_or(0),
            salt: key.u64(crypto_key::PBKDF2_SALT)?,
            iterations: key.u64(crypto_key::PBKDF2_ITERS)?.unwrap_or(0),
            root: dir_name(dsl, root)?,
            ivset_guid: dataset.extra(ds_field::IVSET_GUID)?.and_then(|v| v.first()),
        }))
    }
}

/// Uncompressed over compressed, in hundredths.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    let hundredths = u128::from(uncompressed) * 100;
    let ratio = hundredths.checked_div(u128::from(compressed)).unwrap_or(100);
    u64::try_from(ratio).unwrap_or(u64::MAX)
}
