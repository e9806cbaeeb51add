//! Bookmarks, and the redacted ranges of a redaction bookmark.

use clikit::verb::Failure;
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks::{BookmarkInfo, bookmarks};
use engine::{Error, Result};
use ondisk::dsl::{RedactBlock, RedactionList};

use super::dump::{Done, Dump, out};
use crate::target::pool_of;

/// Entries of a redaction list read at a time.
const BATCH: u64 = 1000;

/// Every bookmark of a dataset, with `-dddd`.
pub fn all(dump: &mut Dump<'_>, dataset: &Dataset) -> Done {
    let verbosity = dump.verbosity();
    if verbosity < 4 || dataset.is_snapshot() {
        return Ok(());
    }
    for bookmark in dump.read(bookmarks(dataset)).unwrap_or_default() {
        print(dump, dataset, &bookmark, verbosity >= 5, verbosity >= 6)?;
    }
    Ok(())
}

/// One bookmark by its name.
pub fn one(dump: &mut Dump<'_>, name: &str) -> Done {
    let pool = std::sync::Arc::clone(&dump.session.pool);
    let (dataset, wanted) = name.split_once('#').unwrap_or((name, ""));
    let rest = dataset.strip_prefix(pool_of(dataset)).unwrap_or_default();
    let dataset = pool.dsl.dataset(&format!("{}{rest}", pool.name))?;
    let found = bookmarks(&dataset)?.into_iter().find(|b| b.name == wanted);
    let found = found.ok_or_else(|| Failure::failed(format!("zdb: can't find bookmark '{name}'")))?;
    let level = dump.d.max(dump.session.options.verbose);
    print(dump, &dataset, &found, level >= 1, level >= 2)
}

fn print(dump: &mut Dump<'_>, dataset: &Dataset, mark: &BookmarkInfo, redacted: bool, list: bool) -> Done {
    let phys = &mark.phys;
    out!(
        dump,
        "\t#{}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}\n",
        mark.name,
        phys.guid,
        phys.creation_txg,
        phys.creation_time,
        phys.redaction_obj
    );
    if !redacted || phys.redaction_obj == 0 {
        return Ok(());
    }
    let Some((head, object)) = dump.read(read_list(dataset, phys.redaction_obj)) else { return Ok(()) };
    out!(dump, "\tRedacted:\n\t\tProgress: ");
    if head.head.last_object == u64::MAX && head.head.last_blkid == u64::MAX {
        out!(dump, "complete\n");
    } else {
        out!(dump, "{} {} (incomplete)\n", head.head.last_object, head.head.last_blkid);
    }
    let snaps: Vec<String> = head.snaps.iter().map(|guid| format!("{guid}")).collect();
    out!(dump, "\t\tSnapshots: [{}]\n\t\tLength: {}\n", snaps.join(", "), head.head.num_entries);
    if list { entries(dump, &object, head.head.num_entries) } else { Ok(()) }
}

fn read_list(dataset: &Dataset, number: u64) -> Result<(RedactionList, engine::dmu::Object)> {
    let object = dataset.dsl.mos.object(number)?;
    let bonus = match object.spill()? {
        Some(spill) => spill.to_vec(),
        None => object.dnode.bonus().to_vec(),
    };
    let head = RedactionList::from_bytes(&bonus).map_err(|e| Error::corrupt(e.to_string()))?;
    Ok((head, object))
}

fn entries(dump: &mut Dump<'_>, object: &engine::dmu::Object, count: u64) -> Done {
    let size = RedactBlock::SIZE as u64;
    let count = count.min(object.stored_prefix() / size);
    if count == 0 {
        out!(dump, "\t\tRedaction List: []\n\n");
        return Ok(());
    }
    out!(dump, "\t\tRedaction List: [");
    let mut at = 0;
    while at < count {
        dump.poll()?;
        let many = BATCH.min(count - at);
        let bytes = object.read_vec(at * size, usize::try_from(many * size).unwrap_or(0));
        let Some(bytes) = dump.read(bytes) else { break };
        for (i, raw) in (at..).zip(bytes.chunks_exact(RedactBlock::SIZE)) {
            let Ok(block) = RedactBlock::from_bytes(raw) else { continue };
            let sep = if i == 0 { "" } else { ",\n\t\t" };
            out!(
                dump,
                "{sep}{{object: {:x}, offset: {:x}, blksz: {:x}, count: {:x}}}",
                block.object,
                block.blkid,
                block.block_size(),
                block.count()
            );
        }
        at += many;
    }
    out!(dump, "]\n\n");
    Ok(())
}
