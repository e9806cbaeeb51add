//! Detects file systems and containers that a pool would destroy, by their signatures.

use std::path::Path;

use blkdev::{BlockDevice, FileDevice, OpenOptions};

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

/// The kind of file system on a device, if it is known.
#[doc(alias = "blkid_get_tag_value")]
pub fn filesystem_on(path: &Path) -> Option<&'static str> {
    let device = FileDevice::open(path, OpenOptions { threads: 1, ..OpenOptions::default() }).ok()?;
    let size = usize::try_from(device.geometry().size).unwrap_or(usize::MAX).min(HEAD);
    kind_of(&blkdev::read_at(&device, 0, size).ok()?)
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
    use super::{HEAD, kind_of};

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
