//! Pools on image files in a directory, copied and imported for writing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blkdev::{OpenMode, OpenOptions};
use engine::Result;
use engine::env::Env;
use engine::spa::{ImportOptions, Spa, import};
use zutil::import::{candidates, select, source_with};

/// Copies the files of a directory, holes as holes.
///
/// # Panics
/// When that fails.
pub fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            let mut cp = Command::new("cp");
            cp.arg("--sparse=always").arg(entry.path()).arg(to.join(entry.file_name()));
            assert!(cp.status().expect("cp runs").success());
        }
    }
}

/// Imports the pool on the images of a directory for writing, even if nobody exported it; without a sync thread.
///
/// # Errors
/// As [`engine::spa::import()`].
pub fn import_dir(dir: &Path, pool: &str) -> Result<Arc<Spa>> {
    let env = Env::system(64 << 20)?;
    let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
    let candidate = select(candidates(&[dir.to_path_buf()]), pool)?;
    // One of them was not exported by the machine that made it.
    let how =
        ImportOptions { hostid: 7, hostname: "elsewhere".into(), force: true, ..ImportOptions::default() };
    import(&env, source_with(&candidate, options), &how)
}
