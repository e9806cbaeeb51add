//! Where a group runs: a file system, processes, users, loop devices and a daemon of its own.
//!
//! The group sees an overlay of the machine's file system (changes go to memory and are dropped) with `/var/tmp` on
//! disk, where its loop devices lie. `zpool`, `zfs` and `zdb` in its `PATH` are links to the binary under test; the
//! suite's own helper programs and real `zhack`, `zstream`, `ztest` are beside them. All of it ends with the group:
//! mounts with the mount namespace, daemons and strays with the process namespace.
//!
//! `mount -t zfs` finds ours, too. The place of OpenZFS's cache file is a link to ours. Module parameters and kstats are
//! mapped in the suite's library (`shim.ksh`): a parameter with the name of one of the daemon's settings is that
//! setting, and a kstat is the daemon's counter of that name. Any other parameter does not exist, so its test fails
//! and is listed with that reason, except for `zfs_admin_snapshot`, which is always on here. OpenZFS's event daemon
//! is a program that does nothing, with empty settings: the daemon itself does its work for pools, and tests of it fail.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Options;
use super::results::Line;
use super::runfile::Group;

/// Size of each disk: room for what the tests ask of the smallest machine.
const DISK_BYTES: u64 = 4 << 30;

/// Number of the next sandbox of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Makes the file system and starts this program again inside.
const ENTER: &str = r#"
set -e
room=$1; tree=$2; shift 2
mount --make-rprivate /
mkdir -p "$room/mem"
mount -t tmpfs tmpfs "$room/mem"
root=$room/mem/root
mkdir -p "$room/mem/up" "$room/mem/work" "$root"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$room/mem/up,workdir=$room/mem/work" "$root"
for part in dev proc sys; do mount --rbind /$part "$root/$part"; done
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
mkdir -p "$root/etc/zfs"
ln -sfn /var/lib/aquifer/zpool.cache "$root/etc/zfs/zpool.cache"
ln -sf /zts/aquifer "$root/sbin/mount.zfs"
mkdir -p "$root/run/zts-kstat"
lib=$root/usr/share/zfs/zfs-tests/include
cat "$root/zts/shim.ksh" >> "$lib/libtest.shlib"
if [ -e "$lib/kstat.shlib" ]; then
	sed -i 's|path="/proc/spl/kstat/zfs/|path="/run/zts-kstat/|; s|^\tif \[\[ ! -r "$path" \]\] ; then|\tzts_kstat "$path"\n&|' "$lib/kstat.shlib"
fi
chroot "$root" useradd -m zts
exec chroot "$root" /zts/xtask zts-inside "$@"
"#;

/// Runs the tests of a group; each result is shown as it comes.
pub fn run(group: &Group, options: &Options) -> Result<Vec<Line>, String> {
    let room = Room::make(options)?;
    let lines = room.run(group, options);
    drop(room);
    lines
}

/// The folder of a run and the loop devices over its files.
struct Room {
    path: PathBuf,
    disks: Vec<String>,
}

impl Room {
    fn make(options: &Options) -> Result<Self, String> {
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("zts-{}-{number}", std::process::id()));
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        for part in ["var", "tools"] {
            fs::create_dir_all(path.join(part)).map_err(told)?;
        }
        let mut room = Self { path: path.clone(), disks: Vec::new() };
        let open = |part| output(Command::new("chmod").args([part, "var"]).current_dir(&path));
        open("1777")?;
        copy(&options.binary, &path.join("tools/aquifer"))?;
        let shim = path.join("tools/shim.ksh");
        fs::write(&shim, include_str!("shim.ksh")).map_err(told)?;
        copy(&std::env::current_exe().map_err(told)?, &path.join("tools/xtask"))?;
        for disk in 0..options.disks {
            let file = path.join(format!("var/file-vdev{disk}"));
            fs::File::create(&file).and_then(|file| file.set_len(DISK_BYTES)).map_err(told)?;
            let node = output(Command::new("losetup").args(["--show", "-f"]).arg(&file))?;
            room.disks.push(node.trim().trim_start_matches("/dev/").to_owned());
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

    /// Loop devices over files of the room, the tests' own too.
    fn loops(&self) -> Vec<String> {
        let mut inodes = BTreeSet::new();
        walk(&self.path.join("var"), &mut inodes);
        let listed = output(Command::new("losetup").args(["-l", "-n", "--raw", "-O", "NAME,BACK-INO"]));
        let listed = listed.unwrap_or_default();
        let ours = listed.lines().filter_map(|line| line.split_once(' '));
        let ours =
            ours.filter(|(_, inode)| inode.trim().parse().is_ok_and(|inode: u64| inodes.contains(&inode)));
        ours.map(|(name, _)| name.to_owned()).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for node in self.loops() {
            let _ = output(Command::new("losetup").args(["-d", &node]));
        }
        if let Err(why) = fs::remove_dir_all(&self.path) {
            eprintln!("zts: {}: {why}", self.path.display());
        }
    }
}

/// Inode numbers of the files below a folder.
fn walk(folder: &Path, inodes: &mut BTreeSet<u64>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            walk(&entry.path(), inodes);
        } else if meta.is_file() {
            inodes.insert(meta.ino());
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}

/// What a command printed, or what it complained of.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{name}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}
