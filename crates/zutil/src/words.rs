//! Words by which users name vdevs of a pool.
//!
//! A word is a guid, the name that listings show, a path, or a path without its standard directory; where the pool
//! owns the whole disk also the disk's name, although the recorded path is that of a partition.
//!
//! Differs from OpenZFS: the end of a path behind a `/` names a vdev, too, if it is the end of one path only.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use zcommon::vdev::VdevKind;

use crate::discover::default_dirs;
use crate::names::{NameStyle, strip_partition, vdev_name};
use crate::tree::VdevNode;

/// Returns the vdev that a word names; `None` if there is none, or if the word is the end of several paths.
#[doc(alias = "zpool_find_vdev")]
pub fn find<'a>(vdevs: impl IntoIterator<Item = &'a VdevNode>, word: &str) -> Option<&'a VdevNode> {
    let (mut ending, mut is_ambiguous) = (None::<&VdevNode>, false);
    for vdev in vdevs {
        if is_called(vdev, word) {
            return Some(vdev);
        }
        if ends_with(vdev, word) {
            is_ambiguous |= ending.is_some_and(|other| other.guid != vdev.guid);
            ending = Some(vdev);
        }
    }
    ending.filter(|_| !is_ambiguous)
}

/// Whether a word is a whole name of the vdev.
#[doc(alias("vdev_to_nvlist_iter", "zfs_strcmp_pathname"))]
pub fn is_called(vdev: &VdevNode, word: &str) -> bool {
    guid_of(word) == Some(vdev.guid)
        || vdev_name(vdev, NameStyle::default(), true) == word
        || has_number(vdev, word)
        || paths(vdev).iter().any(|path| is_path(path, word))
}

/// A guid, decimal or hexadecimal; never 0, which stands for vdevs that are gone.
fn guid_of(word: &str) -> Option<u64> {
    let guid = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    guid.filter(|guid| *guid != 0)
}

/// Whether a word is the kind and the number of a vdev that is no device: `raidz-0` and `raidz2-0`, `draid-0`,
/// `draid1-0` and `draid1:4d:6c:0s-0`. A parity has to be the vdev's.
fn has_number(vdev: &VdevNode, word: &str) -> bool {
    let Some((kind, number)) = word.rsplit_once('-').filter(|_| vdev.path.is_none()) else { return false };
    let kind = match vdev.kind {
        VdevKind::Draid => kind.split(':').next().unwrap_or(kind),
        _ => kind,
    };
    let is_kind = match (vdev.kind, kind.strip_prefix(vdev.kind.name())) {
        (_, Some("")) => true,
        (VdevKind::Raidz | VdevKind::Draid, Some(parity)) => parity == vdev.nparity.to_string(),
        _ => false,
    };
    is_kind && number.parse() == Ok(vdev.id)
}

/// The path of the vdev's device, and that of the disk if the pool owns all of it.
fn paths(vdev: &VdevNode) -> Vec<PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Some(own) = vdev.path.as_deref().map(path) else { return Vec::new() };
    let disk = own.file_name().filter(|_| vdev.whole_disk);
    let disk = disk.map(|name| own.with_file_name(OsStr::from_bytes(strip_partition(name.as_bytes()))));
    disk.into_iter().chain([own]).collect()
}

#[doc(alias = "zfs_strcmp_shortname")]
fn is_path(path: &Path, word: &str) -> bool {
    match word.starts_with('/') {
        true => path == Path::new(word),
        false => !word.is_empty() && default_dirs().iter().any(|dir| path == dir.join(word)),
    }
}

fn ends_with(vdev: &VdevNode, word: &str) -> bool {
    let end = format!("/{word}");
    !word.is_empty()
        && paths(vdev).into_iter().any(|path| path.into_os_string().into_vec().ends_with(end.as_bytes()))
}

#[cfg(test)]
mod tests {
    use nvpair::{NvList, NvValue};

    use super::*;

    fn node(pairs: &[(&str, NvValue)]) -> VdevNode {
        let config: NvList = pairs.iter().cloned().collect();
        VdevNode::from_config(&config).unwrap()
    }

    fn disk(guid: u64, path: &str, whole: u64) -> VdevNode {
        let (kind, path) = (NvValue::from("disk"), NvValue::from(path));
        node(&[("type", kind), ("guid", guid.into()), ("path", path), ("whole_disk", whole.into())])
    }

    #[test]
    fn whole_disks_have_the_names_that_listings_show() {
        let (sda, wwn) = (disk(7, "/dev/sda1", 1), disk(0x5fe3, "/dev/disk/by-id/wwn-0x5000-part1", 1));
        let part = disk(9, "/dev/sdb1", 0);
        let all = [&sda, &wwn, &part];
        for (word, guid) in [
            ("sda", 7),
            ("/dev/sda", 7),
            ("/dev//sda", 7),
            ("sda1", 7),
            ("/dev/sda1", 7),
            ("7", 7),
            ("wwn-0x5000", 0x5fe3),
            ("disk/by-id/wwn-0x5000", 0x5fe3),
            ("/dev/disk/by-id/wwn-0x5000", 0x5fe3),
            ("0x5fe3", 0x5fe3),
            ("sdb1", 9),
        ] {
            assert_eq!(find(all, word).map(|vdev| vdev.guid), Some(guid), "{word}");
        }
        for word in ["sdb", "/dev/sdb", "sd", "", "wwn", "0", "0x0", "sda2"] {
            assert!(find(all, word).is_none(), "{word}");
        }
    }

    #[test]
    fn vdevs_with_a_number_need_no_parity() {
        let raidz = node(&[("type", "raidz".into()), ("id", 3u64.into()), ("nparity", 2u64.into())]);
        let draid = node(&[("type", "draid".into()), ("id", 0u64.into()), ("nparity", 1u64.into())]);
        let mirror = node(&[("type", "mirror".into()), ("id", 0u64.into())]);
        for word in ["raidz-3", "raidz2-3"] {
            assert!(is_called(&raidz, word), "{word}");
        }
        for word in ["draid-0", "draid1-0", "draid1:4d:6c:0s-0"] {
            assert!(is_called(&draid, word), "{word}");
        }
        for word in ["raidz1-3", "raidz-2", "raidz02-3", "raid-3", "raidz2"] {
            assert!(!is_called(&raidz, word), "{word}");
        }
        assert!(is_called(&mirror, "mirror-0") && !is_called(&mirror, "mirror1-0"));
    }

    #[test]
    fn the_end_of_two_paths_names_neither() {
        let (x, y) = (disk(1, "/pool/x/disk", 0), disk(2, "/pool/y/disk", 0));
        let find = |word: &str| super::find([&x, &y], word).map(|vdev| vdev.guid);
        assert_eq!(
            [find("disk"), find("x/disk"), find("y/disk"), find("isk")],
            [None, Some(1), Some(2), None]
        );
    }
}
