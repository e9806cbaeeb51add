//! `zed` runs scripts for events of pools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use live::Live;

/// A directory of zedlets, and an event daemon.
struct House {
    live: Live,
    zed: Option<Child>,
}

impl House {
    fn new() -> Self {
        let house = Self { live: Live::new(), zed: None };
        fs::create_dir(house.zedlets()).unwrap();
        mode(&house.zedlets(), 0o755);
        mode(house.live.dir.path(), 0o755);
        house
    }

    fn zedlets(&self) -> PathBuf {
        self.live.dir.path().join("zed.d")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.live.dir.path().join(name)
    }

    /// A zedlet; `OUT` in its text is the directory of the test.
    fn zedlet(&self, name: &str, text: &str) {
        let text = text.replace("OUT", &self.live.dir.path().display().to_string());
        fs::write(self.zedlets().join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        mode(&self.zedlets().join(name), 0o755);
    }

    fn command(&self, options: &str) -> Command {
        let mut command = self.live.command(&format!("zed -d {} {options}", self.zedlets().display()));
        command.env("SECRET", "x");
        command
    }

    /// Starts the event daemon, and waits for it.
    fn start(&mut self) {
        let log = File::create(self.at("zed.log")).unwrap();
        self.zed = Some(self.command("-F -v --time-limit 2").stderr(log).spawn().unwrap());
        self.wait("zed.log", "event daemon zfs-");
    }

    fn stop(&mut self) {
        if let Some(mut zed) = self.zed.take() {
            signal("-TERM", zed.id());
            assert!(zed.wait().unwrap().success());
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// Waits until a file of the test contains `text`; returns the file.
    fn wait(&self, name: &str, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let got = self.read(name);
            if got.contains(text) {
                return got;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("no '{text}' in {name}: {}\nlog: {}", self.read(name), self.read("zed.log"));
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some(mut zed) = self.zed.take() {
            let _ = zed.kill();
            let _ = zed.wait();
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn signal(signal: &str, pid: u32) {
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
}

/// Whether a process lives; a dead one may wait for its parent.
fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// The numbers of a list's events, and whether none between them is missing.
fn eids(list: &str) -> (Vec<u64>, bool) {
    let mut eids: Vec<u64> = list.lines().map(|l| l.split(' ').next().unwrap().parse().unwrap()).collect();
    eids.sort_unstable();
    let span = eids.last().unwrap_or(&0) + 1 - eids.first().unwrap_or(&1);
    let mut distinct = eids.clone();
    distinct.dedup();
    let is_whole = distinct.len() as u64 == span;
    (eids, is_whole)
}

#[test]
fn an_event_runs_its_zedlets_with_its_fields() {
    let mut house = House::new();
    house.zedlet("statechange-env.sh", "env > OUT/env.new; mv OUT/env.new OUT/env");
    house.zedlet("scrub_finish-other.sh", "touch OUT/other");
    house.start();
    let (a, b) = (house.live.disk("a", 128), house.live.disk("b", 128));
    house.live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    house.live.ok(&format!("zpool offline tank {b}"));
    let env = house.wait("env", "ZEVENT_SUBCLASS=statechange");
    let value = |name: &str| {
        let lead = format!("{name}=");
        env.lines()
            .find_map(|line| line.strip_prefix(lead.as_str()))
            .unwrap_or_else(|| panic!("{name}: {env}"))
    };
    assert_eq!(value("ZEVENT_CLASS"), "resource.fs.zfs.statechange");
    assert_eq!((value("ZEVENT_POOL"), value("ZEVENT_VDEV_PATH")), ("tank", b.as_str()));
    assert_eq!((value("ZEVENT_VDEV_STATE_STR"), value("ZEVENT_VDEV_LASTSTATE_STR")), ("OFFLINE", "ONLINE"));
    let guid: u64 = house.live.ok("zpool get -Hpo value guid tank").trim().parse().unwrap();
    assert_eq!(value("ZEVENT_POOL_GUID"), format!("0x{guid:016X}"));
    let (seconds, nanos) = (value("ZEVENT_TIME_SECS"), value("ZEVENT_TIME_NSECS"));
    assert_eq!(value("ZEVENT_TIME"), format!("{seconds} {nanos}"));
    assert!(value("ZEVENT_TIME_STRING").ends_with("+0000"), "{env}");
    assert_eq!(value("ZED_ZEDLET_DIR"), house.zedlets().display().to_string());
    assert_eq!(value("ZED_PID"), house.zed.as_ref().unwrap().id().to_string());
    assert!(!env.contains("SECRET") && !env.contains("HOME="), "{env}");
    assert_eq!(value("ZFS_VERSION").split('.').count(), 3);
    // Another event daemon is refused.
    let second = house.command("-F").output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("is in use"), "{said}");
    // New zedlets are found after SIGHUP.
    house.zedlet("pool_export-new.sh", "echo $ZEVENT_POOL > OUT/new");
    signal("-HUP", house.zed.as_ref().unwrap().id());
    house.wait("zed.log", "3 zedlets");
    house.live.ok("zpool export tank");
    house.wait("new", "tank");
    assert!(!house.at("other").exists());
    house.stop();
    assert!(!house.live.run_dir().join("zed.pid").exists());
}

#[test]
fn a_hanging_zedlet_is_ended_and_a_restart_repeats_no_event() {
    let mut house = House::new();
    house.zedlet("all-list.sh", "echo $ZEVENT_EID $ZEVENT_SUBCLASS >> OUT/list");
    house.zedlet("statechange-hang.sh", "sleep 1000");
    house.start();
    let (a, b) = (house.live.disk("a", 128), house.live.disk("b", 128));
    house.live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    house.live.ok(&format!("zpool offline tank {b}"));
    house.wait("list", "statechange");
    house.live.ok("zpool scrub -w tank");
    house.wait("list", "scrub_finish");
    let log = house.wait("zed.log", "Finished \"statechange-hang.sh\"");
    assert!(log.contains("Ending \"statechange-hang.sh\"") && log.contains("sig=15"), "{log}");
    house.stop();
    // This event happens meanwhile.
    fs::remove_file(house.zedlets().join("statechange-hang.sh")).unwrap();
    house.live.ok("zpool set comment=x tank");
    house.live.ok("zpool scrub -w tank");
    house.start();
    house.live.ok(&format!("zpool online tank {b}"));
    house.live.ok("zpool wait -t resilver tank");
    house.live.ok("zpool scrub -w tank");
    let count = |list: &str, word: &str| list.lines().filter(|line| line.ends_with(word)).count();
    let until = Instant::now() + Duration::from_secs(60);
    // Zedlets of several events run at once.
    let is_done = |list: &str| count(list, " scrub_finish") == 3 && eids(list).1;
    while !is_done(&house.read("list")) && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    let list = house.read("list");
    let (eids, is_whole) = eids(&list);
    assert!(is_whole && eids.windows(2).all(|pair| pair[0] < pair[1]), "{list}");
    assert_eq!((count(&list, " scrub_finish"), count(&list, " pool_create")), (3, 1), "{list}");
    // The daemon ends with its last pool in spite of the event daemon, which follows the next one.
    let pid = house.live.pid().unwrap();
    house.live.ok("zpool export tank");
    house.wait("list", "pool_export");
    let until = Instant::now() + Duration::from_secs(60);
    while is_running(pid) && Instant::now() < until {
        sleep(Duration::from_millis(50));
    }
    assert!(!is_running(pid), "the daemon stays");
    house.live.ok(&format!("zpool import -d {} tank", house.live.disks().display()));
    house.wait("list", "pool_import");
    house.stop();
}

#[test]
fn scripts_that_other_users_can_change_are_not_run() {
    let house = House::new();
    house.zedlet("all-fine.sh", "touch OUT/fine");
    mode(&house.zedlets(), 0o777);
    let refused = house.command("-F").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("zed.d' is writable by group: its zedlets are not run"), "{said}");
    let refused = house.command("").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(!house.live.run_dir().join("zed.pid").exists());
    // In the background.
    mode(&house.zedlets(), 0o755);
    house.zedlet("all-unsafe.sh", "touch OUT/unsafe");
    mode(&house.zedlets().join("all-unsafe.sh"), 0o775);
    let begun = house.command("").output().unwrap();
    assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
    let pid = fs::read_to_string(house.live.run_dir().join("zed.pid")).unwrap().trim().parse().unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "zed\n");
    house.live.ok(&format!("zpool create -O mountpoint=none tank {}", house.live.disk("a", 128)));
    let until = Instant::now() + Duration::from_secs(60);
    while !house.at("fine").exists() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    testkit::live::end(pid, "-TERM");
    assert!(house.at("fine").exists() && !house.at("unsafe").exists());
    assert!(!is_running(pid));
}

#[test]
fn the_own_zedlet_reports_a_failed_disk() {
    let mut house = House::new();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/zed.d/notify.sh");
    for name in ["statechange-notify.sh", "scrub_finish-notify.sh"] {
        fs::copy(&own, house.zedlets().join(name)).unwrap();
        mode(&house.zedlets().join(name), 0o755);
    }
    let rc = "ZED_NOTIFY_COMMAND='{ echo \"$SUBJECT\"; cat; } >> OUT/report'\nZED_NOTIFY_VERBOSE=1\nZED_EMAIL_PROG=OUT/mail\nZED_EMAIL_ADDR='root a@b;c'\n";
    fs::write(
        house.zedlets().join("zed.rc"),
        rc.replace("OUT", &house.live.dir.path().display().to_string()),
    )
    .unwrap();
    mode(&house.zedlets().join("zed.rc"), 0o644);
    let mail =
        format!("#!/bin/sh\nfor word; do echo \"<$word>\"; done >> {}\n", house.at("mailed").display());
    fs::write(house.at("mail"), mail).unwrap();
    mode(&house.at("mail"), 0o755);
    house.start();
    let (a, b) = (house.live.disk("a", 128), house.live.disk("b", 128));
    house.live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    house.live.ok(&format!("zpool offline -f tank {b}"));
    let report = house.wait("report", "host: ");
    assert!(
        report.starts_with("disk of pool tank on ") && report.contains("is FAULTED\nToo many"),
        "{report}"
    );
    assert!(report.contains(&format!("  disk: {b}\n")), "{report}");
    let mailed = house.wait("mailed", "<root>");
    assert!(mailed.starts_with("<-s>\n<ZFS: disk of pool tank on ") && !mailed.contains("a@b"), "{mailed}");
    house.live.ok("zpool scrub -w tank");
    house.wait("report", "scrub of pool tank");
    house.stop();
}
