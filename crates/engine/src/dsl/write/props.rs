//! Settings of datasets: properties, and those of them that change accounts (quotas and reservations). The entries of a
//! property ZAP are described in [`inherit`].

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::{ChecksumType, CompressType, ObjectType};
use zcommon::features::Feature;
use zcommon::version::{
    SPA_VERSION_DEDUP, SPA_VERSION_DITTO_BLOCKS, SPA_VERSION_GZIP_COMPRESSION, SPA_VERSION_PASSTHROUGH_X,
    SPA_VERSION_REFQUOTA, SPA_VERSION_ZLE_COMPRESSION,
};

use super::hooks::{Hooks, version};
use super::mos_tx::{MosTx, MosView};
use super::space;
use crate::dsl::Delta;
use crate::dsl::lookup::ReadNames;
use crate::dsl::props::PropValue;
use crate::dsl::props::inherit::{self, inherit_entry, received_entry};
use crate::error::{Error, Kind, Result};
use crate::zap::Value;

/// Entry that marks a dataset as having received properties.
#[doc(alias = "ZPROP_HAS_RECVD")]
const HAS_RECVD: &str = "$hasrecvd";

/// Where a setting comes from, when it is made.
#[doc(alias = "zprop_source_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingSource {
    /// Set by a user.
    Local,
    /// It came with a stream.
    Received,
    /// It is inherited, whatever was received.
    Inherited,
    /// No local setting: the received value applies, or the inherited one.
    None,
    /// Neither a local nor a received setting.
    Gone,
    /// No received setting any more; a local one stays.
    NotReceived,
}

/// The requirements of a property's value on the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PropNeeds {
    /// At least this version.
    Version(u64),
    /// This feature.
    Feature(Feature),
}

impl PropNeeds {
    /// The version or feature that `value` of `prop` needs; `None`: every pool has it.
    #[doc(alias = "zfs_check_settable")]
    pub(super) fn of(prop: &str, value: u64) -> Option<Self> {
        const LARGEST_OLD_BLOCK: u64 = 128 << 10;
        const PASSTHROUGH_X: u64 = 5;
        match prop {
            // Above the kind is the level.
            "compression" => Self::of_compression(CompressType::from_raw(u8::try_from(value & 0x7f).ok()?)?),
            // Above the kind is whether to compare.
            "checksum" => Self::of_checksum(ChecksumType::from_raw(u8::try_from(value & 0xff).ok()?)?),
            "dedup" => {
                let checksum = ChecksumType::from_raw(u8::try_from(value & 0xff).ok()?);
                checksum.and_then(Self::of_checksum).or(Some(Self::Version(SPA_VERSION_DEDUP)))
            }
            "copies" => Some(Self::Version(SPA_VERSION_DITTO_BLOCKS)),
            "refquota" | "refreservation" => Some(Self::Version(SPA_VERSION_REFQUOTA)),
            "aclinherit" => (value == PASSTHROUGH_X).then_some(Self::Version(SPA_VERSION_PASSTHROUGH_X)),
            "dnodesize" => (value != 0).then_some(Self::Feature(Feature::LargeDnode)),
            "recordsize" | "volblocksize" => {
                (value > LARGEST_OLD_BLOCK).then_some(Self::Feature(Feature::LargeBlocks))
            }
            "longname" => (value != 0).then_some(Self::Feature(Feature::Longname)),
            _ => None,
        }
    }

    fn of_compression(function: CompressType) -> Option<Self> {
        match function {
            CompressType::Lz4 => Some(Self::Feature(Feature::Lz4Compress)),
            CompressType::Zstd => Some(Self::Feature(Feature::ZstdCompress)),
            CompressType::Zle => Some(Self::Version(SPA_VERSION_ZLE_COMPRESSION)),
            other => (CompressType::Gzip1.raw()..=CompressType::Gzip9.raw())
                .contains(&other.raw())
                .then_some(Self::Version(SPA_VERSION_GZIP_COMPRESSION)),
        }
    }

    #[doc(alias = "zio_checksum_to_feature")]
    fn of_checksum(function: ChecksumType) -> Option<Self> {
        match function {
            ChecksumType::Sha512 => Some(Self::Feature(Feature::Sha512)),
            ChecksumType::Skein => Some(Self::Feature(Feature::Skein)),
            ChecksumType::Edonr => Some(Self::Feature(Feature::Edonr)),
            ChecksumType::Blake3 => Some(Self::Feature(Feature::Blake3)),
            _ => None,
        }
    }

    /// Whether the pool has it. A pool of a version before features has none of them enabled.
    pub(super) fn is_met(self, hooks: &dyn Hooks) -> bool {
        match self {
            Self::Version(version) => hooks.version() >= version,
            Self::Feature(feature) => hooks.feature(feature).is_some(),
        }
    }
}

/// A number that is set on a directory itself; 0 when it isn't.
pub(super) fn own_number(at: &MosView<'_>, dir: u64, name: &str) -> Result<u64> {
    let Some(zap) = at.open_zap(at.dir(dir)?.props_zapobj)? else { return Ok(0) };
    Ok(inherit::own(&zap, name)?.as_ref().and_then(PropValue::number).unwrap_or(0))
}

/// The number of a property that will hold for a directory after a setting; 0 when none will.
#[doc(alias = "dsl_prop_predict")]
pub(super) fn predicted(
    at: &MosView<'_>,
    dir: u64,
    name: &str,
    value: Option<u64>,
    source: SettingSource,
) -> Result<u64> {
    let zap = at.dir(dir)?.props_zapobj;
    let received = || at.zap_word(zap, received_entry(name).as_str());
    match source {
        SettingSource::Local => Ok(value.unwrap_or(0)),
        SettingSource::Received => {
            let hidden = at.zap_word(zap, inherit_entry(name).as_str())?.map(|_| 0);
            Ok(at.zap_word(zap, name)?.or(hidden).or(value).unwrap_or(0))
        }
        SettingSource::None => Ok(received()?.unwrap_or(0)),
        SettingSource::NotReceived => Ok(at.zap_word(zap, name)?.unwrap_or(0)),
        SettingSource::Inherited | SettingSource::Gone => Ok(0),
    }
}

/// Sets a property of a head (of its directory) or of a snapshot. `value` is `None` for sources that remove
/// settings.
#[doc(alias = "dsl_prop_set_sync_impl")]
pub fn set(
    at: &MosTx<'_>,
    dataset: u64,
    name: &str,
    value: Option<&PropValue>,
    source: SettingSource,
) -> Result<()> {
    let phys = at.dataset(dataset)?;
    let zap = zap_of(at, dataset, &phys)?;
    let (inherit, received) = (inherit_entry(name), received_entry(name));
    let value = || -> Result<Value> {
        match value {
            Some(PropValue::Number(n)) => Ok(Value::from(*n)),
            Some(PropValue::Text(text)) => Ok(Value::from(text.as_str())),
            None => Err(Error::new(Kind::Invalid, format!("no value for '{name}'"))),
        }
    };
    match source {
        SettingSource::Local => {
            remove(at, zap, &inherit)?;
            at.zap_set(zap, name, value()?)
        }
        SettingSource::Received => at.zap_set(zap, &received, value()?),
        SettingSource::None => {
            remove(at, zap, name)?;
            remove(at, zap, &inherit)
        }
        SettingSource::Gone => {
            remove(at, zap, name)?;
            remove(at, zap, &inherit)?;
            remove(at, zap, &received)
        }
        SettingSource::NotReceived => remove(at, zap, &received),
        SettingSource::Inherited => {
            remove(at, zap, name)?;
            let hides = at.since(version::RECVD_PROPS) && at.zap_get(zap, HAS_RECVD)?.is_some();
            if hides { at.zap_set(zap, &inherit, 0) } else { Ok(()) }
        }
    }
}

/// Refuses properties of snapshots in a pool whose version has none.
pub(super) fn check_snapshots(at: &MosTx<'_>) -> Result<()> {
    match at.since(version::SNAP_PROPS) {
        true => Ok(()),
        false => Err(Error::unsupported("snapshots of this pool version have no properties")),
    }
}

/// The property ZAP of a dataset; a snapshot's is made when it has none.
fn zap_of(at: &MosTx<'_>, dataset: u64, phys: &DslDataset) -> Result<u64> {
    if !phys.is_snapshot() {
        return Ok(at.dir(phys.dir_obj)?.props_zapobj);
    }
    check_snapshots(at)?;
    if phys.props_obj != 0 {
        return Ok(phys.props_obj);
    }
    let zap = at.create_zap(ObjectType::DSL_PROPS)?;
    at.change_dataset(dataset, |phys| phys.props_obj = zap)?;
    Ok(zap)
}

fn remove(at: &MosTx<'_>, zap: u64, name: &str) -> Result<()> {
    match at.zap_remove(zap, name) {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}

/// Stores a number property of a head that accounts depend on.
fn store(at: &MosTx<'_>, head: u64, name: &str, value: u64, source: SettingSource) -> Result<u64> {
    set(at, head, name, Some(&PropValue::Number(value)), source)?;
    own_number(at, at.dataset(head)?.dir_obj, name)
}

/// Sets a property of a head or snapshot, and the accounts that depend on it. `amount`: the value as a number.
pub(super) fn set_accounted(
    at: &MosTx<'_>,
    dataset: u64,
    (name, value, amount): (&str, Option<&PropValue>, u64),
    source: SettingSource,
) -> Result<()> {
    match name {
        "quota" => set_quota(at, dataset, amount, source),
        "reservation" => set_reservation(at, dataset, amount, source),
        "refquota" => set_refquota(at, dataset, amount, source),
        "refreservation" => set_refreservation(at, dataset, amount, source),
        name => set(at, dataset, name, value, source),
    }
}

/// Sets the quota of a head's directory; 0: none.
#[doc(alias = "dsl_dir_set_quota_sync")]
pub fn set_quota(at: &MosTx<'_>, head: u64, value: u64, source: SettingSource) -> Result<()> {
    let dir = at.dataset(head)?.dir_obj;
    let value = store(at, head, "quota", value, source)?;
    at.change_dir(dir, |dir| dir.quota = value)
}

/// Sets the reservation of a head's directory; 0: none.
#[doc(alias = "dsl_dir_set_reservation_sync")]
pub(crate) fn set_reservation(at: &MosTx<'_>, head: u64, value: u64, source: SettingSource) -> Result<()> {
    let dir = at.dataset(head)?.dir_obj;
    let value = store(at, head, "reservation", value, source)?;
    space::set_reserved(at, dir, value)
}

/// Sets the quota of a head's referenced space; 0: none.
#[doc(alias = "dsl_dataset_set_refquota_sync")]
pub(crate) fn set_refquota(at: &MosTx<'_>, head: u64, value: u64, source: SettingSource) -> Result<()> {
    store(at, head, "refquota", value, source).map(drop)
}

/// Sets the reservation for a head's referenced space; 0: none.
#[doc(alias = "dsl_dataset_set_refreservation_sync")]
pub(crate) fn set_refreservation(at: &MosTx<'_>, head: u64, value: u64, source: SettingSource) -> Result<()> {
    let phys = at.dataset(head)?;
    let old = own_number(at, phys.dir_obj, "refreservation")?;
    let new = store(at, head, "refreservation", value, source)?;
    let unfilled = |reserved: u64| reserved.saturating_sub(phys.unique_bytes).cast_signed();
    let delta = Delta { used: unfilled(new) - unfilled(old), ..Delta::default() };
    space::charge(at, phys.dir_obj, DslDir::USED_REFRSRV, delta)
}
