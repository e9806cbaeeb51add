//! The mapping of a removed vdev.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use engine::dmu::Object;
use engine::vdev::config::VdevConfig;
use ondisk::indirect::{
    IndirectBirth, IndirectBirths, IndirectMapping, IndirectMappingEntry, IndirectMappingEntryPhys,
};
use ondisk::names::vdev_top;
use ondisk::space_map::SpaceMapDecoder;

use super::metaslabs;
use super::target::Session;

/// Births and mapping; with `-mmm` every entry.
#[doc(alias = "print_vdev_indirect")]
pub fn run(session: &Session, config: &VdevConfig, ctx: &mut Ctx) -> Result<(), Failure> {
    let mos = &session.pool.mos;
    if config.indirect_births != 0 {
        match mos.object(config.indirect_births) {
            Ok(object) => births(&object, ctx)?,
            Err(e) => ctx.warn(format!("indirect births of vdev {}: {e}", config.id)),
        }
    }
    if config.indirect_object != 0 {
        match mos.object(config.indirect_object) {
            Ok(object) => mapping(session, config.id, &object, ctx)?,
            Err(e) => ctx.warn(format!("indirect mapping of vdev {}: {e}", config.id)),
        }
    }
    if session.level('d') > 5 || session.level('m') > 3 {
        match obsolete_map(session, config) {
            Ok(Some(object)) => {
                writeln!(ctx.out, "obsolete space map object {}:", object.number)?;
                metaslabs::map(session, &object, SpaceMapDecoder::new(0, 0, config.asize), ctx)?;
                writeln!(ctx.out)?;
            }
            Ok(None) => {}
            Err(e) => ctx.warn(format!("obsolete space map of vdev {}: {e}", config.id)),
        }
    }
    Ok(())
}

/// The space map of obsolete blocks that the mapping does not count yet.
fn obsolete_map(session: &Session, config: &VdevConfig) -> engine::Result<Option<Object>> {
    let Some(zap) = session.pool.dsl.zap(config.top_zap)? else { return Ok(None) };
    let number = zap.u64(vdev_top::INDIRECT_OBSOLETE_SM)?.filter(|&n| n != 0);
    number.map(|n| session.pool.mos.object(n)).transpose()
}

fn births(object: &Object, ctx: &mut Ctx) -> Result<(), Failure> {
    let count = match IndirectBirths::from_bytes(object.dnode.bonus()) {
        Ok(head) => head.count,
        Err(e) => {
            ctx.warn(e);
            return Ok(());
        }
    };
    writeln!(ctx.out, "indirect births obj {}:\n    vib_count = {count}", object.number)?;
    let size = u64::try_from(IndirectBirth::SIZE).unwrap_or(16);
    for i in 0..count.min(object.stored_prefix() / size) {
        let entry = object.read_vec(i * size, IndirectBirth::SIZE);
        let entry = entry.ok().and_then(|bytes| IndirectBirth::from_bytes(&bytes).ok());
        let Some(entry) = entry else { break };
        writeln!(ctx.out, "\toffset {:x} -> txg {}", entry.offset, entry.phys_birth_txg)?;
    }
    Ok(writeln!(ctx.out)?)
}

fn mapping(session: &Session, id: u64, object: &Object, ctx: &mut Ctx) -> Result<(), Failure> {
    let head = match IndirectMapping::from_bytes(object.dnode.bonus()) {
        Ok(head) => head,
        Err(e) => {
            ctx.warn(e);
            return Ok(());
        }
    };
    writeln!(ctx.out, "indirect mapping obj {}:", object.number)?;
    writeln!(ctx.out, "    vim_max_offset = 0x{:x}", head.max_offset)?;
    writeln!(ctx.out, "    vim_bytes_mapped = 0x{:x}", head.bytes_mapped)?;
    writeln!(ctx.out, "    vim_count = {}", head.num_entries)?;
    let detailed = session.level('d') > 5 || session.level('m') > 3;
    if detailed {
        let size = u64::try_from(IndirectMappingEntryPhys::SIZE).unwrap_or(24);
        for i in 0..head.num_entries.min(object.stored_prefix() / size) {
            let bytes = match object.read_vec(i * size, IndirectMappingEntryPhys::SIZE) {
                Ok(bytes) => bytes,
                Err(e) => {
                    ctx.warn(e);
                    break;
                }
            };
            let Ok(raw) = IndirectMappingEntryPhys::from_bytes(&bytes) else { break };
            let entry = IndirectMappingEntry::from(raw);
            let (to, len) = (entry.dst, entry.dst.asize);
            let gone = obsolete(session, head.counts_object, i);
            let (src, vdev, offset) = (entry.src_offset, to.vdev, to.offset);
            writeln!(
                ctx.out,
                "\t<{id:x}:{src:x}:{len:x}> -> <{vdev:x}:{offset:x}:{len:x}> ({gone:x} obsolete)"
            )?;
        }
    }
    if detailed {
        writeln!(ctx.out)?;
    }
    Ok(())
}

/// Obsolete bytes of entry `i`; 0 if they are not counted.
fn obsolete(session: &Session, counts: u64, i: u64) -> u32 {
    let counts = if counts == 0 { None } else { session.pool.mos.object(counts).ok() };
    let bytes = counts.and_then(|object| object.read_vec(i.saturating_mul(4), 4).ok());
    bytes.and_then(|b| b.first_chunk().map(|raw| u32::from_le_bytes(*raw))).unwrap_or(0)
}
