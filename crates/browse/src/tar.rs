//! `aquifer tar`: writes files and trees as an archive.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::progress::Progress;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome, Verb};
use engine::dmu::{Span, Unreadable};
use zpl::FileKind;

use super::access::Access;
use super::bytes::{Bytes, zeros};
use super::pax::{BLOCK, Member, attribute_records, flag_records, kind, sparse_map, sparse_records};
use super::report::{Report, cannot_write};
use super::tar_resume;
use super::target::Target;
use super::walk::{Found, Order, Step, Walk, total_bytes};

/// Bytes of a tar record: archives are padded to a multiple of it.
const RECORD: u64 = 10_240;
/// Maximum extents of a sparse file; one with more is written in full.
const MAX_EXTENTS: usize = 1 << 20;

/// Write files and trees as a tar archive.
///
/// In the pax format: times to the nanosecond, extended attributes, POSIX and NFSv4 ACLs, file flags
/// (SCHILY.fflags, as star and bsdtar), project ids (AQUIFER.projid), hard links, devices, holes. Names start below
/// PATH's parent, as with `tar -C PARENT`. Unreadable data is written as zeros, listed at the end, and makes the
/// exit code 1.
#[derive(Debug, Args)]
pub struct Tar {
    #[command(flatten)]
    source: PoolSource,
    /// The archive; standard output without it, or with `-`.
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<OsString>,
    /// Accepted for compatibility with tar(1): an archive is always created.
    #[arg(short = 'c', long)]
    create: bool,
    /// Print each name as it is written.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// No progress bar.
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Resume an interrupted archive (with -f).
    #[arg(long, requires = "file")]
    resume: bool,
    /// POOL/DATASET[@SNAPSHOT]:PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
}

impl Verb for Tar {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let mut access = Access::new(&self.source);
        let mut starts = Vec::new();
        for source in &self.sources {
            starts.push(access.open_file(&Target::parse(source), false, ctx)?);
        }
        let path = self.file.as_ref().filter(|f| *f != "-");
        if path.is_none() && ctx.out_is_terminal {
            return Err(Failure::usage("tar: the archive would go to the terminal: use -f or a pipe"));
        }
        let total = if self.quiet { 0 } else { starts.iter().map(|(i, _)| total_bytes(i)).sum() };
        let mut report = Report::default();
        let progress = Progress::bytes("tar", total, self.quiet);
        let (out, done, written): (Box<dyn Write + '_>, HashSet<Vec<u8>>, u64) = match path {
            None => (Box::new(&mut ctx.out), HashSet::new(), 0),
            Some(path) => open(Path::new(path), self.resume)?,
        };
        let mut archive = Archive {
            out,
            written,
            done,
            verbose: self.verbose,
            links: HashMap::new(),
            report: &mut report,
            progress,
            interrupt: ctx.interrupt.clone(),
        };
        for (inode, path) in &starts {
            let name = path.rsplit(|&b| b == b'/').find(|p| !p.is_empty() && *p != b"." && *p != b"..");
            archive.tree(Walk::new(inode, name.unwrap_or(b"."), Order::Object))?;
        }
        archive.end()?;
        drop(archive);
        Ok(report.finish("tar", ctx))
    }
}

type Opened = (Box<dyn Write>, HashSet<Vec<u8>>, u64);

fn open(path: &Path, resume: bool) -> Result<Opened, Failure> {
    let fail = |e| cannot_write(path.display(), e);
    let mut file =
        File::options().read(true).write(true).create(true).truncate(!resume).open(path).map_err(fail)?;
    let (done, end) = if resume { tar_resume::scan(&mut file).map_err(fail)? } else { Default::default() };
    if resume {
        file.set_len(end).map_err(fail)?;
        file.seek(SeekFrom::Start(end)).map_err(fail)?;
    }
    Ok((Box::new(BufWriter::with_capacity(1 << 20, file)), done, end))
}

struct Archive<'a, 'w> {
    out: Box<dyn Write + 'w>,
    written: u64,
    /// Names that an earlier attempt wrote in full.
    done: HashSet<Vec<u8>>,
    verbose: bool,
    /// First name of each file with several.
    links: HashMap<(u64, u64), Vec<u8>>,
    report: &'a mut Report,
    progress: Progress,
    interrupt: Interrupt,
}

impl Archive<'_, '_> {
    fn tree(&mut self, walk: Walk) -> Result<(), Failure> {
        for step in walk {
            if self.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            match step {
                Step::Enter(found) => self.member(&found)?,
                Step::Leave(_) => {}
                Step::Failed(path, e) => self.report.unreadable(&path, &e, Some(&self.progress)),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::Output)?;
        self.written += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(())
    }

    /// Writes zeros up to the next multiple of `unit`.
    fn pad(&mut self, unit: u64) -> Result<(), Failure> {
        let pad = self.written.next_multiple_of(unit) - self.written;
        zeros(pad, &mut |z| self.write(z))
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.write(&[0; 2 * BLOCK])?;
        self.pad(RECORD)?;
        self.out.flush().map_err(Failure::Output)?;
        self.progress.finish();
        Ok(())
    }

    fn member(&mut self, found: &Found) -> Result<(), Failure> {
        let attr = found.inode.attr();
        let mut path = found.path.clone();
        if attr.is_dir() {
            path.push(b'/');
        }
        let key = (found.inode.filesystem().guid, found.inode.number());
        let first = self.links.get(&key).cloned();
        if attr.links > 1 && !attr.is_dir() && first.is_none() {
            self.links.insert(key, path.clone());
        }
        if self.done.contains(&path) {
            self.progress.add(if attr.kind == FileKind::Regular { attr.size } else { 0 });
            return Ok(());
        }
        if self.verbose {
            self.progress.println(&super::text::shown(&path));
        }
        let kind = match attr.kind {
            _ if first.is_some() => kind::LINK,
            FileKind::Regular => return self.regular(found, &path),
            FileKind::Directory => kind::DIRECTORY,
            FileKind::Symlink => kind::SYMLINK,
            FileKind::CharDevice => kind::CHAR,
            FileKind::BlockDevice => kind::BLOCK,
            FileKind::Fifo => kind::FIFO,
            FileKind::Socket => {
                self.report.failed(&path, "a socket cannot be archived", Some(&self.progress));
                return Ok(());
            }
        };
        let link = match (&first, attr.kind) {
            (Some(first), _) => first.clone(),
            (None, FileKind::Symlink) => match found.inode.readlink() {
                Ok(target) => target,
                Err(e) => {
                    self.report.unreadable(&path, &e, Some(&self.progress));
                    return Ok(());
                }
            },
            _ => Vec::new(),
        };
        let records = if first.is_some() { Vec::new() } else { self.attributes(found) };
        let header = header(found, &path, kind, 0, &link, records);
        self.write(&header)
    }

    fn attributes(&mut self, found: &Found) -> Vec<(Vec<u8>, Vec<u8>)> {
        let xattrs = found.inode.xattrs().unwrap_or_else(|e| {
            self.report.unreadable(&found.path, &e, Some(&self.progress));
            Vec::new()
        });
        let acl = found.inode.acl().unwrap_or_else(|e| {
            self.report.unreadable(&found.path, &e, Some(&self.progress));
            None
        });
        let mut records = attribute_records(&xattrs, acl.as_ref());
        records.extend(flag_records(found.inode.attr()));
        records
    }

    fn regular(&mut self, found: &Found, path: &[u8]) -> Result<(), Failure> {
        let mut bytes = Bytes::of(&found.inode);
        let size = bytes.size();
        let (extents, mut bad) = match extents(&bytes, &self.interrupt)? {
            Some(found) => found,
            None => (std::iter::once(0..size).collect(), Vec::new()),
        };
        let mut records = self.attributes(found);
        let whole = extents.iter().eq([&(0..size)]) || size == 0;
        if whole {
            let header = header(found, path, kind::REGULAR, size, b"", records);
            self.write(&header)?;
        } else {
            let map = sparse_map(&extents, size);
            let data: u64 = extents.iter().map(|e| e.end - e.start).sum();
            let stored = data.saturating_add(u64::try_from(map.len()).unwrap_or(0));
            records.extend(sparse_records(path, size));
            let name = sparse_name(path);
            let header = header(found, &name, kind::REGULAR, stored, b"", records);
            self.write(&header)?;
            self.write(&map)?;
        }
        let interrupt = self.interrupt.clone();
        let mut holes = size;
        for extent in extents {
            holes -= extent.end - extent.start;
            let more = bytes.data(extent, &interrupt, &mut |_, piece| {
                self.write(piece)?;
                self.progress.add(u64::try_from(piece.len()).unwrap_or(0));
                Ok(())
            })?;
            bad.extend(more);
        }
        self.progress.add(holes);
        self.report.damaged(path, &bad, Some(&self.progress));
        self.pad(BLOCK as u64)
    }
}

fn header(
    found: &Found,
    path: &[u8],
    kind: u8,
    size: u64,
    link: &[u8],
    records: Vec<(Vec<u8>, Vec<u8>)>,
) -> Vec<u8> {
    let attr = found.inode.attr();
    let member = Member {
        path,
        kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        size,
        mtime: attr.mtime,
        atime: attr.atime,
        ctime: attr.ctime,
        link,
        rdev: attr.rdev,
        records,
    };
    member.headers()
}

/// The name of a sparse member in its ustar header, as GNU tar writes it, for readers that do not know the records.
fn sparse_name(path: &[u8]) -> Vec<u8> {
    let at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    let (dir, base) = path.split_at_checked(at).unwrap_or((b"", path));
    [dir, b"GNUSparseFile.0/", base].concat()
}

type Extents = (Vec<Range<u64>>, Vec<Unreadable>);

/// The stored extents of a file and its unreadable ranges; `None` when there are too many.
fn extents(bytes: &Bytes, interrupt: &Interrupt) -> Result<Option<Extents>, Failure> {
    let (mut extents, mut bad): Extents = Default::default();
    let mut at = 0;
    while let Some(span) = bytes.span(at, u64::MAX)? {
        if interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        at = span.range().end;
        match span {
            Span::Data(range) => extents.push(range),
            Span::Hole(_) => {}
            Span::Unreadable(u) => bad.push(u),
        }
        if extents.len() > MAX_EXTENTS {
            return Ok(None);
        }
    }
    Ok(Some((extents, bad)))
}
