//! `aquifer stat`: shows all information about a file.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::users::Names;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zpl::{FileKind, Inode, Time, acl, pflags};

use super::access::{Access, Named};
use super::target::Target;
use super::text::{local, mode_string, shown};

/// Show all information about a file.
#[derive(Debug, Args)]
pub struct Stat {
    #[command(flatten)]
    source: PoolSource,
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// POOL/DATASET[@SNAPSHOT]:PATH, or a volume
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

const FLAGS: [(u64, &str); 16] = [
    (pflags::READONLY, "readonly"),
    (pflags::HIDDEN, "hidden"),
    (pflags::SYSTEM, "system"),
    (pflags::ARCHIVE, "archive"),
    (pflags::IMMUTABLE, "immutable"),
    (pflags::NOUNLINK, "nounlink"),
    (pflags::APPENDONLY, "appendonly"),
    (pflags::NODUMP, "nodump"),
    (pflags::OPAQUE, "opaque"),
    (pflags::AV_QUARANTINED, "av_quarantined"),
    (pflags::AV_MODIFIED, "av_modified"),
    (pflags::REPARSE, "reparse"),
    (pflags::OFFLINE, "offline"),
    (pflags::SPARSE, "sparse"),
    (pflags::PROJINHERIT, "projinherit"),
    (pflags::XATTR, "xattr"),
];

impl Verb for Stat {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut access = Access::new(&self.source);
        let names = (Names::users(), Names::groups());
        for file in &self.files {
            let target = Target::parse(file);
            match access.open(&target, self.dereference, ctx)? {
                Named::Volume(v) => {
                    writeln!(ctx.out, "  File: {}\n  Type: volume", v.name)?;
                    writeln!(
                        ctx.out,
                        "  Size: {}\tBlock size: {}\tUsed: {}",
                        v.size,
                        v.block_size(),
                        v.used()
                    )?;
                }
                Named::File(inode, path) => print(&inode, &path, &names, ctx)?,
            }
        }
        ctx.out.flush()?;
        Ok(Exit::OK)
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "character special file",
        FileKind::Directory => "directory",
        FileKind::BlockDevice => "block special file",
        FileKind::Regular => "regular file",
        FileKind::Symlink => "symbolic link",
        FileKind::Socket => "socket",
    }
}

fn print(inode: &Inode, path: &[u8], names: &(Names, Names), ctx: &mut Ctx) -> Result<(), Failure> {
    let a = inode.attr();
    let out = &mut ctx.out;
    let path = if path.is_empty() { &b"/"[..] } else { path };
    write!(out, "  File: {}", shown(path))?;
    match a.kind {
        FileKind::Symlink => writeln!(out, " -> {}", shown(&inode.readlink()?))?,
        _ => writeln!(out)?,
    }
    writeln!(
        out,
        "  Size: {}\tBlocks: {}\tIO Block: {}\t{}",
        a.size,
        a.blocks,
        a.blksize,
        kind_name(a.kind)
    )?;
    let fs = inode.filesystem();
    write!(
        out,
        "Object: {}\tLinks: {}\tParent: {}\tGen: {}",
        inode.number(),
        a.links,
        a.parent,
        a.generation
    )?;
    match a.rdev {
        Some(dev) => writeln!(out, "\tDevice: {}, {}", dev.major, dev.minor)?,
        None => writeln!(out)?,
    }
    let name = |n: &Names, id: u32| n.name(u64::from(id)).unwrap_or("UNKNOWN").to_owned();
    let (user, group) = (name(&names.0, a.uid), name(&names.1, a.gid));
    let mode = format!("({:04o}/{})", a.perm, mode_string(a));
    writeln!(out, "Access: {mode}\tUid: ({}/{user})\tGid: ({}/{group})", a.uid, a.gid)?;
    for (what, fuid) in [("Owner", a.owner), ("Group", a.group)] {
        if fuid >> 32 != 0 {
            let domain = fs.domain(fuid).unwrap_or("an unknown domain");
            writeln!(out, " {what}: {} of {domain}", fuid & u64::from(u32::MAX))?;
        }
    }
    let times = [("Access", a.atime), ("Modify", a.mtime), ("Change", a.ctime), (" Birth", a.crtime)];
    for (what, time) in times {
        writeln!(out, "{what}: {}", moment(time))?;
    }
    let set: Vec<&str> = FLAGS.iter().filter(|(bit, _)| a.has_flag(*bit)).map(|(_, name)| *name).collect();
    if !set.is_empty() {
        writeln!(out, " Flags: {}", set.join(","))?;
    }
    if a.has_flag(pflags::PROJID) {
        writeln!(out, "Project: {}", a.projid)?;
    }
    for (name, value) in inode.xattrs()? {
        writeln!(out, " Xattr: {}=0x{}", shown(&name), hex(&value))?;
    }
    if let Some(acl) = inode.acl()?.filter(|acl| !acl.trivial) {
        for ace in &acl.aces {
            writeln!(out, "   ACL: {}", acl::ace_text(ace))?;
        }
    }
    Ok(())
}

fn moment(time: Time) -> String {
    local(time, "%Y-%m-%d %H:%M:%S.%9f %z")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
