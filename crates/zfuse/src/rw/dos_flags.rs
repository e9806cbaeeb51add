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
use crate::wire::Request;

/// `ZFS_IOC_GETDOSFLAGS`: gives the flags as 8 bytes.
pub(super) const GET: u32 = 0x8008_8301;
/// `ZFS_IOC_SETDOSFLAGS`: takes the flags as 8 bytes.
pub(super) const SET: u32 = 0x4008_8302;

/// The flags that the requests show and set.
#[doc(alias = "ZFS_DOS_FL_USER_VISIBLE")]
const VISIBLE: u64 = pflags::IMMUTABLE
    | pflags::APPENDONLY
    | pflags::NOUNLINK
    | pflags::ARCHIVE
    | pflags::NODUMP
    | pflags::SYSTEM
    | pflags::HIDDEN
    | pflags::READONLY
    | pflags::REPARSE
    | pflags::OFFLINE
    | pflags::SPARSE;

impl Live {
    pub(super) fn dos_flags(&self, object: u64) -> Result<Vec<u8>> {
        Ok((self.files.attr(object)?.flags & VISIBLE).to_le_bytes().to_vec())
    }

    #[doc(alias = "zpl_ioctl_setdosflags")]
    pub(super) fn set_dos_flags(&self, req: &Request, object: u64, input: &[u8]) -> Result<()> {
        let wanted = long(input, 0)?;
        if wanted & !VISIBLE != 0 {
            return Err(Error::unsupported("a flag that is no DOS attribute"));
        }
        let attr = self.files.attr(object)?;
        // Only what changes reaches the intent log: OpenZFS refuses a record that names REPARSE.
        let changed = (wanted ^ attr.flags) & VISIBLE;
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
        self.files.setattr(object, &Settings { flags: Some((wanted, changed)), ..Settings::default() })
    }
}
