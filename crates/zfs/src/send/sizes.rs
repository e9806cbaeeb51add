//! The length of a stream, as `-v`, `-n` and `-P` print it.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks::BookmarkInfo;
use engine::dsl::props::written::WrittenSince;
use engine::memory::Limit;
use engine::send::{Meter, SendOptions, estimate};
use engine::{Error, Kind, Result};
use zcommon::units::{nicebytes, nicenum};

use super::running::{Report, watched};
use super::scene::Scene;
use crate::prop::{Node, Props};

/// The base of an incremental stream, as far as its size depends on it.
#[derive(Debug)]
pub(super) enum Base {
    /// Nothing.
    None,
    /// A snapshot.
    Snapshot(Box<Dataset>),
    /// A bookmark.
    Bookmark(Box<BookmarkInfo>),
}

/// The length of a stream. Where the space accounts do not suffice, it is measured by generating the stream
/// without its blocks.
#[doc(alias = "zfs_ioc_send_space")]
pub(super) fn of(
    scene: &Scene,
    to: &Dataset,
    base: &Base,
    options: &SendOptions,
    ctx: &mut Ctx,
) -> Result<u64> {
    let counted = |ctx: &mut Ctx| {
        let meter = Meter::default();
        watched(&meter, &to.name, Report::default(), ctx, |meter| estimate::exact(to, options, meter))
    };
    let from = match base {
        _ if options.redact.is_some() => return counted(ctx),
        Base::None => None,
        Base::Snapshot(from) if !scene.is_before(from, to)? => {
            return Err(Error::new(Kind::Invalid, "not an earlier snapshot from the same fs"));
        }
        Base::Snapshot(from) => Some(WrittenSince::of(from)),
        Base::Bookmark(mark) => match WrittenSince::of_bookmark(&mark.phys) {
            Some(moment) if mark.phys.redaction_obj == 0 => Some(moment),
            _ => return counted(ctx),
        },
    };
    // A partial receive leaves a head.
    if !to.is_snapshot() && options.saved.is_none() {
        return Err(Error::new(Kind::Invalid, "Invalid argument"));
    }
    let _quiet = scene.quiet();
    let flags = options.flags;
    let assumed = match scene.pool.env.memory.limits.get(Limit::EstimateRecordSize) {
        0 => record_size(to)?,
        size => size,
    };
    Ok(estimate::length(estimate::space(to, from)?, assumed, flags.compressed || flags.raw))
}

fn record_size(dataset: &Dataset) -> Result<u64> {
    use engine::dsl::DatasetKind::{Filesystem, Volume};
    use zcommon::props::ZfsProp;
    let kind = dataset.kind()?;
    let head_name = dataset.name.split('@').next().unwrap_or_default();
    let head = dataset.dsl.dir(head_name)?.head()?;
    let prop = match kind {
        Filesystem => ZfsProp::Recordsize,
        Volume => ZfsProp::Volblocksize,
    };
    let node = Node::Dataset(head, kind);
    let size = Props::new(&node, 0).native(prop).and_then(|prop| prop.number);
    Ok(size.unwrap_or(128 << 10))
}

/// The line of one stream. `from` is the name of its base.
#[doc(alias = "send_print_verbose")]
pub(super) fn line(to: &str, from: Option<&str>, size: u64, parsable: bool) -> String {
    if parsable {
        return match from {
            Some(from) => format!("incremental\t{from}\t{to}\t{size}"),
            None => format!("full\t{to}\t{size}"),
        };
    }
    let what = match from {
        Some(from) if !from.contains(['@', '#']) => format!("send from @{from} to {to}"),
        Some(from) => format!("send from {from} to {to}"),
        None => format!("full send of {to}"),
    };
    if size == 0 { what } else { format!("{what} estimated size is {}", nicebytes(size)) }
}

/// The line of all streams together.
pub(super) fn total(size: u64, parsable: bool, in_bytes: bool) -> String {
    match (parsable, in_bytes) {
        (true, _) => format!("size\t{size}"),
        (false, true) => format!("total estimated size is {}", nicebytes(size)),
        (false, false) => format!("total estimated size is {}", nicenum(size)),
    }
}

/// Prints a line where sizes go: standard output when nothing is sent, else standard error.
pub(super) fn tell(line: &str, dry: bool, ctx: &mut Ctx) -> std::result::Result<(), Failure> {
    if dry {
        writeln!(ctx.out, "{line}")?;
    } else {
        ctx.warn(line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_openzfs() {
        assert_eq!(line("t@b", None, 4_380_360, true), "full\tt@b\t4380360");
        assert_eq!(line("t@b", Some("a"), 5, true), "incremental\ta\tt@b\t5");
        assert_eq!(line("t@b", Some("a"), 624, false), "send from @a to t@b estimated size is 624B");
        assert_eq!(line("t@b", Some("t#m"), 0, false), "send from t#m to t@b");
        assert_eq!(line("t@b", None, 1 << 20, false), "full send of t@b estimated size is 1M");
        assert_eq!(total(624, false, false), "total estimated size is 624");
        assert_eq!(total(624, false, true), "total estimated size is 624B");
        assert_eq!(total(624, true, true), "size\t624");
    }
}
