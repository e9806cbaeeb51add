//! Writes to files that the replay of the intent log applies: a caller's checks were made when the record was written.

use engine::{Error, Result};

use super::data::{MAX_SIZE, len64};
use super::fs::RecordReplay;
use super::sink::LogOp;

impl RecordReplay<'_> {
    /// Applies a write record in one transaction, as the transaction marks it as replayed.
    pub(super) fn write_once(self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        let node = self.fs.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        self.fs.data().write_locked(&node, offset, data, (true, data.len().max(1)), true)
    }

    /// Applies a write record with the whole block around its bytes; the file ends at `end` at least.
    pub(super) fn write_block(self, number: u64, offset: u64, block: &[u8], end: u64) -> Result<()> {
        let node = self.fs.file(number)?;
        let whole = offset.saturating_add(len64(block.len())).max(end);
        if whole > MAX_SIZE {
            return Err(Error::corrupt("a write beyond the end of all files"));
        }
        let _range = node.ranges.lock(0..u64::MAX, true);
        let tx = self.fs.begin_for(len64(block.len()), false)?;
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        self.fs.data().grow_block(&tx, &node, whole)?;
        node.handle.write(&tx, offset, block)?;
        self.fs.data().written(&tx, &node, end, true)?;
        self.fs.data().log_write(&tx, &node, (offset, block), false);
        Ok(())
    }

    /// Applies a write record without bytes: the block around them was written already, so a file that is shorter than `end`
    /// only gets a new size.
    pub(super) fn extend(self, number: u64, end: u64) -> Result<()> {
        let node = self.fs.file(number)?;
        if end > MAX_SIZE {
            return Err(Error::corrupt("a write beyond the end of all files"));
        }
        let _range = node.ranges.lock(0..u64::MAX, true);
        if end <= node.word(self.fs.fields.size) {
            return Ok(());
        }
        let tx = self.fs.begin()?;
        self.fs.data().grow_block(&tx, &node, end)?;
        self.fs.data().written(&tx, &node, end, true)?;
        self.fs.log_of(&node, &tx, &LogOp::Truncate { object: number, offset: end, length: 0, sync: false });
        Ok(())
    }

    /// Frees the end of a file from `size` on, and extends the file to `end`, in one transaction.
    pub(super) fn cut_and_extend(self, number: u64, size: u64, end: u64) -> Result<()> {
        let node = self.fs.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        self.fs.data().free_end(&node, size)?;
        let tx = self.fs.begin_for(0, true)?;
        self.fs.data().resize(&tx, &node, size)?;
        self.fs.data().resize(&tx, &node, end)?;
        self.fs.log_of(&node, &tx, &LogOp::Truncate { object: number, offset: end, length: 0, sync: false });
        Ok(())
    }

    /// Makes the bytes behind the end of a file zeros, as a replayed block may have others there.
    pub(super) fn clear_behind_end(self, number: u64) -> Result<()> {
        let node = self.fs.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        let tx = self.fs.begin_for(0, true)?;
        let size = node.word(self.fs.fields.size);
        self.fs.data().free_bytes(&tx, &node, size..u64::MAX, size)
    }

    /// Applies part of a write record, without marking it as replayed.
    pub(super) fn write_part(self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        let node = self.fs.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        let tx = self.fs.begin()?;
        self.fs.data().put(&tx, &node, offset, data, true, Some(offset.saturating_add(len64(data.len()))))
    }
}
