//! The inner half, which runs in the sandbox: the group's setup, its tests and its cleanup, in order.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::PACKAGE;
use super::results::{Line, Outcome};

/// The only directory in a test's `PATH`.
const BIN: &str = "/run/zts-bin";
/// Names of our binary.
const OURS: [&str; 10] = [
    "zpool",
    "zfs",
    "zdb",
    "zinject",
    "zstream",
    "arcstat",
    "zarcstat",
    "arc_summary",
    "zarcsummary",
    "zilstat",
];
/// Where the tree may have OpenZFS's zedlets.
const ZEDLETS: &str = "/usr/lib/zfs-linux/zed.d";
/// The suite's line between a test and its cleanup.
const CLEANUP: &str = "NOTE: Performing local cleanup";
/// The ordinary user for tests that need one.
const USER: &str = "zts";
/// Exit code of a test that cannot run here.
const UNSUPPORTED: i32 = 4;
/// The folder of the suite's `$TESTDIR`.
const TEST_DIR: &str = "/var/tmp/testdir";
/// Time for the rest of a test's output, once it has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Seconds for a setup or a cleanup, at least: a test's if that has more.
const SETUP_SECONDS: u64 = 300;

/// `losetup -f` counts devices without a node as free. This one takes the first free one of the group's nodes.
const LOSETUP: &str = r#"#!/bin/sh
real=/sbin/losetup
[ "$1" = -f ] || exec $real "$@"
shift
for node in /dev/loop[0-9]*; do
	[ -e "/sys/block/${node#/dev/}/loop/backing_file" ] && continue
	if [ $# = 0 ]; then
		echo "$node"
	else
		file=$1
		shift
		$real "$node" "$file" || exit
		[ "$*" != --show ] || echo "$node"
	fi
	exit 0
done
echo "losetup: cannot find an unused loop device" >&2
exit 1
"#;

/// Runs a command with the suite's configuration in its environment.
const CONFIGURED: &str = r#". "$STF_SUITE/include/default.cfg"; exec "$@""#;

/// The parameters from the outer half.
struct Task {
    group: String,
    pre: String,
    post: String,
    user: String,
    timeout: u64,
    disks: String,
    tests: Vec<String>,
}

impl Task {
    fn parse(args: &[String]) -> Option<Self> {
        let mut args = args.iter().cloned();
        Some(Self {
            group: args.next()?,
            pre: args.next()?,
            post: args.next()?,
            user: args.next()?,
            timeout: args.next()?.parse().ok()?,
            disks: args.next()?,
            tests: args.collect(),
        })
    }
}

/// Runs in the sandbox.
pub fn main(args: &[String]) -> ExitCode {
    let Some(task) = Task::parse(args) else { return ExitCode::from(2) };
    if let Err(why) = links() {
        eprintln!("zts: {why}");
        return ExitCode::from(2);
    }
    // Without the suite's event daemon no disk is faulted, and no spare takes over, by itself.
    let agents = Command::new("/zts/aquifer").args(["set", "-s", "aquifer_fault_agents=0"]).status();
    if !agents.is_ok_and(|status| status.success()) {
        eprintln!("zts: the fault agents stay on");
    }
    let ready = task.pre.is_empty() || !task.has(&task.pre) || {
        let line = task.run(&task.pre, "root", task.timeout.max(SETUP_SECONDS));
        if line.outcome != Outcome::Pass {
            skip_all(&task, &line);
        }
        line.outcome == Outcome::Pass
    };
    if ready {
        let has_folder = Path::new(TEST_DIR).is_dir();
        for test in &task.tests {
            if has_folder {
                let _ = fs::create_dir_all(TEST_DIR);
            }
            if *test == task.pre || *test == task.post {
                let line = if task.has(test) {
                    Some(task.run(test, "root", task.timeout.max(SETUP_SECONDS)))
                } else {
                    None
                };
                if let Some(bad) = line.filter(|line| line.outcome != Outcome::Pass) {
                    println!("# {}", bad.text());
                }
                continue;
            }
            println!("{}", task.run(test, &task.user, task.timeout).text());
            let _ = io::stdout().flush();
        }
    }
    if !task.post.is_empty() && task.has(&task.post) {
        let line = task.run(&task.post, "root", task.timeout.max(SETUP_SECONDS));
        if line.outcome != Outcome::Pass {
            println!("# {}", line.text());
        }
    }
    ExitCode::SUCCESS
}

/// Without a successful setup the tests cannot run: they are skipped or failed, like the setup.
fn skip_all(task: &Task, setup: &Line) {
    let outcome = if setup.outcome == Outcome::Skip { Outcome::Skip } else { Outcome::Fail };
    for test in task.tests.iter().filter(|test| **test != task.pre && **test != task.post) {
        let words = format!("setup: {}", setup.words);
        println!("{}", Line { outcome, test: format!("{}/{test}", task.group), seconds: 0, words }.text());
    }
}

impl Task {
    fn script(&self, name: &str) -> Option<PathBuf> {
        let stem = Path::new(PACKAGE).join("zfs-tests/tests/functional").join(&self.group).join(name);
        let endings = [".ksh", ".sh", ""].map(|end| PathBuf::from(format!("{}{end}", stem.display())));
        endings.into_iter().find(|path| path.is_file())
    }

    fn has(&self, name: &str) -> bool {
        self.script(name).is_some()
    }

    fn run(&self, name: &str, user: &str, seconds: u64) -> Line {
        let began = Instant::now();
        let (outcome, words) = match self.step(name, user, seconds) {
            Ok(ended) => ended,
            Err(why) => (Outcome::Fail, why),
        };
        Line { outcome, test: format!("{}/{name}", self.group), seconds: began.elapsed().as_secs(), words }
    }

    fn step(&self, name: &str, user: &str, seconds: u64) -> Result<(Outcome, String), String> {
        let script = self.script(name).ok_or("no such script")?;
        let log = PathBuf::from("/var/tmp/.zts-logs").join(format!("{name}.log"));
        let told = |e: io::Error| format!("{}: {e}", log.display());
        let mut file = fs::File::create(&log).map_err(told)?;
        let (mut output, input) = io::pipe().map_err(told)?;
        let copy = input.try_clone().map_err(told)?;
        let mut command = self.command(&script, user);
        command.stdin(Stdio::null()).stdout(input).stderr(copy).process_group(0);
        let child = command.spawn().map_err(|e| format!("{}: {e}", script.display()))?;
        drop(command);
        // A pipe, as in the suite's own runner: a limit that a test sets for the size of its files is not for its log.
        let kept = thread::spawn(move || drop(io::copy(&mut output, &mut file)));
        let ended = within(child, Duration::from_secs(seconds));
        // A process that the test left behind may hold the pipe.
        let patience = Instant::now() + DRAIN;
        while !kept.is_finished() && Instant::now() < patience {
            sleep(Duration::from_millis(5));
        }
        let said = String::from_utf8_lossy(&fs::read(&log).map_err(told)?).into_owned();
        Ok(match ended {
            None => (Outcome::Late, last_words(&said)),
            Some(0) => (Outcome::Pass, String::new()),
            Some(UNSUPPORTED) => (Outcome::Skip, last_words(&said)),
            Some(_) => (Outcome::Fail, last_words(&said)),
        })
    }

    fn command(&self, script: &Path, user: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", CONFIGURED, "configured"]);
        let user = if user.is_empty() { USER } else { user };
        if user != "root" {
            command.args(["sudo", "-E", "-u", user, "env", "TMPDIR=/var/tmp"]).arg(format!("PATH={BIN}"));
        }
        command
            .arg(script)
            .current_dir("/var/tmp")
            .env_clear()
            .env("PATH", BIN)
            .env("HOME", "/root")
            .env("STF_TOOLS", format!("{PACKAGE}/test-runner"))
            .env("STF_SUITE", format!("{PACKAGE}/zfs-tests"))
            .env("STF_PATH", BIN)
            .env("FILEDIR", "/var/tmp")
            .env("TMPDIR", "/var/tmp")
            .env("DISKS", &self.disks)
            .env("KEEP", "rpool")
            .env("__ZFS_POOL_EXCLUDE", "rpool");
        command
    }
}

/// Waits for a process. On timeout it is ended with all its descendants.
fn within(mut child: Child, limit: Duration) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        if began.elapsed() >= limit {
            let group = format!("-{}", child.id());
            let _ = Command::new("/bin/kill").args(["-KILL", "--", &group]).status();
            let _ = child.wait();
            return None;
        }
        sleep(Duration::from_millis(20));
    }
}

/// The line with the reason: the suite's last `ERROR` or `UNSUPPORTED`, otherwise the last line before its cleanup.
fn last_words(said: &str) -> String {
    let marks = ["ERROR: ", "UNSUPPORTED: ", "UNTESTED: ", "UNRESOLVED: "];
    let marked = said.lines().rev().find_map(|line| marks.iter().find_map(|mark| line.split_once(mark)));
    let told = || said.lines().take_while(|line| !line.starts_with(CLEANUP)).last().unwrap_or_default();
    let words = marked.map_or_else(told, |(_, rest)| rest);
    words.chars().take(200).collect()
}

/// Links to the programs that the suite may use, ours before others of the same name.
fn links() -> Result<(), String> {
    fs::create_dir_all(BIN).map_err(|e| format!("{BIN}: {e}"))?;
    let link = |from: &Path, name: &str| {
        let to = Path::new(BIN).join(name);
        if from.exists() && !to.exists() {
            let _ = symlink(from, to);
        }
    };
    OURS.iter().for_each(|name| link(Path::new("/zts/aquifer"), name));
    // Without zedlets an event daemon has nothing to do.
    let zed = if Path::new(ZEDLETS).is_dir() { "/zts/aquifer" } else { "/bin/true" };
    link(Path::new(zed), "zed");
    let losetup = Path::new(BIN).join("losetup");
    let made = fs::write(&losetup, LOSETUP)
        .and_then(|()| fs::set_permissions(&losetup, Permissions::from_mode(0o755)));
    made.map_err(|e| format!("{}: {e}", losetup.display()))?;
    let tools = Path::new(PACKAGE).join("zfs-tests/bin");
    for entry in fs::read_dir(&tools).map_err(|e| format!("{}: {e}", tools.display()))?.flatten() {
        link(&entry.path(), &entry.file_name().to_string_lossy());
    }
    let config = Path::new(PACKAGE).join("zfs-tests/include/commands.cfg");
    let text = fs::read_to_string(&config).map_err(|e| format!("{}: {e}", config.display()))?;
    let listed = text
        .split(['\'', '\n', ' '])
        .map(str::trim)
        .filter(|word| word.chars().all(|c| c.is_ascii_graphic()));
    for word in listed.filter(|word| !word.is_empty() && !word.contains(['=', '#', '/'])) {
        for folder in ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"] {
            link(&Path::new(folder).join(word), word);
        }
    }
    for (name, from) in [
        ("fsck", "/sbin/fsck.ext4"),
        ("newfs", "/sbin/mkfs.ext4"),
        ("compress", "/bin/gzip"),
        ("uncompress", "/bin/gunzip"),
        ("xxh128sum", "/zts/xtask"),
    ] {
        link(Path::new(from), name);
    }
    Ok(())
}
