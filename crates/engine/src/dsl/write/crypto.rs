//! Creates, re-keys and moves encrypted datasets.
//!
//! ```text
//!  directory ─ crypto_key_obj ─▶ DSL Crypto Key: the dataset's keys, wrapped; whose key opens them (root_ddobj);
//!  clone ──────────┘             how many directories share it (refcount)
//! ```
//!
//! A directory is an *encryption root* when its key object names it. Others below inherit, which stops at another
//! root or at a dataset that is not encrypted. Clones share the object of their origin, wherever they stand.
//!
//! Source: dsl_crypt.c, OpenZFS 2.3.

use std::collections::BTreeSet;

use crypt::{DatasetKey, Suite, WrappedKey};
use ondisk::dsl::DslDir;
use ondisk::names::{crypto_key, dsl_dir, special_dir};
use zcommon::features::Feature;

use super::mos_tx::{MosTx, MosView, ZAPIFIED};
use super::props::{self, SettingSource};
use super::{names, tree};
use crate::dsl::KeyStore;
use crate::dsl::crypto::RootKey;
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};
use crate::zap::Value;

/// A user's key for a dataset that becomes an encryption root.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The key.
    pub key: RootKey,
    /// `keylocation`; `None`: it stays.
    pub location: Option<String>,
}

/// The property `encryption` of a new dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cipher {
    /// As the parent.
    #[default]
    Inherit,
    /// None.
    Off,
    /// This one.
    Suite(Suite),
}

/// How a new dataset is to be encrypted: by default as its parent, with its parent's key.
#[doc(alias = "dsl_crypto_params_t")]
#[derive(Debug, Clone, Default)]
pub struct Encryption {
    /// How.
    pub cipher: Cipher,
    /// A key of its own.
    pub key: Option<NewKey>,
}

/// Encryption of a new dataset.
#[derive(Debug)]
pub struct Plan {
    suite: Suite,
    /// The encryption root whose key it takes; `None`: its own.
    root: Option<u64>,
    key: RootKey,
    location: Option<String>,
}

fn invalid(what: &str) -> Error {
    Error::new(Kind::Invalid, what)
}

/// Whether a value of `keylocation` can be meant for an encrypted dataset.
#[doc(alias = "zfs_prop_valid_keylocation")]
pub(crate) fn is_location(text: &str) -> bool {
    let uri = |scheme: &str| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty());
    text == "prompt" || uri("file:///") || uri("https://") || uri("http://")
}

/// The key object of a directory; `None` when it is not encrypted.
pub(super) fn key_object(at: &MosView<'_>, dir: u64) -> Result<Option<u64>> {
    Ok(at.extra(dir, dsl_dir::CRYPTO_KEY_OBJ)?.and_then(|v| v.first()))
}

pub(super) fn key_word(at: &MosView<'_>, object: u64, name: &str) -> Result<u64> {
    at.zap_word(object, name)?.ok_or_else(|| at.corrupt(object, "a crypto key lacks an entry"))
}

/// The encryption root of a directory; `None` when it is not encrypted.
#[doc(alias = "dsl_dir_get_encryption_root_ddobj")]
pub(super) fn root_of(at: &MosView<'_>, dir: u64) -> Result<Option<u64>> {
    key_object(at, dir)?.map(|object| key_word(at, object, crypto_key::ROOT_DDOBJ)).transpose()
}

fn suite_of(at: &MosView<'_>, dir: u64) -> Result<Option<Suite>> {
    let Some(object) = key_object(at, dir)? else { return Ok(None) };
    let id = key_word(at, object, crypto_key::SUITE)?;
    Suite::from_id(id).map(Some).map_err(|e| Error::unsupported(e.to_string()))
}

fn loaded(at: &MosView<'_>, keys: &KeyStore, dir: u64) -> Result<(u64, RootKey)> {
    let root = root_of(at, dir)?.ok_or_else(|| invalid("the dataset is not encrypted"))?;
    let key =
        keys.root_key(root).ok_or_else(|| Error::new(Kind::KeyMissing, "the dataset's key is not loaded"))?;
    Ok((root, (*key).clone()))
}

/// Returns the encryption of a new dataset below `parent` (`None`: the pool's root); `None`: it is not
/// encrypted.
#[doc(alias = "dmu_objset_create_crypt_check")]
pub(crate) fn plan(
    at: &MosTx<'_>,
    keys: &KeyStore,
    parent: Option<u64>,
    wish: Encryption,
) -> Result<Option<Plan>> {
    let above = parent.map(|parent| suite_of(at, parent)).transpose()?.flatten();
    let suite = match wish.cipher {
        Cipher::Inherit => above,
        Cipher::Off => None,
        Cipher::Suite(suite) => Some(suite),
    };
    let Some(suite) = suite else {
        return match wish.key {
            None => Ok(None),
            Some(_) => Err(invalid("a key is given for a dataset that is not encrypted")),
        };
    };
    for feature in [Feature::Encryption, Feature::BookmarkV2] {
        if !at.enabled(feature) {
            return Err(Error::unsupported(format!("the feature {} is not enabled", feature.info().name)));
        }
    }
    if let Some(NewKey { key, location }) = wish.key {
        let location = location.ok_or_else(|| invalid("a new encryption root needs a keylocation"))?;
        check_location(&location)?;
        return Ok(Some(Plan { suite, root: None, key, location: Some(location) }));
    }
    match (parent, above) {
        (Some(parent), Some(_)) => {
            let (root, key) = loaded(at, keys, parent)?;
            Ok(Some(Plan { suite, root: Some(root), key, location: None }))
        }
        _ => Err(invalid("encryption needs a key: keyformat is not given, and there is no key to inherit")),
    }
}

fn check_location(location: &str) -> Result<()> {
    match is_location(location) {
        true => Ok(()),
        false => Err(invalid("keylocation is 'prompt' or a file, https or http URI")),
    }
}

/// Makes a new dataset encrypted, before its object set is made.
#[doc(alias("dsl_dataset_create_crypt_sync", "dsl_crypto_key_create_sync"))]
pub fn apply(at: &MosTx<'_>, keys: &KeyStore, (dir, number): (u64, u64), plan: Plan) -> Result<()> {
    let object = at.create_zap(ZAPIFIED)?;
    let key = keys.new_dataset_key(plan.suite)?;
    let root = plan.root.unwrap_or(dir);
    store(at, keys, (object, &key), (root, &plan.key))?;
    at.zap_set(object, crypto_key::REFCOUNT, 1)?;
    at.zap_set(object, crypto_key::VERSION, key.version())?;
    at.set_extra(dir, dsl_dir::CRYPTO_KEY_OBJ, object)?;
    tree::use_feature(at, number, Feature::Encryption)?;
    if let Some(location) = plan.location {
        props::set(at, number, "keylocation", Some(&PropValue::Text(location)), SettingSource::Local)?;
    }
    if plan.root.is_none() {
        keys.insert(dir, plan.key);
    }
    Ok(())
}

/// Wraps a dataset's key with the key of an encryption root and writes it.
#[doc(alias = "dsl_crypto_key_sync_impl")]
fn store(
    at: &MosTx<'_>,
    keys: &KeyStore,
    (object, key): (u64, &DatasetKey),
    (root, by): (u64, &RootKey),
) -> Result<()> {
    let WrappedKey { suite, guid, iv, mac, master, hmac, .. } = keys.wrap(key, by)?;
    let bytes = |bytes: &[u8]| Value::from(bytes);
    let (salt, iters) = by.pbkdf2.map_or((0, 0), |p| (p.salt, p.iters));
    let all = [
        (crypto_key::SUITE, suite.id().into()),
        (crypto_key::ROOT_DDOBJ, root.into()),
        (crypto_key::GUID, guid.into()),
        (crypto_key::IV, bytes(&iv)),
        (crypto_key::MAC, bytes(&mac)),
        (crypto_key::MASTER_KEY, bytes(&master)),
        (crypto_key::HMAC_KEY, bytes(&hmac)),
        (crypto_key::KEYFORMAT, by.format.id().into()),
        (crypto_key::PBKDF2_ITERS, iters.into()),
        (crypto_key::PBKDF2_SALT, salt.into()),
    ];
    all.into_iter().try_for_each(|(name, value): (_, Value)| at.zap_set(object, name, value))
}

/// A clone shares its origin's key.
#[doc(alias = "dsl_crypto_key_clone_sync")]
pub(super) fn share(at: &MosTx<'_>, origin_dir: u64, dir: u64) -> Result<()> {
    let Some(object) = key_object(at, origin_dir)? else { return Ok(()) };
    at.zap_set(object, crypto_key::REFCOUNT, key_word(at, object, crypto_key::REFCOUNT)? + 1)?;
    at.set_extra(dir, dsl_dir::CRYPTO_KEY_OBJ, object)
}

/// A directory goes, and with the last of them its key.
#[doc(alias = "dsl_crypto_key_destroy_sync")]
pub(super) fn release(at: &MosTx<'_>, dir: u64) -> Result<()> {
    let Some(object) = key_object(at, dir)? else { return Ok(()) };
    match key_word(at, object, crypto_key::REFCOUNT)? {
        0 | 1 => at.free_object(object),
        many => at.zap_set(object, crypto_key::REFCOUNT, many - 1),
    }
}

/// Whether a directory is a clone of something else than the origin of all.
#[doc(alias = "dsl_dir_is_clone")]
fn is_clone(at: &MosView<'_>, dir: &DslDir) -> Result<bool> {
    if dir.origin_obj == 0 {
        return Ok(false);
    }
    let of = at.dataset(dir.origin_obj)?.dir_obj;
    match names::hidden_dir(at, special_dir::ORIGIN) {
        Ok(origin) => Ok(of != origin),
        Err(e) if e.kind() == Kind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// Key objects that name `root` as their encryption root, from `dir` down: of children, of clones, and of
/// their descendants.
#[doc(alias = "spa_keystore_change_key_sync_impl")]
fn keys_below(at: &MosView<'_>, root: u64, dir: u64) -> Result<Vec<u64>> {
    let (mut objects, mut seen) = (Vec::new(), BTreeSet::new());
    // A clone's own object is its origin's, which is listed already.
    let mut stack = vec![(dir, false)];
    while let Some((number, cloned)) = stack.pop() {
        let (phys, Some(object)) = (at.dir(number)?, key_object(at, number)?) else { continue };
        if !cloned {
            if key_word(at, object, crypto_key::ROOT_DDOBJ)? != root || is_clone(at, &phys)? {
                continue;
            }
            objects.push(object);
        }
        if !seen.insert(number) {
            continue;
        }
        for entry in at.zap_entries(phys.child_dir_zapobj)? {
            let name = entry.name_lossy();
            if !name.starts_with(['$', '%']) {
                stack.extend(entry.value.first().map(|child| (child, false)));
            }
        }
        for clone in at.zap_entries(phys.clones)?.iter().filter_map(|e| e.value.first()) {
            stack.push((at.dataset(clone)?.dir_obj, true));
        }
    }
    Ok(objects)
}

/// Gives a dataset a key of its own, or (`None`) its parent's; likewise to all that inherit from it.
#[doc(alias("spa_keystore_change_key_check", "spa_keystore_change_key_sync"))]
pub(super) fn change_key(
    at: &MosTx<'_>,
    keys: &KeyStore,
    (dir, head): (u64, u64),
    new: Option<NewKey>,
) -> Result<()> {
    let phys = at.dir(dir)?;
    let (root, _) = loaded(at, keys, dir)?;
    if is_clone(at, &phys)? {
        return Err(invalid("a clone always uses its origin's key"));
    }
    let is_root = root == dir;
    let (new_root, key, location) = match new {
        Some(NewKey { key, location }) => {
            if location.is_none() && !is_root {
                return Err(invalid("a new encryption root needs a keylocation"));
            }
            location.as_deref().map_or(Ok(()), check_location)?;
            (dir, key, location)
        }
        None if !is_root => return Err(invalid("the dataset is no encryption root: it inherits already")),
        None if phys.parent_obj == 0 || key_object(at, phys.parent_obj)?.is_none() => {
            return Err(invalid("the parent is not encrypted"));
        }
        None => {
            let (root, key) = loaded(at, keys, phys.parent_obj)?;
            (root, key, None)
        }
    };
    let inherits = new_root != dir;
    let opened: Vec<(u64, DatasetKey)> = keys_below(at, root, dir)?
        .into_iter()
        .map(|object| Ok((object, keys.unwrap(object)?)))
        .collect::<Result<_>>()?;
    // From here on nothing can be refused.
    for (object, dataset_key) in &opened {
        store(at, keys, (*object, dataset_key), (new_root, &key))?;
    }
    if inherits {
        keys.remove(dir);
        return props::set(at, head, "keylocation", None, SettingSource::None);
    }
    keys.insert(dir, key);
    match location {
        Some(location) => {
            props::set(at, head, "keylocation", Some(&PropValue::Text(location)), SettingSource::Local)
        }
        None => Ok(()),
    }
}

/// The dataset, received raw as an encryption root, inherits its parent's key from now on. No key is needed: its sender wrapped
/// its key with the key that the parent's root has.
#[doc(alias = "DCP_CMD_FORCE_INHERIT")]
pub(super) fn inherit_as_wrapped(at: &MosTx<'_>, keys: &KeyStore, (dir, head): (u64, u64)) -> Result<()> {
    let phys = at.dir(dir)?;
    if root_of(at, dir)? != Some(dir) {
        return Err(invalid("the dataset is no encryption root: it inherits already"));
    }
    let above = if phys.parent_obj == 0 { None } else { root_of(at, phys.parent_obj)? };
    let above = above.ok_or_else(|| invalid("the parent is not encrypted"))?;
    for object in keys_below(at, dir, dir)? {
        at.zap_set(object, crypto_key::ROOT_DDOBJ, above)?;
    }
    keys.remove(dir);
    props::set(at, head, "keylocation", None, SettingSource::None)
}

/// The dataset becomes an encryption root with the key that wraps its own already.
#[doc(alias = "DCP_CMD_FORCE_NEW_KEY")]
pub(super) fn root_as_wrapped(at: &MosTx<'_>, (dir, head): (u64, u64)) -> Result<()> {
    let root = root_of(at, dir)?.ok_or_else(|| invalid("the dataset is not encrypted"))?;
    for object in keys_below(at, root, dir)? {
        at.zap_set(object, crypto_key::ROOT_DDOBJ, dir)?;
    }
    let location = PropValue::Text("prompt".to_owned());
    props::set(at, head, "keylocation", Some(&location), SettingSource::Local)
}

/// Checks that a directory may move below `parent`: datasets that inherit their key must inherit the same key
/// there.
#[doc(alias = "dsl_dir_rename_crypt_check")]
pub(super) fn check_move(at: &MosView<'_>, dir: u64, parent: u64) -> Result<()> {
    let Some(root) = root_of(at, dir)? else { return Ok(()) };
    if root == dir || root_of(at, parent)? == Some(root) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Denied,
        "the dataset inherits its key, and would be moved away from its encryption root",
    ))
}

/// An encryption root that changes with a promotion.
#[derive(Debug)]
pub(super) struct Handover {
    from: (u64, u64),
    to: (u64, u64),
    objects: Vec<u64>,
}

/// Checks that a clone may be promoted, and returns the change of keys that this implies.
#[doc(alias = "dsl_dataset_promote_crypt_check")]
pub(super) fn check_promote(at: &MosView<'_>, clone: u64) -> Result<Option<Handover>> {
    let target = at.dir(clone)?;
    if target.origin_obj == 0 {
        return Ok(None);
    }
    let origin_number = at.dataset(target.origin_obj)?.dir_obj;
    let origin = at.dir(origin_number)?;
    let Some(root) = root_of(at, origin_number)? else { return Ok(None) };
    if is_clone(at, &origin)? {
        return Ok(None);
    }
    if root == origin_number {
        let objects = keys_below(at, root, root)?;
        let from = (root, origin.head_dataset_obj);
        return Ok(Some(Handover { from, to: (clone, target.head_dataset_obj), objects }));
    }
    let above = |dir: &DslDir| if dir.parent_obj == 0 { Ok(None) } else { root_of(at, dir.parent_obj) };
    match (above(&origin)?, above(&target)?) {
        (Some(a), Some(b)) if a == b => Ok(None),
        _ => Err(Error::new(Kind::Denied, "clone and origin inherit from different encryption roots")),
    }
}

/// The promoted clone is the encryption root now.
#[doc(alias = "dsl_dataset_promote_crypt_sync")]
pub(super) fn hand_over(at: &MosTx<'_>, keys: &KeyStore, change: &Handover) -> Result<()> {
    let Handover { from: (from, from_head), to: (to, to_head), objects } = change;
    let location = at.zap_get(at.dir(*from)?.props_zapobj, "keylocation")?;
    let location = location.map_or_else(|| "prompt".to_owned(), |v| v.string());
    props::set(at, *to_head, "keylocation", Some(&PropValue::Text(location)), SettingSource::Local)?;
    props::set(at, *from_head, "keylocation", None, SettingSource::None)?;
    objects.iter().try_for_each(|object| at.zap_set(*object, crypto_key::ROOT_DDOBJ, *to))?;
    keys.move_root(*from, *to);
    Ok(())
}

/// Refuses settings of properties that define a dataset's encryption.
#[doc(alias = "dsl_crypto_can_set_keylocation")]
pub(super) fn check_setting(at: &MosView<'_>, dir: u64, prop: &str, value: Option<&PropValue>) -> Result<()> {
    match prop {
        "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" => {
            Err(invalid(&format!("'{prop}' is set when a dataset is made or its key is changed")))
        }
        "copies" if value.and_then(PropValue::number) == Some(3) && key_object(at, dir)?.is_some() => {
            Err(invalid("an encrypted dataset has at most two copies"))
        }
        "keylocation" => {
            let text = match value {
                Some(PropValue::Text(text)) => text.as_str(),
                // An encryption root without a location could not be unlocked unattended.
                _ => "",
            };
            match root_of(at, dir)? {
                None if text == "none" => Ok(()),
                Some(root) if root == dir => check_location(text),
                _ => Err(Error::new(Kind::Denied, "keylocation can only be set on encryption roots")),
            }
        }
        _ => Ok(()),
    }
}
