//! The files of the daemon: its number, which is locked so that there is only one, and the last event.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clikit::verb::strerror;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;

use crate::source::{Event, Position};

/// Bytes of the state: number, seconds and nanoseconds of the last event, as OpenZFS writes them, then the epoch of the daemon
/// that posted it.
const STATE: usize = 32;

/// A locked file. The lock is one of OpenZFS's kind, so its event daemon does not use the same file.
#[derive(Debug)]
struct Locked {
    file: File,
}

impl Locked {
    /// Opens or creates the file; `what` names it in errors.
    fn open(path: &Path, what: &str) -> Result<Self, String> {
        let told = |e: io::Error| format!("cannot open {what} '{}': {}", path.display(), strerror(&e));
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(told)?;
        }
        // A link could make this process write to another file.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644).custom_flags(flags);
        let file = options.open(path).map_err(told)?;
        if !file.metadata().map_err(told)?.is_file() {
            return Err(format!("{what} '{}' is not a regular file", path.display()));
        }
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let holder =
                    Self::number_in(&file).map(|pid| format!(" with process id {pid}")).unwrap_or_default();
                Err(format!("{what} '{}' is in use: another event daemon runs{holder}", path.display()))
            }
            Err(e) => Err(told(e.into())),
        }
    }

    fn number_in(file: &File) -> Option<u32> {
        let mut text = [0; 16];
        let length = file.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
    }
}

/// The file with the process id; removed when dropped.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    _locked: Locked,
}

impl PidFile {
    /// Locks the file and writes this process's id.
    ///
    /// # Errors
    /// If another process has locked it, or it cannot be written.
    pub fn create(path: &Path) -> Result<Self, String> {
        let locked = Locked::open(path, "PID file")?;
        let written = locked.file.set_len(0).and_then(|()| writeln!(&locked.file, "{}", std::process::id()));
        written.map_err(|e| format!("cannot write PID file '{}': {}", path.display(), strerror(&e)))?;
        Ok(Self { path: path.to_owned(), _locked: locked })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A file that stays is not locked, so the next daemon uses it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The file with the last event.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    locked: Locked,
}

impl StateFile {
    /// Opens and locks the file; with `zero` it is emptied.
    ///
    /// # Errors
    /// If another process has locked it, or it cannot be opened.
    pub fn open(path: &Path, zero: bool) -> Result<Self, String> {
        let locked = Locked::open(path, "state file")?;
        let state = Self { path: path.to_owned(), locked };
        if zero {
            state.locked.file.set_len(0).map_err(|e| state.cannot("write", &e))?;
        }
        Ok(state)
    }

    fn cannot(&self, action: &str, e: &io::Error) -> String {
        format!("cannot {action} state file '{}': {}", self.path.display(), strerror(e))
    }

    /// The last event; the default if the file has none, or is that of OpenZFS's daemon.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self) -> Result<Position, String> {
        let mut bytes = [0; STATE];
        let length = self.locked.file.read_at(&mut bytes, 0).map_err(|e| self.cannot("read", &e))?;
        let mut words =
            bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes).unwrap_or(0));
        let (eid, epoch) = (words.next().unwrap_or(0), words.nth(2).unwrap_or(0));
        Ok(if length == STATE { Position { epoch, eid } } else { Position::default() })
    }

    /// Stores the last event.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, position: Position, event: &Event) -> Result<(), String> {
        let (seconds, nanos) = event.time;
        let words = [position.eid, seconds.cast_unsigned(), nanos.cast_unsigned(), position.epoch];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = &self.locked.file;
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_data()).map_err(|e| self.cannot("write", &e))
    }
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    #[test]
    fn the_state_is_read_back_and_a_short_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/zed.state");
        let state = StateFile::open(&path, false).unwrap();
        assert_eq!(state.read().unwrap(), Position::default());
        let event = Event { eid: 9, time: (5, 6), class: "c".into(), payload: NvList::new() };
        let position = Position { epoch: 77, eid: 10 };
        state.write(position, &event).unwrap();
        assert_eq!(state.read().unwrap(), position);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..24], [10u64, 5, 6].map(u64::to_le_bytes).concat());
        // OpenZFS's state.
        fs::write(&path, &bytes[..24]).unwrap();
        assert_eq!(state.read().unwrap(), Position::default());
        state.write(position, &event).unwrap();
        drop(state);
        assert_eq!(StateFile::open(&path, true).unwrap().read().unwrap(), Position::default());
    }

    #[test]
    fn the_number_is_written_and_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zed.pid");
        fs::write(&path, "123456789012\n").unwrap();
        let pid = PidFile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(pid);
        assert!(!path.exists());
        let target = dir.path().join("target");
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(PidFile::create(&path).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    }
}
