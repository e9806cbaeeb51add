//! Size and sector sizes of a file or block device.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::Geometry;

/// Queries the kernel about an open file. Anything but a regular file or a block device is refused: a pipe or a
/// terminal has no size, and reading it could wait for ever.
pub(crate) fn probe(file: &File, read_only: bool) -> io::Result<Geometry> {
    let meta = file.metadata()?;
    let kind = meta.file_type();
    if kind.is_file() {
        let (logical_sector, physical_sector) = (512, 512);
        return Ok(Geometry {
            size: meta.len(),
            logical_sector,
            physical_sector,
            rotational: false,
            read_only,
        });
    }
    if !kind.is_block_device() {
        return Err(not_a_device());
    }
    let size = size(file)?;
    let queue = Queue::of(meta.rdev());
    let logical_sector = queue.number("logical_block_size").unwrap_or(512);
    Ok(Geometry {
        size,
        logical_sector,
        physical_sector: queue.number("physical_block_size").unwrap_or(logical_sector),
        rotational: queue.number("rotational") == Some(1),
        read_only,
    })
}

/// Bytes of an open file or block device.
pub(crate) fn size(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    // Requests name their offsets: the file position is unused.
    if meta.is_file() { Ok(meta.len()) } else { (&*file).seek(SeekFrom::End(0)) }
}

pub(crate) fn not_a_device() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")
}

/// The sysfs directory with a disk's request-queue attributes.
struct Queue(Vec<String>);

impl Queue {
    fn of(rdev: u64) -> Self {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let base = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue of its own; its disk is the parent directory.
        Self(vec![format!("{base}/queue"), format!("{base}/../queue")])
    }

    fn number(&self, attribute: &str) -> Option<u32> {
        let text = self.0.iter().find_map(|dir| fs::read_to_string(format!("{dir}/{attribute}")).ok())?;
        text.trim().parse().ok()
    }
}
