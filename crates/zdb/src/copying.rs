//! `-x DIR`: copies everything that is read to sparse files, one for each device, with the same names and sizes. A
//! pool can be opened from them again, as far as the read data suffices.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use clikit::verb::Failure;
use ondisk::label::{LABEL_END_SIZE, LABEL_START_SIZE};

/// A device whose reads are copied.
#[derive(Debug)]
struct Copying {
    inner: Device,
    copy: Arc<File>,
}

/// The device with its copy below `dir`; its labels, which were read before, are copied at once.
pub fn copying(inner: Device, dir: &Path) -> Result<Device, Failure> {
    let name = inner.name().to_owned();
    let cannot = |e: io::Error| Failure::cannot("copy", &name, e);
    fs::create_dir_all(dir).map_err(cannot)?;
    let file = Path::new(&name).file_name().ok_or_else(|| cannot(io::ErrorKind::InvalidFilename.into()))?;
    let copy =
        File::options().create(true).truncate(false).write(true).open(dir.join(file)).map_err(cannot)?;
    let size = inner.geometry().size;
    copy.set_len(size).map_err(cannot)?;
    let device: Device = Arc::new(Copying { inner, copy: Arc::new(copy) });
    for (offset, len) in [(0, LABEL_START_SIZE), (size.saturating_sub(LABEL_END_SIZE), LABEL_END_SIZE)] {
        let len = usize::try_from(len.min(size)).unwrap_or(0);
        // An unreadable range is no reason to abort: the copy has a hole there.
        let _ = blkdev::read_at(&*device, offset, len);
    }
    Ok(device)
}

impl Copying {
    fn watched(&self, io: Io) -> Io {
        if io.kind != IoKind::Read {
            return io;
        }
        let Io { kind, offset, buf, done } = io;
        let copy = Arc::clone(&self.copy);
        let done = Box::new(move |result: io::Result<()>, buf: stdx::AlignedBuf| {
            if result.is_ok() {
                // A full disk must not stop the reading; missing data shows when the copy is used.
                let _ = copy.write_all_at(&buf, offset);
            }
            done(result, buf);
        });
        Io { kind, offset, buf, done }
    }
}

impl BlockDevice for Copying {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, io: Io) {
        self.inner.submit(self.watched(io));
    }

    fn serve(&self, io: Io) {
        self.inner.serve(self.watched(io));
    }
}
