//! One object: its row, its flags, its content by type, its blocks.

use engine::dmu::Object;
use ondisk::dnode::DNODE_BLOCK_SIZE;
use ondisk::{ChecksumType, CompressType, DnodeFlags, ObjectType};

use super::dump::{Done, Dump, out};
use super::view::View;
use super::{tree, viewers};

/// Dnodes of the smallest size in a block.
const DNODES_PER_BLOCK: u64 = (DNODE_BLOCK_SIZE / ondisk::dnode::DNODE_MIN_SIZE) as u64;

/// Whether the next row needs a headline.
#[derive(Debug)]
pub struct Rows {
    headline: bool,
}

impl Default for Rows {
    fn default() -> Self {
        Self { headline: true }
    }
}

impl Rows {
    /// Prints the headline if necessary.
    pub fn headline(&mut self, dump: &mut Dump<'_>) -> Done {
        if !std::mem::take(&mut self.headline) {
            return Ok(());
        }
        out!(
            dump,
            "\n{:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {:>6}  {}\n",
            "Object",
            "lvl",
            "iblk",
            "dblk",
            "dsize",
            "dnsize",
            "lsize",
            "%full",
            "type"
        );
        Ok(())
    }
}

/// Prints an object with the current verbosity.
pub fn print(dump: &mut Dump<'_>, view: &mut View, object: &Object, rows: &mut Rows) -> Done {
    let verbosity = dump.verbosity();
    rows.headline(dump)?;
    row(dump, view, object)?;
    if verbosity >= 4 {
        flags(dump, object)?;
        viewers::bonus(dump, view, object)?;
        viewers::content(dump, view, object)?;
        rows.headline = true;
    }
    if verbosity >= 5 {
        if let Some(spill) = object.dnode.spill() {
            let text = dump.short(spill);
            out!(dump, "\nSpill block: {text}\n");
        }
        tree::indirect(dump, view, object)?;
        tree::segments(dump, object)?;
    }
    Ok(())
}

fn row(dump: &mut Dump<'_>, view: &View, object: &Object) -> Done {
    let dnode = &object.dnode;
    let used = (dnode.used_bytes().saturating_add(256) / 512).saturating_mul(512);
    let iblk = dump.nice(dnode.indirect_size());
    let dblk = dump.nice(dnode.datablksz());
    let dsize = dump.nice(used);
    let dnsize = dump.nice(u64::try_from(dnode.size()).unwrap_or(0));
    let lsize = dump.nice(dnode.max_offset());
    let fill = format!("{:6.2}", percent(object));
    let verbosity = dump.verbosity();
    out!(
        dump,
        "{:>10}  {:>3}  {iblk:>5}  {dblk:>5}  {dsize:>5}  {dnsize:>6}  {lsize:>5}  {fill:>6}  {}{}\n",
        object.number.cast_signed(),
        dnode.nlevels,
        viewers::type_name(dnode.object_type),
        functions(view, object, verbosity >= 6)
    );
    if dnode.bonustype != ObjectType::NONE && verbosity > 3 {
        let size = dump.nice(u64::from(dnode.bonuslen));
        let blank = "";
        let name = viewers::type_name(dnode.bonustype);
        out!(
            dump,
            "{blank:10}  {blank:3}  {blank:5}  {blank:5}  {blank:5}  {blank:5}  {size:>5}  {:>6}  {name}\n",
            "bonus"
        );
    }
    Ok(())
}

/// The stored part of the object's size, in percent.
fn percent(object: &Object) -> f64 {
    let dnode = &object.dnode;
    let fill = dnode.blkptrs().iter().fold(0_u64, |sum, bp| sum.wrapping_add(bp.fill()));
    let per_block = if object.number == 0 { DNODES_PER_BLOCK } else { 1 };
    100.0 * fill as f64 * dnode.datablksz() as f64 / per_block as f64 / dnode.max_offset() as f64
}

/// The checksum and compression settings of the object itself.
fn functions(view: &View, object: &Object, always: bool) -> String {
    let dnode = &object.dnode;
    let mut text = String::new();
    if dnode.checksum != ChecksumType::Inherit.raw() || always {
        let name = ChecksumType::from_raw(dnode.checksum).map_or("UNKNOWN", ChecksumType::name);
        text += &format!(" (K={name})");
    }
    if dnode.compress != CompressType::Inherit.raw() {
        let name = CompressType::from_raw(dnode.compress).map_or("UNKNOWN", CompressType::name);
        text += &format!(" (Z={name})");
    } else if always {
        text += &format!(" (Z=inherit={})", view.compress);
    }
    text
}

fn flags(dump: &mut Dump<'_>, object: &Object) -> Done {
    let names = [
        (DnodeFlags::USED_BYTES, "USED_BYTES "),
        (DnodeFlags::USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
        (DnodeFlags::USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
        (DnodeFlags::SPILL_BLKPTR, "SPILL_BLKPTR"),
    ];
    let set: String = names.iter().filter(|(f, _)| object.dnode.flags.has(*f)).map(|(_, n)| *n).collect();
    out!(dump, "\tdnode flags: {set}\n");
    out!(dump, "\tdnode maxblkid: {}\n", object.dnode.maxblkid);
    Ok(())
}
