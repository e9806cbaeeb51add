//! Where a group runs: a file system, processes, users, loop devices and a daemon of its own.
//!
//! The group sees an overlay of the machine's file system (changes go to memory and are dropped) with `/var/tmp` on
//! disk, where its loop devices lie. `zpool`, `zfs` and `zdb` in its `PATH` are links to the binary under test; the
//! suite's own helper programs and real `zhack`, `zstream`, `ztest` are beside them. All of it ends with the group:
//! mounts with the mount namespace, daemons and strays with the process namespace.
//!
//! `xxh128sum` is a command of this program. `/var/tmp/testdir` exists again for each test of a group whose setup made it: on
//! a machine that runs all groups, others than the test that removed it leave it there.
//!
//! `/dev` is the group's own and contains only its loop devices ([`super::loops`]), so that groups side by side do not
//! find each other's pools.
//!
//! `mount -t zfs` finds ours, too. The place of OpenZFS's cache file is a link to ours. Module parameters and kstats are
//! mapped in the suite's library (`shim.ksh`): a parameter with the name of one of the daemon's settings is that
//! setting, and a kstat is the daemon's counter of that name. Any other parameter does not exist, so its test fails
//! and is listed with that reason, except for `zfs_admin_snapshot`, which is always on here. `zed` is the binary under test,
//! too, and runs OpenZFS's zedlets if the tree has them in `/usr/lib/zfs-linux/zed.d`; otherwise it is a program that does
//! nothing, with empty settings. The daemon of the pools itself faults disks and takes spares, while the suite's event daemon
//! runs.
//!
//! The groups `l2arc` and `trim` count on reads that reach the pool's devices: they have a small cache, and `fio` drops the
//! kernel's caches before it reads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Options;
use super::loops::Loops;
use super::results::Line;
use super::runfile::Group;

/// Size of each disk: room for what the tests ask of the smallest machine.
const DISK_BYTES: u64 = 4 << 30;

/// Number of the next sandbox of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Makes the file system and starts this program again inside.
const ENTER: &str = r#"
set -e
room=$1; tree=$2; nodes=$3; shift 3
mount --make-rprivate /
mkdir -p "$room/mem"
mount -t tmpfs tmpfs "$room/mem"
root=$room/mem/root
mkdir -p "$room/mem/up" "$room/mem/work" "$root"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$room/mem/up,workdir=$room/mem/work" "$root"
for part in proc sys; do mount --rbind /$part "$root/$part"; done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty ptmx console fuse kmsg $nodes; do cp -a "/dev/$node" "$root/dev/"; done
mkdir -m 1777 "$root/dev/shm"
mkdir "$root/dev/pts"
mount --rbind /dev/pts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"; done
mount -t tmpfs tmpfs "$root/sys/module"
mkdir -p "$root/sys/module/zfs/parameters"
echo 1 > "$root/sys/module/zfs/parameters/zfs_admin_snapshot"
mkdir -p "$root/etc/zfs/zed.d"
touch "$root/etc/zfs/zed.d/zed.rc" "$root/etc/zfs/zed.d/zed-functions.sh"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$room/var" "$root/var/tmp"
mkdir "$root/zts"
mount --bind "$room/tools" "$root/zts"
mkdir -m 700 "$root/run/aquifer"
mkdir -m 1777 "$root/run/lock"
mkdir -p "$root/etc/zfs"
ln -sfn /var/lib/aquifer/zpool.cache "$root/etc/zfs/zpool.cache"
ln -sf /zts/aquifer "$root/sbin/mount.zfs"
ln -sf /zts/aquifer "$root/sbin/mount.fuse.zfs"
mkdir -p "$root/run/zts-kstat"
lib=$root/usr/share/zfs/zfs-tests/include
if [ -d "$root/usr/lib/zfs-linux/zed.d" ]; then
	sed -i -E 's/^function (zed_start|zed_stop)$/function zts_\1/' "$lib/libtest.shlib"
fi
cat "$root/zts/shim.ksh" >> "$lib/libtest.shlib"
if [ -e "$lib/kstat.shlib" ]; then
	sed -i 's|path="/proc/spl/kstat/zfs/|path="/run/zts-kstat/|; s|^\tif \[\[ ! -r "$path" \]\] ; then|\tzts_kstat "$path"\n&|' "$lib/kstat.shlib"
fi
case $1 in l2arc | trim) rereads=yes ;; *) rereads= ;; esac
if [ "$rereads" ] && [ -x "$root/usr/bin/fio" ]; then
	mkdir -p "$root/etc/aquifer"
	echo 'zfs_arc_max = 134217728' > "$root/etc/aquifer/aquifer.conf"
	mv "$root/usr/bin/fio" "$root/usr/bin/fio.real"
	printf '#!/bin/sh\ncase "$*" in *read*) sync; echo 3 > /proc/sys/vm/drop_caches ;; esac\nexec /usr/bin/fio.real "$@"\n' > "$root/usr/bin/fio"
	chmod 755 "$root/usr/bin/fio"
fi
chroot "$root" useradd -m zts
# The shell stays: as the first process of its namespace it waits for processes whose parents have ended.
chroot "$root" /zts/xtask zts-inside "$@" || exit $?
exit 0
"#;

/// Runs the tests of a group; each result is shown as it comes.
pub fn run(group: &Group, options: &Options) -> Result<Vec<Line>, String> {
    let room = Room::make(options)?;
    let lines = room.run(group, options);
    drop(room);
    lines
}

/// The folder of a run and its loop devices; the first of them are the disks over its files.
struct Room {
    path: PathBuf,
    disks: Vec<String>,
    loops: Loops,
}

impl Room {
    fn make(options: &Options) -> Result<Self, String> {
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("zts-{}-{number}", std::process::id()));
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        for part in ["var", "tools"] {
            fs::create_dir_all(path.join(part)).map_err(told)?;
        }
        let mut room = Self { path: path.clone(), disks: Vec::new(), loops: Loops::reserve(options.disks)? };
        let open = |part| output(Command::new("chmod").args([part, "var"]).current_dir(&path));
        open("1777")?;
        copy(&options.binary, &path.join("tools/aquifer"))?;
        let shim = path.join("tools/shim.ksh");
        fs::write(&shim, include_str!("shim.ksh")).map_err(told)?;
        copy(&std::env::current_exe().map_err(told)?, &path.join("tools/xtask"))?;
        for disk in 0..options.disks {
            let file = path.join(format!("var/file-vdev{disk}"));
            fs::File::create(&file).and_then(|file| file.set_len(DISK_BYTES)).map_err(told)?;
            let name = room.loops.name(disk);
            output(Command::new("losetup").arg(Path::new("/dev").join(&name)).arg(&file))?;
            room.disks.push(name);
        }
        Ok(room)
    }

    fn run(&self, group: &Group, options: &Options) -> Result<Vec<Line>, String> {
        let logs = options.out.join("logs").join(&group.name);
        fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
        let kept = self.path.join("var/.zts-logs");
        fs::create_dir_all(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        let timeout = options.timeout.unwrap_or(group.timeout);
        let mut child = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child=KILL",
                "sh",
                "-c",
                ENTER,
                "enter",
            ])
            .args([&self.path, &options.tree])
            .arg(self.loops.names().join(" "))
            .args([
                &group.name,
                &group.pre,
                &group.post,
                &group.user,
                &timeout.to_string(),
                &self.disks.join(" "),
            ])
            .args(&group.tests)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut lines = Vec::new();
        for text in BufReader::new(child.stdout.take().ok_or("no output")?).lines().map_while(Result::ok) {
            println!("{text}");
            lines.extend(Line::parse(&text));
        }
        let status = child.wait().map_err(|e| format!("unshare: {e}"))?;
        for log in fs::read_dir(&kept).into_iter().flatten().flatten() {
            copy(&log.path(), &logs.join(log.file_name()))?;
        }
        if status.success() {
            Ok(lines)
        } else {
            Err(format!("{}: the room ended with {status}", group.name))
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.loops.detach();
        if let Err(why) = fs::remove_dir_all(&self.path) {
            eprintln!("zts: {}: {why}", self.path.display());
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}

/// The output of a command, or its error.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{name}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}
