//! Operations that fill a file system, one kind each.

use engine::{Kind as ErrorKind, Result};
use ondisk::acl::{Ace, ace_flags, ace_mask, ace_type};
use stdx::rng::Rng;
use zpl::FileKind;
use zpl::write::{CloneFrom, FsWriter, NewNode, RenameKind, Settings, XattrMode};

use crate::actor::is_refusal;

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file grows by records.
    Write,
    /// Overwrites records of a long file in any order.
    Scatter,
    /// Writes one record far from all others: most of the written blocks are indirect.
    Sparse,
    /// Empty and very small files.
    Tiny,
    /// Directories, nested and side by side.
    Dirs,
    /// Symbolic links.
    Symlinks,
    /// Devices.
    Devices,
    /// Names of one file.
    Links,
    /// Extended attributes.
    Xattrs,
    /// Changes modes of existing files, in any order.
    Chmod,
    /// Changes owners, each time to another.
    Chown,
    /// Access control lists.
    Acls,
    /// Long names.
    Rename,
    /// Holes in a long file.
    Punch,
    /// Truncates and extends files.
    Truncate,
    /// Writes with individual commits.
    Sync,
    /// Files that refer to the blocks of the long file.
    Reflink,
    /// Records of such files, written in any order: each stops to share its block.
    Unshare,
    /// A volume is written in order.
    VolumeWrite,
    /// Parts of blocks of a volume are written, in any order.
    VolumeScatter,
    /// A volume is written in order, each write committed.
    VolumeSync,
    /// Parts of a volume are discarded.
    VolumeDiscard,
}

impl Kind {
    /// Whether it is done to a volume ([`crate::fill_volume`]).
    pub fn is_of_volume(self) -> bool {
        matches!(self, Self::VolumeWrite | Self::VolumeScatter | Self::VolumeSync | Self::VolumeDiscard)
    }
}

/// All of them.
pub const KINDS: [Kind; 22] = [
    Kind::Write,
    Kind::Scatter,
    Kind::Sparse,
    Kind::Tiny,
    Kind::Dirs,
    Kind::Symlinks,
    Kind::Devices,
    Kind::Links,
    Kind::Xattrs,
    Kind::Chmod,
    Kind::Chown,
    Kind::Acls,
    Kind::Rename,
    Kind::Punch,
    Kind::Truncate,
    Kind::Sync,
    Kind::Reflink,
    Kind::Unshare,
    Kind::VolumeWrite,
    Kind::VolumeScatter,
    Kind::VolumeSync,
    Kind::VolumeDiscard,
];

/// Records of the long file.
const LONG: u64 = 20_000;
/// Maximum size of it in bytes.
const LONGEST: u64 = 12 << 20;

#[derive(Debug, Clone)]
struct File {
    dir: u64,
    name: Vec<u8>,
    number: u64,
    is_dir: bool,
}

/// The created objects, so that they can be changed and removed.
#[derive(Debug)]
pub struct Files {
    made: Vec<File>,
    dirs: Vec<u64>,
    record: u64,
    named: u64,
    /// The long file, and its records.
    long: Option<(u64, u64)>,
    /// The file that grows, and its end.
    growing: Option<(u64, u64)>,
    /// The file with holes, and the number of its records.
    sparse: Option<(u64, u64)>,
    /// The file that refers to blocks of the long one, and the records that were cloned.
    clone: Option<(u64, u64)>,
}

pub(crate) fn bytes(random: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    random.fill(&mut bytes);
    bytes
}

impl Files {
    /// No objects yet.
    pub fn new(fs: &FsWriter, record: u64) -> Self {
        let (made, dirs) = (Vec::new(), vec![fs.root]);
        Self { made, dirs, record, named: 0, long: None, growing: None, sparse: None, clone: None }
    }

    /// The same for thread `number`, whose names differ. It does not use the directories of this one, which may
    /// remove them.
    pub fn beside(&self, fs: &FsWriter, number: u64) -> Self {
        let (made, dirs) = (Vec::new(), vec![fs.root]);
        let named = number << 32;
        Self { made, dirs, record: self.record, named, long: None, growing: None, sparse: None, clone: None }
    }

    fn name(&mut self, long: bool) -> Vec<u8> {
        self.named += 1;
        let tail = if long { "n".repeat(200) } else { String::new() };
        format!("{}{tail}", self.named).into_bytes()
    }

    fn dir(&self, random: &mut Rng) -> u64 {
        let at = usize::try_from(random.below(self.dirs.len() as u64)).unwrap_or(0);
        self.dirs.get(at).copied().unwrap_or_default()
    }

    fn some(&self, random: &mut Rng) -> Option<&File> {
        let at = random.below(self.made.len().max(1) as u64);
        self.made.get(usize::try_from(at).unwrap_or(0))
    }

    fn create(&mut self, fs: &FsWriter, dir: u64, new: &NewNode<'_>) -> Result<u64> {
        let name = self.name(false);
        let number = fs.dirs().create(dir, &name, new)?;
        let is_dir = new.kind == FileKind::Directory;
        if is_dir {
            self.dirs.push(number);
        }
        self.made.push(File { dir, name, number, is_dir });
        Ok(number)
    }

    fn file(&mut self, fs: &FsWriter) -> Result<u64> {
        self.create(fs, fs.root, &NewNode::new(FileKind::Regular, 0o600, 0, 0))
    }

    /// Runs one operation.
    pub fn step(&mut self, fs: &FsWriter, kind: Kind, random: &mut Rng) -> Result<()> {
        match kind {
            Kind::Write => self.grow(fs, random, self.record.max(16 << 10)).map(|_| ()),
            Kind::Sync => {
                let number = self.grow(fs, random, self.record)?;
                fs.fsync(number)
            }
            Kind::Scatter => {
                let (number, records) = self.long(fs, random)?;
                let at = random.below(records.max(1)) * self.record;
                fs.data().write(number, at, &bytes(random, self.record), true)
            }
            Kind::Sparse => self.sparse(fs, random),
            Kind::Reflink => self.reflink(fs, random),
            Kind::Unshare => {
                let Some((number, records)) = self.clone else { return self.reflink(fs, random) };
                let at = random.below(records.max(1)) * self.record;
                fs.data().write(number, at, &bytes(random, self.record), true)
            }
            Kind::Tiny => {
                let dir = self.dir(random);
                let number = self.create(fs, dir, &NewNode::new(FileKind::Regular, 0o600, 0, 0))?;
                let len = random.below(200);
                fs.data().write(number, 0, &bytes(random, len), true)
            }
            Kind::Dirs => {
                let dir = self.dir(random);
                self.create(fs, dir, &NewNode::new(FileKind::Directory, 0o700, 0, 0)).map(|_| ())
            }
            Kind::Symlinks => {
                let (dir, target) = (self.dir(random), vec![b't'; 3000]);
                self.create(fs, dir, &NewNode::symlink(&target, 0, 0)).map(|_| ())
            }
            Kind::Devices => {
                let dir = self.dir(random);
                self.create(fs, dir, &NewNode::new(FileKind::Fifo, 0o600, 0, 0)).map(|_| ())
            }
            Kind::Links => self.link(fs, random),
            _ => self.change(fs, kind, random),
        }
    }

    /// Runs an operation on an existing object.
    fn change(&mut self, fs: &FsWriter, kind: Kind, random: &mut Rng) -> Result<()> {
        let Some(file) = self.some(random).cloned() else { return self.file(fs).map(|_| ()) };
        let settings = Settings::default();
        match kind {
            Kind::Xattrs => {
                let name = format!("user.{}", random.below(4)).into_bytes();
                let len = if random.below(2) == 0 { 200 } else { 12_000 };
                fs.xattrs().set(file.number, &name, Some(&bytes(random, len)), XattrMode::Set)
            }
            Kind::Chmod => {
                let mode = Some(random.below(0o1000));
                fs.attrs().set(file.number, &Settings { mode, ..settings })
            }
            Kind::Chown => {
                let uid = Some(random.below(100_000));
                fs.attrs().set(file.number, &Settings { uid, ..settings })
            }
            Kind::Acls => {
                let entry = |who| Ace {
                    ace_type: ace_type::ALLOW,
                    flags: ace_flags::IDENTIFIER_GROUP,
                    access_mask: ace_mask::READ_DATA,
                    who,
                    object: None,
                };
                let list: Vec<Ace> = (0..random.below(400) + 1).map(|n| entry(n + 5)).collect();
                fs.acls().set(file.number, &list)
            }
            Kind::Rename => self.rename(fs, &file, random),
            Kind::Punch => {
                let (number, records) = self.long(fs, random)?;
                let (from, len) = (random.below(records.max(1)), random.below(8) + 1);
                fs.data().punch(number, from * self.record, len * self.record)
            }
            _ if file.is_dir || self.is_symlink(fs, &file) => Ok(()),
            _ => fs.data().truncate(file.number, random.below(1 << 20)),
        }
    }

    fn is_symlink(&self, fs: &FsWriter, file: &File) -> bool {
        fs.attrs().get(file.number).is_ok_and(|attr| attr.kind != FileKind::Regular)
    }

    fn rename(&mut self, fs: &FsWriter, file: &File, random: &mut Rng) -> Result<()> {
        let (to, name) = (if file.is_dir { file.dir } else { self.dir(random) }, self.name(true));
        fs.dirs().rename((file.dir, &file.name), (to, &name), RenameKind::Plain, (0, 0))?;
        let was = |f: &&mut File| f.dir == file.dir && f.name == file.name;
        if let Some(moved) = self.made.iter_mut().find(was) {
            (moved.dir, moved.name) = (to, name);
        }
        Ok(())
    }

    fn link(&mut self, fs: &FsWriter, random: &mut Rng) -> Result<()> {
        let number = match self.made.iter().find(|file| !file.is_dir) {
            Some(file) => file.number,
            None => self.file(fs)?,
        };
        let (dir, name) = (self.dir(random), self.name(true));
        fs.dirs().link(number, dir, &name)?;
        self.made.push(File { dir, name, number, is_dir: false });
        Ok(())
    }

    /// The long file, created on first use as far as there is space.
    fn long(&mut self, fs: &FsWriter, random: &mut Rng) -> Result<(u64, u64)> {
        if let Some(long) = self.long {
            return Ok(long);
        }
        let number = self.file(fs)?;
        let mut end = 0;
        let most = (LONG * self.record).min(LONGEST);
        while end < most {
            let piece = bytes(random, self.record.max(64 << 10));
            match fs.data().write(number, end, &piece, true) {
                Ok(()) => end += piece.len() as u64,
                Err(e) if is_refusal(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(*self.long.insert((number, end / self.record)))
    }

    fn grow(&mut self, fs: &FsWriter, random: &mut Rng, len: u64) -> Result<u64> {
        let (number, end) = match self.growing {
            Some(growing) => growing,
            None => (self.file(fs)?, 0),
        };
        self.growing = Some((number, end));
        fs.data().write(number, end, &bytes(random, len), true)?;
        self.growing = Some((number, end + len));
        Ok(number)
    }

    fn sparse(&mut self, fs: &FsWriter, random: &mut Rng) -> Result<()> {
        let (number, count) = match self.sparse {
            Some(sparse) => sparse,
            None => {
                let number = self.file(fs)?;
                // So that its blocks are records.
                fs.data().write(number, 0, &bytes(random, self.record * 2), true)?;
                (number, 1)
            }
        };
        self.sparse = Some((number, count));
        // Each has indirect blocks of its own, several levels of them.
        let at = (count << 44).min(1 << 61) | random.below(1 << 17) << 40;
        fs.data().write(number, at, &bytes(random, self.record), true)?;
        self.sparse = Some((number, count + 1));
        Ok(())
    }

    /// Makes part of a new file, or of the last one, refer to blocks of the long file.
    fn reflink(&mut self, fs: &FsWriter, random: &mut Rng) -> Result<()> {
        let (source, records) = self.long(fs, random)?;
        let (number, cloned) = match self.clone {
            Some(clone) if random.below(4) > 0 => clone,
            _ => (self.file(fs)?, 0),
        };
        self.clone = Some((number, cloned));
        let count = random.below(records.max(1)) + 1;
        let (from, to) = (random.below(records.max(1)) * self.record, cloned * self.record);
        match fs.clones().clone_range(
            (CloneFrom::File(fs, source), from),
            (number, to),
            count * self.record,
            true,
        ) {
            // The kernel copies ranges that cannot be cloned: here they are written.
            Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Busy) => {
                fs.data().write(number, to, &bytes(random, self.record), true)?;
                self.clone = Some((number, cloned + 1));
            }
            done => self.clone = Some((number, cloned + done? / self.record)),
        }
        Ok(())
    }

    /// Removes the objects selected by `wanted`; returns the number of refused removals. Directories are removed
    /// with their last entry.
    pub fn remove(
        &mut self,
        fs: &FsWriter,
        wanted: &mut dyn FnMut(&mut Rng) -> bool,
        random: &mut Rng,
    ) -> Result<u64> {
        let (mut left, mut refused) = (Vec::new(), 0);
        let mut gone = std::collections::BTreeSet::new();
        for file in std::mem::take(&mut self.made).into_iter().rev() {
            if !wanted(random) {
                left.push(file);
                continue;
            }
            let done = match file.is_dir {
                true => fs.dirs().rmdir(file.dir, &file.name),
                false => fs.dirs().unlink(file.dir, &file.name),
            };
            match done {
                Ok(()) => drop(gone.insert(file.number)),
                Err(e) if e.kind() == ErrorKind::NotEmpty => left.push(file),
                Err(e) if is_refusal(&e) => {
                    refused += 1;
                    left.push(file);
                }
                Err(e) => return Err(e),
            }
        }
        left.reverse();
        self.made = left;
        let named: std::collections::BTreeSet<u64> = self.made.iter().map(|file| file.number).collect();
        let is_gone = |number: &u64| gone.contains(number) && !named.contains(number);
        self.dirs.retain(|number| !is_gone(number));
        for kept in [&mut self.long, &mut self.growing, &mut self.sparse, &mut self.clone] {
            kept.take_if(|(number, _)| is_gone(number));
        }
        Ok(refused)
    }
}
