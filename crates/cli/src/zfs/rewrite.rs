//! `zfs rewrite`: blocks of files are written again where they take on today's properties.
//!
//! Works on files of a mount, as the user who calls it may: it asks no daemon. A file is rewritten piece by piece, so that
//! the command can be interrupted and shows how far it is; each piece is whole whatever happens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use stdx::os::rewrite;

use crate::ctx::Ctx;
use crate::progress::Progress;
use crate::verb::{Exit, Failure, Outcome, Verb, strerror};

/// Bytes of a piece: an interrupt waits for its end.
const PIECE: u64 = 16 << 20;
/// `ZFS_REWRITE_PHYSICAL`.
const PHYSICAL: u64 = 1;

/// Write blocks of files again, with today's properties.
#[derive(Debug, Args)]
pub struct Rewrite {
    /// Blocks keep their birth: incremental streams leave them out.
    #[arg(short = 'P')]
    pub physical: bool,
    /// Directories in directories, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Print the names of rewritten files.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Stay in the file system of the directory.
    #[arg(short = 'x')]
    pub one_fs: bool,
    /// At most so many bytes of each file.
    #[arg(short = 'l', value_name = "LENGTH")]
    pub length: Option<String>,
    /// From this byte on.
    #[arg(short = 'o', value_name = "OFFSET")]
    pub offset: Option<String>,
    /// Files and directories.
    #[arg(value_name = "DIRECTORY|FILE", required = true)]
    pub paths: Vec<PathBuf>,
}

/// A run over files.
struct Run<'a> {
    of: &'a Rewrite,
    offset: u64,
    /// 0: to the end.
    length: u64,
    device: Option<u64>,
    failed: bool,
}

fn number(text: Option<&String>, what: &str) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(0) };
    zcommon::units::parse_nicenum(text).map_err(|_| Failure::usage(format!("invalid {what} '{text}'")))
}

impl Verb for Rewrite {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let length = number(self.length.as_ref(), "length")?;
        let offset = number(self.offset.as_ref(), "offset")?;
        let mut run = Run { of: &self, offset, length, device: None, failed: false };
        for path in &self.paths {
            match fs::symlink_metadata(path) {
                Ok(meta) if meta.is_dir() => {
                    run.device = self.one_fs.then(|| meta.dev());
                    run.dir(path, ctx)?;
                }
                Ok(meta) => run.file(path, &meta, ctx)?,
                Err(e) => run.warn("stat", path, &e, ctx),
            }
        }
        Ok(if run.failed { Exit::FAILED } else { Exit::OK })
    }
}

impl Run<'_> {
    fn warn(&mut self, what: &str, path: &Path, e: &io::Error, ctx: &mut Ctx) {
        self.failed = true;
        ctx.warn(format!("failed to {what} {}: {}", path.display(), strerror(e)));
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
                    Ok(meta) if meta.is_dir() && self.of.recurse => dirs.push_back(path),
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
        let file = match OpenOptions::new().write(true).open(path) {
            Ok(file) => file,
            Err(e) => {
                self.warn("open", path, &e, ctx);
                return Ok(());
            }
        };
        match self.pieces(path, &file, meta.len(), ctx)? {
            Ok(()) if self.of.verbose => writeln!(ctx.out, "{}", path.display())?,
            Ok(()) => {}
            Err(e) => self.warn("rewrite", path, &e, ctx),
        }
        Ok(())
    }

    fn pieces(&self, path: &Path, file: &File, size: u64, ctx: &Ctx) -> Result<io::Result<()>, Failure> {
        let end = if self.length == 0 { size } else { size.min(self.offset.saturating_add(self.length)) };
        let flags = if self.of.physical { PHYSICAL } else { 0 };
        let total = end.saturating_sub(self.offset);
        let mut progress = Progress::bytes(&path.display().to_string(), total, !ctx.err_is_terminal);
        let mut at = self.offset;
        while at < end {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let len = (end - at).min(PIECE);
            if let Err(e) = rewrite(file, at, len, flags) {
                return Ok(Err(e));
            }
            progress.add(len);
            at += len;
        }
        progress.finish();
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use crate::ctx::testing::captured;
    use crate::verb::Exit;

    #[test]
    fn files_of_other_file_systems_are_refused_one_by_one() {
        assert_eq!(captured(&["zfs", "rewrite"]).exit, Exit::USAGE);
        assert_eq!(captured(&["zfs", "rewrite", "-l", "x", "/"]).exit, Exit::USAGE);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one"), b"bytes").unwrap();
        let run = captured(&["zfs", "rewrite", "-v", dir.path().to_str().unwrap(), "/nowhere"]);
        assert_eq!((run.exit, run.out.as_str()), (Exit::FAILED, ""));
        assert!(
            run.err.contains("failed to rewrite ") && run.err.contains("failed to stat /nowhere: "),
            "{}",
            run.err
        );
    }
}
