//! Privileges that a file loses when another user changes it, and the kernel's cached copy of them.

use crate::wire::{INodeNo, Request};
use engine::{Error, Result};
use zpl::FileKind;
use zpl::write::{Settings, XattrMode};

use super::Live;

/// The attribute with the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;
/// Number of the capability to change immutable and append-only flags.
const CAP_LINUX_IMMUTABLE: u32 = 9;

/// The setter of an access control list.
#[derive(Debug)]
pub enum Setter {
    /// May keep the set-group-id bit of any file.
    Privileged,
    /// A thread of a user with this group, and supplementary groups known only to the system.
    User {
        /// Its thread.
        pid: u32,
        /// Its group.
        gid: u32,
    },
}

impl Setter {
    /// The sender of a request.
    pub fn of(req: &Request) -> Self {
        if req.uid() == 0 { Self::Privileged } else { Self::User { pid: req.pid(), gid: req.gid() } }
    }

    /// Whether set-id bits stay after a write.
    pub fn is_privileged(&self) -> bool {
        matches!(self, Self::Privileged)
    }

    /// Whether the user is in the group. A thread that cannot be seen (in another container) has no supplementary
    /// groups.
    #[doc(alias = "in_group_or_capable")]
    pub fn is_member(&self, group: u32) -> bool {
        match self {
            Self::Privileged => true,
            Self::User { gid, .. } if *gid == group => true,
            Self::User { pid, .. } => {
                // The thread waits for the answer, so its number is not reused.
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                groups(&status).any(|one| one == group)
            }
        }
    }
}

/// Whether the sender of a request may change immutable and append-only flags: the superuser, unless a container took the
/// capability from it. In a user namespace of its own every user has all capabilities, so they alone prove nothing.
pub(super) fn may_change_immutable(req: &Request) -> bool {
    if req.uid() != 0 {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", req.pid())).unwrap_or_default();
    effective(&status).is_some_and(|all| all >> CAP_LINUX_IMMUTABLE & 1 == 1)
}

/// The effective capabilities that `/proc/PID/status` shows.
fn effective(status: &str) -> Option<u64> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

/// The supplementary groups that `/proc/PID/status` shows.
fn groups(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok())
}

impl Live {
    /// The mode of a file after a change by `setter`; `None` if it is unchanged.
    #[doc(alias = "setattr_should_drop_suidgid")]
    pub(super) fn without_set_ids(&self, object: u64, setter: &Setter) -> Result<Option<u64>> {
        let attr = self.files.attrs().get(object)?;
        let mut perm = attr.perm & !SETUID;
        // Without execute permission the bit means mandatory locking, and members of the group keep it.
        if perm & SETGID != 0 && (perm & GROUP_EXEC != 0 || !setter.is_member(attr.gid)) {
            perm &= !SETGID;
        }
        let dropped = attr.kind != FileKind::Directory && perm != attr.perm;
        Ok(dropped.then_some(u64::from(perm)))
    }

    /// Removes the capabilities that a file gives to the process that executes it. For requests of its own the kernel does that
    /// before it changes the content, whatever rights the caller has.
    #[doc(alias = "cap_inode_killpriv")]
    pub(super) fn drop_capabilities(&self, object: u64) -> Result<()> {
        match self.files.xattrs().get(object, CAPABILITY)? {
            Some(_) => self.files.xattrs().set(object, CAPABILITY, None, XattrMode::Set),
            None => Ok(()),
        }
    }

    /// Runs `work`, after which the file loses its set-id bits, unless `setter` is `None`: the caller may keep
    /// them. The kernel does not read the mode after a write, and executes a program by its cached mode: it must
    /// drop that before the change is answered.
    pub(super) fn dropping_set_ids<T>(
        &self,
        object: u64,
        setter: Option<&Setter>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        // They are not set meanwhile: the kernel serialises changes of a file.
        let has_any = || Ok::<_, Error>(self.files.attrs().perm(object)? & u64::from(SETUID | SETGID) != 0);
        let Some(setter) = setter.filter(|_| has_any().unwrap_or(true)) else { return work() };
        let done = work().and_then(|done| {
            let mode = self.without_set_ids(object, setter)?;
            if mode.is_some() {
                self.files.attrs().set(object, &Settings { mode, ..Settings::default() })?;
            }
            Ok(done)
        });
        if let Ok(ino) = self.ino(object) {
            self.tell_changed(INodeNo(ino));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_off_the_status_of_a_process() {
        let status = "Name:\tsh\nGid:\t5\t5\t5\t5\nGroups:\t27 100 1000 \nNStgid:\t7\n";
        assert_eq!(groups(status).collect::<Vec<_>>(), [27, 100, 1000]);
        assert_eq!(groups("Name:\tsh\n").count(), 0);
        let (member, other) = (Setter::User { pid: 0, gid: 7 }, Setter::User { pid: 0, gid: 8 });
        assert!(member.is_member(7) && !other.is_member(7) && Setter::Privileged.is_member(7));
    }
}
