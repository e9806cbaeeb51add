//! The request of `zfs rewrite` to a mount of this program (`zfuse::rw::rewriting` describes it).

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use stdx::os::{REWRITE_BYTES, ask_rewrite};

/// Where ranges begin, how many there may be, and where the text begins.
const RANGES: usize = 64;
const MOST: usize = 200;
const TEXT: usize = RANGES + MOST * 16;
/// `O_TMPFILE`.
const O_TMPFILE: i32 = 0o20_000_000 | 0o200_000;
/// `ENOTTY`, `ENOSYS` and `EOPNOTSUPP`: errors of file systems that do not know the request.
const UNKNOWN: [i32; 3] = [25, 38, 95];
/// Rounds of copies after which writers of the file wait for the last.
const PATIENCE: u32 = 6;

/// Which blocks are rewritten, in the request's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// All blocks.
    All = 0,
    /// Blocks on top-level vdevs that are fuller than their class.
    Balance = 1,
    /// Blocks that take fewer sectors at the width that their raidz has today.
    Compact = 2,
    /// Blocks that are not in a dedup table.
    Dedup = 3,
    /// Blocks that are in a dedup table.
    Undedup = 4,
}

/// Bytes of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Written again.
    pub written: u64,
    /// Written again, while snapshots keep the old ones.
    pub kept: u64,
    /// Left as they are, because snapshots, clones or dedup share them.
    pub shared: u64,
    /// Looked at and passed over.
    pub passed: u64,
}

impl Tally {
    /// Adds the bytes of another request.
    pub fn add(&mut self, other: &Self) {
        self.written += other.written;
        self.kept += other.kept;
        self.shared += other.shared;
        self.passed += other.passed;
    }
}

/// An answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// The result of the request.
    pub tally: Tally,
    /// A word whose meaning depends on the operation.
    pub state: u64,
    /// Ranges of the file: offsets and lengths.
    pub ranges: Vec<(u64, u64)>,
}

/// Why a file was not rewritten.
#[derive(Debug)]
pub enum Refused {
    /// The mount says why, with an error number.
    Told(u8, String),
    /// The request failed.
    Failed(io::Error),
    /// The user interrupted.
    Interrupted,
}

/// The number of an error, which is the command's exit code, as in OpenZFS.
pub fn code_of(e: &io::Error) -> u8 {
    e.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

impl From<io::Error> for Refused {
    fn from(e: io::Error) -> Self {
        Self::Failed(e)
    }
}

/// The reason why a request of this program alone failed.
fn unanswered(e: io::Error) -> Refused {
    match e.raw_os_error().is_some_and(|code| UNKNOWN.contains(&code)) {
        true => {
            let why = "not on a mount of aquifer, which alone knows this request";
            Refused::Told(code_of(&e), why.to_owned())
        }
        false => Refused::Failed(e),
    }
}

/// Called with the bytes that were worked on and those that were written; false: the user interrupted.
pub type Pace<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

fn ask(file: &File, words: [u64; 10]) -> Result<Answer, Refused> {
    let mut message = [0; REWRITE_BYTES];
    for (to, word) in message.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    ask_rewrite(file, &mut message).map_err(unanswered)?;
    let error = word(&message, 0);
    if error != 0 {
        let len = usize::try_from(word(&message, 56)).unwrap_or(0).min(REWRITE_BYTES - TEXT);
        let text = message.get(TEXT..TEXT + len).unwrap_or_default();
        let error = u8::try_from(error).unwrap_or(1);
        return Err(Refused::Told(error, String::from_utf8_lossy(text).into_owned()));
    }
    let count = usize::try_from(word(&message, 48)).unwrap_or(0).min(MOST);
    let range = |n: usize| (word(&message, RANGES + n * 16), word(&message, RANGES + n * 16 + 8));
    let [written, kept, shared, passed] = [8, 16, 24, 32].map(|at| word(&message, at));
    let tally = Tally { written, kept, shared, passed };
    Ok(Answer { tally, state: word(&message, 40), ranges: (0..count).map(range).collect() })
}

/// The bytes that a change to records of `record` bytes (0: the property) would write; `None`: nothing.
pub fn plan_record(file: &File, record: u64) -> Result<Option<Tally>, Refused> {
    let answer = ask(file, [0, 0, 0, 0, 0, record, 0, 0, 0, 0])?;
    Ok((answer.state != 0).then_some(answer.tally))
}

/// Rewrites chosen blocks of a range, or, if `dry`, tells what that would write.
pub fn some(
    file: &File,
    (offset, len): (u64, u64),
    choice: Choice,
    physical: bool,
    dry: bool,
) -> Result<Tally, Refused> {
    let op = if dry { 1 } else { 2 };
    Ok(ask(file, [op, offset, len, choice as u64, u64::from(physical), 0, 0, 0, 0, 0])?.tally)
}

/// Offers a file that is open for reading as the source of clones, under a token that ends with the descriptor.
pub fn offer(file: &File) -> Result<u64, Refused> {
    let token = token()?;
    ask(file, [8, 0, 0, 0, 0, 0, 0, token, 0, 0])?;
    Ok(token)
}

/// Clones `len` bytes at `offset` of an offered file to the same place of `file`, which is open for writing; returns how many.
pub fn clone_offered(file: &File, token: u64, (offset, len): (u64, u64)) -> Result<u64, Refused> {
    Ok(ask(file, [9, offset, len, offset, 0, 0, 0, token, 0, 0])?.tally.written)
}

/// A number that no other user knows.
fn token() -> io::Result<u64> {
    let mut token = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(u64::from_le_bytes(token) | 1)
}

/// Changes the record size of the file at `path`, of `size` bytes, in requests of `piece` bytes; returns the bytes written.
pub fn record(
    (file, path, size): (&File, &Path, u64),
    record: u64,
    piece: u64,
    pace: Pace<'_>,
) -> Result<u64, Refused> {
    let first = ask(file, [3, 0, 0, 0, 0, record, 0, 0, 0, 0])?;
    match first.state {
        0 | 1 => {
            pace(size, first.tally.written);
            return Ok(first.tally.written);
        }
        _ => {}
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = OpenOptions::new().write(true).mode(0o600).custom_flags(O_TMPFILE).open(dir)?;
    let token = token()?;
    ask(&hidden, [4, 0, 0, 0, 0, 0, 0, token, 0, 0])?;
    let inode = hidden.metadata()?.ino();
    let mut as_of = ask(file, [5, 0, 0, 0, 0, record, inode, token, 0, 0])?.state;
    if as_of == 0 {
        pace(size, 0);
        return Ok(0);
    }
    let mut written = 0;
    let mut copy = |(start, end): (u64, u64), counts: bool, written: &mut u64| -> Result<(), Refused> {
        let mut at = start;
        while at < end {
            let len = (end - at).min(piece);
            let copied = ask(file, [6, at, len, 0, 0, 0, inode, token, 0, 0])?.tally.written;
            *written += copied;
            at += len;
            if !pace(if counts { len } else { 0 }, copied) {
                return Err(Refused::Interrupted);
            }
        }
        Ok(())
    };
    copy((0, size), true, &mut written)?;
    for round in 0_u32.. {
        let patience = u64::from(round < PATIENCE);
        let answer = ask(file, [7, 0, 0, 0, 0, 0, inode, token, as_of, patience])?;
        if answer.ranges.is_empty() {
            break;
        }
        as_of = answer.state;
        for range in answer.ranges {
            copy(range, false, &mut written)?;
        }
    }
    Ok(written)
}
