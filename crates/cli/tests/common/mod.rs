//! Running the program on golden pools.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::expect_used, reason = "a test that can't go on must say so")]

use std::process::Command;

use testkit::golden::Golden;

/// Result of a command line.
#[derive(Debug)]
pub struct Run {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

fn output(args: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer"));
    command.args(args).env("TZ", "UTC").output().expect("the program starts")
}

/// The unchanged output of the program.
pub fn aquifer_bytes(args: &[&str]) -> Vec<u8> {
    output(args).stdout
}

/// Runs the program, in UTC.
pub fn aquifer(args: &[&str]) -> Run {
    let output = output(args);
    Run {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Options that find the pool and open its encrypted datasets.
pub fn options(pool: &Golden) -> Vec<String> {
    let mut options = vec!["-d".to_owned(), pool.dir.display().to_string()];
    if pool.name == "encrypted" {
        let pass = testkit::golden::target().join("golden-passphrase");
        // Other test binaries read it at the same time: it is whole whenever it is there.
        static WRITTEN: std::sync::Once = std::sync::Once::new();
        WRITTEN.call_once(|| {
            let new = pass.with_extension(std::process::id().to_string());
            std::fs::write(&new, "correct horse battery").expect("a file for the passphrase");
            std::fs::rename(&new, &pass).expect("a file for the passphrase");
        });
        let raw = pool.dir.join("raw.key");
        let hex = pool.dir.join("hex.key");
        for (dataset, file) in [("tank/pass", &pass), ("tank/raw", &raw), ("tank/hex", &hex)] {
            options.extend(["--load-key".to_owned(), format!("{dataset}={}", file.display())]);
        }
    }
    options
}

/// Txgs of the pool's uberblocks, newest first.
pub fn moments(pool: &Golden) -> Vec<u64> {
    let found = zutil::import::candidates(std::slice::from_ref(&pool.dir));
    let candidate = zutil::import::select(found, pool.pool_name()).expect("the pool is found");
    let source = zutil::import::source(&candidate);
    let mut txgs: Vec<u64> = source.uberblocks.iter().map(|u| u.uberblock.txg).collect();
    txgs.sort_unstable_by(|a, b| b.cmp(a));
    txgs.dedup();
    txgs
}
