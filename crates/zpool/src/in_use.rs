//! Devices that are not free for a new use: parts of pools, file systems, and disks with such partitions.

use std::path::{Path, PathBuf};

use clikit::ctx::Ctx;
use clikit::members::{aux_of, pools_of, read_only_pool_of, spare_at};
use daemon::devices::{self, InUse};
use daemon::foreign::{self, Use};

use super::vdevs::Leaf;

/// How a device is asked about.
pub struct Question<'a> {
    /// Objections that the user may override are overridden.
    pub force: bool,
    /// The device is to be a hot spare, which pools may share.
    pub spare: bool,
    /// The imported pools.
    pub ctx: &'a Ctx,
}

impl Question<'_> {
    /// Returns why the device is not free, if it is not. Some objections can't be overridden.
    #[doc(alias("check_in_use", "check_device"))]
    pub fn objection(&self, leaf: &Leaf) -> Option<String> {
        let shown = leaf.path.display();
        if let Some(pool) = read_only_pool_of(&leaf.path, self.ctx) {
            return Some(format!("{shown} is part of active pool '{pool}'"));
        }
        match devices::in_use(&leaf.path) {
            Some(usage @ InUse::Active(_)) => {
                // A spare in use is labelled as a part of the pool that uses it.
                let spare = spare_at(&leaf.path, self.ctx).map(InUse::Spare);
                self.of_pool(&leaf.path, spare.unwrap_or(usage))
            }
            Some(usage) => self.of_pool(&leaf.path, usage),
            // Files are not looked into.
            None => leaf.is_disk.then(|| self.of_disk(&leaf.path)).flatten(),
        }
    }

    #[doc(alias = "check_file")]
    fn of_pool(&self, path: &Path, usage: InUse) -> Option<String> {
        let shown = path.display();
        match usage {
            InUse::Spare(_) if self.spare => None,
            InUse::Spare(guid) => {
                // A spare without an imported pool is free.
                let pool = aux_of(guid, self.ctx);
                pool.map(|pool| format!("{shown} is reserved as a hot spare for pool {pool}"))
            }
            InUse::Cache(guid) => {
                let pool = aux_of(guid, self.ctx);
                pool.map(|pool| format!("{shown} is part of active pool '{pool}'"))
            }
            InUse::Active(pool) if !pools_of(path, self.ctx).is_empty() => {
                Some(format!("{shown} is part of active pool '{pool}'"))
            }
            InUse::Active(_) | InUse::Exported(_) if self.force => None,
            InUse::Active(pool) => Some(format!("{shown} is part of potentially active pool '{pool}'")),
            InUse::Exported(pool) => Some(format!("{shown} is part of exported pool '{pool}'")),
        }
    }

    /// A disk that is no pool's as a whole.
    ///
    /// Differs from OpenZFS: the partitions of an MBR are looked into, too.
    #[doc(alias("check_disk", "check_slice"))]
    fn of_disk(&self, path: &Path) -> Option<String> {
        let content = foreign::content_of(path);
        let shown = path.display();
        let of_partition = |(number, usage): (u32, Use)| {
            let path = partition_path(path, number);
            match usage {
                Use::Pool(usage) => self.of_pool(&path, usage),
                Use::FileSystem(_) if self.force => None,
                Use::FileSystem(kind) => {
                    Some(format!("{} contains a filesystem of type '{kind}'", path.display()))
                }
            }
        };
        let whole =
            content.file_system.map(|kind| format!("{shown} is in use and contains a {kind} filesystem."));
        let damaged =
            content.is_table_damaged.then(|| format!("{shown} contains a corrupt primary EFI label."));
        let overridable = whole.or(damaged).filter(|_| !self.force);
        overridable.or_else(|| content.partitions.into_iter().find_map(of_partition))
    }
}

/// The name of a disk's partition, as udev and the kernel make it.
#[doc(alias = "zfs_append_partition")]
fn partition_path(disk: &Path, number: u32) -> PathBuf {
    let name = disk.display();
    let ends_in_digit = name.to_string().ends_with(|last: char| last.is_ascii_digit());
    let infix = match () {
        () if disk.starts_with("/dev/disk") => "-part",
        () if ends_in_digit => "p",
        () => "",
    };
    PathBuf::from(format!("{name}{infix}{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_the_names_of_their_nodes() {
        let name = |disk: &str| partition_path(Path::new(disk), 1).display().to_string();
        assert_eq!(
            ["/dev/sdb", "/dev/nvme0n1", "/dev/disk/by-id/ata-x9"].map(name),
            ["/dev/sdb1", "/dev/nvme0n1p1", "/dev/disk/by-id/ata-x9-part1"]
        );
    }
}
