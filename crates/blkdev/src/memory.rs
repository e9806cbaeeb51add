//! A device in memory, for tests and for images that are unpacked on the fly.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::{BlockDevice, Geometry, Io, IoKind, TrimSupport, bounds};

/// A device whose bytes are a vector. Requests complete before `submit` returns.
#[derive(Debug)]
pub struct MemDevice {
    name: String,
    geometry: Geometry,
    bytes: RwLock<Vec<u8>>,
    /// The size at the last measurement.
    size: AtomicU64,
}

impl MemDevice {
    /// A writable device of `bytes.len()` bytes with 512-byte sectors.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        let geometry = Geometry {
            size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            logical_sector: 512,
            physical_sector: 512,
            rotational: false,
            read_only: false,
        };
        let size = AtomicU64::new(geometry.size);
        Self { name: name.into(), geometry, bytes: RwLock::new(bytes), size }
    }

    /// The same with other sector sizes, rotation or write protection; the size stays that of the bytes.
    #[must_use]
    pub fn with_geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = Geometry { size: self.geometry.size, ..geometry };
        self
    }

    /// A copy of the device's content.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// Enlarges the device; the new size shows when it is measured.
    pub fn grow(&self, bytes: usize) {
        let mut all = self.bytes.write();
        let len = all.len().max(bytes);
        all.resize(len, 0);
    }

    fn run(&self, io: &mut Io) -> io::Result<()> {
        bounds::check(&self.geometry(), io)?;
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match io.kind {
            IoKind::Read => {
                let range = range(io.offset, io.buf.len()).ok_or_else(gone)?;
                io.buf.copy_from_slice(self.bytes.read().get(range).ok_or_else(gone)?);
            }
            IoKind::Write => {
                let range = range(io.offset, io.buf.len()).ok_or_else(gone)?;
                self.bytes.write().get_mut(range).ok_or_else(gone)?.copy_from_slice(&io.buf);
            }
            IoKind::Trim(len) | IoKind::Erase(len) => {
                let len = usize::try_from(len).map_err(|_| gone())?;
                let range = range(io.offset, len).ok_or_else(gone)?;
                self.bytes.write().get_mut(range).ok_or_else(gone)?.fill(0);
            }
            IoKind::Flush => {}
        }
        Ok(())
    }
}

fn range(offset: u64, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

impl BlockDevice for MemDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.geometry }
    }

    fn measure(&self) -> io::Result<u64> {
        let size = u64::try_from(self.bytes.read().len()).unwrap_or(u64::MAX);
        Ok(self.size.fetch_max(size, Ordering::AcqRel).max(size))
    }

    fn trim_support(&self) -> TrimSupport {
        TrimSupport { trim: true, erase: true }
    }

    fn submit(&self, mut io: Io) {
        let result = self.run(&mut io);
        bounds::finish(io, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_at, write_at};

    #[test]
    fn gives_back_what_was_written() {
        let dev = MemDevice::new("m", vec![0; 4096]);
        write_at(&dev, 1000, b"hello").unwrap();
        assert_eq!(&*read_at(&dev, 999, 7).unwrap(), b"\0hello\0");
    }

    #[test]
    fn grows_when_it_is_measured() {
        let dev = MemDevice::new("m", vec![1; 10]);
        dev.grow(20);
        assert!(read_at(&dev, 8, 3).is_err());
        assert_eq!((dev.measure().unwrap(), dev.geometry().size), (20, 20));
        assert_eq!(&*read_at(&dev, 8, 3).unwrap(), [1, 1, 0]);
    }

    #[test]
    fn refuses_past_the_end_and_read_only_writes() {
        let dev = MemDevice::new("m", vec![0; 10]);
        assert_eq!(read_at(&dev, 8, 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_at(&dev, u64::MAX, 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let locked = Geometry { read_only: true, ..dev.geometry() };
        let dev = dev.with_geometry(locked);
        assert_eq!(write_at(&dev, 0, b"x").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    }
}
