//! `-s`: the reads of this run, vdev by vdev.
//!
//! Differs from OpenZFS: reads of labels are not counted, because they precede the vdevs.

use std::io::Write;
use std::sync::atomic::Ordering;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};
use engine::spa::space::{PoolSpace, VdevSpace};
use engine::vdev::config::{AllocBias, Kind, VdevConfig};
use zcommon::units::nicenum;

use super::target::Session;

/// Columns of name and class before the numbers.
const NAME_WIDTH: usize = 25;

/// The reads from a vdev and everything below it.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    reads: u64,
    bytes: u64,
    read_errors: u64,
    checksum_errors: u64,
}

/// Prints the table.
#[doc(alias = "show_pool_stats")]
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    let tree = session.pool.tree();
    let space = PoolSpace::of(&session.pool, &mut Vec::new());
    writeln!(ctx.out, "{:28}capacity   operations   bandwidth  ---- errors ----", "")?;
    writeln!(ctx.out, "description                used avail  read write  read write  read write cksum")?;
    let root = Some((space.allocated(), space.size()));
    let counts = counted(session, &tree.config);
    writeln!(ctx.out, "{}", line(&session.pool.name, "", 0, root, counts))?;
    for top in tree.config.children.iter().filter(|top| top.kind != Kind::Hole) {
        let own = space.vdevs.iter().find(|s| s.id == top.id);
        let class = match own.map(|s| s.bias) {
            Some(AllocBias::Log) => " (log)",
            Some(AllocBias::Special) => " (special)",
            Some(AllocBias::Dedup) => " (dedup)",
            _ => "",
        };
        let sizes = |s: &VdevSpace| (s.allocated(), s.size());
        below(session, top, class, 2, own.map(sizes).filter(|(_, size)| *size > 0), ctx)?;
    }
    Ok(Exit::OK)
}

fn below(
    session: &Session,
    vdev: &VdevConfig,
    class: &str,
    indent: usize,
    space: Option<(u64, u64)>,
    ctx: &mut Ctx,
) -> std::io::Result<()> {
    let counts = counted(session, vdev);
    writeln!(ctx.out, "{}", line(&name(session, vdev), class, indent, space, counts))?;
    vdev.children.iter().try_for_each(|child| below(session, child, "", indent + 2, None, ctx))
}

/// A device's path; for other vdevs the kind and its parity.
fn name(session: &Session, vdev: &VdevConfig) -> String {
    let leaf = session.pool.tree().leaf(vdev.guid).map(|leaf| leaf.path.clone());
    let path = leaf.or_else(|| vdev.path.clone());
    path.unwrap_or_else(|| match vdev.kind {
        Kind::Raidz | Kind::Draid => format!("{}{}", vdev.kind.name(), vdev.nparity),
        kind => kind.name().to_owned(),
    })
}

fn counted(session: &Session, vdev: &VdevConfig) -> Counts {
    let own = session.pool.tree().leaf(vdev.guid).map(|leaf| Counts {
        reads: leaf.reads.count.load(Ordering::Relaxed),
        bytes: leaf.reads.bytes.load(Ordering::Relaxed),
        read_errors: leaf.errors.read.load(Ordering::Relaxed),
        checksum_errors: leaf.errors.checksum.load(Ordering::Relaxed),
    });
    vdev.children.iter().map(|child| counted(session, child)).fold(own.unwrap_or_default(), |a, b| Counts {
        reads: a.reads.saturating_add(b.reads),
        bytes: a.bytes.saturating_add(b.bytes),
        read_errors: a.read_errors.saturating_add(b.read_errors),
        checksum_errors: a.checksum_errors.saturating_add(b.checksum_errors),
    })
}

/// Prints one line. A name longer than its column shifts the rest by its excess length, and by the class after it.
#[doc(alias = "show_vdev_stats")]
fn line(name: &str, class: &str, indent: usize, space: Option<(u64, u64)>, counts: Counts) -> String {
    let taken = indent + name.len();
    let column = NAME_WIDTH + if space.is_some() { 0 } else { 12 };
    let (left, right) = (column.saturating_sub(taken), taken.saturating_sub(column));
    let suffix = format!("{class:>right$}");
    let numbers = match space {
        Some((used, size)) => {
            format!("{:>6}{:>6}", nicenum(used).to_string(), nicenum(size.saturating_sub(used)).to_string())
        }
        None => String::new(),
    };
    let cells = [counts.reads, 0, counts.bytes, 0, counts.read_errors, 0, counts.checksum_errors];
    let cells = cells.map(|n| format!(" {:>5}", nicenum(n).to_string())).concat();
    format!("{:indent$}{name}{suffix:left$}{numbers}{cells}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_openzfs_to_the_column() {
        let read = |reads, bytes| Counts { reads, bytes, ..Counts::default() };
        assert_eq!(
            line("mirror", " (special)", 2, Some((548_864, 66_584_576 + 548_864)), read(33, 993_280)),
            "  mirror (special)         536K 63.5M    33     0  970K     0     0     0     0"
        );
        assert_eq!(
            line("/some/tanks/classes/disk4", " (dedup)", 2, Some((50_688, 67_058_176)), read(9, 484_352)),
            "  /some/tanks/classes/disk4 (dedup) 49.5K 63.9M     9     0  473K     0     0     0     0"
        );
        assert_eq!(
            line(
                "/some/tanks/classes/disk1",
                "",
                2,
                Some((3_227_648, 63_881_216 + 3_227_648)),
                read(7, 483_328)
            ),
            "  /some/tanks/classes/disk1   3.08M 60.9M     7     0  472K     0     0     0     0"
        );
        assert_eq!(
            line("/some/tanks/classes/disk2", "", 4, None, read(25, 509_952)),
            "    /some/tanks/classes/disk2            25     0  498K     0     0     0     0"
        );
    }
}
