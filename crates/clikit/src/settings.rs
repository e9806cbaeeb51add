//! Converts `property=value` to its stored form, with OpenZFS's error messages.
//!
//! Source: `zfs_valid_proplist`, `zpool_valid_proplist`, `zprop_parse_value`, libzfs, OpenZFS 2.3.

use std::collections::HashSet;

use daemon::imported::DEFAULT_CACHE;
use daemon::ops::FsShape;
use engine::dsl::props::PropValue;
use ondisk::names::DEFAULT_QUOTAS;
use zcommon::features::Feature;
use zcommon::names::MAX_NAME_LEN;
use zcommon::props::{
    DatasetTypes, PropDefault, PropInfo, PropName, PropType, VdevProp, ZfsProp, ZpoolProp, is_user_property,
};
use zcommon::units::parse_nicenum;
use zpl::CaseSensitivity;
use zutil::import_status::system_hostid;

use crate::compatibility::compatible;

/// Maximum bytes of a text property's value, including its terminator.
#[doc(alias = "ZAP_MAXVALUELEN")]
const MAX_VALUE: usize = 8192;
/// Maximum bytes of a mount point, including its terminator.
#[doc(alias = "ZFS_MAXPROPLEN")]
const MAX_PATH: usize = 1024;
/// Maximum bytes of a pool's comment.
#[doc(alias = "ZPROP_MAX_COMMENT")]
const MAX_COMMENT: usize = 32;

/// OpenZFS' message when a pool is too old for a request.
#[doc(alias = "EZFS_BADVERSION")]
pub const TOO_OLD: &str = "pool and or dataset must be upgraded to set this property or value";

/// Splits `property=value`; each property may appear once, except `cachefile`, whose last value counts.
#[doc(alias = "parseprop")]
pub fn split(words: &[String]) -> Result<Vec<(String, String)>, String> {
    let mut all: Vec<(String, String)> = Vec::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err("missing '=' for property=value argument".to_owned());
        };
        if name == "cachefile" {
            all.retain(|(known, _)| known != name);
        }
        if all.iter().any(|(known, _)| known == name) {
            return Err(format!("property '{name}' specified multiple times"));
        }
        all.push((name.to_owned(), value.to_owned()));
    }
    Ok(all)
}

/// The same for a pool, whose `altroot` the option `-R` may have set already.
#[doc(alias = "add_prop_list")]
pub fn split_beside_root(words: &[String], root: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let all = split(words)?;
    let real = |name: &str| ZpoolProp::from_user(name).map_or(name.to_owned(), |prop| prop.name().to_owned());
    let mut seen = HashSet::new();
    if let Some((name, _)) = all.iter().find(|(name, _)| !seen.insert(real(name))) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    match root.is_some() && all.iter().any(|(name, _)| name == "altroot") {
        true => Err("property 'altroot' specified multiple times".to_owned()),
        false => Ok(all),
    }
}

/// Whether settings apply to a new dataset or pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It is being created: create-time properties may be set.
    New,
    /// The pool is being imported.
    Import,
    /// It exists.
    Later,
}

/// Validates settings of a dataset of one of `types`; returns the property's name and the value to store.
#[doc(alias = "zfs_valid_proplist")]
pub fn of_dataset(
    name: &str,
    value: &str,
    types: DatasetTypes,
    when: When,
) -> Result<(String, PropValue), String> {
    match PropName::parse(name) {
        Some(PropName::User(user)) => of_user(&user, value),
        _ if types == DatasetTypes::SNAPSHOT => {
            Err("this property can not be modified for snapshots".to_owned())
        }
        Some(PropName::Native(prop)) => {
            let info = prop.info();
            if !info.types.intersects(types) {
                return Err(format!("'{name}' does not apply to datasets of this type"));
            }
            let fixed = info.read_only() || (info.set_once() && when != When::New);
            if fixed && prop != ZfsProp::Volsize {
                return Err(format!("'{}' is readonly", info.name));
            }
            if value == "auto" && prop == ZfsProp::Refreservation && types != DatasetTypes::VOLUME {
                return Err(format!("'{name}=auto' only allowed on volumes"));
            }
            let value = native(info, value)?;
            check(prop, &value)?;
            Ok((info.name.to_owned(), value))
        }
        Some(PropName::UserQuota(kind, _)) if !kind.is_quota() => Err(format!("'{name}' is readonly")),
        Some(PropName::UserQuota(..)) if types == DatasetTypes::FILESYSTEM => {
            let number = number(value, true)?;
            Ok((name.to_owned(), PropValue::Number(number)))
        }
        Some(PropName::UserQuota(..)) => Err(format!("'{name}' does not apply to datasets of this type")),
        Some(PropName::Written(_)) => Err(format!("'{name}' is readonly")),
        None if name.contains(':') && !is_user_property(name) => Err(format!("invalid property '{name}'")),
        None => Err(format!("invalid property '{name}'")),
    }
}

fn of_user(name: &str, value: &str) -> Result<(String, PropValue), String> {
    if name.len() >= zcommon::names::MAX_NAME_LEN {
        return Err(format!("property name '{name}' is too long"));
    }
    if value.len() >= MAX_VALUE {
        return Err("property value too long".to_owned());
    }
    Ok((name.to_owned(), PropValue::Text(value.to_owned())))
}

/// A value of its property's type.
#[doc(alias = "zprop_parse_value")]
fn native(info: &PropInfo, value: &str) -> Result<PropValue, String> {
    match info.data_type {
        PropType::String if value.len() >= MAX_VALUE => Err(format!("'{}' is too long", info.name)),
        PropType::String => Ok(PropValue::Text(value.to_owned())),
        PropType::Index => {
            let words = info.values.unwrap_or_default();
            let bad = || format!("'{}' must be one of '{words}'", info.name);
            info.number_of(value).map(PropValue::Number).ok_or_else(bad)
        }
        PropType::Number => {
            let is_table_quota = info.name == "dedup_table_quota";
            match value {
                "none" if matches!(info.name, "filesystem_limit" | "snapshot_limit") => {
                    Ok(PropValue::Number(u64::MAX))
                }
                "none" => Ok(PropValue::Number(0)),
                "auto" if is_table_quota || info.name == "refreservation" => Ok(PropValue::Number(u64::MAX)),
                "auto" => Err(format!("'auto' is invalid value for '{}'", info.name)),
                _ => match (number(value, false)?, info.name) {
                    (0, "quota" | "refquota") => Err("use 'none' to disable quota/refquota".to_owned()),
                    (0, "dedup_table_quota") => Err("use 'none' to disable ddt table quota".to_owned()),
                    (number, _) => Ok(PropValue::Number(number)),
                },
            }
        }
    }
}

fn number(text: &str, none: bool) -> Result<u64, String> {
    if none && text == "none" {
        return Ok(0);
    }
    parse_nicenum(text).map_err(|e| e.to_string())
}

/// Checks that the property table does not express.
fn check(prop: ZfsProp, value: &PropValue) -> Result<(), String> {
    use ZfsProp as P;
    let name = prop.name();
    match (prop, value) {
        (P::Recordsize | P::Volblocksize, PropValue::Number(n))
            if !(512..=16 << 20).contains(n) || !n.is_power_of_two() =>
        {
            Err(format!("'{name}' must be power of 2 from 512B to 16M"))
        }
        (P::SpecialSmallBlocks, PropValue::Number(n)) if *n > 16 << 20 => {
            Err(format!("invalid '{name}' property: must be between zero and 16M"))
        }
        (P::Volsize, PropValue::Number(0)) => Err(format!("'{name}' cannot be zero")),
        (P::Mountpoint, PropValue::Text(text)) => match text.as_str() {
            "none" | "legacy" => Ok(()),
            path if path.starts_with('/') && path.len() >= MAX_PATH => Err(format!("'{name}' is too long")),
            path if path.split('/').any(|part| part.len() >= MAX_NAME_LEN) => {
                Err(format!("component of '{name}' is too long"))
            }
            path if path.starts_with('/') => Ok(()),
            _ => Err(format!("'{name}' must be an absolute path, 'none', or 'legacy'")),
        },
        (P::Keylocation, PropValue::Text(text)) => {
            let uri = ["file://", "https://", "http://"].iter().any(|scheme| text.starts_with(scheme));
            match text.as_str() {
                "prompt" | "none" => Ok(()),
                _ if uri => Ok(()),
                _ => Err("invalid keylocation".to_owned()),
            }
        }
        (P::Sharenfs, PropValue::Text(text)) if !is_share(text) => {
            Err(format!("'{name}' cannot be set to invalid options"))
        }
        (P::Sharesmb, PropValue::Text(text)) if !matches!(text.as_str(), "on" | "off") => {
            Err(format!("'{name}' cannot be set to invalid options"))
        }
        (P::Mlslabel, _) => Err("mlslabels are unsupported".to_owned()),
        _ => Ok(()),
    }
}

/// Whether the value of `sharenfs` is valid.
#[doc(alias = "nfs_validate_shareopts")]
fn is_share(text: &str) -> bool {
    const OPTIONS: [&str; 39] = [
        "ro",
        "rw",
        "root",
        "sec",
        "anon",
        "anonuid",
        "anongid",
        "async",
        "sync",
        "wdelay",
        "no_wdelay",
        "crossmnt",
        "nohide",
        "hide",
        "secure",
        "insecure",
        "subtree_check",
        "no_subtree_check",
        "fsid",
        "root_squash",
        "no_root_squash",
        "all_squash",
        "no_all_squash",
        "mountpoint",
        "mp",
        "acl",
        "no_acl",
        "nosub",
        "nosuid",
        "refer",
        "replicas",
        "pnfs",
        "no_pnfs",
        "security_label",
        "auth_nlm",
        "no_auth_nlm",
        "secure_locks",
        "insecure_locks",
        "rdirplus",
    ];
    let known = |option: &str| OPTIONS.contains(&option.split('=').next().unwrap_or_default());
    matches!(text, "on" | "off") || text.split(',').all(known)
}

/// The effect of setting a pool property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolSetting {
    /// Store the value.
    Stored(String, PropValue),
    /// Enable a feature.
    Enable(Feature),
    /// Do not enable a feature (of a new pool).
    Disable(Feature),
    /// Set the version.
    Version(u64),
    /// Set `ashift`.
    Ashift(u64),
    /// Set the root of mount points.
    Altroot(String),
    /// Set the cache file: `none`, or a file.
    Cachefile(String),
    /// Make the pool read-only or writable.
    Readonly(bool),
    /// Nothing: the property no longer has any effect.
    NoEffect,
}

/// Validates settings of a pool.
#[doc(alias = "zpool_valid_proplist")]
pub fn of_pool(name: &str, value: &str, when: When) -> Result<PoolSetting, String> {
    if let Some(short) = name.strip_prefix("feature@") {
        let feature =
            Feature::from_name(short).ok_or_else(|| format!("feature '{short}' unsupported by kernel"))?;
        return match value {
            "enabled" => Ok(PoolSetting::Enable(feature)),
            "disabled" if when == When::New => Ok(PoolSetting::Disable(feature)),
            "disabled" => Err(format!("property '{name}' can only be set to 'disabled' at creation time")),
            _ => Err(format!("property '{name}' can only be set to 'enabled' or 'disabled'")),
        };
    }
    let Some(prop) = ZpoolProp::from_user(name) else {
        if is_user_property(name) {
            let (name, value) = of_user(name, value)?;
            return Ok(PoolSetting::Stored(name, value));
        }
        return Err(format!("invalid property '{name}'"));
    };
    let info = prop.info();
    if info.read_only() || (info.set_once() && when != When::New) {
        return Err(format!("'{name}' is readonly"));
    }
    let parsed = native(info, value)?;
    if prop == ZpoolProp::Compatibility {
        compatible(value)?;
    }
    pool_setting(prop, parsed, when)
}

fn pool_setting(prop: ZpoolProp, value: PropValue, when: When) -> Result<PoolSetting, String> {
    use ZpoolProp as P;
    let name = prop.name();
    let later = |what: &str| Err(format!("property '{name}' can only be set {what}"));
    Ok(match (prop, value) {
        (P::Version, PropValue::Number(n)) if !(1..=28).contains(&n) && n != 5000 => {
            return Err(format!("property '{name}' number {n} is invalid."));
        }
        (P::Version, PropValue::Number(n)) => PoolSetting::Version(n),
        (P::Ashift, PropValue::Number(n)) if n != 0 && !(9..=16).contains(&n) => {
            return Err(format!(
                "property '{name}' number {n} is invalid, only values between 9 and 16 are allowed."
            ));
        }
        (P::Ashift, PropValue::Number(n)) => PoolSetting::Ashift(n),
        (P::Altroot, _) if when == When::Later => return later("during pool creation or import"),
        (P::Altroot, PropValue::Text(path)) if !path.starts_with('/') => {
            return Err(format!("bad alternate root '{path}'"));
        }
        (P::Altroot, PropValue::Text(path)) => PoolSetting::Altroot(path),
        (P::Cachefile, PropValue::Text(path))
            if !path.is_empty() && path != "none" && !path.starts_with('/') =>
        {
            return Err(format!("property '{name}' must be empty, an absolute path, or 'none'"));
        }
        (P::Cachefile, PropValue::Text(path)) => {
            check_cachefile(&path)?;
            PoolSetting::Cachefile(path)
        }
        (P::Readonly, _) if when != When::Import => return later("at import time"),
        (P::Readonly, PropValue::Number(n)) => PoolSetting::Readonly(n != 0),
        (P::Comment, PropValue::Text(text)) => {
            if text.len() > MAX_COMMENT {
                return Err(format!("comment must not exceed {MAX_COMMENT} characters"));
            }
            if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic() && *c != ' ') {
                let _ = bad;
                return Err("comment may only have printable characters".to_owned());
            }
            PoolSetting::Stored(name.to_owned(), PropValue::Text(text))
        }
        (P::Bootfs, _) if when != When::Later => {
            return Err(format!("property '{name}' cannot be set at creation or import time"));
        }
        (P::Multihost, PropValue::Number(1)) if system_hostid() == 0 => {
            return Err("requires a non-zero system hostid".to_owned());
        }
        (P::Dedupditto, _) => PoolSetting::NoEffect,
        (P::Tname, _) => return Err(format!("property '{name}' can't be set")),
        (_, value) => PoolSetting::Stored(name.to_owned(), value),
    })
}

/// Refuses a cache file that cannot be one, before anything has changed.
fn check_cachefile(path: &str) -> Result<(), String> {
    let Some((parent, file)) = path.rsplit_once('/') else { return Ok(()) };
    if matches!(file, "" | "." | "..") {
        return Err(format!("'{path}' is not a valid file"));
    }
    match parent.is_empty() || path == DEFAULT_CACHE || std::path::Path::new(parent).is_dir() {
        true => Ok(()),
        false => Err(format!("'{parent}' is not a valid directory")),
    }
}

/// Validates settings of a vdev; returns the property's name and the value to store.
#[doc(alias = "zpool_valid_proplist")]
pub fn of_vdev(name: &str, value: &str) -> Result<(String, PropValue), String> {
    let Some(prop) = VdevProp::from_user(name) else {
        return if is_user_property(name) {
            of_user(name, value)
        } else {
            Err(format!("invalid property: '{name}'"))
        };
    };
    let info = prop.info();
    if info.read_only() {
        return Err(format!("'{name}' is readonly"));
    }
    let may_be_none = info.default == PropDefault::Number(u64::MAX);
    let parsed = match value {
        "none" if may_be_none => PropValue::Number(u64::MAX),
        _ => native(info, value)?,
    };
    if prop == VdevProp::Allocating && !matches!(parsed, PropValue::Number(0 | 1)) {
        return Err(format!("'{name}' must be one of 'on | off'"));
    }
    Ok((info.name.to_owned(), parsed))
}

/// Separates properties that are fixed at creation; the rest are settings.
pub fn shape(
    fs: &mut FsShape,
    settings: &mut Vec<(String, PropValue)>,
    name: String,
    value: PropValue,
) -> Result<(), String> {
    let number = value.number().unwrap_or(0);
    match name.as_str() {
        "normalization" => fs.normalization = Some(number),
        "utf8only" => fs.utf8only = Some(number != 0),
        "casesensitivity" => fs.case = Some(CaseSensitivity::from_number(number)),
        "version" => fs.version = Some(number),
        quota => match DEFAULT_QUOTAS.iter().zip(&mut fs.default_quotas).find(|(name, _)| **name == quota) {
            Some((_, limit)) => *limit = Some(number),
            None => settings.push((name, value)),
        },
    }
    match (fs.normalization, fs.utf8only) {
        (Some(1..), Some(false)) => Err("'utf8only' must be set 'on' if normalization chosen".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fs(name: &str, value: &str) -> Result<(String, PropValue), String> {
        of_dataset(name, value, DatasetTypes::FILESYSTEM, When::Later)
    }

    #[test]
    fn the_alternate_root_is_set_once() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let altroot = words(&["altroot=/y"]);
        assert_eq!(split_beside_root(&altroot, None), Ok(vec![("altroot".into(), "/y".into())]));
        let twice = Err("property 'altroot' specified multiple times".to_owned());
        assert_eq!(split_beside_root(&altroot, Some("/x")), twice);
        assert!(split_beside_root(&words(&["ashift=9"]), Some("/x")).is_ok());
    }

    #[test]
    fn values_are_what_the_table_says() {
        assert_eq!(fs("compression", "lz4"), Ok(("compression".into(), PropValue::Number(15))));
        assert_eq!(fs("compress", "off"), Ok(("compression".into(), PropValue::Number(2))));
        assert_eq!(fs("quota", "1G"), Ok(("quota".into(), PropValue::Number(1 << 30))));
        assert_eq!(fs("quota", "none"), Ok(("quota".into(), PropValue::Number(0))));
        assert_eq!(fs("com.example:a", "b"), Ok(("com.example:a".into(), PropValue::Text("b".into()))));
        assert!(fs("compression", "fast").unwrap_err().starts_with("'compression' must be one of 'on | off"));
        assert_eq!(fs("used", "1").unwrap_err(), "'used' is readonly");
        assert_eq!(fs("utf8only", "on").unwrap_err(), "'utf8only' is readonly");
        assert_eq!(fs("volsize", "1G").unwrap_err(), "'volsize' does not apply to datasets of this type");
        assert_eq!(fs("nonsense", "1").unwrap_err(), "invalid property 'nonsense'");
        assert_eq!(fs("recordsize", "1000").unwrap_err(), "'recordsize' must be power of 2 from 512B to 16M");
    }

    #[test]
    fn pools_have_settings_of_their_own() {
        assert_eq!(of_pool("ashift", "12", When::New), Ok(PoolSetting::Ashift(12)));
        assert!(of_pool("ashift", "20", When::New).is_err());
        assert!(of_pool("feature@lz4_compress", "disabled", When::New).is_ok());
        assert!(of_pool("feature@lz4_compress", "disabled", When::Later).is_err());
        assert_eq!(of_pool("size", "1", When::Later).unwrap_err(), "'size' is readonly");
        let quota = |value| match of_pool("dedup_table_quota", value, When::Later).unwrap() {
            PoolSetting::Stored(_, value) => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(quota("none"), PropValue::Number(0));
        assert_eq!(quota("auto"), PropValue::Number(u64::MAX));
        assert_eq!(quota("1M"), PropValue::Number(1 << 20));
    }
}
