//! Deadlists and livelists: lists of blocks by the txg in which a snapshot was taken.

use engine::zap::Zap;
use engine::{Error, Result};
use ondisk::ObjectType;
use ondisk::dsl::Deadlist;

use super::bpobj;
use super::dump::{Done, Dump, out};

/// Prints the list in MOS object `number`: totals with `-ddd`, entries with `-dddd`, blocks with `-ddddd`.
pub fn print(dump: &mut Dump<'_>, number: u64, name: &str) -> Done {
    if dump.d < 3 || number == 0 {
        return Ok(());
    }
    let found = dump.session.pool.mos.object(number);
    let Some(object) = dump.read(found) else { return Ok(()) };
    if object.dnode.object_type == ObjectType::BPOBJ {
        return bpobj::full(dump, number, "old-format deadlist", 0);
    }
    let head = Deadlist::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()));
    let Some(head) = dump.read(head) else { return Ok(()) };
    let entries = entries(Zap::open(&object));
    let entries = dump.read(entries).unwrap_or_default();
    let (used, comp, uncomp) = (dump.nice(head.used), dump.nice(head.comp), dump.nice(head.uncomp));
    let count = dump.nice(u64::try_from(entries.len()).unwrap_or(0));
    out!(dump, "\n    {name}: {used} ({comp}/{uncomp} comp), {count} entries\n");
    if dump.d < 4 {
        return Ok(());
    }
    out!(dump, "\n");
    for (mintxg, list) in entries {
        let title = format!("mintxg {mintxg} -> obj {list}");
        if dump.d >= 5 {
            bpobj::full(dump, list, &title, 0)?;
        } else {
            out!(dump, "{title}\n");
        }
    }
    Ok(())
}

/// Oldest txg and list of each entry, in the order of txgs.
fn entries(zap: Result<Zap>) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for entry in zap?.to_vec()? {
        let name = entry.name_lossy();
        let mintxg = u64::from_str_radix(&name, 16);
        let mintxg = mintxg.map_err(|_| Error::corrupt(format!("deadlist entry '{name}'")))?;
        all.push((mintxg, entry.value.first().unwrap_or(0)));
    }
    all.sort_unstable();
    Ok(all)
}
