//! The reply to one request. It may be sent from any thread, once; a dropped one sends `EIO`, so that no process waits
//! for ever.

use std::sync::Arc;

use crate::device::Device;
use crate::uring::Half;

/// The reply channel of one request.
#[derive(Debug)]
pub struct Reply {
    channel: Option<Channel>,
    unique: u64,
}

#[derive(Debug)]
enum Channel {
    Device(Arc<Device>),
    Entry(Half),
}

impl Reply {
    /// For the request of that number, which came over `/dev/fuse`.
    pub fn over(device: &Arc<Device>, unique: u64) -> Self {
        Self { channel: Some(Channel::Device(Arc::clone(device))), unique }
    }

    /// For a request that came over io_uring.
    pub(crate) fn in_entry(half: Half, unique: u64) -> Self {
        Self { channel: Some(Channel::Entry(half)), unique }
    }

    /// For a request that was replied to: does nothing.
    pub fn closed() -> Self {
        Self { channel: None, unique: 0 }
    }

    /// The request expects no reply.
    pub fn forget(mut self) {
        self.channel = match self.channel.take() {
            Some(Channel::Device(_)) | None => None,
            // Every request that comes over a ring expects one; without it the entry would be lost.
            entry => entry,
        };
    }

    /// Sends the answer.
    pub fn send(mut self, parts: &[&[u8]]) {
        self.give(0, parts);
    }

    /// Answers with a positive error number.
    pub fn fail(mut self, error: i32) {
        self.give(-error, &[]);
    }

    fn give(&mut self, error: i32, parts: &[&[u8]]) {
        match self.channel.take() {
            Some(Channel::Device(device)) => {
                // A cancelled request, or a removed mount, has no recipient.
                let sent = device.send(self.unique, error, parts);
                if sent.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
                    // The answer was rejected: the request still waits.
                    let _ = device.send(self.unique, -libc::EIO, &[]);
                }
            }
            Some(Channel::Entry(half)) => half.send(self.unique, error, parts),
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.give(-libc::EIO, &[]);
    }
}
