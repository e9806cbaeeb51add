//! Attributes of files, and numbers that distinguish files.

use engine::{Error, Result};

use super::fs::{FileAttrs, FsWriter};
use super::node::Node;
use crate::attr::{Attr, FileKind};

impl FileAttrs<'_> {
    /// A file's attributes.
    pub fn get(self, number: u64) -> Result<Attr> {
        self.of(&*self.fs.node(number)?)
    }

    pub(super) fn of(self, node: &Node) -> Result<Attr> {
        attr_now(self.fs, node).map(|(attr, _)| attr)
    }

    /// A file's attributes, and whether they stay the same until the next change: its allocated space is known only once it
    /// is written.
    pub fn get_with_state(self, number: u64) -> Result<(Attr, bool)> {
        attr_now(self.fs, &*self.fs.node(number)?)
    }

    /// Permission, set-id and sticky bits of a file.
    pub fn perm(self, number: u64) -> Result<u64> {
        Ok(self.fs.node(number)?.word(self.fs.fields.mode) & 0o7777)
    }

    /// The number that distinguishes a file from earlier and later files of the same number.
    #[doc(alias = "z_gen")]
    pub fn generation(self, number: u64) -> Result<u64> {
        Ok(self.fs.node(number)?.word(self.fs.fields.r#gen))
    }
}

fn attr_now(fs: &FsWriter, node: &Node) -> Result<(Attr, bool)> {
    let state = node.state.read();
    node.handle.with_waiting(|dnode, waiting| {
        if dnode.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        let mut attr = crate::inode::attr(&fs.fields.words(&state.attrs)?, dnode)?;
        if let Some(bytes) = waiting.filter(|_| node.kind == FileKind::Regular) {
            // A file without its unwritten blocks would look sparse, and programs copy a sparse file without cloning it.
            let whole = attr.size.div_ceil(ondisk::MIN_BLOCK_SIZE);
            let more = attr.blocks.saturating_add(bytes / ondisk::MIN_BLOCK_SIZE);
            attr.blocks = attr.blocks.max(more.min(whole));
        }
        Ok((attr, waiting.is_none()))
    })
}
