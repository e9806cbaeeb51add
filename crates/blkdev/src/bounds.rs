//! The checks that every kind of device makes before it starts a request.

use std::io;

use crate::{Geometry, Io, IoKind};

/// Refuses a request that reaches past the end, or changes a device that is read-only.
pub(crate) fn check(geometry: &Geometry, io: &Io) -> io::Result<()> {
    let len = match io.kind {
        IoKind::Flush => return Ok(()),
        IoKind::Trim(len) => len,
        IoKind::Read | IoKind::Write => u64::try_from(io.buf.len()).unwrap_or(u64::MAX),
    };
    if io.kind != IoKind::Read && geometry.read_only {
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "device is open for reading only"));
    }
    match io.offset.checked_add(len) {
        Some(end) if end <= geometry.size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{len} bytes at {} reach past the device's {} bytes", io.offset, geometry.size),
        )),
    }
}

/// Completes a request.
pub(crate) fn finish(io: Io, result: io::Result<()>) {
    (io.done)(result, io.buf);
}
