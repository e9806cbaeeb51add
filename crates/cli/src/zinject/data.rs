//! Faults of blocks: by bookmark, of a file's data or dnode, of the MOS.

use std::path::Path;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Failure, Outcome};
use daemon::Imported;
use engine::dmu::SpecialObject;
use engine::inject::{Action, BlockFault, FaultError};
use ondisk::dnode::DNODE_SHIFT;

use super::words::{self, MOS};
use super::{Zinject, pool};

impl Zinject {
    /// Adds a handler of blocks.
    #[doc(alias = "translate_record")]
    pub(super) fn on_blocks(&self, ctx: &mut Ctx) -> Outcome {
        let error = self.data_error()?;
        let frequency = self.frequency()?;
        let dvas = self.dvas.as_deref().map_or(Ok(0), words::dvas)?;
        let (pool, fault) = match (&self.bookmark, self.kind.as_deref()) {
            (Some(word), _) => {
                let (objset, object, level, (start, end)) = words::bookmark(word)?;
                let pool = pool(self.only("missing object")?, ctx)?;
                (pool, BlockFault { objset, object, kind: None, level, start, end, dvas, error })
            }
            (None, Some("data" | "dnode")) => self.of_file(error, dvas, ctx)?,
            (None, kind) => self.of_mos(kind.unwrap_or_default(), error, dvas, ctx)?,
        };
        let spa = pool.spa()?;
        if self.flush {
            // Changes in memory have no blocks yet.
            spa.sync()?;
        }
        self.flush(&pool)?;
        let handler = spa.injections().inject(0, Action::Block(fault), frequency)?;
        self.added(&handler, &pool, ctx)
    }

    fn data_error(&self) -> Result<FaultError, Failure> {
        let error = self.error()?.unwrap_or(FaultError::Io);
        let is_file = self.kind.as_deref() == Some("data");
        match error {
            FaultError::Checksum | FaultError::Io | FaultError::Decompress => Ok(error),
            FaultError::Decrypt if is_file => Ok(error),
            FaultError::Decrypt => {
                Err(Failure::usage("decryption errors may only be injected for 'data' types"))
            }
            _ => Err(Failure::usage("data error type must be 'checksum' or 'io'")),
        }
    }

    fn level(&self) -> Result<i64, Failure> {
        let Some(word) = &self.level else { return Ok(0) };
        let level = word.parse::<u8>().map(i64::from);
        level.map_err(|_| Failure::usage(format!("invalid level '{word}': must be an integer")))
    }

    fn of_mos(
        &self,
        kind: &str,
        error: FaultError,
        dvas: u32,
        ctx: &mut Ctx,
    ) -> Result<(Arc<Imported>, BlockFault), Failure> {
        let kind = words::find(&MOS, kind).ok_or_else(|| Failure::usage(format!("invalid type '{kind}'")))?;
        let pool = pool(self.only("missing object")?, ctx)?;
        let level = self.level()?;
        Ok((pool, BlockFault { objset: 0, object: 0, kind, level, start: 0, end: u64::MAX, dvas, error }))
    }

    fn of_file(
        &self,
        error: FaultError,
        dvas: u32,
        ctx: &mut Ctx,
    ) -> Result<(Arc<Imported>, BlockFault), Failure> {
        let path = self.only("missing object")?.to_owned();
        if !path.starts_with('/') {
            return Err(Failure::failed(format!("invalid object '{path}': must be full path")));
        }
        let is_dnode = self.kind.as_deref() == Some("dnode");
        if is_dnode && self.range.is_some() {
            return Err(Failure::usage("range cannot be specified when type is 'dnode'"));
        }
        let mounted = ctx.pools().iter().find_map(|pool| pool.mounts.mounted_at(Path::new(&path)));
        let (Some(name), Some(object)) = (mounted, self.object) else {
            return Err(Failure::failed(format!("invalid path '{path}': not a ZFS filesystem")));
        };
        let target = Target::of(&name, ctx)?;
        // The file may be new.
        target.pool.spa()?.sync()?;
        let target = Target::of(&name, ctx)?;
        let dataset = target.dataset()?;
        let objset = dataset.objset()?;
        let (number, bytes) = match is_dnode {
            true => {
                let start = object << DNODE_SHIFT;
                (0, Some((start, start)))
            }
            false => (object, self.range.as_deref().map(words::range).transpose()?),
        };
        let level = self.level()?;
        let file = if is_dnode { objset.special(SpecialObject::Meta) } else { Some(objset.object(number)?) };
        let dnode = file.ok_or_else(|| Failure::failed("the object set has no dnodes"))?.dnode;
        if level >= i64::from(dnode.nlevels) {
            return Err(Failure::failed("block level exceeds max level of object"));
        }
        // Block numbers of a level count blocks of pointers.
        let below = u32::try_from(level).unwrap_or(0).saturating_mul(dnode.blocks_per_indirect_shift());
        let block = |byte: u64| (byte / dnode.datablksz().max(1)).checked_shr(below).unwrap_or(0);
        let (start, end) = bytes.map_or((0, u64::MAX), |(start, end)| (block(start), block(end)));
        let fault =
            BlockFault { objset: dataset.number, object: number, kind: None, level, start, end, dvas, error };
        Ok((target.pool, fault))
    }
}
