//! Detects file systems, containers and pools that a new pool would destroy, on a disk and in its partitions.

use std::path::Path;

use blkdev::{BlockDevice, FileDevice, OpenOptions};
use zutil::label::DeviceLabels;

use crate::devices::{InUse, in_use_by};
use crate::partitions::{self, Slice, Table};

/// Bytes read at the start of a device.
const HEAD: usize = 0x1_1000;

/// A name, the offset of the signature, and the signature.
const SIGNATURES: [(&str, usize, &[u8]); 15] = [
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("swap", 4086, b"SWAP-SPACE"),
    ("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM2_member", 512, b"LABELONE"),
    ("linux_raid_member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("vfat", 54, b"FAT1"),
    ("vfat", 82, b"FAT32"),
    ("iso9660", 0x8001, b"CD001"),
    ("squashfs", 0, b"hsqs"),
    ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("bcachefs", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
];

/// The content of a disk that belongs to no pool as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The file system or container on the whole disk.
    pub file_system: Option<&'static str>,
    /// The first copy of its partition table is damaged, so its partitions are not known for certain.
    pub is_table_damaged: bool,
    /// Partitions in use: the number of each, and its use.
    pub partitions: Vec<(u32, Use)>,
}

/// The use of a partition.
#[derive(Debug, PartialEq, Eq)]
pub enum Use {
    /// By a pool.
    Pool(InUse),
    /// By another file system or container.
    FileSystem(&'static str),
}

/// The content of the disk at a path; nothing if it can't be read.
#[doc(alias = "check_disk")]
pub fn content_of(path: &Path) -> Content {
    open(path).map_or_else(Content::default, |disk| content(&disk))
}

fn content(disk: &dyn BlockDevice) -> Content {
    let file_system = kind_on(disk);
    let table = partitions::read(disk);
    // The labels of a destroyed pool overwrote what is left of a table.
    let is_table_damaged = table == Table::Damaged && DeviceLabels::read(disk).best().is_none();
    let Table::Intact(partitions) = table else {
        return Content { file_system, is_table_damaged, partitions: Vec::new() };
    };
    let usage = |slice: &Slice<'_>| {
        let pool = in_use_by(&DeviceLabels::read(slice)).map(Use::Pool);
        pool.or_else(|| kind_on(slice).map(Use::FileSystem))
    };
    let in_use = partitions.iter().filter_map(|one| Some((one.number, usage(&Slice::new(disk, one))?)));
    Content { file_system, is_table_damaged, partitions: in_use.collect() }
}

/// The kind of file system on a device, if it is known.
#[doc(alias = "blkid_get_tag_value")]
pub fn filesystem_on(path: &Path) -> Option<&'static str> {
    kind_on(&open(path)?)
}

fn open(path: &Path) -> Option<FileDevice> {
    FileDevice::open(path, OpenOptions { threads: 1, ..OpenOptions::default() }).ok()
}

fn kind_on(device: &dyn BlockDevice) -> Option<&'static str> {
    let size = device.geometry().size;
    let head = blkdev::read_at(device, 0, usize::try_from(size).unwrap_or(usize::MAX).min(HEAD)).ok()?;
    kind_of(&head).or_else(|| is_raid_member(device, size).then_some("linux_raid_member"))
}

/// Whether the end of a device has the superblock of a Linux RAID, of the formats 0.90 (in the last 64 KiB block that
/// a 64 KiB block follows) or 1.0 (8 KiB before the end). Source: Linux, `drivers/md/md.c` and `md_p.h`.
fn is_raid_member(device: &dyn BlockDevice, size: u64) -> bool {
    const MAGIC: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];
    let head_at =
        |at: Option<u64>| blkdev::read_at(device, at?, 512).ok().filter(|head| head.starts_with(&MAGIC));
    let old = (size & !0xffff).checked_sub(0x1_0000);
    let new = (size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    // The format 1.0 holds its own place, in sectors.
    let place = new.map(|at| (at / 512).to_le_bytes());
    let is_new = |head: &[u8]| head.get(144..152) == place.as_ref().map(|place| &place[..]);
    head_at(old).is_some_and(|head| head.get(4..8) == Some(&[0; 4]))
        || head_at(new).is_some_and(|head| is_new(&head))
}

fn kind_of(head: &[u8]) -> Option<&'static str> {
    let is = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let found = SIGNATURES.iter().find(|(_, at, bytes)| is(*at, bytes)).map(|(kind, ..)| *kind);
    found.or_else(|| is(0x438, &[0x53, 0xef]).then(|| ext_kind(head)))
}

/// The generation of ext: by the features for journals and extents.
fn ext_kind(head: &[u8]) -> &'static str {
    const JOURNAL: u8 = 4;
    const EXTENTS: u8 = 0x40;
    let has = |at: usize, bit: u8| head.get(at).is_some_and(|byte| byte & bit != 0);
    match (has(0x45c, JOURNAL), has(0x460, EXTENTS)) {
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    }
}

#[cfg(test)]
mod tests {
    use blkdev::MemDevice;

    use super::*;
    use crate::partitions::tests::{DISK, write_gpt};

    #[test]
    fn partitions_are_looked_into() {
        let mut disk = vec![0; DISK];
        let content_of = |disk: &[u8]| content(&MemDevice::new("disk", disk.to_vec()));
        write_gpt(&mut disk, 1, 2);
        assert_eq!(content_of(&disk), Content::default(), "an empty partition");
        disk[(1 << 20) + 0x438..][..2].copy_from_slice(&[0x53, 0xef]);
        let partitions = vec![(3, Use::FileSystem("ext2"))];
        assert_eq!(content_of(&disk), Content { partitions, ..Content::default() });
        let last = DISK / 512 - 1;
        write_gpt(&mut disk, last, last - 32);
        disk[512] = 0;
        assert_eq!(content_of(&disk), Content { is_table_damaged: true, ..Content::default() });
    }

    #[test]
    fn raids_are_known_by_their_last_blocks() {
        let kind = |bytes: &[u8]| kind_on(&MemDevice::new("disk", bytes.to_vec()));
        let magic = [0xfc, 0x4e, 0x2b, 0xa9];
        let mut disk = vec![0; DISK + 512];
        disk[DISK - 0x1_0000..][..4].copy_from_slice(&magic);
        assert_eq!(kind(&disk), Some("linux_raid_member"), "0.90");
        let mut disk = vec![0; DISK + 512];
        let at = DISK + 512 - 8192 - 512;
        disk[at..][..4].copy_from_slice(&magic);
        assert_eq!(kind(&disk), None, "no place");
        disk[at + 144..][..8].copy_from_slice(&(at as u64 / 512).to_le_bytes());
        assert_eq!(kind(&disk), Some("linux_raid_member"), "1.0");
    }

    #[test]
    fn file_systems_are_known_by_their_signatures() {
        let mut head = vec![0; HEAD];
        assert_eq!(kind_of(&head), None);
        head[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(kind_of(&head), Some("ext2"));
        head[0x45c] = 4;
        assert_eq!(kind_of(&head), Some("ext3"));
        head[0x460] = 0x42;
        assert_eq!(kind_of(&head), Some("ext4"));
        head[..4].copy_from_slice(b"XFSB");
        assert_eq!(kind_of(&head), Some("xfs"));
        assert_eq!(kind_of(b"short"), None);
    }
}
