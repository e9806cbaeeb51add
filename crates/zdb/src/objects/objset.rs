//! One object set: its header line, its lists, its objects.

use engine::dmu::SpecialObject;
use ondisk::names::{dsl_dataset, dsl_dir};

use super::dump::{Done, Dump, out};
use super::ranges::Range;
use super::view::View;
use super::{bookmarks, deadlist, intent, object};

/// The usage of the object set's slots.
#[derive(Default)]
struct Slots {
    used: u64,
    max: u64,
}

/// Prints the whole object set.
pub fn print(dump: &mut Dump<'_>, view: &mut View) -> Done {
    header(dump, view)?;
    let verbosity = dump.verbosity();
    if dump.i > 0 || verbosity >= 2 {
        intent::print(dump, view)?;
    }
    lists(dump, view)?;
    if verbosity < 2 || view.objset.rootbp.is_hole() {
        return Ok(());
    }
    let mut row = object::Rows::default();
    specials(dump, view, &mut row)?;
    let mut slots = Slots::default();
    for found in view.objset.objects() {
        dump.poll()?;
        let Some(object) = dump.read(found) else { continue };
        object::print(dump, view, &object, &mut row)?;
        let taken = u64::try_from(object.dnode.slots()).unwrap_or(1);
        slots.used += taken;
        slots.max = object.number.saturating_add(taken) - 1;
    }
    totals(dump, &slots)
}

/// Prints the objects in these ranges.
pub fn print_ranges(dump: &mut Dump<'_>, view: &mut View, ranges: &[Range]) -> Done {
    header(dump, view)?;
    let mut row = object::Rows::default();
    for range in ranges {
        if range.is_single() {
            match single(view, range.start) {
                Ok(object) => object::print(dump, view, &object, &mut row)?,
                Err(e) => {
                    row.headline(dump)?;
                    dump.problem(e);
                    return Ok(());
                }
            }
            continue;
        }
        if range.start == 0
            && range.matches(ondisk::ObjectType::DNODE)
            && let Ok(meta) = single(view, 0)
        {
            object::print(dump, view, &meta, &mut row)?;
        }
        for found in view.objset.objects() {
            dump.poll()?;
            let Some(object) = dump.read(found) else { continue };
            if object.number > range.end {
                break;
            }
            if object.number >= range.start {
                matching(dump, view, range, &object, &mut row)?;
            }
        }
    }
    out!(dump, "\n");
    Ok(())
}

/// The headline precedes the test of the type.
fn matching(
    dump: &mut Dump<'_>,
    view: &mut View,
    range: &Range,
    object: &engine::dmu::Object,
    row: &mut object::Rows,
) -> Done {
    if range.matches(object.dnode.object_type) {
        return object::print(dump, view, object, row);
    }
    row.headline(dump)
}

fn single(view: &View, number: u64) -> engine::Result<engine::dmu::Object> {
    if number == 0
        && let Some(meta) = view.objset.special(SpecialObject::Meta)
    {
        return Ok(meta);
    }
    view.object(number)
}

fn header(dump: &mut Dump<'_>, view: &View) -> Done {
    let (creation, referenced, inconsistent) = match &view.dataset {
        None => (engine::txg::INITIAL, mos_used(dump), false),
        Some(ds) => {
            let flag = ondisk::dsl::DslDataset::FLAG_INCONSISTENT;
            (ds.phys.creation_txg, ds.phys.referenced_bytes, ds.phys.flags & flag != 0)
        }
    };
    let root = &view.objset.rootbp;
    let blkptr = if dump.verbosity() >= 4 { format!(", rootbp {root}") } else { String::new() };
    let (kind, size) = (view.objset.phys.objset_type.name(), dump.nice(referenced));
    let note = if inconsistent { " (inconsistent)" } else { "" };
    let (name, id, fill) = (&view.name, view.objset.id, root.fill());
    out!(dump, "Dataset {name} [{kind}], ID {id}, cr_txg {creation}, {size}, {fill} objects{blkptr}{note}\n");
    Ok(())
}

/// The space of the MOS, as counted by its hidden directory.
fn mos_used(dump: &mut Dump<'_>) -> u64 {
    let root = dump.session.pool.dsl.root();
    let dir = root.and_then(|root| root.child(ondisk::names::special_dir::MOS));
    match dir {
        Ok(Some(dir)) => dir.phys.used_bytes,
        Ok(None) => 0,
        Err(e) => {
            dump.problem(e);
            0
        }
    }
}

/// Deadlist, livelist and bookmarks.
fn lists(dump: &mut Dump<'_>, view: &View) -> Done {
    let Some(dataset) = &view.dataset else { return Ok(()) };
    deadlist::print(dump, dataset.phys.deadlist_obj, "Deadlist")?;
    if !dataset.is_snapshot() {
        let livelist = dataset.dir().and_then(|dir| dir.extra(dsl_dir::LIVELIST));
        if let Some(number) = dump.read(livelist).flatten().and_then(|v| v.first()).filter(|&n| n != 0) {
            deadlist::print(dump, number, "Livelist")?;
        }
    }
    let remap = dump.read(dataset.extra(dsl_dataset::REMAP_DEADLIST)).flatten();
    if let Some(number) = remap.and_then(|v| v.first()).filter(|&n| n != 0) {
        out!(dump, "ds_remap_deadlist:\n");
        deadlist::print(dump, number, "Deadlist")?;
    }
    bookmarks::all(dump, dataset)
}

/// Objects whose dnodes are in the root block.
fn specials(dump: &mut Dump<'_>, view: &mut View, row: &mut object::Rows) -> Done {
    use SpecialObject::{GroupUsed, Meta, ProjectUsed, UserUsed};
    for which in [Meta, UserUsed, GroupUsed, ProjectUsed] {
        if let Some(special) = view.objset.special(which) {
            object::print(dump, view, &special, row)?;
        }
    }
    Ok(())
}

fn totals(dump: &mut Dump<'_>, slots: &Slots) -> Done {
    let empty = (slots.max as f64 - slots.used as f64) * 100.0 / slots.max as f64;
    out!(dump, "\n    Dnode slots:\n");
    out!(dump, "\tTotal used:    {:10}\n", slots.used);
    out!(dump, "\tMax used:      {:10}\n", slots.max);
    out!(dump, "\tPercent empty: {empty:10.6}\n\n");
    Ok(())
}
