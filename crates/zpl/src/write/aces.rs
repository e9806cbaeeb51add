//! Access control lists as rules: the trivial list of a mode, the effect of a change of mode on a list,
//! inheritance by new files, the mode that a list amounts to. No I/O.
//!
//! Source: zfs_acl.c and zfs_acl common code, OpenZFS 2.3.

use ondisk::acl::{Ace, ace_flags as fl, ace_mask as m, ace_size, ace_type as t, is_abstract};
use ondisk::znode::pflags;

/// Property `aclmode`: the effect of a change of mode on a non-trivial list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclMode {
    /// It is replaced by the mode's.
    #[default]
    Discard,
    /// Entries get no more than the group has.
    GroupMask,
    /// They stay.
    Passthrough,
    /// The mode of a file with such a list can't be changed.
    Restricted,
}

impl AclMode {
    /// From the property's number.
    pub fn from_number(number: u64) -> Self {
        match number {
            2 => Self::GroupMask,
            3 => Self::Passthrough,
            4 => Self::Restricted,
            _ => Self::Discard,
        }
    }
}

/// Property `aclinherit`: inheritance of a directory's list by new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// Entries that deny.
    NoAllow,
    /// All, but no right to change list or owner.
    #[default]
    Restricted,
    /// All as they are; the mode follows from them.
    Passthrough,
    /// The same, but execution only as the mode asks.
    PassthroughX,
}

impl AclInherit {
    /// From the property's number.
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Discard,
            1 => Self::NoAllow,
            3 => Self::Passthrough,
            5 => Self::PassthroughX,
            _ => Self::Restricted,
        }
    }
}

const GROUP: u16 = fl::GROUP | fl::IDENTIFIER_GROUP;
const INHERIT: u16 = fl::FILE_INHERIT | fl::DIRECTORY_INHERIT;
const ALL_INHERIT: u16 = INHERIT | fl::NO_PROPAGATE_INHERIT | fl::INHERIT_ONLY | fl::INHERITED;
const EVERYONE: u32 = m::READ_ACL | m::READ_ATTRIBUTES | m::READ_NAMED_ATTRS | m::SYNCHRONIZE;
const OWNER: u32 = EVERYONE | m::WRITE_ATTRIBUTES | m::WRITE_OWNER | m::WRITE_ACL | m::WRITE_NAMED_ATTRS;
const RESTRICTED_CLEAR: u32 = m::WRITE_ACL | m::WRITE_OWNER;

/// A list and its bits in the file's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AclDraft {
    /// The entries.
    pub aces: Vec<Ace>,
    /// Bits of [`pflags`].
    pub hints: u64,
}

fn entry(ace_type: u16, flags: u16, access_mask: u32) -> Ace {
    Ace { ace_type, flags, access_mask, who: u64::MAX, object: None }
}

/// Masks allowed to each class of users by a mode, and the masks that earlier entries must deny or allow for
/// that.
struct Masks {
    allow0: u32,
    deny1: u32,
    deny2: u32,
    owner: u32,
    group: u32,
    everyone: u32,
}

#[doc(alias = "acl_trivial_access_masks")]
fn masks(mode: u64, dir: bool) -> Masks {
    let write = m::WRITE_DATA | m::APPEND_DATA | if dir { m::DELETE_CHILD } else { 0 };
    let mut out = Masks { allow0: 0, deny1: 0, deny2: 0, owner: OWNER, group: EVERYONE, everyone: EVERYONE };
    for (bit, mask) in [(4, m::READ_DATA), (2, write), (1, m::EXECUTE)] {
        let (user, group, other) = (mode & bit << 6 != 0, mode & bit << 3 != 0, mode & bit != 0);
        if !user && (group || other) {
            out.deny1 |= mask;
        }
        if !group && other {
            out.deny2 |= mask;
        }
        if user && !group && other {
            out.allow0 |= mask;
        }
        out.owner |= if user { mask } else { 0 };
        out.group |= if group { mask } else { 0 };
        out.everyone |= if other { mask } else { 0 };
    }
    out
}

/// Bytes of a list and the number of entries, as system attributes hold them.
pub fn encode(aces: &[Ace]) -> (u64, Vec<u8>) {
    let mut out = Vec::with_capacity(aces.iter().map(|ace| ace_size(ace.ace_type, ace.flags)).sum());
    for ace in aces {
        let head = u64::from(ace.ace_type) | u64::from(ace.flags) << 16 | u64::from(ace.access_mask) << 32;
        out.extend_from_slice(&head.to_le_bytes());
        let size = ace_size(ace.ace_type, ace.flags);
        if size > 8 {
            out.extend_from_slice(&ace.who.to_le_bytes());
        }
        if size > 16 {
            let (kind, inherited) = ace.object.unwrap_or_default();
            out.extend(kind);
            out.extend(inherited);
        }
    }
    (u64::try_from(aces.len()).unwrap_or(0), out)
}

/// Bytes of a list in the form of versions 1 and 2: entries of 12 bytes.
#[doc(alias = "zfs_oldace_t")]
pub fn encode_old(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::new();
    for ace in aces {
        // Entries whose subject is in the flags alone have all ones here, too.
        let who = u32::try_from(ace.who & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        out.extend(who.to_le_bytes());
        out.extend(ace.access_mask.to_le_bytes());
        out.extend(ace.flags.to_le_bytes());
        out.extend(ace.ace_type.to_le_bytes());
    }
    out
}

/// The trivial list of `mode`.
pub fn trivial(mode: u64, dir: bool) -> AclDraft {
    let mut draft = AclDraft { aces: Vec::new(), hints: pflags::ACL_TRIVIAL };
    chmod(&mut draft, mode, dir, false, false);
    draft
}

/// Adapts the list to `mode`, keeping its other rules. `split`: entries for owner, group and everyone are
/// replaced, and stay for inheritance only; `trim`: others get no more than the group.
#[doc(alias = "zfs_acl_chmod")]
pub fn chmod(draft: &mut AclDraft, mode: u64, dir: bool, split: bool, trim: bool) {
    let masks = masks(mode, dir);
    let mut out = Vec::new();
    let first = [
        (masks.allow0, t::ALLOW, fl::OWNER),
        (masks.deny1, t::DENY, fl::OWNER),
        (masks.deny2, t::DENY, GROUP),
    ];
    out.extend(
        first.into_iter().filter(|(mask, ..)| *mask != 0).map(|(mask, kind, who)| entry(kind, who, mask)),
    );
    for mut ace in draft.aces.drain(..) {
        if split && is_abstract(ace.flags) {
            if !dir || ace.flags & INHERIT == 0 {
                continue;
            }
            ace.flags |= fl::INHERIT_ONLY;
        }
        if dir && ace.flags & INHERIT != 0 {
            draft.hints |= pflags::INHERIT_ACE;
        }
        if !matches!(ace.ace_type, t::ALLOW | t::DENY) || ace.flags & fl::INHERIT_ONLY != 0 {
            if ace.object.is_some() {
                draft.hints |= pflags::ACL_OBJ_ACE;
            }
        } else if ace.ace_type == t::ALLOW && trim {
            ace.access_mask &= masks.group;
        }
        out.push(ace);
    }
    out.push(entry(t::ALLOW, fl::OWNER, masks.owner));
    out.push(entry(t::ALLOW, GROUP, masks.group));
    out.push(entry(t::ALLOW, fl::EVERYONE, masks.everyone));
    draft.aces = out;
}

/// Returns the entries that a new file inherits from its directory's list, and whether its mode must be
/// applied to them.
#[doc(alias = "zfs_acl_inherit")]
fn inherit(
    parent: &[Ace],
    mode: u64,
    kind: Inheriting,
    inherit: AclInherit,
    aclmode: AclMode,
) -> (AclDraft, bool) {
    let (mut draft, mut need_chmod) = (AclDraft::default(), true);
    if inherit == AclInherit::Discard || kind == Inheriting::Symlink {
        return (draft, need_chmod);
    }
    let dir = kind == Inheriting::Directory;
    let pass = matches!(inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
    for ace in parent {
        let allow = ace.ace_type == t::ALLOW;
        if (inherit == AclInherit::NoAllow && allow) || !can_use(dir, ace.flags) {
            continue;
        }
        let for_dirs = ace.flags & fl::DIRECTORY_INHERIT != 0;
        if pass && is_abstract(ace.flags) && (kind == Inheriting::Regular || (dir && for_dirs)) {
            need_chmod = false;
        }
        let mut new = *ace;
        if inherit == AclInherit::PassthroughX && allow && !dir && mode & 0o111 == 0 {
            new.access_mask &= !m::EXECUTE;
        }
        if inherit == AclInherit::Restricted && allow {
            new.access_mask &= !RESTRICTED_CLEAR;
        }
        new.flags |= fl::INHERITED;
        if !dir || ace.flags & fl::NO_PROPAGATE_INHERIT != 0 {
            new.flags = new.flags & !ALL_INHERIT | fl::INHERITED;
        } else {
            draft.hints |= pflags::INHERIT_ACE;
            if ace.flags & INHERIT == fl::FILE_INHERIT {
                new.flags |= fl::INHERIT_ONLY;
            } else {
                new.flags &= !fl::INHERIT_ONLY;
            }
        }
        draft.aces.push(new);
    }
    if aclmode == AclMode::Restricted && !draft.aces.is_empty() {
        need_chmod = false;
    }
    (draft, need_chmod)
}

/// Kind of the file that inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inheriting {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

#[doc(alias = "zfs_ace_can_use")]
fn can_use(dir: bool, flags: u16) -> bool {
    if dir && flags & fl::DIRECTORY_INHERIT != 0 {
        return true;
    }
    flags & fl::FILE_INHERIT != 0 && !(dir && flags & fl::NO_PROPAGATE_INHERIT != 0)
}

/// The list and the mode of a new file. `parent`: the directory's list, when it has something to inherit.
#[doc(alias = "zfs_acl_ids_create")]
pub fn for_new(
    parent: Option<&[Ace]>,
    mode: u64,
    kind: Inheriting,
    rules: (AclInherit, AclMode),
    ids: (u64, u64),
) -> (AclDraft, u64) {
    let dir = kind == Inheriting::Directory;
    let (mut draft, need_chmod) = match parent {
        Some(aces) => inherit(aces, mode, kind, rules.0, rules.1),
        None => (AclDraft { aces: Vec::new(), hints: pflags::ACL_TRIVIAL }, true),
    };
    if need_chmod {
        if dir {
            draft.hints |= pflags::ACL_AUTO_INHERIT;
        }
        let pass = matches!(rules.0, AclInherit::Passthrough | AclInherit::PassthroughX);
        chmod(&mut draft, mode, dir, false, rules.1 == AclMode::GroupMask && !pass);
    }
    let mut mode = mode;
    if parent.is_some() {
        mode = mode_of(mode, &draft.aces, ids);
        if is_trivial(&draft.aces) {
            draft.hints |= pflags::ACL_TRIVIAL;
        }
    }
    draft.hints |= exec_hint(mode, &draft.aces);
    (draft, mode)
}

/// A list that was given, and the mode that it amounts to.
pub fn for_given(list: &[Ace], mode: u64, ids: (u64, u64)) -> (AclDraft, u64) {
    let mode = mode_of(mode, list, ids);
    let mut hints = exec_hint(mode, list);
    if is_trivial(list) {
        hints |= pflags::ACL_TRIVIAL;
    }
    if list.iter().any(|a| a.object.is_some()) {
        hints |= pflags::ACL_OBJ_ACE;
    }
    if list.iter().any(|a| a.flags & INHERIT != 0) {
        hints |= pflags::INHERIT_ACE;
    }
    (AclDraft { aces: list.to_vec(), hints }, mode)
}

/// The flag for files that all users may execute.
pub fn exec_hint(mode: u64, aces: &[Ace]) -> u64 {
    let denied = aces
        .iter()
        .any(|a| a.ace_type == t::DENY && a.access_mask & m::EXECUTE != 0 && a.flags & fl::INHERIT_ONLY == 0);
    if mode & 0o111 == 0o111 && !denied { pflags::NO_EXECS_DENIED } else { 0 }
}

/// Whether a list expresses no more than a mode can.
#[doc(alias = "ace_trivial_common")]
pub fn is_trivial(aces: &[Ace]) -> bool {
    aces.iter().all(|ace| {
        let owners = m::WRITE_ACL | m::WRITE_OWNER | m::WRITE_ATTRIBUTES | m::WRITE_NAMED_ATTRS;
        let basic = m::READ_ACL | m::READ_ATTRIBUTES;
        let has = |mask: u32| ace.access_mask & mask != 0;
        // That an entry was inherited makes no difference, nor that it is an audit.
        is_abstract(ace.flags)
            && ace.flags & (ALL_INHERIT & !fl::INHERITED) == 0
            && !has(m::DELETE)
            && (has(m::WRITE_DATA) || !has(m::DELETE_CHILD))
            && !(ace.ace_type == t::DENY && has(basic))
            && (ace.ace_type != t::ALLOW || ace.flags & fl::OWNER != 0 || !has(owners))
    })
}

/// The permission bits that a list amounts to; other bits of `mode` stay.
#[doc(alias = "zfs_mode_compute")]
pub fn mode_of(mode: u64, aces: &[Ace], (uid, gid): (u64, u64)) -> u64 {
    let (mut bits, mut seen) = (0u64, 0u64);
    let live = aces.iter().filter(|a| a.flags & fl::INHERIT_ONLY == 0);
    for ace in live.filter(|a| matches!(a.ace_type, t::ALLOW | t::DENY)) {
        let shifts: &[u32] = match ace.flags & fl::TYPE_FLAGS {
            fl::OWNER => &[6],
            f if f == GROUP => &[3],
            fl::EVERYONE => &[6, 3, 0],
            0 if ace.who == uid => &[6],
            f if f == fl::IDENTIFIER_GROUP && ace.who == gid => &[3],
            _ => &[],
        };
        for (bit, mask) in [(4u64, m::READ_DATA), (2, m::WRITE_DATA), (1, m::EXECUTE)] {
            for &shift in shifts.iter().filter(|_| ace.access_mask & mask != 0) {
                let bit = bit << shift;
                if seen & bit == 0 {
                    seen |= bit;
                    bits |= if ace.ace_type == t::ALLOW { bit } else { 0 };
                }
            }
        }
    }
    mode & !0o777 | bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trivial_lists_amount_to_their_mode() {
        for mode in 0..0o1000u64 {
            for dir in [false, true] {
                let draft = trivial(mode, dir);
                assert_eq!(mode_of(0, &draft.aces, (1, 2)), mode, "{mode:o}");
                assert!(is_trivial(&draft.aces), "{mode:o}");
            }
        }
        assert_eq!(trivial(0o644, false).aces.len(), 3);
        assert_eq!(trivial(0o604, false).aces.len(), 5);
        assert_eq!(encode(&trivial(0o755, true).aces).1.len(), 24);
    }

    /// The conditions of OpenZFS's `ace_trivial_common`, each alone.
    #[test]
    fn lists_are_trivial_by_openzfs_s_conditions() {
        let d = t::DENY;
        for (ace, trivial) in [
            (entry(t::ALLOW, fl::OWNER | fl::INHERITED, OWNER), true),
            (entry(t::ALLOW, fl::EVERYONE | fl::INHERIT_ONLY, EVERYONE), false),
            (entry(t::ALLOW, fl::OWNER, m::DELETE_CHILD), false),
            (entry(t::ALLOW, fl::OWNER, m::DELETE_CHILD | m::WRITE_DATA), true),
            (entry(t::ALLOW, fl::EVERYONE, m::WRITE_ACL), false),
            (entry(d, fl::EVERYONE, m::WRITE_ACL), true),
            (entry(d, fl::EVERYONE, m::READ_ACL), false),
            (entry(t::AUDIT, fl::EVERYONE, m::READ_DATA), true),
            (entry(t::ALLOW, 0, m::READ_DATA), false),
        ] {
            assert_eq!(is_trivial(&[ace]), trivial, "{ace:?}");
        }
    }

    #[test]
    fn lists_with_audits_come_back() {
        let audit = entry(t::AUDIT, fl::EVERYONE | fl::FILE_INHERIT, m::WRITE_DATA);
        let object = Ace { object: Some(([1; 16], [2; 16])), ..entry(t::ALLOWED_OBJECT, fl::OWNER, 1) };
        let list = [audit, object, entry(t::ALLOW, fl::OWNER, OWNER)];
        let (count, bytes) = encode(&list);
        assert_eq!((count, bytes.len()), (3, 16 + 48 + 8));
        assert_eq!(ondisk::acl::decode_aces(&bytes, ondisk::acl::ACL_VERSION_FUID, 3).unwrap(), list);
    }

    #[test]
    fn inherited_entries_depend_on_the_rules() {
        let user = Ace { who: 7, ..entry(t::ALLOW, fl::FILE_INHERIT | fl::DIRECTORY_INHERIT, 0x1f_01ff) };
        let new = |kind, rule| for_new(Some(&[user]), 0o644, kind, (rule, AclMode::Discard), (1, 2));
        let (file, mode) = new(Inheriting::Regular, AclInherit::Restricted);
        assert_eq!(
            (mode, file.aces[0].flags, file.aces[0].access_mask & RESTRICTED_CLEAR),
            (0o644, fl::INHERITED, 0)
        );
        assert_eq!(file.hints & (pflags::ACL_TRIVIAL | pflags::INHERIT_ACE), 0);
        let (dir, _) = new(Inheriting::Directory, AclInherit::Passthrough);
        assert_eq!(
            (dir.aces[0].access_mask, dir.hints & pflags::INHERIT_ACE),
            (0x1f_01ff, pflags::INHERIT_ACE)
        );
        let (none, _) = new(Inheriting::Regular, AclInherit::Discard);
        assert!(is_trivial(&none.aces) && none.hints & pflags::ACL_TRIVIAL != 0);
        let (denied, _) = new(Inheriting::Regular, AclInherit::NoAllow);
        assert!(is_trivial(&denied.aces));
    }

    #[test]
    fn a_change_of_mode_keeps_what_others_got_unless_it_is_masked() {
        let user = Ace { who: 7, ..entry(t::ALLOW, 0, m::READ_DATA | m::WRITE_DATA) };
        let mut draft = AclDraft { aces: vec![user, entry(t::ALLOW, fl::OWNER, 1)], hints: 0 };
        chmod(&mut draft, 0o640, false, true, false);
        assert_eq!((draft.aces.len(), draft.aces[0]), (4, user));
        chmod(&mut draft, 0o640, false, true, true);
        assert_eq!(draft.aces[0].access_mask, m::READ_DATA);
    }
}
