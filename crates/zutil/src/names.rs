//! Names of vdevs in listings.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use zcommon::vdev::VdevKind;

use crate::discover::DEFAULT_DIRS;
use crate::tree::VdevNode;

/// How names are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NameStyle {
    /// `-g`: guids instead of names.
    pub guids: bool,
    /// `-P`: the whole path of disks, with the partition.
    pub full_paths: bool,
    /// `-L`: where symbolic links lead.
    pub follow_links: bool,
}

/// The name of a vdev; `with_id` appends `-ID` to the kind of one without a path (`mirror-0`).
///
/// Disks lose their directory (`/dev/disk/by-id/…`) and, when the pool owns the whole disk, the
/// partition; files keep their path.
#[doc(alias = "zpool_vdev_name")]
pub fn vdev_name(vdev: &VdevNode, style: NameStyle, with_id: bool) -> String {
    if style.guids || vdev.not_present {
        return vdev.guid.to_string();
    }
    match &vdev.path {
        Some(path) => printable(&String::from_utf8_lossy(&device_name(vdev, path, style))),
        None if with_id => format!("{}-{}", kind_name(vdev), vdev.id),
        None => kind_name(vdev),
    }
}

/// The text with control characters replaced: names come from labels of unknown origin, and
/// go to terminals.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn device_name(vdev: &VdevNode, path: &[u8], style: NameStyle) -> Vec<u8> {
    let target = if style.follow_links { std::fs::canonicalize(OsStr::from_bytes(path)).ok() } else { None };
    let path = target.map_or_else(|| path.to_vec(), |target| target.into_os_string().into_vec());
    if style.full_paths {
        return path;
    }
    let name = if vdev.kind == VdevKind::Disk { strip_dir(&path) } else { &path };
    if vdev.whole_disk && vdev.kind != VdevKind::DraidSpare {
        strip_partition(name).to_vec()
    } else {
        name.to_vec()
    }
}

/// `raidz2`, `draid1:2d:5c:1s`, or the kind's name in configurations.
fn kind_name(vdev: &VdevNode) -> String {
    match (vdev.kind, vdev.draid) {
        (VdevKind::Raidz, _) => format!("raidz{}", vdev.nparity),
        (VdevKind::Draid, Some((data, children, spares))) => {
            format!("draid{}:{data}d:{children}c:{spares}s", vdev.nparity)
        }
        (kind, _) => kind.name().to_owned(),
    }
}

/// The path without the standard directory that it lies in.
#[doc(alias = "zfs_strip_path")]
fn strip_dir(path: &[u8]) -> &[u8] {
    let full = Path::new(OsStr::from_bytes(path));
    let rest = DEFAULT_DIRS.iter().find_map(|dir| full.strip_prefix(dir).ok());
    rest.map_or(path, |rest| rest.as_os_str().as_bytes())
}

/// The disk's name without a partition's number: `sda1`, `nvme0n1p2`, `wwn-0x5000-part1`.
#[doc(alias = "zfs_strip_partition")]
pub(crate) fn strip_partition(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (disk, number) = name.split_at_checked(name.len() - digits).unwrap_or((name, &[]));
    if number.is_empty() {
        return name;
    }
    if let Some(disk) = disk.strip_suffix(b"-part")
        && !disk.is_empty()
    {
        return disk;
    }
    if let Some(disk) = disk.strip_suffix(b"p")
        && disk.len() > 1
        && disk.last().is_some_and(u8::is_ascii_digit)
    {
        return disk;
    }
    let letters = [b"hd".as_slice(), b"sd", b"vd", b"xvd"].iter().find_map(|kind| disk.strip_prefix(*kind));
    let is_disk = letters.is_some_and(|letters| letters.iter().all(u8::is_ascii_alphabetic));
    if is_disk { disk } else { name }
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    fn node(pairs: &[(&str, nvpair::NvValue)]) -> VdevNode {
        let config: NvList = pairs.iter().cloned().collect();
        VdevNode::from_config(&config).unwrap()
    }

    #[test]
    fn partitions_of_whole_disks_are_stripped() {
        for (name, disk) in [
            ("sda1", "sda"),
            ("vdb12", "vdb"),
            ("nvme0n1p1", "nvme0n1"),
            ("wwn-0x5000c500-part1", "wwn-0x5000c500"),
            ("ata-X-part", "ata-X-part"),
            ("loop0", "loop0"),
            ("disk7", "disk7"),
        ] {
            assert_eq!(strip_partition(name.as_bytes()), disk.as_bytes(), "{name}");
        }
    }

    #[test]
    fn names_of_each_kind() {
        let disk = node(&[
            ("type", "disk".into()),
            ("guid", 7u64.into()),
            ("path", "/dev/disk/by-id/ata-A-part1".into()),
            ("whole_disk", 1u64.into()),
        ]);
        assert_eq!(vdev_name(&disk, NameStyle::default(), true), "ata-A");
        let full = NameStyle { full_paths: true, ..NameStyle::default() };
        assert_eq!(vdev_name(&disk, full, true), "/dev/disk/by-id/ata-A-part1");
        let guids = NameStyle { guids: true, ..NameStyle::default() };
        assert_eq!(vdev_name(&disk, guids, true), "7");
        let raidz = node(&[("type", "raidz".into()), ("id", 3u64.into()), ("nparity", 2u64.into())]);
        assert_eq!(vdev_name(&raidz, NameStyle::default(), true), "raidz2-3");
        assert_eq!(vdev_name(&raidz, NameStyle::default(), false), "raidz2");
        let file = node(&[("type", "file".into()), ("path", "/dev/x/a1".into())]);
        assert_eq!(vdev_name(&file, NameStyle::default(), true), "/dev/x/a1");
    }
}
