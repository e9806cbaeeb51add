//! Bonus buffers of directories and datasets.

use ondisk::Malformed;
use ondisk::dsl::{DslDataset, DslDir};

use super::dump::{Done, Dump, ctime, out};

fn malformed(dump: &mut Dump<'_>, e: &Malformed) -> Done {
    dump.problem(e);
    Ok(())
}

/// A directory.
pub fn dir(dump: &mut Dump<'_>, bonus: &[u8]) -> Done {
    let dir = match DslDir::from_bytes(bonus) {
        Ok(dir) => dir,
        Err(e) => return malformed(dump, &e),
    };
    out!(dump, "\t\tcreation_time = {}\n", ctime(dir.creation_time));
    out!(dump, "\t\thead_dataset_obj = {}\n", dir.head_dataset_obj);
    out!(dump, "\t\tparent_dir_obj = {}\n", dir.parent_obj);
    out!(dump, "\t\torigin_obj = {}\n", dir.origin_obj);
    out!(dump, "\t\tchild_dir_zapobj = {}\n", dir.child_dir_zapobj);
    let sizes = [
        ("used_bytes", dir.used_bytes),
        ("compressed_bytes", dir.compressed_bytes),
        ("uncompressed_bytes", dir.uncompressed_bytes),
        ("quota", dir.quota),
        ("reserved", dir.reserved),
    ];
    for (name, size) in sizes {
        let size = dump.nice(size);
        out!(dump, "\t\t{name} = {size}\n");
    }
    out!(dump, "\t\tprops_zapobj = {}\n", dir.props_zapobj);
    out!(dump, "\t\tdeleg_zapobj = {}\n", dir.deleg_zapobj);
    out!(dump, "\t\tflags = {:x}\n", dir.flags);
    let kinds = ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"];
    for (kind, size) in kinds.iter().zip(dir.used_breakdown) {
        let size = dump.nice(size);
        out!(dump, "\t\tused_breakdown[{kind}] = {size}\n");
    }
    out!(dump, "\t\tclones = {}\n", dir.clones);
    Ok(())
}

/// A dataset.
pub fn dataset(dump: &mut Dump<'_>, bonus: &[u8]) -> Done {
    let ds = match DslDataset::from_bytes(bonus) {
        Ok(ds) => ds,
        Err(e) => return malformed(dump, &e),
    };
    out!(dump, "\t\tdir_obj = {}\n", ds.dir_obj);
    out!(dump, "\t\tprev_snap_obj = {}\n", ds.prev_snap_obj);
    out!(dump, "\t\tprev_snap_txg = {}\n", ds.prev_snap_txg);
    out!(dump, "\t\tnext_snap_obj = {}\n", ds.next_snap_obj);
    out!(dump, "\t\tsnapnames_zapobj = {}\n", ds.snapnames_zapobj);
    out!(dump, "\t\tnum_children = {}\n", ds.num_children);
    out!(dump, "\t\tuserrefs_obj = {}\n", ds.userrefs_obj);
    out!(dump, "\t\tcreation_time = {}\n", ctime(ds.creation_time));
    out!(dump, "\t\tcreation_txg = {}\n", ds.creation_txg);
    out!(dump, "\t\tdeadlist_obj = {}\n", ds.deadlist_obj);
    let sizes = [
        ("used_bytes", ds.referenced_bytes),
        ("compressed_bytes", ds.compressed_bytes),
        ("uncompressed_bytes", ds.uncompressed_bytes),
        ("unique", ds.unique_bytes),
    ];
    for (name, size) in sizes {
        let size = dump.nice(size);
        out!(dump, "\t\t{name} = {size}\n");
    }
    out!(dump, "\t\tfsid_guid = {}\n", ds.fsid_guid);
    out!(dump, "\t\tguid = {}\n", ds.guid);
    out!(dump, "\t\tflags = {:x}\n", ds.flags);
    out!(dump, "\t\tnext_clones_obj = {}\n", ds.next_clones_obj);
    out!(dump, "\t\tprops_obj = {}\n", ds.props_obj);
    out!(dump, "\t\tbp = {}\n", ds.bp);
    Ok(())
}
