//! The BEGIN record: features of the stream, and the facts that a receiver needs before the first object.

use nvpair::{NvList, NvValue};
use ondisk::drr::{DRR_MAGIC, DrrBegin, begin_flag, stream_feature as feature};
use ondisk::dsl::DslDataset;
use ondisk::names::{crypto_key, dsl_dataset, dsl_dir};
use ondisk::{ObjsetType, Raw};
use zcommon::features::Feature;

use super::{From, Redaction, SendOptions};
use crate::dmu::Objset;
use crate::dsl::Dataset;
use crate::dsl::props::zpl;
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;
use std::sync::Arc;

/// Kind of stream: one snapshot, nothing around it.
const SUBSTREAM: u64 = 1;
/// Error for a snapshot that can't be sent without its large blocks.
const LARGE_MICROZAP: &str =
    "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream";
/// First ZPL version with system attributes, which may spill.
const VERSION_SA: u64 = 5;

/// The first record and its payload.
pub(super) struct BeginRecord {
    pub(crate) record: DrrBegin,
    pub(crate) payload: Vec<u8>,
    /// [`feature`] bits.
    pub(crate) features: u64,
}

/// Redaction lists that a stream is made with.
pub(super) struct RedactionLists<'a> {
    /// List of the bookmark whose blocks are redacted.
    pub(crate) redact: Option<&'a Redaction>,
    /// List of the bookmark that the stream builds on.
    pub(crate) from: Option<&'a Redaction>,
}

impl BeginRecord {
    pub(super) fn new(
        dataset: &Dataset,
        objset: &Arc<Objset>,
        from: &From,
        options: &SendOptions,
        lists: &RedactionLists<'_>,
    ) -> Result<Self> {
        let features = features(dataset, objset, options)?;
        let phys = &dataset.phys;
        let mut bits = begin_flag::FREERECORDS | begin_flag::SPILL_BLOCK;
        if from.is_clone {
            bits |= begin_flag::CLONE;
        }
        if phys.flags & DslDataset::FLAG_CI_DATASET != 0 {
            bits |= begin_flag::CI_DATA;
        }
        let record = DrrBegin {
            magic: DRR_MAGIC,
            versioninfo: SUBSTREAM | features << 2,
            creation_time: phys.creation_time,
            objset_type: objset.phys.objset_type as u32,
            flags: bits,
            toguid: options.saved.as_ref().map_or(phys.guid, |saved| saved.toguid),
            fromguid: from.guid,
            toname: toname(dataset, options)?,
        };
        let list = payload(dataset, objset, (from, options, lists), features)?;
        let payload = if list.iter().next().is_none() {
            Vec::new()
        } else {
            list.encode_native().map_err(|e| Error::corrupt(e.to_string()))?
        };
        Ok(Self { record, payload, features })
    }
}

fn toname(dataset: &Dataset, options: &SendOptions) -> Result<Raw<256>> {
    let name = match &options.saved {
        Some(saved) => saved.toname.clone(),
        None if dataset.is_snapshot() => dataset.name.clone(),
        None => format!("{}@--head--", dataset.name),
    };
    let mut raw = [0; 256];
    let room = raw.get_mut(..name.len()).filter(|_| name.len() < 256);
    let room = room.ok_or_else(|| Error::new(Kind::TooLong, "the dataset's name is too long"))?;
    room.copy_from_slice(name.as_bytes());
    Ok(Raw(raw))
}

/// Which features the stream needs of its receiver.
#[doc(alias = "setup_featureflags")]
fn features(dataset: &Dataset, objset: &Arc<Objset>, options: &SendOptions) -> Result<u64> {
    let flags = options.flags;
    let uses = |feature: Feature| -> Result<bool> { Ok(dataset.extra(feature.info().guid)?.is_some()) };
    let encrypted = is_encrypted(dataset)?;
    let mut found = 0;
    if objset.phys.objset_type == ObjsetType::Zfs {
        let version = zpl::file_system(objset)?.get("version").copied().unwrap_or(0);
        found |= if version >= VERSION_SA { feature::SA_SPILL } else { 0 };
    }
    let large = flags.large_blocks || flags.raw;
    let compressed = flags.compressed || flags.raw;
    let embed = (flags.embed || flags.raw) && !encrypted && pool_uses(dataset, Feature::EmbeddedData)?;
    let rules = [
        (large && uses(Feature::LargeBlocks)?, feature::LARGE_BLOCKS),
        (embed, feature::EMBED_DATA),
        (compressed, feature::COMPRESSED),
        (flags.raw && encrypted, feature::RAW),
        (uses(Feature::LargeDnode)?, feature::LARGE_DNODE),
        (uses(Feature::Longname)?, feature::LONGNAME),
        (options.redact.is_some(), feature::REDACTED),
        (options.resume.is_some(), feature::RESUMING),
    ];
    found |= rules.iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit);
    if uses(Feature::LargeMicrozap)? {
        // Blocks of a directory can't be split.
        if found & feature::LARGE_BLOCKS == 0 {
            return Err(Error::new(Kind::Unsupported, LARGE_MICROZAP));
        }
        found |= feature::LARGE_MICROZAP;
    }
    let packed = feature::EMBED_DATA | feature::COMPRESSED | feature::RAW;
    if found & packed != 0 && pool_uses(dataset, Feature::Lz4Compress)? {
        found |= feature::LZ4;
    }
    // Not for embedded blocks: older receivers then get those unpacked.
    if found & (feature::COMPRESSED | feature::RAW) != 0 && uses(Feature::ZstdCompress)? {
        found |= feature::ZSTD;
    }
    Ok(found)
}

fn is_encrypted(dataset: &Dataset) -> Result<bool> {
    Ok(dataset.dir()?.extra(dsl_dir::CRYPTO_KEY_OBJ)?.is_some())
}

/// Whether a feature is in use anywhere in the pool.
fn pool_uses(dataset: &Dataset, feature: Feature) -> Result<bool> {
    let mos = &dataset.dsl.mos;
    let directory = Zap::open(&mos.object(ondisk::names::MOS_DIRECTORY_OBJECT)?)?;
    let Some(number) = directory.u64("features_for_read")?.filter(|&n| n != 0) else { return Ok(false) };
    let zap = Zap::open(&mos.object(number)?)?;
    Ok(zap.u64(feature.info().guid)?.is_some_and(|n| n > 0))
}

/// The payload of BEGIN: snapshots that were redacted, the wrapped key.
fn payload(
    dataset: &Dataset,
    objset: &Objset,
    (from, options, lists): (&From, &SendOptions, &RedactionLists<'_>),
    features: u64,
) -> Result<NvList> {
    let mut list = NvList::new();
    let redacted = match lists.redact {
        Some(list) => Some(list.list.snaps.clone()),
        None => dataset.extra(Feature::RedactedDatasets.info().guid)?.map(|snaps| snaps.ints),
    };
    if let Some(snaps) = redacted {
        list.add("redact_snaps", NvValue::Uint64Array(snaps));
    }
    if let Some(snaps) = lists.from.map(|list| &list.list.snaps).or(from.redacted.as_ref()) {
        list.add("redact_from_snaps", NvValue::Uint64Array(snaps.clone()));
    }
    if let Some((object, offset)) = options.resume {
        list.add("resume_object", object);
        list.add("resume_offset", offset);
    }
    if features & feature::RAW != 0 {
        list.add("crypt_keydata", NvValue::List(key(dataset, objset, from)?));
    }
    Ok(list)
}

/// The dataset's key, wrapped, and the parts of the object set that its MAC covers.
#[doc(alias = "dsl_crypto_populate_key_nvlist")]
fn key(dataset: &Dataset, objset: &Objset, from: &From) -> Result<NvList> {
    let number = dataset.dir()?.extra(dsl_dir::CRYPTO_KEY_OBJ)?.and_then(|v| v.first());
    let number = number.ok_or_else(|| Error::corrupt("the dataset has no key"))?;
    let mos = &dataset.dsl.mos;
    let zap = Zap::open(&mos.object(number)?)?;
    let root = zap.need(crypto_key::ROOT_DDOBJ)?;
    let bytes = |name: &str| -> Result<NvValue> {
        let value = zap.lookup(name.as_bytes())?;
        let value = value.ok_or_else(|| Error::corrupt(format!("crypto key {number} has no {name}")))?;
        Ok(NvValue::Uint8Array(value.bytes()))
    };
    let root_key = root_key(dataset, root)?;
    let of_root = |name: &str| -> Result<u64> { Ok(root_key.u64(name)?.unwrap_or(0)) };
    let mut list = NvList::new();
    list.add(crypto_key::SUITE, zap.need(crypto_key::SUITE)?);
    list.add(crypto_key::GUID, zap.need(crypto_key::GUID)?);
    list.add(crypto_key::VERSION, zap.u64(crypto_key::VERSION)?.unwrap_or(0));
    for name in [crypto_key::MASTER_KEY, crypto_key::HMAC_KEY, crypto_key::IV, crypto_key::MAC] {
        list.add(name, bytes(name)?);
    }
    list.add("portable_mac", NvValue::Uint8Array(objset.phys.portable_mac.to_vec()));
    for name in [crypto_key::KEYFORMAT, crypto_key::PBKDF2_ITERS, crypto_key::PBKDF2_SALT] {
        list.add(name, of_root(name)?);
    }
    let mdn = &objset.phys.meta_dnode;
    let numbers = [
        ("mdn_checksum", u64::from(mdn.checksum)),
        ("mdn_compress", u64::from(mdn.compress)),
        ("mdn_nlevels", u64::from(mdn.nlevels)),
        ("mdn_blksz", mdn.datablksz()),
        ("mdn_indblkshift", u64::from(mdn.indblkshift)),
        ("mdn_nblkptr", u64::try_from(mdn.nblkptr()).unwrap_or(0)),
        ("mdn_maxblkid", mdn.maxblkid),
        ("to_ivset_guid", dataset.extra(dsl_dataset::IVSET_GUID)?.and_then(|v| v.first()).unwrap_or(0)),
        ("from_ivset_guid", from.ivset_guid),
    ];
    for (name, value) in numbers {
        list.add(name, value);
    }
    Ok(list)
}

/// The key object of the encryption root, which has the format of the user's key.
fn root_key(dataset: &Dataset, root: u64) -> Result<Zap> {
    let mos = &dataset.dsl.mos;
    let dir = Zap::open(&mos.object(root)?)?;
    Zap::open(&mos.object(dir.need(dsl_dir::CRYPTO_KEY_OBJ)?)?)
}
