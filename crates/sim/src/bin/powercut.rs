//! The second act of `make demo`: creates a pool on files, fills it with a source tree, takes a snapshot, changes
//! files, and cuts the power while a txg is being written.
//!
//! ```text
//! powercut make DIR TREE SEED    leaves DIR/disk1..6 in the state after the power cut, and the expected content:
//!                                DIR/before (its snapshot) and DIR/after (its files)
//! powercut import DIR            imports the pool for writing, and exports it
//! ```

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use blkdev::Device;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::{Error, Kind, Result};
use sim::files::{self, FilePool, POOL};
use sim::power::{Switch, Volatile};
use sim::tree::{copy_in, find};
use sim::world::Shape;
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::FsWriter;

const DISK_SIZE: u64 = 1 << 30;
const ARC: u64 = 128 << 20;
/// Writes of the last txg that still reach the disks: its data, but not its uberblock.
const WRITES_OF_LAST_GROUP: u64 = 60;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["make", dir, tree, seed] => match seed.parse() {
            Ok(seed) => make(Path::new(dir), Path::new(tree), seed),
            Err(_) => Err(Error::new(Kind::Invalid, "SEED is a number")),
        },
        ["import", dir] => import_and_export(Path::new(dir)),
        _ => Err(Error::new(Kind::Invalid, "usage: powercut make DIR TREE SEED | powercut import DIR")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("powercut: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The machine whose power will be cut.
struct Machine {
    pool: FilePool,
    switch: Arc<Switch>,
    disks: Vec<Arc<Volatile>>,
    random: Rng,
}

impl Machine {
    fn start(dir: &Path, seed: u64) -> Result<Self> {
        let switch = Arc::new(Switch::default());
        let inner = files::disks(dir, 6, DISK_SIZE)?;
        let disks: Vec<_> = inner.into_iter().map(|disk| Volatile::new(disk, &switch)).collect();
        let devices = disks.iter().map(|disk| Arc::clone(disk) as Device).collect();
        let pool = FilePool::create(&Env::system(ARC)?, Shape::Raidz(2), devices)?;
        let lz4 = PropValue::Number(ondisk::CompressType::Lz4 as u64);
        pool.spa
            .dsl_task(move |tasks| tasks.set(POOL, &[("compression", Some(lz4))], SettingSource::Local))?;
        Ok(Self { pool, switch, disks, random: Rng::new(seed) })
    }

    /// Cuts the power in the middle of a txg.
    fn lose_power(mut self) -> Result<usize> {
        self.switch.trip_after(WRITES_OF_LAST_GROUP);
        if self.pool.spa.sync().is_ok() {
            return Err(Error::new(Kind::Invalid, "the group was written before the power went"));
        }
        drop(self.pool);
        let mut at_risk = 0;
        for disk in &self.disks {
            at_risk += disk.settle(&mut self.random)?;
        }
        Ok(at_risk)
    }
}

fn make(dir: &Path, tree: &Path, seed: u64) -> Result<()> {
    let say = |text: String| writeln!(std::io::stdout(), "{text}").map_err(Error::from);
    let machine = Machine::start(dir, seed)?;
    let FilePool { spa, fs } = &machine.pool;
    say("pool 'tank': raidz2 of six files of 1 GiB, compression=lz4".into())?;
    let start = Instant::now();
    let copied = copy_in(fs, tree, fs.root)?;
    spa.sync()?;
    let mib = copied.bytes as f64 / f64::from(1 << 20);
    let seconds = start.elapsed().as_secs_f64();
    say(format!("{} files, {mib:.0} MiB copied in and synced: {seconds:.1} s", copied.files))?;
    spa.dsl_task(|tasks| tasks.snapshot(&["tank@before"], &[]))?;
    say("snapshot tank@before".into())?;
    let (before, after) = (dir.join("before"), dir.join("after"));
    copy_tree(tree, &before)?;
    copy_tree(tree, &after)?;
    let counts = change(fs, &after)?;
    spa.sync()?;
    say(format!("{counts} files removed, appended to, overwritten or renamed; synced: this must survive"))?;
    let copied = copy_in(fs, tree, dir_in(fs, "lost")?)?;
    say(format!("{} files more are copied in, and while that txg is written …", copied.files))?;
    let at_risk = machine.lose_power()?;
    say(format!("… the power goes. {at_risk} writes were in the disks' caches: each kept, lost or torn"))
}

fn dir_in(fs: &FsWriter, name: &str) -> Result<u64> {
    fs.dirs().create(fs.root, name.as_bytes(), &zpl::write::NewNode::new(FileKind::Directory, 0o755, 0, 0))
}

/// A copy on this machine.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&path, &to)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&path)?, &to)?;
        } else {
            fs::copy(&path, &to)?;
        }
    }
    Ok(())
}

/// Regular files below `root`, sorted, from there on.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut waiting) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            match entry.file_type()? {
                kind if kind.is_dir() => waiting.push(path),
                kind if kind.is_file() => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Changes a third of the files, in the pool and below `twin` alike. Returns their number.
fn change(fs: &FsWriter, twin: &Path) -> Result<usize> {
    let files = files(twin)?;
    for (number, path) in files.iter().enumerate().filter(|(number, _)| number % 3 == 0) {
        change_one(fs, twin, path, number / 3 % 4)?;
    }
    Ok(files.len().div_ceil(3))
}

fn change_one(fs: &FsWriter, twin: &Path, path: &Path, how: usize) -> Result<()> {
    let (here, object) = (twin.join(path), find(fs, path)?);
    let dir = find(fs, path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let new_name = [name, b".renamed"].concat();
    match how {
        0 => {
            fs::remove_file(&here)?;
            fs.dirs().unlink(dir, name)
        }
        1 => {
            let line = b"appended before the power went\n";
            fs::OpenOptions::new().append(true).open(&here)?.write_all(line)?;
            fs.data().append(object, line, false).map(drop)
        }
        2 => {
            let middle = fs::metadata(&here)?.len() / 2;
            let file = fs::OpenOptions::new().write(true).open(&here)?;
            std::os::unix::fs::FileExt::write_all_at(&file, &new_name, middle)?;
            fs.data().write(object, middle, &new_name, false)
        }
        _ => {
            let renamed = here.with_file_name(std::ffi::OsStr::new(&*String::from_utf8_lossy(&new_name)));
            fs::rename(&here, renamed)?;
            fs.dirs().rename((dir, name), (dir, &new_name), zpl::write::RenameKind::Plain, (0, 0))
        }
    }
}

/// Imports the pool, and exports it.
fn import_and_export(dir: &Path) -> Result<()> {
    files::import_in(&Env::system(ARC)?, dir)?.export()
}
