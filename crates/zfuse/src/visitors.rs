//! Detects uses of a snapshot: its open files, and processes with a working directory in it.
//!
//! We know the open files. A process that only has its working directory there has nothing open; the kernel keeps a
//! file known to us during that time, but also after a single lookup, and drops such files only under the locks of
//! their directories, which a process that waits for our answer may hold. So the processes are inspected: their
//! directories, as `/proc` shows them, without a request to any file system. Processes that `/proc` does not show
//! remain unseen (those of other users, unless we are root; those behind other mount points in a container).

use std::fs;
use std::path::Path;

/// Whether a process has a directory as its working directory or root.
pub fn stand_in(folder: &Path) -> bool {
    let Ok(all) = fs::read_dir("/proc") else { return false };
    let processes = all
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit));
    // A process that ended meanwhile has no directory.
    let stands = |process: fs::DirEntry| {
        ["cwd", "root"]
            .iter()
            .any(|link| fs::read_link(process.path().join(link)).is_ok_and(|at| at.starts_with(folder)))
    };
    processes.into_iter().any(stands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_a_folder_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, beside) = (dir.path().join("a/b"), dir.path().join("aa"));
        [&inside, &beside].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let mut child = std::process::Command::new("sleep").arg("60").current_dir(&inside).spawn().unwrap();
        assert!(stand_in(&dir.path().join("a")) && stand_in(&inside));
        assert!(!stand_in(&beside) && !stand_in(&inside.join("c")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!stand_in(&inside));
    }
}
