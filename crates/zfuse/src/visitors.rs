//! Who is in a snapshot: files of it that are open, and processes that stand in it.
//!
//! What is open we know. A process that only stands somewhere has nothing open; the kernel keeps a file known to us while
//! somebody stands in it, but also because it was looked at once, and can be made to forget such files only by locking
//! their folders, which whoever waits for our answer may hold. So the processes are asked: their folders, as `/proc`
//! names them, which asks no file system. Unseen stay those of whom `/proc` does not tell (of other users, unless we are
//! root; behind other mount points in a container).

use std::fs;
use std::path::Path;

/// Whether a process stands in a folder, or has it as its root.
pub fn stand_in(folder: &Path) -> bool {
    let Ok(all) = fs::read_dir("/proc") else { return false };
    let processes = all
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit));
    // One that ended meanwhile stands nowhere.
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
    fn who_stands_in_a_folder_is_seen() {
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
