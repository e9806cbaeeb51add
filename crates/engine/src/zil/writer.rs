//! Writes one commit to disk: records become blocks, blocks are written together, then devices are flushed.
//!
//! A block names its successor, so the successor is allocated before the block is written, and its size is an
//! estimate: the rest of this commit, or the size of recent commits. Only the used part of a block is written,
//! except on raidz, where a truncated block could not be reconstructed.

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::blkptr::Properties;
use ondisk::zil::{ZIL_MIN_BLOCK_SIZE, ZilChain, encode_write, encoded_write, stamp_seq, stamp_txg};
use ondisk::{Blkptr, ChecksumType, CompressType, Field, ObjectType};
use stdx::AlignedBuf;

use super::dmu_sync::PlacedRecords;
use super::itx::{Itx, Payload, WRITE_RECORD};
use super::log::{Lwb, LwbState, Zil};
use crate::dmu::LiveObjset;
use crate::error::{Error, Kind, Result};
use crate::memory::dataset_stats::ZilStat;
use crate::taskq::Promise;
use crate::vdev::config::AllocBias;
use crate::zio::alloc::{AllocRequest, MetaslabClass};
use crate::zio::dedup::Dedup;
use crate::zio::verify::seal_log_block;
use crate::zio::write::WriteProps;

/// Maximum block size of a log.
#[doc(alias = "zil_maxblocksize")]
pub(super) const MAX_BLOCK: u64 = 128 << 10;
/// Bytes of the header of a block.
const HEAD: usize = ZilChain::SIZE;
/// A large write is split only where at least so many of its bytes fit.
const LEAST_PIECE: u64 = 4 << 10;

/// Write properties of a log block; its location and checksum are in its pointer.
const PROPS: WriteProps = WriteProps {
    object_type: ObjectType::INTENT_LOG,
    level: 0,
    checksum: ChecksumType::Zilog2,
    compress: CompressType::Off,
    complevel: 0,
    copies: 1,
    gang_copies: 0,
    narrow_gang: false,
    small: 0,
    uncached: false,
    paged: false,
    class: MetaslabClass::Log,
    evens_out: false,
    embed: false,
    hole_birth: false,
    nopwrite: false,
    dedup: Dedup::Off,
    // Encryption happens before the block gets its checksum.
    encrypt: false,
};

/// Allocates a block of the log, born in `txg`; the caller sets its checksum words. In an encrypted dataset salt
/// and IV are chosen now: the block is written once.
#[doc(alias = "zio_alloc_zil")]
pub(super) fn allocate(objset: &LiveObjset, size: u64, txg: u64) -> Result<Blkptr> {
    let (zio, crypt) = (objset.arc().zio(), objset.policy().encrypt);
    let mut bp = Blkptr::stored(&Properties {
        lsize: size,
        psize: size,
        compress: CompressType::Off,
        checksum: ChecksumType::Zilog2,
        object_type: ObjectType::INTENT_LOG,
        level: 0,
        crypt,
        dedup: false,
    });
    if crypt {
        zio.draw_crypt_params(objset.id, &mut bp)?;
    }
    let request = AllocRequest {
        psize: size,
        copies: 1,
        class: MetaslabClass::Log,
        txg,
        gang: false,
        evens_out: false,
        fewer_will_do: false,
    };
    bp.set_dvas(&zio.allocator()?.allocate(&request)?);
    bp.set_births(txg, txg);
    Ok(bp)
}

/// Block size for this many bytes of records.
pub(super) fn block_size(bytes: u64) -> u64 {
    let head = u64::try_from(HEAD).unwrap_or(0);
    bytes.saturating_add(head).next_multiple_of(ZIL_MIN_BLOCK_SIZE).min(MAX_BLOCK)
}

/// The block being filled.
#[derive(Debug)]
struct Current {
    bp: Blkptr,
    bytes: Vec<u8>,
    max_txg: u64,
}

impl Current {
    fn of(bp: Blkptr) -> Self {
        Self { bp, bytes: vec![0; HEAD], max_txg: 0 }
    }

    fn room(&self) -> u64 {
        self.bp.psize().saturating_sub(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }
}

/// A commit being written.
#[derive(Debug)]
pub(super) struct CommitWrite<'a> {
    zil: &'a Zil,
    objset: Arc<LiveObjset>,
    current: Current,
    /// Bytes of the remaining records.
    left: u64,
    /// Bytes of the records so far.
    taken: u64,
    writes: Vec<Promise<Result<Blkptr>>>,
    /// Written blocks, to be marked when they are on disk.
    blocks: Vec<Blkptr>,
    tops: BTreeSet<u32>,
    /// The txg that was the next to reach the disk before anything was written.
    began: u64,
}

impl<'a> CommitWrite<'a> {
    /// Continues in the chain's last block, which is `bp`.
    pub(super) fn new(
        zil: &'a Zil,
        objset: Arc<LiveObjset>,
        bp: Blkptr,
        placed: &PlacedRecords,
        began: u64,
    ) -> Self {
        let left = placed.itxs.iter().map(Itx::size).fold(0, u64::saturating_add);
        let (writes, blocks, tops) = (Vec::new(), Vec::new(), placed.tops.clone());
        Self { zil, objset, current: Current::of(bp), left, taken: 0, writes, blocks, tops, began }
    }

    /// Adds a record to the log.
    pub(super) fn add(&mut self, itx: Itx) -> Result<()> {
        let size = itx.size();
        match itx.payload {
            Payload::Whole(bytes) => {
                self.count_copied(&bytes);
                self.record(bytes, itx.txg)?;
            }
            Payload::Read(lr) | Payload::Placed(lr) => {
                self.zil.count(ZilStat::NeedCopy, 1);
                self.zil.count(ZilStat::NeedCopyBytes, lr.length);
                self.data(lr, itx.txg)?;
            }
        }
        self.zil.count(ZilStat::Itxs, 1);
        self.left = self.left.saturating_sub(size);
        Ok(())
    }

    /// Counts a complete record, if it is a write.
    fn count_copied(&self, bytes: &[u8]) {
        let Some((lr, has_data)) = encoded_write(bytes) else { return };
        let [records, data] = match has_data {
            true => [ZilStat::Copied, ZilStat::CopiedBytes],
            false => [ZilStat::Indirect, ZilStat::IndirectBytes],
        };
        self.zil.count(records, 1);
        self.zil.count(data, lr.length);
    }

    /// Counts a block of which `used` bytes are of use, and `written` go to the device.
    fn count_block(&self, bp: &Blkptr, used: u64, written: usize) {
        let tree = self.objset.arc().zio().tree();
        let top = bp.dvas().next().and_then(|dva| tree.top(u64::from(dva.vdev)));
        let stats = match top.is_some_and(|top| top.bias == AllocBias::Log) {
            true => [ZilStat::Slog, ZilStat::SlogBytes, ZilStat::SlogWrite, ZilStat::SlogAlloc],
            false => [ZilStat::Normal, ZilStat::NormalBytes, ZilStat::NormalWrite, ZilStat::NormalAlloc],
        };
        let counts = [1, used, u64::try_from(written).unwrap_or(0), bp.lsize()];
        stats.into_iter().zip(counts).for_each(|(stat, count)| self.zil.count(stat, count));
    }

    fn record(&mut self, mut bytes: Vec<u8>, txg: u64) -> Result<()> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.current.room() < len {
            self.close(self.left.max(len))?;
        }
        if self.current.room() < len {
            return Err(Error::new(Kind::TooLong, "a record is longer than a block of the log"));
        }
        stamp_seq(&mut bytes, self.zil.next_seq());
        self.taken += len;
        self.current.max_txg = self.current.max_txg.max(txg);
        self.current.bytes.append(&mut bytes);
        Ok(())
    }

    /// Writes data into as many records as blocks require. A removed object has none.
    fn data(&mut self, lr: ondisk::zil::LrWrite, txg: u64) -> Result<()> {
        let Some(data) = self.zil.read_data(&self.objset, &lr)? else { return Ok(()) };
        let (mut rest, mut offset) = (data.as_slice(), lr.offset);
        while !rest.is_empty() {
            let len = u64::try_from(rest.len()).unwrap_or(u64::MAX);
            let room = self.current.room().saturating_sub(WRITE_RECORD) & !7;
            if room < len.min(LEAST_PIECE) {
                self.close(self.left.max(WRITE_RECORD + len))?;
                continue;
            }
            let (piece, later) =
                rest.split_at_checked(usize::try_from(room).unwrap_or(0)).unwrap_or((rest, &[]));
            let length = u64::try_from(piece.len()).unwrap_or(0);
            let mut bytes = encode_write(&ondisk::zil::LrWrite { offset, length, ..lr }, piece);
            stamp_txg(&mut bytes, txg);
            self.record(bytes, txg)?;
            (rest, offset) = (later, offset + length);
        }
        Ok(())
    }

    /// Starts writing the current block; the next one has room for `next` bytes.
    #[doc(alias = "zil_lwb_write_issue")]
    fn close(&mut self, next: u64) -> Result<()> {
        let [a, b, c, seq] = self.current.bp.checksum_words();
        let bp = {
            // Held until the new block is in the list: its birth txg must know it.
            let tx = self.zil.host.begin()?;
            self.objset.touch(&tx)?;
            let mut bp = allocate(&self.objset, block_size(next), tx.txg())?;
            bp.set_checksum([a, b, c, seq + 1]);
            let lwb = Lwb { bp, alloc_txg: tx.txg(), max_txg: 0, state: LwbState::Open };
            self.zil.chain.lock().lwbs.push_back(lwb);
            bp
        };
        let done = std::mem::replace(&mut self.current, Current::of(bp));
        self.issue(done, &bp)
    }

    fn issue(&mut self, block: Current, next: &Blkptr) -> Result<()> {
        let Current { bp, mut bytes, max_txg } = block;
        let nused = u64::try_from(bytes.len()).unwrap_or(0);
        let head = ZilChain { next_blk: *next, nused, ..ZilChain::default() }.to_bytes();
        bytes.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        let mut stored = AlignedBuf::zeroed(self.stored_size(&bp, nused));
        stored.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
        if bp.is_encrypted() {
            self.objset.arc().zio().seal_block(&bp, super::place(&bp), &mut stored)?;
        }
        if !seal_log_block(&mut stored, &bp) {
            return Err(Error::corrupt("a block of the log is larger than its place"));
        }
        self.zil.chain.lock().mark(&bp, max_txg, LwbState::Issued);
        self.count_block(&bp, nused, stored.len());
        self.blocks.push(bp);
        self.tops.extend(bp.dvas().map(|dva| dva.vdev));
        let promise = Promise::default();
        let theirs = promise.clone();
        let zio = self.objset.arc().zio();
        let done = Box::new(move |result| theirs.set(result));
        zio.write_at(bp, stored.into(), PROPS, bp.logical_birth(), done);
        self.writes.push(promise);
        Ok(())
    }

    /// Number of bytes written of the block.
    #[doc(alias = "zio_shrink")]
    fn stored_size(&self, bp: &Blkptr, nused: u64) -> usize {
        let whole = bp.asize() > bp.psize();
        let tree = self.objset.arc().zio().tree();
        let sector = bp.dvas().next().and_then(|dva| tree.top(u64::from(dva.vdev)).map(|top| top.ashift));
        let unit = ZIL_MIN_BLOCK_SIZE.max(1 << sector.unwrap_or(0));
        let size = if whole { bp.psize() } else { nused.next_multiple_of(unit).min(bp.psize()) };
        usize::try_from(size).unwrap_or(0)
    }

    /// Writes the rest, waits for all blocks, and makes them durable. Returns the bytes of records.
    pub(super) fn finish(mut self, next: u64) -> Result<u64> {
        let taken = self.taken;
        let closed = if self.current.bytes.len() > HEAD { self.close(next.max(taken)) } else { Ok(()) };
        let executor = Arc::clone(self.objset.arc().zio().executor());
        // Every write must have ended before its space may be freed.
        let results: Vec<_> = self.writes.iter().map(|write| write.clone().wait(&*executor)).collect();
        let written = closed.and(results.into_iter().try_for_each(|result| result.map(drop)));
        let safe = written.and_then(|()| self.flush());
        let mut chain = self.zil.chain.lock();
        self.blocks.iter().for_each(|bp| chain.set_state(bp, LwbState::Done));
        safe.map(|()| taken)
    }

    /// Flushes the vdevs that were written to, and no others.
    #[doc(alias = "zil_lwb_flush_vdevs_done")]
    fn flush(&self) -> Result<()> {
        let zio = self.objset.arc().zio();
        let tree = zio.tree();
        let next = self.zil.host.synced() + 1;
        let mut waiting = Vec::new();
        for top in self.tops.iter().filter_map(|&id| tree.top(u64::from(id))) {
            let promise = Promise::default();
            let theirs = promise.clone();
            top.flush(self.began, next, Box::new(move |result| theirs.set(result)));
            waiting.push(promise);
        }
        let results: Vec<Result<()>> = waiting.into_iter().map(|p| p.wait(&**zio.executor())).collect();
        results.into_iter().collect()
    }
}
