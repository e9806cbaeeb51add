//! A device with another device's bytes, except where they were changed.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use parking_lot::RwLock;

const PAGE: u64 = 4096;
/// Unit of copying a device: zeros stay holes.
const COPY: usize = 256 << 10;

type Pages = HashMap<u64, Box<[u8]>>;

/// Changes in memory over a read-only device.
#[derive(Debug)]
pub struct Overlay {
    base: Device,
    pages: Arc<RwLock<Pages>>,
}

impl Overlay {
    /// No changes yet.
    pub fn new(base: Device) -> Self {
        Self { base, pages: Arc::default() }
    }

    /// Changes bytes from `offset` on. Bytes past the end are dropped.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, bytes);
        let end = self.base.geometry().size;
        while !rest.is_empty() && at < end {
            let page = at / PAGE;
            let skip = usize::try_from(at % PAGE).map_err(io::Error::other)?;
            let take = rest.len().min(PAGE as usize - skip);
            let (now, later) = rest.split_at(take);
            if !self.pages.read().contains_key(&page) {
                let len = usize::try_from(PAGE.min(end - page * PAGE)).map_err(io::Error::other)?;
                let old = blkdev::read_at(&*self.base, page * PAGE, len)?;
                self.pages.write().insert(page, old.to_vec().into());
            }
            if let Some(to) = self.pages.write().get_mut(&page).and_then(|p| p.get_mut(skip..)) {
                to.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            }
            (at, rest) = (at + take as u64, later);
        }
        Ok(())
    }

    /// Writes the device with its changes to a sparse file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        let size = self.base.geometry().size;
        file.set_len(size)?;
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at).map_or(COPY, |left| left.min(COPY));
            let bytes = blkdev::read_at(self, at, len)?;
            if bytes.iter().any(|&b| b != 0) {
                file.write_all_at(&bytes, at)?;
            }
            at += len as u64;
        }
        Ok(())
    }
}

fn patch(pages: &Pages, offset: u64, buf: &mut [u8]) {
    let (mut at, mut rest) = (offset, buf);
    while !rest.is_empty() {
        let skip = (at % PAGE) as usize;
        let take = rest.len().min(PAGE as usize - skip);
        let (now, later) = rest.split_at_mut(take);
        if let Some(page) = pages.get(&(at / PAGE)) {
            now.iter_mut().zip(page.iter().skip(skip)).for_each(|(to, from)| *to = *from);
        }
        (at, rest) = (at.saturating_add(take as u64), later);
    }
}

impl BlockDevice for Overlay {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn submit(&self, io: Io) {
        if io.kind != IoKind::Read {
            return (io.done)(Err(io::ErrorKind::ReadOnlyFilesystem.into()), io.buf);
        }
        let (pages, offset, done) = (Arc::clone(&self.pages), io.offset, io.done);
        let patched: blkdev::Completion = Box::new(move |result, mut buf| {
            if result.is_ok() {
                patch(&pages.read(), offset, &mut buf);
            }
            done(result, buf);
        });
        self.base.submit(Io { done: patched, ..io });
    }
}
