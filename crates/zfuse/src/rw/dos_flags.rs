//! The DOS attributes of files (`ZFS_IOC_GETDOSFLAGS`, `ZFS_IOC_SETDOSFLAGS`), for `write_dos_attributes` and SMB servers.
//!
//! The kernel checks nothing about these requests, so the rights are checked here: the owner or the superuser may set them, and
//! only a thread with `CAP_LINUX_IMMUTABLE` may change the immutable and append-only flags.

use engine::{Error, Kind, Result};
use zpl::pflags;
use zpl::write::Settings;

use super::Live;
use super::flags::long;
use super::privileges::may_change_immutable;
use crate::file_flags::DOS_FLAGS;
use crate::wire::Request;

/// `ZFS_IOC_SETDOSFLAGS`: takes the flags as 8 bytes.
pub(super) const SET: u32 = 0x4008_8302;

impl Live {
    #[doc(alias = "zpl_ioctl_setdosflags")]
    pub(super) fn set_dos_flags(&self, req: &Request, object: u64, input: &[u8]) -> Result<()> {
        let wanted = long(input, 0)?;
        if wanted & !DOS_FLAGS != 0 {
            return Err(Error::unsupported("a flag that is no DOS attribute"));
        }
        let attr = self.files.attrs().get(object)?;
        // Only what changes reaches the intent log: OpenZFS refuses a record that names REPARSE.
        let changed = (wanted ^ attr.flags) & DOS_FLAGS;
        if changed & (pflags::IMMUTABLE | pflags::APPENDONLY) != 0 && !may_change_immutable(req) {
            return Err(Error::new(
                Kind::NotPermitted,
                "immutable and append-only flags are the superuser's to change",
            ));
        }
        if req.uid() != 0 && u64::from(req.uid()) != attr.owner {
            return Err(Error::new(Kind::Denied, "only the owner sets a file's attributes"));
        }
        if changed & pflags::REPARSE != 0 {
            return Err(Error::new(Kind::NotPermitted, "reparse points are not set with the flags"));
        }
        if changed == 0 {
            return Ok(());
        }
        self.files.attrs().set(object, &Settings { flags: Some((wanted, changed)), ..Settings::default() })
    }
}
