//! Writes that bypass the kernel's page cache, beside programs that use it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod bench;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use bench::Bench;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

#[test]
fn readers_through_pages_see_asynchronous_direct_writes() {
    let Some(bench) = Bench::new() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/aio.py");
    let out = match std::process::Command::new("python3")
        .args([script])
        .arg(bench.mnt().join("file"))
        .arg("400")
        .output()
    {
        Ok(out) => out,
        Err(_) => return eprintln!("SKIPPED: no python3 here"),
    };
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "0", "wrong bytes; {errors}");
    bench.end();
}

/// The kernel says `O_DIRECT` of a write through its cache when the flag is set after the write began, which is likely while it
/// waits for another write.
#[test]
fn a_file_whose_direct_flag_changes_while_it_is_written_is_written() {
    const ROUNDS: u32 = 1000;
    let Some(bench) = Bench::new() else { return };
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(bench.mnt().join("file"))
        .unwrap();
    let ended = AtomicBool::new(false);
    let (said, heard) = channel();
    for _ in 0..2 {
        let (writer, said) = (file.try_clone().unwrap(), said.clone());
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                writer.write_all_at(&round.to_le_bytes().repeat(128), 512).unwrap();
            }
            said.send(()).unwrap();
        });
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let plain = fcntl_getfl(&file).unwrap();
            while !ended.load(Ordering::Relaxed) {
                fcntl_setfl(&file, plain | OFlags::DIRECT).unwrap();
                fcntl_setfl(&file, plain).unwrap();
            }
        });
        let done = [(); 2].map(|()| heard.recv_timeout(Duration::from_secs(120)));
        ended.store(true, Ordering::Relaxed);
        assert_eq!(done, [Ok(()); 2], "both end");
    });
    let mut last = [0; 4];
    file.read_exact_at(&mut last, 512).unwrap();
    assert_eq!(u32::from_le_bytes(last), ROUNDS - 1);
    drop(file);
    bench.end();
}
