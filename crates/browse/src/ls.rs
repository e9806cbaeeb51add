//! `aquifer ls`: directories, as `ls` lists them.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::users::Names;
use clikit::verb::{Failure, Outcome, Verb};
use zcommon::units::nicebytes;
use zpl::{Attr, FileKind, Inode};

use super::access::{Access, Named};
use super::report::Report;
use super::target::Target;
use super::text::{local, mode_string, shown, write_name};
use super::walk::{Order, Step, Walk};

/// List files.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    #[command(flatten)]
    source: PoolSource,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Long form: mode, links, owner, group, size, time, name.
    #[arg(short = 'l')]
    long: bool,
    /// List directories below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show names that start with a dot, including `.` and `..`.
    #[arg(short = 'a', long)]
    all: bool,
    /// Show names that start with a dot, except `.` and `..`.
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// One name per line (the default if the output is not a terminal).
    #[arg(short = '1')]
    one: bool,
    /// Object numbers.
    #[arg(short = 'i', long)]
    inode: bool,
    /// Security context (`security.selinux`).
    #[arg(short = 'Z', long)]
    context: bool,
    /// Sizes with units.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Owners as numbers.
    #[arg(short = 'n', long)]
    numeric_uid_gid: bool,
    /// Space taken, in 1 KiB units.
    #[arg(short = 's', long)]
    size: bool,
    /// List directories themselves, not their contents.
    #[arg(long)]
    directory: bool,
    /// Append a type indicator to each name: `/` `@` `|` `=` `*`.
    #[arg(short = 'F', long)]
    classify: bool,
    /// Newest first.
    #[arg(short = 't')]
    by_time: bool,
    /// Largest first.
    #[arg(short = 'S')]
    by_size: bool,
    /// Reverse the order.
    #[arg(short = 'r', long)]
    reverse: bool,
    /// In the order of the directory.
    #[arg(short = 'U')]
    unsorted: bool,
    /// End each line with NUL instead of newline.
    #[arg(long)]
    zero: bool,
    /// POOL/DATASET[@SNAPSHOT]:PATH; without a path, its root
    #[arg(required = true, value_name = "FILE")]
    files: Vec<OsString>,
}

/// A line to print.
struct Row {
    name: Vec<u8>,
    inode: Inode,
}

impl Verb for Ls {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut access = Access::new(&self.source);
        let mut list =
            List { names: (Names::users(), Names::groups()), report: Report::default(), ls: &self };
        let many = self.files.len() > 1 || self.recursive;
        for (n, file) in self.files.iter().enumerate() {
            let target = Target::parse(file);
            // As `ls`: links named on the command line are followed, except in the long form.
            let (inode, path) = match access.open(&target, !self.long, ctx)? {
                Named::File(inode, path) => (inode, path),
                Named::Volume(volume) => {
                    writeln!(ctx.out, "{} (volume, {} bytes)", volume.name, volume.size)?;
                    continue;
                }
            };
            if !inode.is_dir() || self.directory {
                let name = if path.is_empty() { b"/".to_vec() } else { path };
                list.print(vec![Row { name, inode }], false, ctx)?;
                continue;
            }
            let heading = many.then(|| target.text.clone().into_bytes());
            list.tree(&inode, heading, n > 0, ctx)?;
        }
        let report = list.report;
        ctx.out.flush()?;
        Ok(report.finish("ls", ctx))
    }
}

struct List<'a> {
    ls: &'a Ls,
    names: (Names, Names),
    report: Report,
}

impl List<'_> {
    fn tree(
        &mut self,
        dir: &Inode,
        heading: Option<Vec<u8>>,
        gap: bool,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        if !self.ls.recursive {
            return self.dir(dir, heading.as_deref(), gap, ctx);
        }
        let mut gap = gap;
        let start = heading.unwrap_or_default();
        let mut walk = Walk::new(dir, &start, Order::Name);
        while let Some(step) = walk.next() {
            match step {
                Step::Enter(found) if found.inode.is_dir() => {
                    let hidden = found.depth > 0 && found.name().starts_with(b".");
                    if hidden && !self.ls.all && !self.ls.almost_all {
                        walk.prune();
                        continue;
                    }
                    self.dir(&found.inode, Some(&found.path), gap, ctx)?;
                    gap = true;
                }
                // The listing reports unreadable entries itself.
                Step::Enter(_) | Step::Leave(_) => {}
                Step::Failed(path, e) if e.kind() == engine::Kind::Loop => {
                    self.report.unreadable(&path, &e, None);
                }
                Step::Failed(..) => {}
            }
        }
        Ok(())
    }

    fn dir(&mut self, dir: &Inode, heading: Option<&[u8]>, gap: bool, ctx: &mut Ctx) -> Result<(), Failure> {
        if gap {
            writeln!(ctx.out)?;
        }
        if let Some(heading) = heading {
            write_name(&mut ctx.out, heading, ctx.out_is_terminal)?;
            writeln!(ctx.out, ":")?;
        }
        let rows = self.rows(dir, heading.unwrap_or(b"."));
        self.print(rows, true, ctx)
    }

    fn rows(&mut self, dir: &Inode, path: &[u8]) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.ls.all {
            rows.push(Row { name: b".".to_vec(), inode: dir.clone() });
            match dir.parent() {
                Ok(parent) => rows.push(Row { name: b"..".to_vec(), inode: parent }),
                Err(e) => self.report.unreadable(path, &e, None),
            }
        }
        let entries = match dir.entries() {
            Ok(entries) => entries,
            Err(e) => {
                self.report.unreadable(path, &e, None);
                return rows;
            }
        };
        for entry in entries {
            let found = entry.and_then(|e| {
                let hidden = e.name.starts_with(b".") && !self.ls.all && !self.ls.almost_all;
                if hidden { Ok(None) } else { dir.filesystem().inode(e.object).map(|i| Some((e.name, i))) }
            });
            match found {
                Ok(Some((name, inode))) => rows.push(Row { name, inode }),
                Ok(None) => {}
                Err(e) => self.report.unreadable(path, &e, None),
            }
        }
        self.sort(&mut rows);
        rows
    }

    fn sort(&self, rows: &mut [Row]) {
        if self.ls.unsorted {
            return;
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        if self.ls.by_size {
            rows.sort_by_key(|r| std::cmp::Reverse(r.inode.attr().size));
        } else if self.ls.by_time {
            rows.sort_by_key(|r| std::cmp::Reverse(r.inode.attr().mtime));
        }
        if self.ls.reverse {
            rows.reverse();
        }
    }

    fn print(&mut self, rows: Vec<Row>, total: bool, ctx: &mut Ctx) -> Result<(), Failure> {
        let ls = self.ls;
        if total && (ls.long || ls.size) {
            let blocks: u64 = rows.iter().map(|r| r.inode.attr().blocks).fold(0, u64::saturating_add);
            writeln!(ctx.out, "total {}", blocks / 2)?;
        }
        let leads: Vec<Vec<String>> = rows.iter().map(|r| self.columns(&r.inode)).collect();
        let widths = widths(&leads);
        for (row, lead) in rows.iter().zip(&leads) {
            for (n, (cell, width)) in lead.iter().zip(&widths).enumerate() {
                let left = ls.long && self.is_left(n);
                match left {
                    true => write!(ctx.out, "{cell:<width$} ")?,
                    false => write!(ctx.out, "{cell:>width$} ")?,
                }
            }
            write_name(&mut ctx.out, &row.name, ctx.out_is_terminal && !ls.zero)?;
            self.tail(&row.inode, ctx)?;
            ctx.out.write_all(if ls.zero { b"\0" } else { b"\n" })?;
        }
        Ok(())
    }

    /// Mode, owner and group are aligned left.
    fn is_left(&self, column: usize) -> bool {
        let first = usize::from(self.ls.inode) + usize::from(self.ls.size);
        column == first || column == first + 2 || column == first + 3
    }

    fn columns(&self, inode: &Inode) -> Vec<String> {
        let (ls, attr) = (self.ls, inode.attr());
        let mut cells = Vec::new();
        if ls.inode {
            cells.push(inode.number().to_string());
        }
        if ls.size {
            cells.push(attr.blocks.div_ceil(2).to_string());
        }
        if ls.long {
            let plus = if has_acl(inode) { "+" } else { "" };
            cells.push(format!("{}{plus}", mode_string(attr)));
            cells.push(attr.links.to_string());
            cells.push(self.owner(&self.names.0, attr.uid));
            cells.push(self.owner(&self.names.1, attr.gid));
        }
        if ls.context {
            let context = inode.xattr(b"security.selinux").ok().flatten();
            let text = context.map(|c| shown(c.split(|b| *b == 0).next().unwrap_or_default()));
            cells.push(text.unwrap_or_else(|| "?".to_owned()));
        }
        if ls.long {
            cells.push(self.size(attr));
            cells.push(local(attr.mtime, "%Y-%m-%d %H:%M"));
        }
        cells
    }

    fn owner(&self, names: &Names, id: u32) -> String {
        let name = names.name(u64::from(id)).filter(|_| !self.ls.numeric_uid_gid);
        name.map_or_else(|| id.to_string(), str::to_owned)
    }

    fn size(&self, attr: &Attr) -> String {
        match attr.rdev {
            Some(dev) => format!("{}, {}", dev.major, dev.minor),
            None if self.ls.human_readable => nicebytes(attr.size).to_string(),
            None => attr.size.to_string(),
        }
    }

    fn tail(&mut self, inode: &Inode, ctx: &mut Ctx) -> Result<(), Failure> {
        if self.ls.long && inode.attr().kind == FileKind::Symlink {
            match inode.readlink() {
                Ok(target) => {
                    write!(ctx.out, " -> ")?;
                    write_name(&mut ctx.out, &target, ctx.out_is_terminal)?;
                }
                Err(e) => self.report.failed(format!("object {}", inode.number()).as_bytes(), e, None),
            }
        } else if self.ls.classify {
            let mark = match inode.attr().kind {
                FileKind::Directory => "/",
                FileKind::Symlink => "@",
                FileKind::Fifo => "|",
                FileKind::Socket => "=",
                FileKind::Regular if inode.attr().perm & 0o111 != 0 => "*",
                _ => "",
            };
            write!(ctx.out, "{mark}")?;
        }
        Ok(())
    }
}

/// Whether the file has permissions beyond its mode.
fn has_acl(inode: &Inode) -> bool {
    let posix = inode.xattr_names().is_ok_and(|n| n.iter().any(|n| n.starts_with(b"system.posix_acl_")));
    posix || inode.acl().is_ok_and(|acl| acl.is_some_and(|a| !a.trivial && !a.aces.is_empty()))
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}
