//! The partition tables of disks: GPT (UEFI specification 2.10, chapter 5) and MBR with logical partitions.
//!
//! The tables are read from the disk, so partitions are found without device nodes.

use blkdev::{BlockDevice, Geometry, Io, IoKind};

/// A range of a disk that its table names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as in the name of its device node.
    pub number: u32,
    /// Offset of its first byte.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
}

/// The partition table of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Table {
    /// No table that can be read.
    None,
    /// A GPT whose first copy is damaged or missing, and whose copy at the end is intact.
    Damaged,
    /// The partitions of an intact table.
    Intact(Vec<Partition>),
}

/// Sector sizes that tables are written with.
const SECTORS: [u64; 2] = [512, 4096];
/// Most entries of a table that are read, and the most logical partitions: a bound for tables that lie.
const MAX_PARTITIONS: u32 = 1024;
/// Bytes of a GPT header that its checksum covers at least.
const HEADER: usize = 92;

/// Reads the table of a disk. A table that can't be read counts as none.
#[doc(alias = "efi_alloc_and_read")]
pub fn read(disk: &dyn BlockDevice) -> Table {
    let size = disk.geometry().size;
    if let Some(partitions) = SECTORS.iter().find_map(|sector| gpt(disk, *sector, 1)) {
        return Table::Intact(partitions);
    }
    let last = |sector: u64| (size / sector).checked_sub(1).filter(|last| *last > 1);
    if SECTORS.iter().any(|sector| last(*sector).and_then(|last| gpt(disk, *sector, last)).is_some()) {
        return Table::Damaged;
    }
    let partitions = mbr(disk, u64::from(disk.geometry().logical_sector.max(512)));
    partitions.map_or(Table::None, Table::Intact)
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number_at(bytes, at).map(u64::from_le_bytes)
}

/// CRC-32 of ISO 3309, in which the UEFI specification has its checksums.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// The partitions of the GPT whose header is in sector `at`; `None` unless its checksums are right.
fn gpt(disk: &dyn BlockDevice, sector: u64, at: u64) -> Option<Vec<Partition>> {
    let mut header = blkdev::read_at(disk, at.checked_mul(sector)?, usize::try_from(sector).ok()?).ok()?;
    let len = usize::try_from(u32_at(&header, 12)?).ok().filter(|len| *len >= HEADER)?;
    let sum = u32_at(&header, 16)?;
    header.get_mut(16..20)?.fill(0);
    let is_intact = header.starts_with(b"EFI PART") && crc32(header.get(..len)?) == sum;
    if !is_intact || u64_at(&header, 24)? != at {
        return None;
    }
    let (first, count, entry) = (u64_at(&header, 72)?, u32_at(&header, 80)?, u32_at(&header, 84)?);
    if count > MAX_PARTITIONS || !(128..=4096).contains(&entry) {
        return None;
    }
    let entry = usize::try_from(entry).ok()?;
    let bytes = entry.checked_mul(usize::try_from(count).ok()?)?;
    let entries = blkdev::read_at(disk, first.checked_mul(sector)?, bytes).ok()?;
    if crc32(&entries) != u32_at(&header, 88)? {
        return None;
    }
    let entries = (1..).zip(entries.chunks_exact(entry));
    Some(entries.filter_map(|(number, entry)| gpt_entry(number, entry, sector)).collect())
}

/// An entry in use: its type is not zero.
fn gpt_entry(number: u32, entry: &[u8], sector: u64) -> Option<Partition> {
    let is_used = entry.get(..16)?.iter().any(|byte| *byte != 0);
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    let sectors = last.checked_sub(first)?.checked_add(1)?;
    let (start, len) = (first.checked_mul(sector)?, sectors.checked_mul(sector)?);
    is_used.then_some(Partition { number, start, len })
}

/// One of the four entries of a boot record: its type, first sector and sectors.
type Entry = (u8, u64, u64);

/// The entries of the boot record in a sector; `None` when the sector is something else, as the boot sector of a
/// file system.
fn boot_record(disk: &dyn BlockDevice, sector: u64, at: u64) -> Option<Vec<Entry>> {
    let record = blkdev::read_at(disk, at.checked_mul(sector)?, usize::try_from(sector).ok()?).ok()?;
    let entries = record.get(446..510)?.chunks_exact(16);
    let is_record = record.get(510..512)? == [0x55, 0xaa]
        && entries.clone().all(|entry| matches!(entry.first(), Some(0 | 0x80)));
    let entry = |entry: &[u8]| {
        let (first, sectors) = (u32_at(entry, 8)?, u32_at(entry, 12)?);
        Some((*entry.get(4)?, u64::from(first), u64::from(sectors)))
    };
    is_record.then(|| entries.filter_map(entry).collect())
}

fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x05 | 0x0f | 0x85)
}

/// The partitions of a master boot record, and the logical ones of its extended partition.
fn mbr(disk: &dyn BlockDevice, sector: u64) -> Option<Vec<Partition>> {
    /// The whole disk of a GPT, for programs that don't know it.
    const PROTECTIVE: u8 = 0xee;
    let entries = boot_record(disk, sector, 0)?;
    let mut all = Vec::new();
    for (number, (kind, first, sectors)) in (1..).zip(&entries) {
        if *sectors > 0 && !is_extended(*kind) && !matches!(*kind, 0 | PROTECTIVE) {
            all.push(Partition { number, start: first * sector, len: sectors * sector });
        }
    }
    if let Some((_, base, _)) = entries.iter().find(|(kind, ..)| is_extended(*kind)) {
        logical(disk, sector, *base, &mut all);
    }
    Some(all)
}

/// Logical partitions: a chain of boot records, each with one partition and the place of the next record.
fn logical(disk: &dyn BlockDevice, sector: u64, base: u64, all: &mut Vec<Partition>) {
    let mut at = base;
    for number in 5..MAX_PARTITIONS {
        let Some(entries) = boot_record(disk, sector, at) else { return };
        let own = entries.iter().find(|(kind, _, sectors)| *kind != 0 && *sectors > 0 && !is_extended(*kind));
        if let Some((_, first, sectors)) = own {
            all.push(Partition { number, start: (at + first) * sector, len: sectors * sector });
        }
        let next = entries.iter().find(|(kind, first, _)| is_extended(*kind) && *first > 0);
        let Some((_, first, _)) = next else { return };
        at = base + first;
    }
}

/// A partition as a device of its own, for reads.
#[derive(Debug)]
pub struct Slice<'a> {
    disk: &'a dyn BlockDevice,
    start: u64,
    len: u64,
}

impl<'a> Slice<'a> {
    /// The partition's bytes of the disk, as far as they are on it.
    pub fn new(disk: &'a dyn BlockDevice, partition: &Partition) -> Self {
        let len = partition.len.min(disk.geometry().size.saturating_sub(partition.start));
        Self { disk, start: partition.start, len }
    }
}

impl BlockDevice for Slice<'_> {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.len, read_only: true, ..self.disk.geometry() }
    }

    fn submit(&self, io: Io) {
        let len = u64::try_from(io.buf.len()).unwrap_or(u64::MAX);
        let is_inside = io.offset.checked_add(len).is_some_and(|end| end <= self.len);
        if is_inside && matches!(io.kind, IoKind::Read) {
            self.disk.submit(Io { offset: self.start + io.offset, ..io });
        } else {
            (io.done)(Err(std::io::ErrorKind::InvalidInput.into()), io.buf);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use blkdev::MemDevice;

    use super::*;

    pub const DISK: usize = 16 << 20;
    const SECTOR: usize = 512;

    /// A GPT with one partition, number 3, from 1 MiB to 9 MiB, in the sector `at`; its entries in `entries`.
    pub fn write_gpt(disk: &mut [u8], at: usize, entries: usize) {
        let mut table = vec![0; 128 * 128];
        let (first, last) = (2048_u64, 2048 * 9 - 1_u64);
        table[256..272].fill(0x11);
        table[288..296].copy_from_slice(&first.to_le_bytes());
        table[296..304].copy_from_slice(&last.to_le_bytes());
        disk[entries * SECTOR..][..table.len()].copy_from_slice(&table);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(b"EFI PART");
        for (place, number) in [(12, 92), (80, 128), (84, 128), (88, crc32(&table))] {
            header[place..place + 4].copy_from_slice(&number.to_le_bytes());
        }
        for (place, number) in [(24, at as u64), (72, entries as u64)] {
            header[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        disk[at * SECTOR..][..HEADER].copy_from_slice(&header);
    }

    /// A boot record whose entries have this kind, first sector and number of sectors.
    fn write_record(disk: &mut [u8], at: usize, entries: &[(u8, u32, u32)]) {
        let record = &mut disk[at * SECTOR..][..SECTOR];
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        for ((kind, first, sectors), entry) in entries.iter().zip(record[446..510].chunks_exact_mut(16)) {
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&sectors.to_le_bytes());
        }
    }

    fn table_of(bytes: &[u8]) -> Table {
        read(&MemDevice::new("disk", bytes.to_vec()))
    }

    #[test]
    fn checksums_are_those_of_the_specification() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_gpt_names_its_partitions_and_a_damaged_one_is_known_by_its_copy() {
        let mut disk = vec![0; DISK];
        assert_eq!(table_of(&disk), Table::None);
        write_gpt(&mut disk, 1, 2);
        let partition = Partition { number: 3, start: 1 << 20, len: 8 << 20 };
        assert_eq!(table_of(&disk), Table::Intact(vec![partition]));
        disk[600] ^= 1;
        disk[1024 + 256] ^= 1;
        assert_eq!(table_of(&disk), Table::None, "no copy");
        let last = DISK / SECTOR - 1;
        write_gpt(&mut disk, last, last - 32);
        assert_eq!(table_of(&disk), Table::Damaged);
        disk[600] ^= 1;
        assert_eq!(table_of(&disk), Table::Damaged, "the entries have a checksum, too");
        disk[1024 + 256] ^= 1;
        assert_eq!(table_of(&disk), Table::Intact(vec![partition]));
    }

    #[test]
    fn boot_records_name_primary_and_logical_partitions() {
        let mut disk = vec![0; DISK];
        write_record(&mut disk, 0, &[(0x83, 2048, 2048), (0xee, 1, 9), (0x05, 8192, 8192)]);
        write_record(&mut disk, 8192, &[(0x83, 64, 100), (0x05, 1000, 200)]);
        write_record(&mut disk, 9192, &[(0x07, 64, 90), (0x05, 0, 1)]);
        let found =
            |number, first: u64, sectors: u64| Partition { number, start: first * 512, len: sectors * 512 };
        let all = vec![found(1, 2048, 2048), found(5, 8256, 100), found(6, 9256, 90)];
        assert_eq!(table_of(&disk), Table::Intact(all));
        // A chain that leads back ends.
        write_record(&mut disk, 9192, &[(0x07, 64, 90), (0x05, 1000, 200)]);
        assert!(matches!(table_of(&disk), Table::Intact(all) if all.len() < 2000));
        // The boot sector of a file system is no table.
        disk[446] = 0x41;
        assert_eq!(table_of(&disk), Table::None);
    }

    #[test]
    fn a_slice_reads_its_own_bytes_only() {
        let mut bytes = vec![0; DISK];
        bytes[1 << 20] = 7;
        let disk = MemDevice::new("disk", bytes);
        let slice = Slice::new(&disk, &Partition { number: 1, start: 1 << 20, len: 1 << 30 });
        assert_eq!(slice.geometry().size, 15 << 20);
        assert_eq!(blkdev::read_at(&slice, 0, 512).unwrap()[0], 7);
        assert!(blkdev::read_at(&slice, 15 << 20, 512).is_err());
        assert!(blkdev::write_at(&slice, 0, &[0; 512]).is_err());
    }
}
