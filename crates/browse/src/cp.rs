//! `aquifer cp`: copies files, trees and volumes out of a pool.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::progress::Progress;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome, Verb};
use zpl::{Attr, FileKind, Inode};

use super::access::{Access, Named};
use super::bytes::{Bytes, Piece, zeros};
use super::dest::{self, Dir, Rights};
use super::report::{Report, cannot_write};
use super::target::Target;
use super::walk::{Found, Order, Step, Walk, total_bytes};

/// Unit of the search for zeros.
const ZERO_UNIT: usize = 4096;
/// A resumed file continues at a multiple of this.
const RESUME_UNIT: u64 = 1 << 20;
/// Maximum number of remembered immutable and append-only files.
const MAX_SEALS: usize = 1 << 20;

/// How holes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sparse {
    /// Holes in the pool become holes in the copy.
    Auto,
    /// Stored zeros become holes, too.
    Always,
    /// Holes are written as zeros.
    Never,
}

/// Copy files, trees and volumes out of a pool.
///
/// Mode, times to the nanosecond, extended attributes, POSIX ACLs, hard links, symbolic links and holes are kept,
/// project ids and file flags (chattr) as far as the destination supports them; owners, devices and attributes
/// outside of user.* when run as root. Unreadable data is written as zeros, listed at the end, and makes the exit
/// code 1. An interrupted copy leaves one file `.aquifer-*.partial`, which `--resume` continues.
#[derive(Debug, Args)]
pub struct Cp {
    #[command(flatten)]
    source: PoolSource,
    /// Copy directories and everything below.
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Same as -r: all attributes are kept anyway.
    #[arg(short = 'a', long)]
    archive: bool,
    /// Accepted for compatibility with cp(1): attributes are always kept.
    #[arg(short = 'p')]
    preserve: bool,
    /// Resume an interrupted copy: existing files with the right size and time are skipped.
    #[arg(long)]
    resume: bool,
    /// How holes are copied.
    #[arg(long, value_enum, default_value = "auto", default_missing_value = "always", num_args = 0..=1, require_equals = true)]
    sparse: Sparse,
    /// Follow symbolic links named on the command line.
    #[arg(short = 'H')]
    follow: bool,
    /// Print each path as it is copied.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// No progress bar.
    #[arg(short = 'q', long)]
    quiet: bool,
    /// POOL/DATASET[@SNAPSHOT]:PATH or POOL/VOLUME, then the destination
    #[arg(required = true, num_args = 2.., value_name = "SOURCE DESTINATION")]
    words: Vec<OsString>,
}

impl Verb for Cp {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let Some((to, from)) = self.words.split_last().filter(|(_, from)| !from.is_empty()) else {
            return Err(Failure::usage("cp: a source and a destination are required"));
        };
        dest::raise_file_limit();
        let mut access = Access::new(&self.source);
        let mut named = Vec::new();
        for file in from {
            let target = Target::parse(file);
            named.push((target.text.clone(), access.open(&target, self.follow, ctx)?));
        }
        let to = PathBuf::from(to);
        if named.len() > 1 && !to.is_dir() {
            return Err(Failure::usage(format!("cp: '{}' is not a directory", to.display())));
        }
        let total = named.iter().map(|(_, n)| bytes_of(n, &self)).fold(0, u64::saturating_add);
        let mut copy = Copy {
            cp: &self,
            rights: Rights::of_process(),
            links: HashMap::new(),
            report: Report::default(),
            progress: Progress::bytes("cp", total, self.quiet),
            interrupt: ctx.interrupt.clone(),
            xattrs_lost: 0,
            flags_lost: 0,
            seals: Vec::new(),
            unkept: 0,
        };
        for (top, (text, source)) in named.iter().enumerate() {
            match source {
                Named::Volume(volume) => copy.volume(volume, &to)?,
                Named::File(inode, path) => copy.tree(top, inode, path, text, &to)?,
            }
        }
        copy.progress.finish();
        if copy.xattrs_lost > 0 {
            ctx.warn(format!("cp: {} extended attributes could not be kept there", copy.xattrs_lost));
        }
        if copy.flags_lost > 0 {
            ctx.warn(format!("cp: {} project ids and file flags could not be kept there", copy.flags_lost));
        }
        if copy.unkept > 0 {
            ctx.warn(format!("cp: {} device nodes were skipped: only root can create them", copy.unkept));
        }
        Ok(copy.report.finish("cp", ctx))
    }
}

fn bytes_of(named: &Named, cp: &Cp) -> u64 {
    match named {
        _ if cp.quiet => 0,
        Named::Volume(volume) => volume.size,
        Named::File(inode, _) => total_bytes(inode),
    }
}

struct Copy<'a> {
    cp: &'a Cp,
    rights: Rights,
    /// First copy of each file with several names: its source, and the path below the source's top.
    links: HashMap<(u64, u64), (usize, Vec<u8>)>,
    report: Report,
    progress: Progress,
    interrupt: Interrupt,
    xattrs_lost: usize,
    flags_lost: usize,
    /// Immutable and append-only files and directories of the current source, by the path below its top.
    seals: Vec<(Vec<u8>, Attr)>,
    unkept: usize,
}

/// The destination of one source: its top directory, and the directories entered below.
struct Place {
    source: usize,
    top: Dir,
    stack: Vec<Option<Dir>>,
}

impl Place {
    fn here(&self) -> Option<&Dir> {
        self.stack.last().map_or(Some(&self.top), Option::as_ref)
    }
}

impl Copy<'_> {
    fn tree(
        &mut self,
        source: usize,
        start: &Inode,
        path: &[u8],
        text: &str,
        to: &Path,
    ) -> Result<(), Failure> {
        if start.is_dir() && !self.cp.recursive && !self.cp.archive {
            self.report.failed(text.as_bytes(), "is a directory: -r copies it", Some(&self.progress));
            return Ok(());
        }
        let (folder, name) = destination(path, to)?;
        let top = Dir::open(&folder).map_err(|e| cannot_write(folder.display(), e))?;
        let mut place = Place { source, top, stack: Vec::new() };
        let mut walk = Walk::new(start, name.as_bytes(), Order::Object);
        while let Some(step) = walk.next() {
            if self.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            match step {
                Step::Enter(found) => {
                    if !self.enter(&mut place, &found)? {
                        walk.prune();
                    }
                }
                Step::Leave(found) => self.leave(&mut place, &found),
                Step::Failed(path, e) => self.report.unreadable(&path, &e, Some(&self.progress)),
            }
        }
        for (path, attr) in std::mem::take(&mut self.seals) {
            self.flags_lost += usize::from(place.top.seal(&path, &attr).is_err());
        }
        Ok(())
    }

    /// Sets project and flags of a copied file; the immutable and append-only flags wait for the end, after all
    /// renames and links.
    fn flags(&mut self, fd: impl AsFd, found: &Found) {
        let attr = found.inode.attr();
        self.flags_lost += dest::project_and_flags(fd, attr);
        match dest::has_seals(attr) {
            true if self.seals.len() < MAX_SEALS => self.seals.push((found.path.clone(), attr.clone())),
            sealed => self.flags_lost += usize::from(sealed),
        }
    }

    /// Copies one file, or creates a directory; returns false if the directory cannot be entered.
    fn enter(&mut self, place: &mut Place, found: &Found) -> Result<bool, Failure> {
        let inode = &found.inode;
        let name = if found.depth == 0 { &found.path[..] } else { found.name() };
        if inode.is_dir() {
            let made = match place.here() {
                Some(here) => here.subdir(if name.is_empty() { b"." } else { name }),
                None => return Ok(false),
            };
            let made = self.noted(&found.path, made)?;
            let ok = made.is_some();
            place.stack.push(made);
            return Ok(ok);
        }
        let Some(here) = place.here() else { return Ok(false) };
        if self.cp.verbose {
            self.progress.println(&super::text::shown(&found.path));
        }
        let key = (inode.filesystem().guid, inode.number());
        if self.cp.resume && here.has_copy(name, inode) {
            self.progress.add(if inode.attr().kind == FileKind::Regular { inode.attr().size } else { 0 });
        } else if let Some((source, first)) = self.links.get(&key).filter(|(s, _)| *s == place.source) {
            let _ = source;
            let linked = here.link(&place.top, first, name);
            self.noted(&found.path, linked)?;
            return Ok(true);
        } else {
            let copied = match inode.attr().kind {
                FileKind::Regular => self.regular(here, name, found)?,
                _ => self.special(here, name, found)?,
            };
            if !copied {
                return Ok(true);
            }
        }
        if inode.attr().links > 1 {
            self.links.entry(key).or_insert_with(|| (place.source, found.path.clone()));
        }
        Ok(true)
    }

    /// Sets the attributes of a directory last: filling it would change its times.
    fn leave(&mut self, place: &mut Place, found: &Found) {
        let Some(Some(dir)) = place.stack.pop() else { return };
        let xattrs = self.xattrs(found);
        self.flags(&dir, found);
        let done = dest::attrs(&dir, found.inode.attr(), &xattrs, self.rights);
        match done {
            Ok(lost) => self.xattrs_lost += lost,
            Err(e) => self.report.failed(&found.path, e, Some(&self.progress)),
        }
    }

    fn regular(&mut self, here: &Dir, name: &[u8], found: &Found) -> Result<bool, Failure> {
        let partial = format!(".aquifer-{:x}.partial", found.inode.number()).into_bytes();
        let opened = here.partial(&partial, self.cp.resume);
        let Some((file, len)) = self.noted(&found.path, opened)? else { return Ok(false) };
        let start = (len.min(found.inode.attr().size) / RESUME_UNIT) * RESUME_UNIT;
        self.progress.add(start);
        self.content(Bytes::of(&found.inode), &file, start, &found.path, true)?;
        let xattrs = self.xattrs(found);
        self.flags(&file, found);
        let done = dest::attrs(&file, found.inode.attr(), &xattrs, self.rights)
            .and_then(|lost| here.finish(&partial, name).map(|()| lost));
        let lost = self.noted(&found.path, done)?;
        self.xattrs_lost += lost.unwrap_or(0);
        Ok(lost.is_some())
    }

    /// Writes everything from `start` on and sets the length.
    fn content(
        &mut self,
        mut bytes: Bytes,
        file: &File,
        start: u64,
        path: &[u8],
        regular: bool,
    ) -> Result<(), Failure> {
        let sparse = if regular { self.cp.sparse } else { Sparse::Never };
        let progress = &mut self.progress;
        let fail = |e| cannot_write(super::text::shown(path), e);
        let size = bytes.size();
        let result = bytes.all(start, &self.interrupt, &mut |piece| {
            match piece {
                Piece::Data(at, data) => {
                    write_data(file, at, data, sparse).map_err(fail)?;
                    progress.add(u64::try_from(data.len()).unwrap_or(0));
                }
                Piece::Hole(range) => {
                    if sparse == Sparse::Never {
                        write_zeros(file, range.start, range.end - range.start, &self.interrupt, path)?;
                    }
                    progress.add(range.end - range.start);
                }
            }
            Ok(())
        });
        match result {
            Ok(bad) => self.report.damaged(path, &bad, Some(&self.progress)),
            Err(Failure::Failed(why)) if why.starts_with("cannot write") => return Err(Failure::Failed(why)),
            Err(Failure::Failed(why)) => self.report.failed(path, why, Some(&self.progress)),
            Err(other) => return Err(other),
        }
        if regular {
            file.set_len(size).map_err(fail)?;
        }
        Ok(())
    }

    fn special(&mut self, here: &Dir, name: &[u8], found: &Found) -> Result<bool, Failure> {
        let made = here.special(name, &found.inode);
        let denied = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        if found.inode.attr().kind.is_device() && made.as_ref().is_err_and(denied) {
            self.unkept += 1;
            return Ok(false);
        }
        let xattrs = self.xattrs(found);
        let done = made.and_then(|()| here.special_attrs(name, found.inode.attr(), &xattrs, self.rights));
        let lost = self.noted(&found.path, done)?;
        self.xattrs_lost += lost.unwrap_or(0);
        Ok(lost.is_some())
    }

    fn xattrs(&mut self, found: &Found) -> Vec<(Vec<u8>, Vec<u8>)> {
        found.inode.xattrs().unwrap_or_else(|e| {
            self.report.unreadable(&found.path, &e, Some(&self.progress));
            Vec::new()
        })
    }

    /// Records an error at one path and continues, unless the error affects every further path.
    fn noted<T>(&mut self, path: &[u8], result: io::Result<T>) -> Result<Option<T>, Failure> {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) if matches!(e.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) => {
                Err(cannot_write(super::text::shown(path), e))
            }
            Err(e) => {
                self.report.failed(path, e, Some(&self.progress));
                Ok(None)
            }
        }
    }

    fn volume(&mut self, volume: &std::sync::Arc<zvol::Volume>, to: &Path) -> Result<(), Failure> {
        let last = volume.name.rsplit('/').next().unwrap_or(&volume.name);
        let path = if to.is_dir() { to.join(last) } else { to.to_owned() };
        let fail = |e| cannot_write(path.display(), e);
        let exists = std::fs::metadata(&path).ok();
        let device =
            exists.is_some_and(|m| m.file_type().is_block_device() || m.file_type().is_char_device());
        let mut options = File::options();
        options.write(true).create(!device).truncate(!device && !self.cp.resume);
        let file = options.open(&path).map_err(fail)?;
        let len = if self.cp.resume && !device { file.metadata().map_err(fail)?.len() } else { 0 };
        // The length is set last, so a file of full length is complete.
        let start = if len >= volume.size { volume.size } else { len / RESUME_UNIT * RESUME_UNIT };
        self.progress.add(start);
        let bytes = Bytes::Volume(std::sync::Arc::clone(volume), Default::default());
        self.content(bytes, &file, start, path.as_os_str().as_bytes(), !device)
    }
}

/// The destination directory, and the name in it: empty for the content of a dataset's root.
fn destination(path: &[u8], to: &Path) -> Result<(PathBuf, OsString), Failure> {
    let base = path.rsplit(|&b| b == b'/').find(|p| !p.is_empty() && *p != b"." && *p != b"..");
    let base = base.map(|b| OsString::from_vec(b.to_vec()));
    if to.is_dir() {
        return Ok((to.to_owned(), base.unwrap_or_default()));
    }
    let name = to.file_name().map(OsStr::to_owned);
    let name = name.ok_or_else(|| Failure::usage(format!("cp: cannot write '{}'", to.display())))?;
    let parent = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), name))
}

fn write_data(file: &File, at: u64, data: &[u8], sparse: Sparse) -> io::Result<()> {
    if sparse != Sparse::Always {
        return file.write_all_at(data, at);
    }
    let mut at = at;
    for unit in data.chunks(ZERO_UNIT) {
        if unit.iter().any(|&b| b != 0) {
            file.write_all_at(unit, at)?;
        }
        at += u64::try_from(unit.len()).unwrap_or(0);
    }
    Ok(())
}

fn write_zeros(file: &File, at: u64, len: u64, interrupt: &Interrupt, path: &[u8]) -> Result<(), Failure> {
    let mut at = at;
    zeros(len, &mut |z| {
        if interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        file.write_all_at(z, at).map_err(|e| cannot_write(super::text::shown(path), e))?;
        at += u64::try_from(z.len()).unwrap_or(0);
        Ok(())
    })
}
