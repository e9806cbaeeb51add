//! `zfs rewrite`: blocks of files are written again where they take on today's properties.
//!
//! Works on files of a mount, as the user who calls it may: it asks no daemon. A file is rewritten piece by piece, so that
//! the command can be interrupted and shows how far it is; each piece is whole whatever happens.
//!
//! Beyond OpenZFS: another record size, a choice of blocks, a limit of the rate, and `-n`. These need a mount of this program
//! ([`request`]). A first pass over all files counts the bytes to be written and those that snapshots keep.
//! Conforming blocks are skipped, so a run that was interrupted goes on where it stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::progress::Progress;
use clikit::verb::{Exit, Failure, Outcome, Verb, strerror};
use sharing::request::{self, Choice, Refused, Tally, code_of};
use stdx::os::rewrite;
use zcommon::units::{nicenum, parse_nicenum};

/// Bytes of a piece: an interrupt waits for its end. A limited run works on as many as it may write in a fraction of a second, so
/// that its speed is even.
const PIECE: u64 = 16 << 20;
const LEAST_PIECE: u64 = 1 << 20;
/// `ZFS_REWRITE_PHYSICAL`.
const PHYSICAL: u64 = 1;

/// Write blocks of files again, with the current properties.
#[derive(Debug, Args)]
pub struct Rewrite {
    /// Keep the logical birth of blocks, so that incremental streams omit them.
    #[arg(short = 'P')]
    pub physical: bool,
    /// Process directories recursively; without this option they are skipped.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Print the names of rewritten files.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Do not cross into other file systems.
    #[arg(short = 'x')]
    pub one_fs: bool,
    /// Rewrite at most this many bytes of each file.
    #[arg(short = 'l', value_name = "LENGTH")]
    pub length: Option<String>,
    /// Start at this byte.
    #[arg(short = 'o', value_name = "OFFSET")]
    pub offset: Option<String>,
    /// Change the block size of files; without a size, to the property recordsize.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub recordsize: Option<String>,
    /// Rewrite only blocks whose move makes top-level vdevs equally full.
    #[arg(long, conflicts_with = "recordsize")]
    pub balance: bool,
    /// Rewrite only blocks that take fewer sectors since their raidz was expanded.
    #[arg(long, conflicts_with_all = ["recordsize", "balance"])]
    pub compact: bool,
    /// Rewrite only blocks outside of dedup tables, so that they enter one.
    #[arg(long, conflicts_with_all = ["recordsize", "balance", "compact"])]
    pub dedup: bool,
    /// Rewrite only blocks of dedup tables, so that they leave them.
    #[arg(long, conflicts_with_all = ["recordsize", "balance", "compact", "dedup"])]
    pub undedup: bool,
    /// Write at most this many bytes per second.
    #[arg(long, value_name = "RATE")]
    pub limit: Option<String>,
    /// Only print the amount to write and the part that snapshots keep.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Files and directories.
    #[arg(value_name = "DIRECTORY|FILE", required = true)]
    pub paths: Vec<PathBuf>,
}

/// The operation on each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// OpenZFS's request.
    Plain,
    /// Chosen blocks.
    Some(Choice),
    /// Blocks of this size; 0: of the property's.
    Record(u64),
}

/// A run over files.
struct Run<'a> {
    of: &'a Rewrite,
    form: Form,
    offset: u64,
    /// 0: to the end.
    length: u64,
    device: Option<u64>,
    /// The number of the last error; 0: none.
    failed: u8,
    /// This pass only counts.
    dry: bool,
    /// It counts for OpenZFS's form, too, as far as the mount answers.
    counts_plain: bool,
    tally: Tally,
    /// Blocks of a file may get smaller.
    shrinks: bool,
    files: u64,
    bytes: u64,
    progress: Progress,
    /// Bytes a second, and since when how many were written.
    rate: Option<(u64, Instant, u64)>,
}

/// A number in C's forms (`0x…`, and `0…` for octal numbers), as in OpenZFS.
#[doc(alias = "strtoll")]
fn of_c(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    text.strip_prefix('0').and_then(|octal| u64::from_str_radix(octal, 8).ok())
}

/// An offset or a length: in C's forms, or with a suffix.
fn place(text: Option<&String>, what: &str) -> Result<u64, Failure> {
    text.and_then(|text| of_c(text)).map_or_else(|| number(text, what), Ok)
}

fn number(text: Option<&String>, what: &str) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(0) };
    parse_nicenum(text).map_err(|_| Failure::usage(format!("invalid {what} '{text}'")))
}

impl Rewrite {
    fn form(&self) -> Result<Form, Failure> {
        if let Some(text) = &self.recordsize {
            let record = number(Some(text), "record size")?;
            if record != 0 && (!record.is_power_of_two() || !(512..=16 << 20).contains(&record)) {
                return Err(Failure::usage(format!(
                    "invalid record size '{text}': a power of two from 512 to 16M"
                )));
            }
            if self.physical || self.length.is_some() || self.offset.is_some() {
                return Err(Failure::usage(
                    "--recordsize changes whole files, whose blocks are new: not with -P, -l, -o",
                ));
            }
            return Ok(Form::Record(record));
        }
        let chosen = [
            (self.balance, Choice::Balance),
            (self.compact, Choice::Compact),
            (self.dedup, Choice::Dedup),
            (self.undedup, Choice::Undedup),
        ];
        let chosen = chosen.into_iter().find(|(wanted, _)| *wanted).map(|(_, choice)| choice);
        Ok(match chosen {
            Some(choice) => Form::Some(choice),
            None if self.dry => Form::Some(Choice::All),
            None => Form::Plain,
        })
    }
}

impl Verb for Rewrite {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let length = place(self.length.as_ref(), "length")?;
        let offset = place(self.offset.as_ref(), "offset")?;
        let limit = number(self.limit.as_ref(), "rate")?;
        if self.limit.is_some() && limit == 0 {
            return Err(Failure::usage("a rate of nothing"));
        }
        let form = self.form()?;
        let mut run = Run {
            of: &self,
            form,
            offset,
            length,
            device: None,
            failed: 0,
            dry: true,
            counts_plain: false,
            tally: Tally::default(),
            shrinks: false,
            files: 0,
            bytes: 0,
            progress: Progress::bytes("rewrite", 0, true),
            rate: None,
        };
        run.counts_plain = ctx.err_is_terminal;
        run.pass(ctx)?;
        // OpenZFS's form says nothing of its own in scripts.
        let is_told = form != Form::Plain || run.counts_plain && run.tally.kept > 0;
        let first = is_told.then(|| run.said());
        if self.dry {
            if let Some(said) = first {
                writeln!(ctx.out, "{said}")?;
            }
            return Ok(Exit(run.failed));
        }
        if let Some(said) = first.filter(|_| run.tally.written > 0) {
            ctx.warn(said);
        }
        let quiet = form == Form::Plain && !ctx.err_is_terminal;
        run.progress = Progress::bytes("rewrite", run.bytes, quiet);
        run.rate = (limit > 0).then(|| (limit, Instant::now(), 0));
        // A failure of the first pass repeats, and is reported then.
        (run.dry, run.failed) = (false, 0);
        let done = run.pass(ctx);
        run.progress.finish();
        done?;
        Ok(Exit(run.failed))
    }
}

impl Run<'_> {
    fn warn(&mut self, what: &str, path: &Path, why: &io::Error, ctx: &mut Ctx) {
        self.refuse(what, path, (code_of(why), &strerror(why)), ctx);
    }

    fn refuse(&mut self, what: &str, path: &Path, (code, why): (u8, &str), ctx: &mut Ctx) {
        self.failed = code;
        if !self.dry || self.of.dry {
            ctx.warn(format!("failed to {what} {}: {why}", path.display()));
        }
    }

    /// The findings of the first pass.
    fn said(&self) -> String {
        let Tally { written, kept, shared, .. } = self.tally;
        let up_to = if self.form == Form::Some(Choice::Balance) { "up to " } else { "" };
        let files = if self.files == 1 { "1 file".to_owned() } else { format!("{} files", self.files) };
        let mut said = format!("{up_to}{} of {files} to write", nicenum(written));
        if kept > 0 {
            said += &format!("; snapshots keep the old blocks of {}", nicenum(kept));
        }
        if kept > 0 && self.shrinks {
            said += "; where blocks get smaller, OpenZFS receives no later incremental streams of the dataset, but for raw ones";
        }
        if shared > 0 {
            said += &format!("; left as snapshots, clones or dedup share it: {}", nicenum(shared));
        }
        said
    }

    /// Visits all files.
    fn pass(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        for path in &self.of.paths {
            match fs::symlink_metadata(path) {
                Ok(meta) if meta.is_dir() && !self.of.recurse => {}
                Ok(meta) if meta.is_dir() => {
                    self.device = self.of.one_fs.then(|| meta.dev());
                    self.dir(path, ctx)?;
                }
                Ok(meta) => self.file(path, &meta, ctx)?,
                Err(e) => self.warn("stat", path, &e, ctx),
            }
        }
        Ok(())
    }

    fn dir(&mut self, top: &Path, ctx: &mut Ctx) -> Result<(), Failure> {
        let mut dirs = std::collections::VecDeque::from([top.to_owned()]);
        while let Some(dir) = dirs.pop_front() {
            let listed = fs::read_dir(&dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut listed = match listed {
                Ok(listed) => listed,
                Err(e) => {
                    self.warn("opendir", &dir, &e, ctx);
                    continue;
                }
            };
            listed.sort_by_key(fs::DirEntry::file_name);
            for entry in listed {
                let path = entry.path();
                match fs::symlink_metadata(&path) {
                    Ok(meta) if self.device.is_some_and(|device| device != meta.dev()) => {}
                    Ok(meta) if meta.is_dir() => dirs.push_back(path),
                    Ok(meta) => self.file(&path, &meta, ctx)?,
                    // It was removed meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => self.warn("stat", &path, &e, ctx),
                }
            }
        }
        Ok(())
    }

    /// Rewrites a regular file; others have no blocks.
    fn file(&mut self, path: &Path, meta: &fs::Metadata, ctx: &mut Ctx) -> Result<(), Failure> {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        if !meta.is_file() {
            return Ok(());
        }
        if self.dry && self.form == Form::Plain {
            self.count_plain(path, meta.len());
            return Ok(());
        }
        // The size that the property means is not known here.
        self.shrinks |= matches!(self.form, Form::Record(record) if meta.blksize() > record);
        let how = if self.dry {
            OpenOptions::new().read(true).open(path)
        } else {
            OpenOptions::new().write(true).open(path)
        };
        let file = match how {
            Ok(file) => file,
            Err(e) => {
                self.warn("open", path, &e, ctx);
                return Ok(());
            }
        };
        let done = match self.dry {
            true => self.count(&file, meta.len()),
            false => self.one(path, &file, meta.len(), ctx),
        };
        match done {
            Ok(done) if done && self.of.verbose && (self.of.dry || !self.dry) => {
                ctx.out.write_all(&[path.as_os_str().as_bytes(), b"\n"].concat())?;
            }
            Ok(_) => {}
            Err(Refused::Interrupted) => return Err(Failure::Interrupted),
            Err(Refused::Told(code, why)) => self.refuse("rewrite", path, (code, &why), ctx),
            Err(Refused::Failed(e)) => self.warn("rewrite", path, &e, ctx),
        }
        Ok(())
    }

    /// The range of a file of `size` bytes.
    fn range(&self, size: u64) -> (u64, u64) {
        let end = if self.length == 0 { size } else { size.min(self.offset.saturating_add(self.length)) };
        (self.offset.min(end), end)
    }

    /// Counts a file for OpenZFS's form. The rewrite reports a file that cannot be counted, or another file system does not
    /// know it.
    fn count_plain(&mut self, path: &Path, size: u64) {
        let (start, end) = self.range(size);
        self.bytes += end - start;
        if !self.counts_plain || start >= end {
            return;
        }
        let range = (start, end - start);
        let opened = OpenOptions::new().read(true).open(path).map_err(Refused::from);
        let tally = opened.and_then(|file| request::some(&file, range, Choice::All, self.of.physical, true));
        if let Ok(tally) = tally {
            self.tally.add(&tally);
            self.files += u64::from(tally.written > 0);
        }
    }

    /// Counts the bytes of a file that a rewrite writes; returns false if there are none.
    fn count(&mut self, file: &File, size: u64) -> Result<bool, Refused> {
        let (start, end) = self.range(size);
        let tally = match self.form {
            Form::Record(record) => request::plan_record(file, record)?.unwrap_or_default(),
            _ if start >= end => Tally::default(),
            Form::Some(choice) => request::some(file, (start, end - start), choice, self.of.physical, true)?,
            Form::Plain => Tally::default(),
        };
        self.tally.add(&tally);
        self.bytes += end - start;
        self.files += u64::from(tally.written > 0);
        Ok(tally.written > 0)
    }

    /// Rewrites a file; false: nothing was to be done.
    fn one(&mut self, path: &Path, file: &File, size: u64, ctx: &Ctx) -> Result<bool, Refused> {
        let range = self.range(size);
        match self.form {
            Form::Record(record) => {
                let piece = self.piece(record);
                let mut pace = |worked, written| self.keep_pace(worked, written, ctx);
                Ok(request::record((file, path, size), record, piece, &mut pace)? > 0)
            }
            form => self.pieces(file, range, form, ctx),
        }
    }

    /// Bytes that one request works on: whole blocks of `block` bytes (0: unknown), which are written once.
    fn piece(&self, block: u64) -> u64 {
        let Some((limit, ..)) = self.rate.filter(|_| block > 0) else { return PIECE };
        let even = 1 << (limit / 4).clamp(LEAST_PIECE, PIECE).ilog2();
        block.max(even)
    }

    /// Bytes of the block at a place of a file; 0: unknown.
    fn block_at(&self, file: &File, at: u64) -> u64 {
        let asked = self.rate.map(|_| request::some(file, (at, 1), Choice::All, false, true));
        let tally = asked.and_then(Result::ok).unwrap_or_default();
        tally.written + tally.passed
    }

    fn pieces(
        &mut self,
        file: &File,
        (start, end): (u64, u64),
        form: Form,
        ctx: &Ctx,
    ) -> Result<bool, Refused> {
        let flags = if self.of.physical { PHYSICAL } else { 0 };
        let piece = self.piece(self.block_at(file, start));
        let (mut at, mut any) = (start, form == Form::Plain);
        while at < end {
            let len = (end - at).min(piece);
            let written = match form {
                Form::Some(choice) => {
                    request::some(file, (at, len), choice, self.of.physical, false)?.written
                }
                _ => {
                    rewrite(file, at, len, flags)?;
                    len
                }
            };
            any |= written > 0;
            at += len;
            if !self.keep_pace(len, written, ctx) {
                return Err(Refused::Interrupted);
            }
        }
        Ok(any)
    }

    /// Shows how far it is, and waits where more was written than the limit allows; false: the user interrupted.
    fn keep_pace(&mut self, worked: u64, written: u64, ctx: &Ctx) -> bool {
        self.progress.add(worked);
        let Some((limit, since, sum)) = &mut self.rate else { return !ctx.interrupt.is_set() };
        *sum += written;
        let due = *since + Duration::from_secs_f64(*sum as f64 / *limit as f64);
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if ctx.interrupt.is_set() {
                return false;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        !ctx.interrupt.is_set()
    }
}

#[cfg(test)]
mod tests {
    use clikit::testing;
    use clikit::verb::Exit;

    use crate::Zfs;

    #[test]
    fn files_of_other_file_systems_are_refused_one_by_one() {
        assert_eq!(testing::run::<Zfs>(&["zfs", "rewrite"]).exit, Exit::USAGE);
        assert_eq!(testing::run::<Zfs>(&["zfs", "rewrite", "-l", "x", "/"]).exit, Exit::USAGE);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/one"), b"bytes").unwrap();
        let path = dir.path().to_str().unwrap();
        // The exit code is that of the last error, ENOENT.
        let run = testing::run::<Zfs>(&["zfs", "rewrite", "-r", "-v", path, "/nowhere"]);
        assert_eq!((run.exit, run.out.as_str()), (Exit(2), ""));
        assert!(
            run.err.contains("failed to rewrite ") && run.err.contains("failed to stat /nowhere: "),
            "{}",
            run.err
        );
        // A directory needs -r.
        let run = testing::run::<Zfs>(&["zfs", "rewrite", "-v", path]);
        assert_eq!((run.exit, run.out.as_str(), run.err.as_str()), (Exit::OK, "", ""));
    }

    #[test]
    fn offsets_have_the_forms_of_c_and_suffixes() {
        let forms = [
            ("0x20000", 0x20000),
            ("0X1f", 31),
            ("010", 8),
            ("0", 0),
            ("10", 10),
            ("1M", 1 << 20),
            ("0.5K", 512),
        ];
        for (text, value) in forms {
            assert_eq!(super::place(Some(&text.to_owned()), "offset").unwrap(), value, "{text}");
        }
        for text in ["0xg", "x", "-1", ""] {
            assert!(super::place(Some(&text.to_owned()), "offset").is_err(), "{text}");
        }
    }
}
