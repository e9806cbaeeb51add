//! `aquifer clone`: copies of files that share their blocks, also between file systems of one pool.
//!
//! Works in the caller's process: it opens both files with the caller's rights and shows the mounts its descriptors
//! (`zfuse::rw::offers`). Linux has no request that clones between FUSE mounts, and programs such as `cp` copy compressed
//! files, which take less space than they have bytes, as if these were sparse.

mod one;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::Json;
use clikit::output::json::{JsonStyle, document, print};
use clikit::progress::Progress;
use clikit::verb::{Exit, Failure, Outcome, Verb, strerror};
use serde_json::{Value, json};
use zcommon::units::nicebytes;

use self::one::{Done, How, Stopped};

/// Copy files by sharing their blocks.
///
/// The copy has the same bytes and takes no space until either file is changed. Files may be in different file systems of one
/// pool, be compressed, and the source may be in a snapshot. Directories are copied with -r: files, directories, symbolic and
/// hard links.
///
/// Blocks cannot be shared between different pools, between differently encrypted file systems, and on other mounts than those of
/// the daemon. Then the bytes are copied, and the command says how many and why; with --only the file is refused.
///
/// The user needs permission to read the sources and to write the target, as for cp.
///
/// Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 interrupted.
#[derive(Debug, Args)]
pub struct CloneFiles {
    /// Copy directories and everything in them.
    #[arg(short = 'r', long)]
    pub recursive: bool,
    /// Keep owner, mode, times and extended attributes.
    #[arg(short = 'p', long)]
    pub preserve: bool,
    /// Overwrite files.
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Copy no bytes: refuse files whose blocks cannot be shared.
    #[arg(long)]
    pub only: bool,
    /// Print the names of the copies.
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// JSON instead of lines.
    #[command(flatten)]
    pub json: Json,
    /// Files and directories, and last the copy's name, or an existing directory for the copies.
    #[arg(value_name = "SOURCE… TARGET", required = true)]
    pub paths: Vec<PathBuf>,
}

/// A run over all sources.
struct Run<'a> {
    of: &'a CloneFiles,
    how: How,
    files: u64,
    cloned: u64,
    /// Files and bytes that were copied, by the reason.
    copied: BTreeMap<String, (u64, u64)>,
    /// Copies of files with several names, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
    is_failed: bool,
    progress: Progress,
}

impl Verb for CloneFiles {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let split = self.paths.split_last().filter(|(_, sources)| !sources.is_empty());
        let (target, sources) = split.ok_or_else(|| Failure::usage("missing target"))?;
        let is_dir = fs::metadata(target).is_ok_and(|meta| meta.is_dir());
        if !is_dir && sources.len() > 1 {
            return Err(Failure::cannot("clone into", target.display(), "it is no directory"));
        }
        let total = sources.iter().map(|source| bytes_in(source, self.recursive, ctx)).sum();
        let mut run = Run {
            of: &self,
            how: How { force: self.force, only: self.only, preserve: self.preserve },
            files: 0,
            cloned: 0,
            copied: BTreeMap::new(),
            links: HashMap::new(),
            is_failed: false,
            progress: Progress::bytes("clone", total, false),
        };
        let mut done = Ok(());
        for source in sources {
            let to = match source.file_name().filter(|_| is_dir) {
                Some(name) => target.join(name),
                None => target.clone(),
            };
            done = run.top(source, &to, ctx);
            if done.is_err() {
                break;
            }
        }
        run.progress.finish();
        run.report(ctx)?;
        done?;
        Ok(if run.is_failed { Exit::FAILED } else { Exit::OK })
    }
}

/// Bytes of the files of a source, as far as they can be listed.
fn bytes_in(top: &Path, recursive: bool, ctx: &Ctx) -> u64 {
    let (mut bytes, mut left) = (0_u64, vec![top.to_owned()]);
    while let Some(path) = left.pop().filter(|_| !ctx.interrupt.is_set()) {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_file() {
            bytes = bytes.saturating_add(meta.len());
        } else if meta.is_dir() && recursive {
            left.extend(entries(&path).unwrap_or_default());
        }
    }
    bytes
}

/// The entries of a directory, sorted. The control directory of a file system is no part of it.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all =
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    all.retain(|path| !(path.ends_with(".zfs") && path.join("snapshot").is_dir()));
    all.sort();
    Ok(all)
}

impl Run<'_> {
    fn fail(&mut self, what: &str, ctx: &mut Ctx) {
        self.is_failed = true;
        ctx.warn(what);
    }

    fn cannot(&mut self, action: &str, path: &Path, why: impl std::fmt::Display, ctx: &mut Ctx) {
        self.fail(&format!("cannot {action} '{}': {why}", path.display()), ctx);
    }

    /// A source that was named. Without `-r` a symbolic link stands for its file, as for cp.
    fn top(&mut self, from: &Path, to: &Path, ctx: &mut Ctx) -> Result<(), Failure> {
        let found = match self.of.recursive {
            true => Ok(from.to_owned()),
            false => from.canonicalize(),
        };
        let (from, meta) = match found.and_then(|from| Ok((fs::symlink_metadata(&from)?, from))) {
            Ok((meta, found)) => (found, meta),
            Err(e) => {
                self.cannot("open", from, strerror(&e), ctx);
                return Ok(());
            }
        };
        let from = from.as_path();
        if meta.is_dir() && !self.of.recursive {
            self.cannot("clone", from, "it is a directory: use -r", ctx);
            return Ok(());
        }
        let parent = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let is_inside = || Some(parent.canonicalize().ok()?.starts_with(from.canonicalize().ok()?));
        if meta.is_dir() && is_inside().unwrap_or(false) {
            self.cannot("clone", from, "the target is in it", ctx);
            return Ok(());
        }
        self.any(from, to, ctx)
    }

    /// A file of any type, with all that is in it. The directories' attributes are set last.
    fn any(&mut self, from: &Path, to: &Path, ctx: &mut Ctx) -> Result<(), Failure> {
        let mut made: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut left = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = left.pop() {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            let meta = match fs::symlink_metadata(&from) {
                Ok(meta) => meta,
                Err(e) => {
                    self.cannot("open", &from, strerror(&e), ctx);
                    continue;
                }
            };
            if !meta.is_dir() {
                self.leaf(&from, &to, &meta, ctx)?;
                continue;
            }
            match self.dir(&from, &to) {
                Ok(found) => {
                    let below = found.into_iter().rev().filter_map(|path| {
                        let name = path.file_name()?.to_owned();
                        Some((path, to.join(name)))
                    });
                    left.extend(below);
                    made.push((from, to));
                }
                Err((what, path, e)) => self.cannot(what, &path, strerror(&e), ctx),
            }
        }
        for (from, to) in made.into_iter().rev() {
            if let Err(e) = self.finish_dir(&from, &to) {
                self.cannot("keep the attributes of", &from, strerror(&e), ctx);
            }
        }
        Ok(())
    }

    /// Makes a directory; returns what is in the source. Its owner may write it until all is in it.
    fn dir(&self, from: &Path, to: &Path) -> Result<Vec<PathBuf>, (&'static str, PathBuf, io::Error)> {
        let found = entries(from).map_err(|e| ("read", from.to_owned(), e))?;
        let made = fs::DirBuilder::new().mode(0o700).create(to);
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_real_dir(to) => {}
            made => made.map_err(|e| ("create", to.to_owned(), e))?,
        }
        Ok(found)
    }

    fn finish_dir(&self, from: &Path, to: &Path) -> io::Result<()> {
        let meta = fs::metadata(from)?;
        match self.how.preserve {
            true => one::preserve(&File::open(from)?, &File::open(to)?, &meta),
            false => fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o777 & !umask())),
        }
    }

    /// A file, or a link.
    fn leaf(&mut self, from: &Path, to: &Path, meta: &fs::Metadata, ctx: &mut Ctx) -> Result<(), Failure> {
        if meta.is_symlink() {
            match fs::read_link(from).and_then(|place| symlink(place, to)) {
                Ok(()) => self.told(to, ctx)?,
                Err(e) => self.cannot("create", to, strerror(&e), ctx),
            }
            return Ok(());
        }
        let kind = meta.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            self.cannot("clone", from, "it is no file, directory or symbolic link", ctx);
            return Ok(());
        }
        let id = (meta.dev(), meta.ino());
        if let Some(first) = self.links.get(&id)
            && fs::hard_link(first, to).is_ok()
        {
            self.progress.add(meta.len());
            return Ok(self.told(to, ctx)?);
        }
        let progress = &mut self.progress;
        let done = one::file((from, to), self.how, &ctx.interrupt, &mut |bytes| progress.add(bytes));
        match done {
            Ok(done) => {
                self.count(done);
                if meta.nlink() > 1 {
                    self.links.insert(id, to.to_owned());
                }
                Ok(self.told(to, ctx)?)
            }
            Err(Stopped::Interrupted) => Err(Failure::Interrupted),
            Err(why) => {
                self.fail(&why.message(from, to), ctx);
                Ok(())
            }
        }
    }

    fn count(&mut self, done: Done) {
        self.files += 1;
        self.cloned = self.cloned.saturating_add(done.cloned);
        if let Some(why) = done.why.filter(|_| done.copied > 0) {
            let (files, bytes) = self.copied.entry(why).or_default();
            *files += 1;
            *bytes = bytes.saturating_add(done.copied);
        }
    }

    fn told(&self, to: &Path, ctx: &mut Ctx) -> io::Result<()> {
        match self.of.verbose && !self.of.json.json {
            true => writeln!(ctx.out, "{}", to.display()),
            false => Ok(()),
        }
    }

    fn report(&self, ctx: &mut Ctx) -> Result<(), Failure> {
        for (why, (files, bytes)) in &self.copied {
            let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
            ctx.warn(format!("{} of {files} copied, not shared: {why}", nicebytes(*bytes)));
        }
        if !self.of.json.json {
            return Ok(());
        }
        let style = JsonStyle { int: self.of.json.json_int, ..JsonStyle::default() };
        let reason = |(why, (files, bytes)): (&String, &(u64, u64))| json!({ "why": why, "files": style.number(*files), "bytes": style.number(*bytes) });
        let mut document = document(&ctx.command);
        document.insert("files".into(), style.number(self.files));
        document.insert("cloned_bytes".into(), style.number(self.cloned));
        document.insert("copied".into(), self.copied.iter().map(reason).collect());
        Ok(print(&mut *ctx.out, &Value::Object(document))?)
    }
}

fn is_real_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// The bits that new directories lack.
fn umask() -> u32 {
    use rustix::fs::Mode;
    // No other thread of this process makes files meanwhile.
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use clikit::testing;
    use clikit::verb::Exit;

    fn run(words: &[&str]) -> (Exit, String, String) {
        let run = testing::run::<super::CloneFiles>(&[&["clone"], words].concat());
        (run.exit, run.out, run.err)
    }

    /// On other file systems bytes are copied, and that is said; `--only` refuses, and leaves nothing.
    #[test]
    fn trees_of_other_file_systems_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(path("a/sub")).unwrap();
        let mut bytes = vec![7; 10_000];
        bytes.resize(3_000_000, 0);
        bytes[2_000_000] = 1;
        fs::write(path("a/sub/one"), &bytes).unwrap();
        fs::write(path("a/empty"), b"").unwrap();
        fs::hard_link(path("a/sub/one"), path("a/two")).unwrap();
        symlink("sub/one", path("a/link")).unwrap();
        fs::set_permissions(path("a/sub/one"), fs::Permissions::from_mode(0o640)).unwrap();
        let (exit, out, err) = run(&["-r", "-p", "-v", &path("a"), &path("b")]);
        assert_eq!(exit, Exit::OK, "{err}");
        assert!(err.contains("2.86M of 1 file copied, not shared: "), "{err}");
        assert_eq!(out.lines().count(), 4, "{out}");
        assert!(fs::read(path("b/two")).unwrap() == bytes);
        let meta = |name: &str| fs::metadata(path(name)).unwrap();
        assert_eq!(meta("b/two").ino(), meta("b/sub/one").ino());
        assert!(meta("b/two").blocks() * 512 < 1 << 20, "holes stay holes");
        assert_eq!(meta("b/two").mode() & 0o7777, 0o640);
        assert_eq!(meta("b/two").modified().unwrap(), meta("a/two").modified().unwrap());
        assert_eq!(fs::read_link(path("b/link")).unwrap().to_str(), Some("sub/one"));
        // Nothing is overwritten without -f.
        let (exit, _, err) = run(&[&path("a/two"), &path("b/empty")]);
        assert!(exit == Exit::FAILED && err.contains("File exists"), "{err}");
        assert_eq!(run(&["-f", &path("a/two"), &path("b/empty")]).0, Exit::OK);
        assert!(fs::read(path("b/empty")).unwrap() == bytes);
        assert_eq!(run(&["-f", &path("a/two"), &path("a/sub/one")]).0, Exit::FAILED);
        assert!(fs::read(path("a/two")).unwrap() == bytes);
        assert_eq!(run(&[&path("a/link"), &path("e")]).0, Exit::OK);
        assert!(fs::symlink_metadata(path("e")).unwrap().is_file() && fs::read(path("e")).unwrap() == bytes);
        let (exit, _, err) = run(&["--only", &path("a/two"), &path("c")]);
        assert!(exit == Exit::FAILED && err.contains("cannot clone '"), "{err}");
        assert!(!fs::exists(path("c")).unwrap());
        assert_eq!(run(&["-r", &path("a"), &path("a/sub")]).0, Exit::FAILED);
        assert_eq!(run(&[&path("a"), &path("d")]).0, Exit::FAILED);
        assert_eq!(run(&[&path("a")]).0, Exit::USAGE);
    }
}
