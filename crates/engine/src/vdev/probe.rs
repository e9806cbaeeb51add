//! Whether a device that failed a request works at all: some bytes of each label are read and written back.
//!
//! The bytes are those of the boot environment, which nothing else writes while the pool is open.

use std::io;

use ondisk::label::{BOOTENV_OFFSET, LABELS, label_offset};

use super::leaf::Leaf;

/// Bytes of each label.
#[doc(alias = "VDEV_PAD_SIZE")]
const LEN: usize = 8 << 10;
/// `ENXIO`, `ENODEV`: there is no device any more.
const GONE: [i32; 2] = [6, 19];

/// Result of a probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Something could be read.
    pub(crate) reads: bool,
    /// Something could be written, or nothing had to be.
    pub(crate) writes: bool,
    /// The device is not there any more.
    pub(crate) gone: bool,
}

impl Probe {
    /// Whether it can be worked with.
    pub(crate) fn is_fine(self) -> bool {
        self.reads && self.writes && !self.gone
    }
}

/// Tries it; waits for the device. A leaf that is out of use is not fine.
#[doc(alias = "vdev_probe")]
pub(crate) fn probe(leaf: &Leaf) -> Probe {
    let mut found = Probe::default();
    let Some(device) = leaf.device() else { return found };
    let geometry = device.geometry();
    let mut note = |result: io::Result<()>, good: fn(&mut Probe)| match result {
        Ok(()) => good(&mut found),
        Err(e) => found.gone |= e.raw_os_error().is_some_and(|number| GONE.contains(&number)),
    };
    if leaf.inject.refuses_open() {
        return Probe { gone: true, ..found };
    }
    for index in 0..LABELS {
        let Some(at) = label_offset(leaf.size(), index) else { continue };
        let at = at.saturating_add(BOOTENV_OFFSET);
        let read = leaf.inject.probe_error().map_or_else(|| blkdev::read_at(&*device, at, LEN), Err);
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) => {
                note(Err(e), |_| ());
                continue;
            }
        };
        note(Ok(()), |found| found.reads = true);
        let written = if geometry.read_only { Ok(()) } else { blkdev::write_at(&*device, at, &bytes) };
        note(written, |found| found.writes = true);
    }
    found
}
