//! Files: the attributes of a znode, old or in system attributes.

use engine::dmu::Object;
use nvpair::NvList;
use ondisk::ObjectType;
use ondisk::znode::pflags;
use zpl::{FileKind, Inode, Time};

use super::dump::{Done, Dump, ctime, out};
use super::view::View;

/// Prints a file's attributes.
pub fn znode(dump: &mut Dump<'_>, view: &mut View, object: &Object) -> Done {
    let Some(fs) = view.fs.clone() else { return Ok(()) };
    let inode = match fs.inode(object.number) {
        Ok(inode) => inode,
        Err(e) => {
            out!(dump, "Failed to get handle for SA znode\n");
            dump.problem(e);
            return Ok(());
        }
    };
    if dump.d > 4 {
        let path = view.paths.of(&inode);
        out!(dump, "\tpath\t");
        dump.out().write_all(&path)?;
        out!(dump, "\n");
    }
    let attr = inode.attr();
    if attr.kind == FileKind::Symlink
        && object.dnode.bonustype == ObjectType::SA
        && let Ok(target) = inode.readlink()
    {
        out!(dump, "\ttarget\t");
        dump.out().write_all(&target)?;
        out!(dump, "\n");
    }
    owner(dump, &inode, "uid", attr.owner)?;
    owner(dump, &inode, "gid", attr.group)?;
    let times =
        [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime), ("crtime", attr.crtime)];
    for (name, time) in times {
        out!(dump, "\t{name}\t{}\n", moment(time));
    }
    out!(dump, "\tgen\t{}\n\tmode\t{:o}\n", attr.generation, attr.mode());
    out!(dump, "\tsize\t{}\n\tparent\t{}\n\tlinks\t{}\n", attr.size, attr.parent, attr.links);
    out!(dump, "\tpflags\t{:x}\n", attr.flags);
    if attr.has_flag(pflags::PROJID) {
        out!(dump, "\tprojid\t{}\n", attr.projid);
    }
    if attr.xattr != 0 {
        out!(dump, "\txattr\t{}\n", attr.xattr);
    }
    if attr.raw_rdev != 0 {
        out!(dump, "\trdev\t0x{:016x}\n", attr.raw_rdev);
    }
    xattrs(dump, &inode)
}

fn moment(time: Time) -> String {
    ctime(time.sec.cast_unsigned())
}

/// An id, with its domain if it has one.
fn owner(dump: &mut Dump<'_>, inode: &Inode, name: &str, id: u64) -> Done {
    if id >> 32 == 0 {
        out!(dump, "\t{name}     {id}\n");
        return Ok(());
    }
    let domain = inode.filesystem().domain(id).unwrap_or_default();
    out!(dump, "\t{name}     {id:x} [{domain}-{}]\n", id as u32);
    Ok(())
}

/// Extended attributes kept in the system attributes.
fn xattrs(dump: &mut Dump<'_>, inode: &Inode) -> Done {
    let Some(packed) = inode.packed_xattrs().filter(|p| !p.is_empty()) else { return Ok(()) };
    let list = match NvList::decode(packed) {
        Ok(list) => list,
        Err(e) => {
            dump.problem(format_args!("extended attributes of object {}: {e}", inode.number()));
            return Ok(());
        }
    };
    out!(dump, "\tSA xattrs: {} bytes, {} entries\n\n", packed.len(), list.iter().count());
    for pair in list.iter() {
        out!(dump, "\t\t");
        dump.out().write_all(pair.name.as_bytes())?;
        out!(dump, " = ");
        let value = match &pair.value {
            nvpair::NvValue::ByteArray(value) | nvpair::NvValue::Uint8Array(value) => value.as_slice(),
            _ => &[],
        };
        let plain = !dump.session.options.parsable() && value.iter().all(|b| (0x20..0x7f).contains(b));
        if plain {
            dump.out().write_all(value)?;
        } else {
            for byte in value {
                out!(dump, "\\{byte:03o}");
            }
        }
        out!(dump, "\n");
    }
    Ok(())
}
