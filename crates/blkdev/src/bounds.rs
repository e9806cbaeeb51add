//! Checks that every kind of device makes before it starts a request.

use std::io;

use crate::{Geometry, Io, IoKind};

/// Refuses a request that reaches past the end, or changes a read-only device.
pub(crate) fn check(geometry: &Geometry, io: &Io) -> io::Result<()> {
    let len = match io.kind {
        IoKind::Flush => return Ok(()),
        IoKind::Trim(len) | IoKind::Erase(len) => len,
        IoKind::Read | IoKind::Write => u64::try_from(io.buf.len()).unwrap_or(u64::MAX),
    };
    if io.kind == IoKind::Read {
        check_range(geometry, io.offset, len)
    } else {
        check_change(geometry, io.offset, len)
    }
}

/// Refuses a change of `len` bytes that reaches past the end, or of a read-only device.
pub(crate) fn check_change(geometry: &Geometry, offset: u64, len: u64) -> io::Result<()> {
    if geometry.read_only {
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "device is open for reading only"));
    }
    check_range(geometry, offset, len)
}

fn check_range(geometry: &Geometry, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= geometry.size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{len} bytes at {offset} reach past the device's {} bytes", geometry.size),
        )),
    }
}

/// Completes a request.
pub(crate) fn finish(io: Io, result: io::Result<()>) {
    (io.done)(result, io.buf);
}
