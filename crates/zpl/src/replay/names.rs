//! Names in directories: added, taken away, moved.

use engine::{Kind, Result};
use ondisk::zil::{Rename, RenameWhiteout};

use super::create::whiteout;
use super::state::OverlayState;
use crate::attr::FileKind;
use crate::dir::{Dirent, is_sound};

/// Adds `name` for a file to a directory. Links of the file are the caller's to count.
pub(super) fn add(
    state: &mut OverlayState<'_>,
    dir: u64,
    name: &[u8],
    object: u64,
    kind: FileKind,
) -> Result<()> {
    if !is_sound(name) {
        return Err(state.fs.error(Kind::Corrupt, "an invalid name in a directory", dir));
    }
    let node = state.get(dir)?;
    if !node.attr.is_dir() {
        return Err(state.fs.error(Kind::NotDirectory, "not a directory", dir));
    }
    let entry = Dirent { name: name.to_vec(), object, kind: Some(kind) };
    node.changes().entries.insert(name.to_vec(), Some(entry));
    node.attr.size = node.attr.size.saturating_add(1);
    if kind == FileKind::Directory {
        node.attr.links = node.attr.links.saturating_add(1);
    }
    Ok(())
}

/// Takes `name` out of a directory; returns the object that it named.
fn take(state: &mut OverlayState<'_>, dir: u64, name: &[u8]) -> Result<(u64, FileKind)> {
    let missing = state.fs.error(Kind::NotFound, "no such name in the directory", dir);
    let entry = state.entry(dir, name)?.ok_or(missing)?;
    let kind = state.get(entry.object)?.attr.kind;
    let node = state.get(dir)?;
    node.changes().entries.insert(entry.name, None);
    node.attr.size = node.attr.size.saturating_sub(1);
    if kind == FileKind::Directory {
        node.attr.links = node.attr.links.saturating_sub(1);
    }
    Ok((entry.object, kind))
}

/// TX_REMOVE, TX_RMDIR: the file goes with its last name.
pub(super) fn remove(state: &mut OverlayState<'_>, dir: u64, name: &[u8]) -> Result<()> {
    let (object, kind) = take(state, dir, name)?;
    let node = state.get(object)?;
    node.attr.links = node.attr.links.saturating_sub(1);
    if node.attr.links == 0 || kind == FileKind::Directory {
        state.remove(object);
    }
    Ok(())
}

/// TX_LINK.
pub(super) fn link(state: &mut OverlayState<'_>, dir: u64, object: u64, name: &[u8]) -> Result<()> {
    let kind = state.get(object)?.attr.kind;
    add(state, dir, name, object, kind)?;
    let node = state.get(object)?;
    node.attr.links = node.attr.links.saturating_add(1);
    node.attr.parent = dir;
    Ok(())
}

/// TX_RENAME: a file that had the new name loses it.
pub(super) fn rename(state: &mut OverlayState<'_>, r: &Rename<'_>) -> Result<()> {
    let (from, to) = (r.lr.sdoid, r.lr.tdoid);
    let moved = take(state, from, r.source)?;
    if let Some(old) = state.entry(to, r.target)? {
        // A second name of the same file: both stand for it, and the first goes.
        remove(state, to, &old.name)?;
    }
    place(state, moved, to, r.target)
}

/// TX_RENAME_EXCHANGE.
pub(super) fn exchange(state: &mut OverlayState<'_>, r: &Rename<'_>) -> Result<()> {
    let one = take(state, r.lr.sdoid, r.source)?;
    let other = take(state, r.lr.tdoid, r.target)?;
    place(state, one, r.lr.tdoid, r.target)?;
    place(state, other, r.lr.sdoid, r.source)
}

/// TX_RENAME_WHITEOUT: a character device of number 0 stays under the old name.
pub(super) fn rename_whiteout(state: &mut OverlayState<'_>, r: &RenameWhiteout<'_>) -> Result<()> {
    rename(state, &r.rename)?;
    whiteout(state, r.rename.lr.sdoid, r.rename.source, &r.whiteout)
}

fn place(state: &mut OverlayState<'_>, (object, kind): (u64, FileKind), dir: u64, name: &[u8]) -> Result<()> {
    add(state, dir, name, object, kind)?;
    state.get(object)?.attr.parent = dir;
    Ok(())
}
