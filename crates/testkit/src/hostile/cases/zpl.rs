//! Forged files and directories.

use std::sync::Arc;

use engine::{Error, Result};
use zpl::{FileKind, Filesystem, Inode};

use super::{Case, Forge, case, micro_zap, only_block, set, set_word};

/// Type of an entry, in its highest bits: `DT_DIR`, `DT_REG`, `DT_LNK`.
const DIR: u64 = 4 << 60;
const FILE: u64 = 8 << 60;
const LINK: u64 = 10 << 60;

pub(super) const CASES: &[Case] = &[
    case("a directory that contains itself", "basic", |f| {
        let fs = open(f)?;
        root(f, &[(b"loop", fs.root | DIR), (b"dir", fs.root | DIR)])
    }),
    case("a directory of names that lead out", "basic", |f| {
        let fs = open(f)?;
        let names: [&[u8]; 6] = [b"..", b".", b"a/b", b"/etc/passwd", b"\xff\xfe\n\x1b[31m", b"../../x"];
        root(f, &names.map(|n| (n, fs.root | DIR)))
    }),
    case("a directory of objects that are none", "basic", |f| {
        root(f, &[(b"a", 0), (b"b", 1 | FILE), (b"c", (1 << 48) - 1), (b"d", 2 | DIR), (b"e", u64::MAX)])
    }),
    case("a symbolic link to itself", "basic", |f| {
        let link = find(&open(f)?, &|i| i.attr().kind == FileKind::Symlink)?;
        let target = link.readlink()?;
        let name = target.split(|&b| b == b'/').find(|p| !p.is_empty()).unwrap_or(b"x").to_vec();
        root(f, &[(&name, link.number() | LINK), (b"link", link.number() | LINK)])
    }),
    case("extended attributes that are the file", "basic", |f| {
        let file = find(&open(f)?, &|i| i.attr().xattr != 0).or_else(|_| {
            let fs = Filesystem::open(&f.dataset("tank/legacy")?)?;
            find(&fs, &|i| i.attr().xattr != 0)
        })?;
        replace(f, &file, file.attr().xattr, file.number())
    }),
    case("a file of 2^64 bytes", "basic", |f| size(f, u64::MAX)),
    case("a file of 2^63 bytes", "basic", |f| size(f, 1 << 63)),
    case("a symbolic link of 2^62 bytes", "basic", |f| {
        let link = find(&open(f)?, &|i| i.attr().kind == FileKind::Symlink && i.attr().size > 100)?;
        replace(f, &link, link.attr().size, 1 << 62)
    }),
    case("a file in no directory", "basic", |f| {
        let file = find(&open(f)?, &|i| i.attr().kind == FileKind::Regular)?;
        replace(f, &file, file.attr().parent, file.number())
    }),
    case("attributes whose header lies", "basic", |f| {
        let fs = open(f)?;
        let id = fs.objset.id;
        f.edit_bonus(id, fs.root, &mut |bonus| set(bonus, 0, &[0x2f, 0x50, 0x2f, 0, 0xff, 0xff]))
    }),
    case("attribute layouts of anything", "basic", |f| tables(f, u64::MAX)),
    case("attribute lengths of 64 KiB", "basic", |f| tables(f, 0xffff << 24 | 5)),
    case("a master node that is the root", "basic", |f| {
        let fs = open(f)?;
        let entries: [(&[u8], u64); 4] = [(b"ROOT", 1), (b"VERSION", 5), (b"SA_ATTRS", 1), (b"FUID", 1)];
        only_block(f, fs.objset.id, 1, &micro_zap(&entries))
    }),
    case("packed attributes that are 2^32 lists", "basic", |f| {
        let file = find(&Filesystem::open(&f.dataset("tank")?)?, &|i| i.attr().kind == FileKind::Regular)?;
        f.edit_bonus(file.filesystem().objset.id, file.number(), &mut |bonus| {
            bonus.iter_mut().skip(8).for_each(|b| *b ^= 0xff);
        })
    }),
];

fn open(forge: &Forge) -> Result<Arc<Filesystem>> {
    Filesystem::open(&forge.dataset("tank")?)
}

fn root(forge: &mut Forge, entries: &[(&[u8], u64)]) -> Result<()> {
    let fs = open(forge)?;
    only_block(forge, fs.objset.id, fs.root, &micro_zap(entries))
}

fn find(fs: &Arc<Filesystem>, wanted: &dyn Fn(&Inode) -> bool) -> Result<Inode> {
    let objects = fs.objset.objects().flatten();
    let mut files = objects.filter_map(|o| fs.inode(o.number).ok());
    files.find(|i| wanted(i)).ok_or_else(|| Error::not_found("no such file"))
}

/// Replaces a word in a file's attributes.
fn replace(forge: &mut Forge, file: &Inode, old: u64, new: u64) -> Result<()> {
    forge.edit_bonus(file.filesystem().objset.id, file.number(), &mut |bonus| {
        for at in (0..bonus.len().saturating_sub(8)).step_by(8) {
            if bonus.get(at..at + 8) == Some(&old.to_le_bytes()) {
                set_word(bonus, at, new);
            }
        }
    })
}

fn size(forge: &mut Forge, bytes: u64) -> Result<()> {
    let file = find(&open(forge)?, &|i| i.attr().kind == FileKind::Regular && i.attr().size > 10_000)?;
    replace(forge, &file, file.attr().size, bytes)
}

/// Replaces every value of the attribute registry and the layouts by one word.
fn tables(forge: &mut Forge, value: u64) -> Result<()> {
    let id = forge.dataset("tank")?.number;
    for kind in [ondisk::ObjectType::SA_ATTR_REGISTRATION, ondisk::ObjectType::SA_ATTR_LAYOUTS] {
        let objects = forge.objset(id)?.objects();
        let of_kind: Vec<_> = objects.flatten().filter(|o| o.dnode.object_type == kind).collect();
        for object in of_kind {
            for blkid in 0..=object.dnode.maxblkid {
                forge.edit_block(id, object.number, blkid, &mut |block| {
                    let start = if blkid == 0 { 64 } else { 4096 };
                    let step = if blkid == 0 { 64 } else { 24 };
                    (start..block.len().saturating_sub(8))
                        .step_by(step)
                        .for_each(|at| set_word(block, at, value));
                })?;
            }
        }
    }
    Ok(())
}
