//! Keys of encrypted datasets that come with raw streams: wrapped, so that they can't be used in transit.
//!
//! A new dataset becomes an encryption root with the key of the stream. An incremental stream must have the same key, and
//! brings it as it is wrapped now, which may be with another passphrase. The dataset whose key opens it stays the same.
//!
//! Differs from OpenZFS: a dataset that was made to inherit another key here (`zfs change-key -i`) keeps its wrapping; OpenZFS
//! stores the sender's, which no key here opens ([`is_locked_out`]).
//!
//! Source: `dsl_crypto_recv_raw_key_check`, `dsl_crypto_recv_raw_objset_check`, dsl_crypt.c, OpenZFS 2.3.

use crypt::{
    CURRENT_VERSION, HMAC_KEY_LEN, IV_LEN, KeyFormat, MAC_LEN, MASTER_KEY_MAX_LEN, Suite, WrappedKey,
};
use nvpair::{NvList, NvValue};
use ondisk::names::{crypto_key, dsl_dataset, dsl_dir};
use ondisk::{Dnode, MAX_BLOCK_SIZE, ObjectType, dnode};
use zcommon::features::Feature;

use super::crypto::{key_object, key_word};
use super::mos_tx::{MosTx, MosView, ZAPIFIED};
use super::props::{self, SettingSource};
use super::tree;
use crate::dsl::KeyStore;
use crate::dsl::crypto::array;
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};
use crate::memory::Limit;
use crate::zap::Value;

/// Bytes of an object set's MAC.
const OBJSET_MAC: usize = 32;

/// The key of a raw stream, and the facts of the object set's root block in its BEGIN record.
#[derive(Debug, Clone)]
pub(crate) struct RawKey {
    suite: u64,
    guid: u64,
    version: u64,
    master: Vec<u8>,
    hmac: Vec<u8>,
    iv: Vec<u8>,
    mac: Vec<u8>,
    format: u64,
    iters: u64,
    salt: u64,
    /// Authenticates the root block on every system.
    pub(crate) portable_mac: [u8; OBJSET_MAC],
    /// The object that holds the dnodes, as it is on the sender's side, without blocks.
    pub(crate) meta: Dnode,
    /// Distinguishes the IVs of the snapshot.
    pub(crate) to_ivset_guid: u64,
    from_ivset_guid: u64,
}

fn bad(what: &str) -> Error {
    Error::new(Kind::Invalid, format!("the stream's key is malformed: {what}"))
}

fn bytes<const N: usize>(list: &NvList, name: &str) -> Result<Vec<u8>> {
    match list.get(name) {
        Some(NvValue::Uint8Array(all)) if all.len() == N => Ok(all.clone()),
        _ => Err(bad(name)),
    }
}

impl RawKey {
    /// Reads the list `crypt_keydata` of a raw stream's BEGIN.
    ///
    /// # Errors
    /// `Invalid`, naming the entry that is missing or can't be; `Unsupported` for a newer form of keys.
    pub(crate) fn parse(list: &NvList) -> Result<Self> {
        let word = |name: &str| list.u64(name).ok_or_else(|| bad(name));
        let or_none = |name: &str| list.u64(name).unwrap_or(0);
        let suite = word(crypto_key::SUITE)?;
        Suite::from_id(suite).map_err(|e| Error::unsupported(e.to_string()))?;
        let version = or_none(crypto_key::VERSION);
        if version > CURRENT_VERSION {
            return Err(Error::unsupported("stream uses crypto parameters not compatible with this pool"));
        }
        let format = word(crypto_key::KEYFORMAT)?;
        KeyFormat::from_id(format).map_err(|e| bad(&e.to_string()))?;
        let mut portable_mac = [0; OBJSET_MAC];
        portable_mac.copy_from_slice(&bytes::<OBJSET_MAC>(list, "portable_mac")?);
        Ok(Self {
            suite,
            guid: word(crypto_key::GUID)?,
            version,
            master: bytes::<MASTER_KEY_MAX_LEN>(list, crypto_key::MASTER_KEY)?,
            hmac: bytes::<HMAC_KEY_LEN>(list, crypto_key::HMAC_KEY)?,
            iv: bytes::<IV_LEN>(list, crypto_key::IV)?,
            mac: bytes::<MAC_LEN>(list, crypto_key::MAC)?,
            format,
            iters: or_none(crypto_key::PBKDF2_ITERS),
            salt: or_none(crypto_key::PBKDF2_SALT),
            portable_mac,
            meta: meta(list)?,
            to_ivset_guid: or_none("to_ivset_guid"),
            from_ivset_guid: or_none("from_ivset_guid"),
        })
    }

    fn wrapped(&self) -> Result<WrappedKey> {
        let suite = Suite::from_id(self.suite).map_err(|e| Error::unsupported(e.to_string()))?;
        let (guid, version) = (self.guid, self.version);
        Ok(WrappedKey {
            suite,
            guid,
            version,
            iv: array(&self.iv),
            mac: array(&self.mac),
            master: array(&self.master),
            hmac: array(&self.hmac),
        })
    }
}

/// The dnode of dnodes that the list describes.
fn meta(list: &NvList) -> Result<Dnode> {
    let within = |name: &str, from: u64, to: u64| {
        let value = list.u64(name).filter(|value| (from..=to).contains(value));
        value.ok_or_else(|| bad(name))
    };
    let small = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
    let block = within("mdn_blksz", 512, MAX_BLOCK_SIZE)?;
    if block != 16 << 10 {
        return Err(Error::unsupported("blocks of dnodes that are not of 16 KiB"));
    }
    let mut meta = Dnode::new(ObjectType::DNODE, block, 1, ObjectType::NONE, 0);
    let levels = within("mdn_nlevels", 1, u64::from(dnode::MAX_LEVELS))?;
    meta.indblkshift = small(within("mdn_indblkshift", 12, 17)?);
    meta.maxblkid = within("mdn_maxblkid", 0, dnode::MAX_OBJECT / 32)?;
    meta.checksum = small(within("mdn_checksum", 0, 255)?);
    meta.compress = small(within("mdn_compress", 0, 255)?);
    if within("mdn_nblkptr", 1, 3)? != u64::try_from(meta.nblkptr()).unwrap_or(0) {
        return Err(Error::unsupported("an object of dnodes with less than three pointers"));
    }
    meta.nlevels = small(levels);
    Ok(meta)
}

/// Whether a raw stream has the key of the directory `dir`, which it is received into, and builds on the same IVs as the
/// snapshot `from` (0: none) has.
pub(super) fn check_received(
    at: &MosView<'_>,
    dir: u64,
    (from, from_guid): (u64, u64),
    key: &RawKey,
) -> Result<()> {
    let Some(object) = key_object(at, dir)? else {
        return Err(Error::new(
            Kind::Invalid,
            "a raw stream can't be received into a dataset that is not encrypted",
        ));
    };
    let same = key_word(at, object, crypto_key::SUITE)? == key.suite
        && key_word(at, object, crypto_key::GUID)? == key.guid;
    if !same {
        return Err(Error::new(Kind::Denied, "encryption key does not match existing key"));
    }
    let unchecked = at.mos.arc().memory().limits.is_on(Limit::NoIvsetCheck);
    if from == 0 || from_guid == 0 || unchecked {
        return Ok(());
    }
    let have = at.extra(from, dsl_dataset::IVSET_GUID)?.and_then(|value| value.first()).unwrap_or(0);
    if have == 0 || key.from_ivset_guid == 0 {
        let what =
            "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.";
        return Err(Error::new(Kind::Invalid, what));
    }
    if have != key.from_ivset_guid {
        let what = "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw \
                    encrypted send streams.";
        return Err(Error::new(Kind::Invalid, what));
    }
    Ok(())
}

/// A new dataset gets the key of its stream, and is its encryption root.
pub(super) fn receive_key(at: &MosTx<'_>, (dir, number): (u64, u64), key: &RawKey) -> Result<()> {
    let object = at.create_zap(ZAPIFIED)?;
    store(at, object, dir, key)?;
    at.zap_set(object, crypto_key::REFCOUNT, 1)?;
    at.set_extra(dir, dsl_dir::CRYPTO_KEY_OBJ, object)?;
    tree::use_feature(at, number, Feature::Encryption)?;
    let location = PropValue::Text("prompt".to_owned());
    props::set(at, number, "keylocation", Some(&location), SettingSource::Local)
}

/// The key of an existing dataset is wrapped as in its stream from now on, unless its encryption root could not open it then.
/// `roots_follow`: the dataset gets the encryption root that it has at the sender afterwards.
pub(super) fn replace_key(
    at: &MosTx<'_>,
    keys: &KeyStore,
    (dir, roots_follow): (u64, bool),
    key: &RawKey,
) -> Result<()> {
    let Some(object) = key_object(at, dir)? else { return Ok(()) };
    let root = key_word(at, object, crypto_key::ROOT_DDOBJ)?;
    match !roots_follow && is_locked_out(at, keys, (object, root), key)? {
        true => Ok(()),
        false => store(at, object, root, key),
    }
}

/// Whether the encryption root `root` opens the key in `object` now, but not the stream's.
///
/// All keys that a passphrase wraps have its salt, and a package brings the root before the datasets that inherit. Other keys
/// have no salt: those are told apart with the root's key if it is loaded. Otherwise the stream's is taken, as in OpenZFS.
fn is_locked_out(
    at: &MosView<'_>,
    keys: &KeyStore,
    (object, root): (u64, u64),
    key: &RawKey,
) -> Result<bool> {
    let of_root = match key_object(at, root)? {
        Some(of_root) if of_root != object => of_root,
        _ => return Ok(false),
    };
    let word = |object, name| -> Result<u64> { Ok(at.zap_word(object, name)?.unwrap_or(0)) };
    let form = |object| -> Result<[u64; 3]> {
        let format = word(object, crypto_key::KEYFORMAT)?;
        Ok([format, word(object, crypto_key::PBKDF2_ITERS)?, word(object, crypto_key::PBKDF2_SALT)?])
    };
    let wanted = form(of_root)?;
    if form(object)? != wanted {
        return Ok(false);
    }
    if [key.format, key.iters, key.salt] != wanted {
        return Ok(true);
    }
    let is_current = key.salt == 0 && keys.unwrap(of_root).is_ok() && keys.unwrap(object).is_ok();
    Ok(is_current && !keys.opens(root, &key.wrapped()?))
}

#[doc(alias = "dsl_crypto_recv_raw_key_sync")]
fn store(at: &MosTx<'_>, object: u64, root: u64, key: &RawKey) -> Result<()> {
    let all: [(_, Value); 11] = [
        (crypto_key::SUITE, key.suite.into()),
        (crypto_key::ROOT_DDOBJ, root.into()),
        (crypto_key::GUID, key.guid.into()),
        (crypto_key::IV, Value::from(&*key.iv)),
        (crypto_key::MAC, Value::from(&*key.mac)),
        (crypto_key::MASTER_KEY, Value::from(&*key.master)),
        (crypto_key::HMAC_KEY, Value::from(&*key.hmac)),
        (crypto_key::KEYFORMAT, key.format.into()),
        (crypto_key::PBKDF2_ITERS, key.iters.into()),
        (crypto_key::PBKDF2_SALT, key.salt.into()),
        (crypto_key::VERSION, key.version.into()),
    ];
    all.into_iter().try_for_each(|(name, value)| at.zap_set(object, name, value))
}
