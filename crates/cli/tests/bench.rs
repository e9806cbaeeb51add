//! `aquifer bench` by the built binary: its output, its refusals, and that nothing of it stays.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use live::Live;
use serde_json::Value;

/// A command whose temporary directory belongs to the test.
fn command(live: &Live, line: &str) -> Command {
    let tmp = live.dir.path().join("t");
    fs::create_dir_all(&tmp).unwrap();
    let mut command = live.command(line);
    command.env("TMPDIR", tmp);
    command
}

fn run(live: &Live, line: &str) -> (i32, String, String) {
    let output = command(live, line).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether no scratch directory, mount or process of the test's benchmarks exists.
fn assert_nothing_left(live: &Live) {
    let tmp = live.dir.path().join("t");
    assert_eq!(names(&tmp), [""; 0]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(tmp.to_str().unwrap()), "{mounts}");
    let until = Instant::now() + Duration::from_secs(20);
    while let Some(process) = process_with(&tmp) {
        // The daemon ends by itself, shortly after its last pool.
        assert!(Instant::now() < until, "process {process} is left");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process whose environment names the directory.
fn process_with(tmp: &Path) -> Option<String> {
    let wanted = format!("AQUIFER_RUN={}/", tmp.display());
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).find(|name| {
        let environment = fs::read(format!("/proc/{name}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&wanted)
    })
}

/// Whether file systems can be mounted here.
fn can_mount() -> bool {
    let fuse = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !fuse {
        eprintln!("SKIPPED: no /dev/fuse here");
    }
    fuse
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

const SMALL: &str = "--quick --runs 1 --size 8M";

#[test]
fn every_table_of_a_directory_is_measured_by_the_engine() {
    let live = Live::new();
    let dir = live.dir.path().join("here");
    fs::create_dir(&dir).unwrap();
    let svg = live.dir.path().join("plot.svg");
    let (at, plot) = (dir.display(), svg.display());
    let line = format!("bench {SMALL} --no-mount --devices 3 --svg {plot} -j --json-int {at}");
    let (code, out, err) = run(&live, &line);
    assert_eq!(code, 0, "{err}");
    let doc: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(doc["output_version"]["command"], "bench");
    let bench = &doc["bench"];
    assert_eq!((&bench["mount"], number(&bench["size"])), (&Value::Bool(false), 8_388_608.0));
    let tables = bench["tables"].as_object().unwrap();
    let lens: Vec<_> =
        tables.iter().map(|(name, rows)| (name.as_str(), rows.as_array().unwrap().len())).collect();
    assert_eq!(lens, [("layouts", 3), ("compression", 12), ("files", 2), ("random", 4), ("fsync", 2)]);
    for row in &tables["layouts"].as_array().unwrap()[..] {
        for column in ["write", "cold_read", "hot_read"] {
            let figure = &row[column];
            assert!(number(&figure["median"]) > 0.0 && number(&figure["runs"]) == 1.0, "{row}");
        }
        assert!(number(&row["capacity"]) > 1e8, "{row}");
    }
    let layouts: Vec<_> =
        tables["layouts"].as_array().unwrap().iter().map(|row| (&row["layout"], &row["may_fail"])).collect();
    assert_eq!(format!("{layouts:?}").matches("Number").count(), 3);
    assert_eq!([layouts[1].1, layouts[2].1], [&Value::from(2), &Value::from(1)]);
    // Text shrinks under lz4, random bytes do not, and nothing shrinks without compression.
    for row in tables["compression"].as_array().unwrap() {
        let ratio: f64 = row["ratio"].as_str().unwrap().parse().unwrap();
        let shrinks = row["sample"] == "text" && row["compression"] != "off";
        assert!(if shrinks { ratio > 1.2 } else { (0.8..1.1).contains(&ratio) }, "{row}");
    }
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    assert_eq!(names(&dir), [""; 0]);
    assert_nothing_left(&live);
}

#[test]
fn files_are_measured_through_the_mount_and_left_empty() {
    if !can_mount() {
        return;
    }
    let live = Live::new();
    let (a, b) = (live.disk("a", 300), live.disk("b", 300));
    let line = format!("bench {SMALL} -t layouts,fsync -H -p {a} {b}");
    let (code, out, err) = run(&live, &line);
    if err.contains("cannot be mounted here") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {err}");
        return;
    }
    assert_eq!(code, 0, "{err}");
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split('\t').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 8), "{out}");
    let keys: Vec<_> = rows.iter().filter(|row| row[2] == "may fail").map(|row| (row[1], row[4])).collect();
    assert_eq!(keys, [("stripe", "0"), ("mirror", "1")]);
    assert_eq!(rows.iter().filter(|row| row[0] == "fsync" && row[4].parse::<u64>().unwrap() > 0).count(), 2);
    // The next benchmark finds them unused again.
    for path in [&a, &b] {
        let bytes = fs::read(path).unwrap();
        assert!(bytes.len() == 300 << 20 && bytes.iter().all(|byte| *byte == 0));
    }
    assert_nothing_left(&live);
}

#[test]
fn used_devices_are_refused_and_stay_as_they_are() {
    let live = Live::new();
    let (used, other) = (live.disk("a", 300), live.disk("b", 300));
    live.ok(&format!("zpool create -O canmount=off tank {used}"));
    let refused = |words: &str| {
        let (code, out, err) = run(&live, &format!("bench {SMALL} --no-mount {words}"));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        err
    };
    // The pool is imported: its daemon has the file, even with -f.
    for words in [format!("{other} {used}"), format!("-f {other} {used}")] {
        let said = refused(&words);
        assert!(said.contains("it is in use: another process has it as a device"), "{said}");
    }
    assert_eq!(live.ok("zpool list -H -o name,health"), "tank\tONLINE\n");
    live.export_and_verify("tank");
    let said = refused(&used);
    assert!(said.contains("it contains a part of exported pool 'tank'\n-f overwrites it"), "{said}");
    File::options().write(true).open(&other).unwrap().write_all_at(b"a letter", 5 << 20).unwrap();
    let said = refused(&other);
    assert!(said.contains("it contains data"), "{said}");
    let said = refused("/dev/null");
    assert!(said.contains("must be a block device"), "{said}");
    let said = refused("nosuchpool");
    assert!(said.contains("is taken as a pool"), "{said}");
    let said = refused(&format!("--size 1T {}", live.dir.path().display()));
    assert!(said.contains("use a smaller --size"), "{said}");
    let (code, ..) = run(&live, &format!("bench --layout raidz3 {used}"));
    assert_ne!(code, 0);
    assert_nothing_left(&live);
}

#[test]
fn an_existing_pool_keeps_everything_it_had() {
    if !can_mount() {
        return;
    }
    let live = Live::new();
    let (disk, at) = (live.disk("a", 1024), live.dir.path().join("mnt"));
    let made = live.run(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    if made.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", made.err);
        return;
    }
    fs::write(at.join("mine"), "as it was").unwrap();
    live.ok("zfs create tank/home");
    let (code, out, err) = run(&live, &format!("bench {SMALL} -t layouts,files tank"));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("as it is") && out.contains("need a --size above the daemon's cache"), "{out}");
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/home\n");
    assert_eq!(fs::read_to_string(at.join("mine")).unwrap(), "as it was");
    let (code, _, err) = run(&live, &format!("bench {SMALL} --size 1G tank"));
    assert!(code == 1 && err.contains("needed"), "{err}");

    // Killed: the dataset stays until the next benchmark, which removes nothing else.
    let mut child = command(&live, "bench --quick --runs 50 --size 8M -t fsync tank")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the dataset", || live.ok("zfs list -H -o name").contains("aquifer-bench"));
    child.kill().unwrap();
    child.wait().unwrap();
    // A command that it had started may still be running.
    std::thread::sleep(Duration::from_secs(1));
    let (code, _, err) = run(&live, &format!("bench {SMALL} -t fsync tank"));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("removed what an interrupted benchmark had left"), "{err}");
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/home\n");
    // The same after a restart of the machine, which empties the temporary directory; objects that only have
    // a similar name stay.
    live.ok("zfs create -o aquifer:bench=/nowhere tank/aquifer-bench-1");
    live.ok("zfs create tank/aquifer-bench-2");
    let (code, _, err) = run(&live, &format!("bench {SMALL} -t fsync tank"));
    assert!(code == 0 && err.contains("had left (tank/aquifer-bench-1)"), "{err}");
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/aquifer-bench-2\ntank/home\n");
    assert_nothing_left(&live);
    live.export_and_verify("tank");
}

#[test]
fn an_ordinary_user_learns_what_is_needed() {
    let live = Live::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let disk = live.disk("a", 300);
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(live.dir.path(), 0o755);
    open(Path::new(&disk), 0o600);
    let mut command = command(&live, &format!("bench {SMALL} --no-mount {disk}"));
    open(&live.dir.path().join("t"), 0o777);
    match command.uid(65534).gid(65534).output() {
        Ok(output) => {
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{err}");
            assert!(
                err.contains("permission denied: run this as root, or name a directory of yours"),
                "{err}"
            );
        }
        Err(e) => eprintln!("SKIPPED: another user cannot run the program here: {e}"),
    }
    assert_nothing_left(&live);
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what} does not appear");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_interrupt_leaves_nothing() {
    let live = Live::new();
    let dir = live.dir.path().join("here");
    fs::create_dir(&dir).unwrap();
    let alone = if can_mount() { "" } else { "--no-mount" };
    for (signal, code) in [("INT", 130), ("TERM", 130)] {
        let line = format!("bench --quick --runs 100 --devices 2 --size 8M {alone} {}", dir.display());
        let child = command(&live, &line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("the directory of files", || !names(&dir).is_empty());
        std::thread::sleep(Duration::from_secs(2));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{signal}: {err}");
        assert!(output.stdout.is_empty() && err.contains("interrupted"), "{err}");
        assert_eq!(names(&dir), [""; 0]);
        assert_nothing_left(&live);
    }
}
