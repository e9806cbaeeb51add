//! One file: its blocks are shared, or its bytes copied.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use clikit::interrupt::Interrupt;
use clikit::verb::strerror;
use rustix::fs::{OFlags, XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

use crate::request::{Refused, clone_offered, offer};

/// Bytes that one request clones: an interrupt waits for its end.
const PIECE: u64 = 64 << 20;
/// Bytes that are copied at a time, and those of them that are left out as a hole if they are zeros.
const BUFFER: usize = 1 << 20;
const HOLE: usize = 4096;
/// Longest value and list of extended attributes in Linux.
const MAX_XATTR: usize = 64 << 10;
/// `ENOENT`, `EBUSY`, `EEXIST`, `EXDEV`, `EINVAL` and `EOPNOTSUPP`: blocks cannot be shared, but copied; and `ENOTTY` and
/// `ENOSYS`, of other file systems.
const COPIED: [u8; 8] = [2, 16, 17, 18, 22, 95, 25, 38];

/// Why a file was not copied.
#[derive(Debug)]
pub enum Stopped {
    /// Failures with their reasons.
    Failed(&'static str, io::Error),
    /// The mount says why.
    Told(String),
    /// Its blocks cannot be shared, for this reason, and its bytes are not to be copied.
    Only(String),
    /// The user interrupted.
    Interrupted,
}

/// Treatment of files.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// A file in the target's place is overwritten.
    pub force: bool,
    /// Bytes are not copied.
    pub only: bool,
    /// Owner, mode, times and extended attributes are kept.
    pub preserve: bool,
}

/// The result for a file's bytes.
#[derive(Debug, Default)]
pub struct Done {
    /// Bytes in shared blocks, and in holes between them.
    pub cloned: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Why some were copied.
    pub why: Option<String>,
}

/// Called with bytes that are done.
pub type Count<'a> = &'a mut dyn FnMut(u64);

fn failed(what: &'static str) -> impl Fn(io::Error) -> Stopped {
    move |e| Stopped::Failed(what, e)
}

/// The reason why blocks cannot be shared, if the bytes can be copied instead.
fn instead(refused: Refused) -> Result<String, Stopped> {
    match refused {
        Refused::Told(code, why) if COPIED.contains(&code) => Ok(why),
        Refused::Told(_, why) => Err(Stopped::Told(why)),
        Refused::Failed(e) => Err(Stopped::Failed("clone", e)),
        Refused::Interrupted => Err(Stopped::Interrupted),
    }
}

/// Copies a regular file.
///
/// # Errors
/// The reason; a target that was made is removed.
pub fn file(
    (from, to): (&Path, &Path),
    how: How,
    interrupt: &Interrupt,
    count: Count<'_>,
) -> Result<Done, Stopped> {
    let mut read = OpenOptions::new();
    let source = read.read(true).custom_flags(no_link()).open(from).map_err(failed("open"))?;
    let meta = source.metadata().map_err(failed("stat"))?;
    let (target, is_new) = create(to, &meta, how)?;
    let done = fill((&source, &target), meta.len(), how, interrupt, count);
    let done = done.and_then(|done| {
        if how.preserve {
            preserve(&source, &target, &meta).map_err(failed("keep the attributes of"))?;
        }
        Ok(done)
    });
    if done.is_err() && is_new {
        // The first failure is the one to tell.
        let _ = fs::remove_file(to);
    }
    done
}

fn no_link() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}

/// Opens the target; true: it was made.
fn create(to: &Path, source: &fs::Metadata, how: How) -> Result<(File, bool), Stopped> {
    let mode = source.mode() & 0o777;
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(mode).custom_flags(no_link());
    match new.open(to) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && how.force => {}
        made => return made.map(|file| (file, true)).map_err(failed("create")),
    }
    let mut old = OpenOptions::new();
    let file = old.write(true).custom_flags(no_link()).open(to).map_err(failed("open"))?;
    let meta = file.metadata().map_err(failed("stat"))?;
    if (meta.dev(), meta.ino()) == (source.dev(), source.ino()) {
        return Err(Stopped::Told("source and target are one file".to_owned()));
    }
    // Its blocks may have another size, which an empty file takes from the source.
    file.set_len(0).map_err(failed("truncate"))?;
    Ok((file, false))
}

fn fill(
    (source, target): (&File, &File),
    size: u64,
    how: How,
    interrupt: &Interrupt,
    count: Count<'_>,
) -> Result<Done, Stopped> {
    let mut done = Done::default();
    if size > 0 {
        done.why = share((source, target), size, &mut done.cloned, (interrupt, count))?;
    }
    let Some(why) = &done.why else { return Ok(done) };
    if how.only {
        return Err(Stopped::Only(why.clone()));
    }
    done.copied = copy((source, target), done.cloned, (interrupt, count))?;
    Ok(done)
}

/// Shares as many of the first `size` bytes as can be; `done` counts them. Returns why not all.
fn share(
    (source, target): (&File, &File),
    size: u64,
    done: &mut u64,
    (interrupt, count): (&Interrupt, Count<'_>),
) -> Result<Option<String>, Stopped> {
    let token = match offer(source) {
        Ok(token) => token,
        Err(refused) => return instead(refused).map(Some),
    };
    while *done < size {
        let len = (size - *done).min(PIECE);
        match clone_offered(target, token, (*done, len)) {
            // The source has become shorter.
            Ok(0) => return Ok(None),
            Ok(bytes) => {
                *done += bytes;
                count(bytes);
            }
            Err(refused) => return instead(refused).map(Some),
        }
        if interrupt.is_set() {
            return Err(Stopped::Interrupted);
        }
    }
    Ok(None)
}

/// Copies the bytes from `at` on; zeros become holes. Returns how many.
fn copy(
    (source, target): (&File, &File),
    start: u64,
    (interrupt, count): (&Interrupt, Count<'_>),
) -> Result<u64, Stopped> {
    let (mut at, mut buffer) = (start, vec![0; BUFFER]);
    loop {
        let bytes = match source.read_at(&mut buffer, at) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed("read"))?,
        };
        let mut place = at;
        let is_zero = |part: &&[u8]| part.iter().all(|byte| *byte == 0);
        let parts: Vec<&[u8]> = buffer.get(..bytes).unwrap_or_default().chunks(HOLE).collect();
        for run in parts.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let len = run.iter().map(|part| part.len()).sum::<usize>();
            let offset = usize::try_from(place - at).unwrap_or(usize::MAX);
            let data = buffer.get(offset..offset.saturating_add(len)).unwrap_or_default();
            if !run.first().is_some_and(is_zero) {
                target.write_all_at(data, place).map_err(failed("write"))?;
            }
            place += u64::try_from(len).unwrap_or(0);
        }
        at = place;
        count(u64::try_from(bytes).unwrap_or(0));
        if interrupt.is_set() {
            return Err(Stopped::Interrupted);
        }
    }
    // A hole at the end was not written.
    target.set_len(at).map_err(failed("write"))?;
    Ok(at - start)
}

/// Gives a file or directory the owner, extended attributes, mode and times of another.
///
/// # Errors
/// Of the first that cannot be set. Only the superuser changes owners: others keep theirs, and lose set-id bits.
pub fn preserve(source: &File, target: &File, meta: &fs::Metadata) -> io::Result<()> {
    let mut mode = meta.mode() & 0o7777;
    if fchown(target, Some(meta.uid()), Some(meta.gid())).is_err() {
        mode &= 0o1777;
    }
    let mut names = vec![0; MAX_XATTR];
    let len = flistxattr(source, names.as_mut_slice()).or_else(unsupported)?;
    let names = names.get(..len).unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; MAX_XATTR];
        let len = fgetxattr(source, name, value.as_mut_slice())?;
        match fsetxattr(target, name, value.get(..len).unwrap_or_default(), XattrFlags::empty()) {
            // Security modules label files by rules of their own.
            Err(Errno::PERM | Errno::OPNOTSUPP) if name.starts_with(b"security.") => {}
            set => set?,
        }
    }
    target.set_permissions(Permissions::from_mode(mode))?;
    let times = fs::FileTimes::new().set_accessed(meta.accessed()?).set_modified(meta.modified()?);
    target.set_times(times)
}

/// A file system without extended attributes has an empty list.
fn unsupported(e: Errno) -> rustix::io::Result<usize> {
    if e == Errno::OPNOTSUPP { Ok(0) } else { Err(e) }
}

impl Stopped {
    /// The message about a file.
    pub fn message(&self, from: &Path, to: &Path) -> String {
        match self {
            Self::Failed("create", e) => format!("cannot create '{}': {}", to.display(), strerror(e)),
            Self::Failed(what, e) => format!("cannot {what} '{}': {}", from.display(), strerror(e)),
            Self::Told(why) | Self::Only(why) => format!("cannot clone '{}': {why}", from.display()),
            Self::Interrupted => String::new(),
        }
    }
}
