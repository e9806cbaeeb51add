//! The operations of a process in its directory, from a seed, and the expected content after each.

use std::collections::BTreeMap;
use std::sync::Arc;

use stdx::rng::Rng;

/// Number of different names.
const NAMES: u64 = 12;
/// Maximum size of a file and of a write.
const SPAN: u64 = 300 << 10;
const LEN: u64 = 90 << 10;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A new, empty file.
    Create(String),
    /// Writes bytes.
    Write { name: String, at: u64, bytes: Bytes },
    /// Writes bytes through a mapping, and syncs.
    Map { name: String, at: u64, bytes: Bytes },
    /// Sets the length of a file.
    Truncate(String, u64),
    /// Renames a file, possibly over another.
    Rename(String, String),
    /// Removes a file.
    Unlink(String),
    /// fsync of a file.
    Sync(String),
    /// fsync of the directory.
    SyncDir,
    /// A snapshot of the file system; the name's own part.
    Snapshot(u64),
}

/// Bytes derived from a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// The number.
    pub seed: u64,
    /// The length.
    pub len: u64,
}

impl Bytes {
    /// The bytes; some compress well.
    pub fn make(self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(0)];
        match self.seed % 3 {
            0 => bytes.fill((self.seed >> 8 & 0xff) as u8 | 1),
            _ => Rng::new(self.seed).fill(&mut bytes),
        }
        bytes
    }
}

/// The content of the directory: files by their number, and their names.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Name to file.
    pub names: BTreeMap<String, u64>,
    /// Content.
    pub files: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl State {
    /// The content under a name.
    pub fn bytes(&self, name: &str) -> Option<&Arc<Vec<u8>>> {
        self.files.get(self.names.get(name)?)
    }

    fn change(&mut self, name: &str, work: impl FnOnce(&mut Vec<u8>)) {
        if let Some(file) = self.names.get(name).and_then(|number| self.files.get_mut(number)) {
            work(Arc::make_mut(file));
        }
    }

    fn write(&mut self, name: &str, at: u64, bytes: Bytes) {
        let at = usize::try_from(at).unwrap_or(0);
        self.change(name, |file| {
            let bytes = bytes.make();
            file.resize(file.len().max(at + bytes.len()), 0);
            file.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = from);
        });
    }
}

/// An endless sequence of operations.
#[derive(Debug)]
pub struct Script {
    random: Rng,
    made: u64,
    /// The state after the returned operations.
    pub state: State,
}

impl Script {
    /// A sequence determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: Rng::new(seed), made: 0, state: State::default() }
    }

    fn existing(&mut self) -> Option<String> {
        let at = self.random.below(self.state.names.len() as u64);
        self.state.names.keys().nth(usize::try_from(at).ok()?).cloned()
    }

    /// Returns the next operation and updates the state.
    pub fn next_op(&mut self) -> Op {
        let op = self.choose();
        self.apply(&op);
        op
    }

    fn choose(&mut self) -> Op {
        let any = format!("f{}", self.random.below(NAMES));
        let what = self.random.below(40);
        let Some(name) = self.existing() else { return Op::Create(any) };
        let len = if self.random.below(2) == 0 { 600 } else { LEN };
        let bytes = Bytes { seed: self.random.next_u64(), len: self.random.below(len) + 1 };
        match what {
            0..8 if !self.state.names.contains_key(&any) => Op::Create(any),
            8..20 => Op::Write { at: self.random.below(SPAN), name, bytes },
            20 => {
                // Within the file: a mapping does not extend it.
                let size = self.state.bytes(&name).map_or(0, |bytes| bytes.len() as u64);
                let at = self.random.below(size);
                let bytes = Bytes { len: bytes.len.min(size - at), ..bytes };
                if bytes.len == 0 { Op::Sync(name) } else { Op::Map { name, at, bytes } }
            }
            21 | 22 => Op::Truncate(name, self.random.below(SPAN)),
            23..26 => Op::Rename(name, any),
            26 | 27 => Op::Unlink(name),
            28..37 => Op::Sync(name),
            37 | 38 => Op::SyncDir,
            39 if self.random.below(3) == 0 => Op::Snapshot(self.made),
            _ => Op::Sync(name),
        }
    }

    fn apply(&mut self, op: &Op) {
        self.made += 1;
        let (made, state) = (self.made, &mut self.state);
        match op {
            Op::Create(name) => {
                state.names.insert(name.clone(), made);
                state.files.insert(made, Arc::default());
            }
            Op::Write { name, at, bytes } | Op::Map { name, at, bytes } => state.write(name, *at, *bytes),
            Op::Truncate(name, len) => {
                state.change(name, |file| file.resize(usize::try_from(*len).unwrap_or(0), 0))
            }
            Op::Rename(from, to) if from == to => {}
            Op::Rename(from, to) => {
                if let Some(number) = state.names.remove(from)
                    && let Some(old) = state.names.insert(to.clone(), number)
                {
                    state.files.remove(&old);
                }
            }
            Op::Unlink(name) => {
                if let Some(number) = state.names.remove(name) {
                    state.files.remove(&number);
                }
            }
            Op::Sync(_) | Op::SyncDir | Op::Snapshot(_) => {}
        }
    }
}
