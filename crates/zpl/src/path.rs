//! From a path to a file, through symbolic links, within one dataset.
//!
//! Paths start at the dataset's root, also for absolute link targets, and `..` never leaves it: another
//! dataset that would be mounted below is not entered.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{Kind, Result};

use crate::attr::FileKind;
use crate::filesystem::Filesystem;
use crate::inode::Inode;

/// Symbolic links followed in one resolution.
pub const MAX_SYMLINKS: u32 = 40;
/// Components walked in one resolution, those of links included.
const MAX_COMPONENTS: usize = 1 << 16;

impl Filesystem {
    /// The file at `path`, from the root. With `follow`, a symbolic link at the end is followed too.
    pub fn resolve(self: &Arc<Self>, path: &[u8], follow: bool) -> Result<Inode> {
        self.root()?.resolve(path, follow)
    }
}

impl Inode {
    /// The file at `path` from this directory (from the root for an absolute path). With `follow`, a
    /// symbolic link at the end is followed too; a trailing slash asks for a directory.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Self> {
        let mut here = if path.starts_with(b"/") { self.fs.root()? } else { self.clone() };
        let mut rest: VecDeque<Vec<u8>> = components(path);
        let (mut links, mut walked) = (0, 0);
        let must_be_dir = path.ends_with(b"/");
        while let Some(name) = rest.pop_front() {
            walked += 1;
            if walked > MAX_COMPONENTS {
                return Err(self.error(Kind::TooLong, "the path is too long"));
            }
            if name == b".." {
                here = here.parent()?;
                continue;
            }
            let next = here.child(&name)?;
            let last = rest.is_empty();
            if next.attr.kind != FileKind::Symlink || (last && !follow && !must_be_dir) {
                here = next;
                continue;
            }
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(next.error(Kind::Loop, "too many symbolic links"));
            }
            let target = next.readlink()?;
            if target.starts_with(b"/") {
                here = self.fs.root()?;
            }
            for part in components(&target).into_iter().rev() {
                rest.push_front(part);
            }
        }
        if must_be_dir && !here.is_dir() {
            return Err(here.error(Kind::NotDirectory, "not a directory"));
        }
        Ok(here)
    }
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".");
    parts.take(MAX_COMPONENTS + 1).map(<[u8]>::to_vec).collect()
}
