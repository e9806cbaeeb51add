//! Unsolicited notifications to the kernel.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuse_transport::Device;

use super::INodeNo;
use super::encode::Out;

/// Notifications have no request; the number of the notification replaces the error.
const UNASKED: u64 = 0;
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;

/// Notifies the kernel of changes it has not seen. If it has not cached the object, there is nothing to do.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    /// Uses a connection.
    pub fn new(device: Arc<Device>) -> Self {
        Self(device)
    }

    /// Attributes of a file have changed, and its bytes in a range; `offset` below 0: attributes only, `len` 0: to
    /// the end.
    pub fn inval_inode(&self, ino: INodeNo, offset: i64, len: i64) -> io::Result<()> {
        let what = Out::default().u64(ino.0).i64(offset).i64(len);
        self.tell(INVAL_INODE, &[what.bytes()])
    }

    /// A name now refers to another file.
    pub fn inval_entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let what = Out::default().u64(parent.0).u32(len).u32(0);
        self.tell(INVAL_ENTRY, &[what.bytes(), name.as_bytes(), &[0]])
    }

    fn tell(&self, what: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.0.send(UNASKED, what, parts) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }
}
