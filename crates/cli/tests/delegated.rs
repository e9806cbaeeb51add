//! Users who are not the pools' owner: delegated operations work, nothing else does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use live::{Live, Run};
use ondisk::Endian;
use testkit::hostile::streams::{encode, items};

const GUEST: u32 = 65_534;

/// A daemon that serves guests, and a program that they can reach.
struct House {
    live: Live,
    program: PathBuf,
}

impl House {
    fn new() -> Self {
        let live = Live::new();
        fs::set_permissions(live.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = live.dir.path().join("aquifer");
        // A copy by this process would lend its write descriptor to each child that another thread forks meanwhile, and
        // `exec` of a file that is open for writing fails (ETXTBSY).
        let copied = std::process::Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_aquifer"))
            .arg(&program)
            .status()
            .unwrap();
        assert!(copied.success());
        Self { live, program }
    }

    fn owner(&self, line: &str) -> String {
        let run: Run = self.live.command(line).env("AQUIFER_GUESTS", self.door()).output().unwrap().into();
        assert_eq!(run.code, 0, "{line}: {}{}", run.out, run.err);
        run.out
    }

    fn door(&self) -> PathBuf {
        self.live.dir.path().join("guests")
    }

    fn guest(&self, line: &str) -> Run {
        let mut command = std::process::Command::new(&self.program);
        command.args(line.split_whitespace()).uid(GUEST).gid(GUEST).current_dir("/");
        command.env("AQUIFER_GUESTS", self.door()).env("AQUIFER_RUN", self.live.dir.path().join("none"));
        command.output().unwrap().into()
    }

    /// Runs `line` with the file `stdin` as its standard input.
    fn guest_fed(&self, line: &str, stdin: &std::path::Path) -> Run {
        let mut command = std::process::Command::new(&self.program);
        command.args(line.split_whitespace()).uid(GUEST).gid(GUEST).current_dir("/");
        command.env("AQUIFER_GUESTS", self.door()).env("AQUIFER_RUN", self.live.dir.path().join("none"));
        command.stdin(fs::File::open(stdin).unwrap()).output().unwrap().into()
    }

    /// A file with the stream that `line` writes.
    fn stream(&self, name: &str, line: &str) -> PathBuf {
        let path = self.live.dir.path().join(name);
        let mut command = self.live.command(line);
        command.env("AQUIFER_GUESTS", self.door()).stdout(fs::File::create(&path).unwrap());
        assert!(command.status().unwrap().success(), "{line}");
        path
    }

    fn may(&self, line: &str) -> String {
        let run = self.guest(line);
        assert_eq!(run.code, 0, "{line}: {}{}\nlog: {}", run.out, run.err, self.live.log());
        run.out
    }

    fn may_not(&self, line: &str) {
        let run = self.guest(line);
        assert!(
            matches!(run.code, 1 | 255) && run.err.contains("permission denied"),
            "{line}: {} {}{}",
            run.code,
            run.out,
            run.err
        );
    }
}

fn is_root() -> bool {
    let is_root = std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root {
        eprintln!("SKIPPED: only root can be somebody else");
    }
    is_root
}

#[test]
fn streams_are_lent_to_no_server_of_another_user() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let run = house.live.dir.path().join("squatted");
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(GUEST), Some(GUEST)).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let as_guest = |words: &[&str]| {
        let mut command = std::process::Command::new(&house.program);
        command.args(words).uid(GUEST).gid(GUEST).current_dir("/").env("AQUIFER_RUN", &run);
        command
    };
    let mut server = as_guest(&["daemon", "--stay"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut server.stdout.take().unwrap(), &mut ready).unwrap();
    let ask = || -> Run {
        let mut command = std::process::Command::new(&house.program);
        command.args(["zpool", "list"]).env("AQUIFER_RUN", &run).output().unwrap().into()
    };
    let of_another = ask();
    // Were the folder only its server's user would tell.
    std::os::unix::fs::chown(&run, Some(0), Some(0)).unwrap();
    let of_ours = ask();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(of_another.code == 1 && of_another.err.contains("belongs to user 65534"), "{of_another:?}");
    assert!(of_ours.code == 1 && of_ours.err.contains("runs as user 65534"), "{of_ours:?}");
}

#[test]
fn what_was_allowed_works_and_nothing_else() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for name in ["tank/a", "tank/a/old", "tank/b"] {
        house.owner(&format!("zfs create {name}"));
    }
    house.owner(&format!("zfs allow -u {GUEST} snapshot,create,mount,destroy,hold,release tank/a"));
    house.owner("zfs allow -c rename,compression tank/a");
    house.owner("zfs allow -s @some diff,bookmark tank");
    house.owner("zfs allow -e @some tank");
    // The owner's own socket is the owner's alone all the same.
    let run = fs::metadata(house.live.run_dir()).unwrap().permissions().mode();
    assert_eq!(run & 0o777, 0o700);

    assert_eq!(house.may("zfs list -H -o name"), "tank\ntank/a\ntank/a/old\ntank/b\n");
    assert!(house.may("zpool status tank").contains("ONLINE"));
    house.may("zfs snapshot -r tank/a@x");
    house.may("zfs hold tag tank/a@x");
    house.may("zfs release tag tank/a@x");
    house.may("zfs bookmark tank/a@x tank/a#x");
    house.may("zfs destroy -r tank/a@x");
    // Permissions are needed for destroyed objects, not for those examined for it.
    house.owner("zfs snapshot tank/a/old@only");
    house.owner(&format!("zfs unallow {GUEST} destroy tank/a"));
    house.owner(&format!("zfs allow -l {GUEST} destroy tank/a/old"));
    // Snapshots are descendents of their dataset.
    house.may_not("zfs destroy tank/a/old@only");
    house.owner(&format!("zfs unallow -l {GUEST} destroy tank/a/old"));
    house.owner(&format!("zfs allow -d {GUEST} destroy,send tank/a/old"));
    house.may("zfs send -n tank/a/old@only");
    house.may("zfs destroy -r tank/a@only");
    house.owner("zfs snapshot -r tank/a@both");
    house.may_not("zfs destroy -r tank/a@both");
    house.may_not("zfs destroy -r tank/a/old");
    assert_eq!(house.owner("zfs list -H -o name -t snapshot"), "tank/a@both\ntank/a/old@both\n");
    house.owner(&format!("zfs allow -u {GUEST} destroy tank/a"));
    house.may("zfs destroy -r tank/a@both");
    // The dataset that gets a bookmark counts, wherever its source is.
    house.owner("zfs allow -l everyone promote tank/b");
    house.owner("zfs snapshot tank/b@s");
    house.owner("zfs unallow -e @some tank");
    house.owner("zfs allow -l -e bookmark tank/b");
    house.owner("zfs clone tank/b@s tank/c");
    house.may_not("zfs bookmark tank/b@s tank/c#s");
    house.may("zfs bookmark tank/b@s tank/b#s");
    house.owner("zfs destroy tank/c");
    house.owner("zfs allow -e @some tank");
    house.may_not("zfs snapshot tank/b@x");
    house.may_not("zfs snapshot -r tank@x");
    house.may_not("zfs set compression=lz4 tank/a");
    house.may_not("zfs set mountpoint=/etc tank/a");
    house.may_not("zfs create tank/c");
    house.may_not("zfs create -o mountpoint=/etc tank/a/c");
    house.may_not("zfs rename tank/a/old tank/a/new");
    house.may_not(&format!("zfs allow -u {GUEST} destroy tank/a"));
    house.may_not(&format!("zfs unallow {GUEST} tank/a"));
    for line in ["zpool export tank", "zpool destroy tank", "zpool set comment=x tank", "set zfs_arc_max=1"] {
        house.may_not(line);
    }
    // There is nothing to mount or to upgrade.
    for line in ["zfs mount -a", "zfs upgrade -a", "zpool upgrade -a", "zpool upgrade tank"] {
        house.may(line);
    }
    house.may_not("arcstat -o /etc/aquifer-was-here 0.1 1");

    // The creator of a dataset has the create-time permissions, there only.
    house.may("zfs create tank/a/mine");
    house.may("zfs set compression=lz4 tank/a/mine");
    house.may("zfs rename tank/a/mine tank/a/own");
    house.may_not("zfs set compression=lz4 tank/a/old");
    assert_eq!(house.owner("zfs get -H -o value compression tank/a/own"), "lz4\n");
    assert!(house.owner("zpool history -l tank").contains(&GUEST.to_string()));
    house.may("zfs destroy tank/a/own");

    // The pool's own property forbids it all.
    house.owner("zpool set delegation=off tank");
    house.may_not("zfs snapshot tank/a@y");
    house.owner("zpool set delegation=on tank");
    house.may("zfs snapshot tank/a@y");
    house.owner(&format!("zfs unallow {GUEST} tank/a"));
    house.may_not("zfs snapshot tank/a@z");
    house.live.export_and_verify("tank");
}

/// The stream names the datasets, not only the command line.
#[test]
fn a_receive_needs_permissions_on_each_dataset_of_its_stream() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for name in
        ["tank/src", "tank/src/mine", "tank/src/other", "tank/src/mine/sub", "tank/in", "tank/in/mine"]
    {
        house.owner(&format!("zfs create {name}"));
    }
    house.owner("zfs set compression=zstd tank/src/mine");
    house.owner("zfs set atime=off tank/src/mine");
    house.owner("zfs set com.example:a=b tank/src/mine");
    house.owner("zfs snapshot -r tank/src@s");
    house.owner("zfs clone tank/src/other@s tank/src/mine/copy");
    house.owner("zfs snapshot tank/src/mine/copy@t");
    let mine = house.stream("mine", "zfs send tank/src/mine@s");
    let sub = house.stream("sub", "zfs send tank/src/mine/sub@s");
    let other = house.stream("other", "zfs send tank/src/other@s");
    let tree = house.stream("tree", "zfs send -R tank/src@s");
    let with_props = house.stream("props", "zfs send -p tank/src/mine@s");
    let copy = house.stream("copy", "zfs send -i tank/src/other@s tank/src/mine/copy@t");
    let fed = |line: &str, stream: &PathBuf| house.guest_fed(line, stream);
    let may = |line: &str, stream: &PathBuf| {
        let run = fed(line, stream);
        assert_eq!(run.code, 0, "{line}: {}{}\nlog: {}", run.out, run.err, house.live.log());
        run.err
    };
    let may_not = |line: &str, stream: &PathBuf| {
        let run = fed(line, stream);
        assert!(run.code == 1 && run.err.contains("permission denied"), "{line}: {run:?}");
    };
    // Nothing is allowed yet.
    may_not("zfs receive tank/in/mine/x", &mine);
    may_not("zfs receive -d tank/in", &mine);
    house.owner(&format!("zfs allow -u {GUEST} receive,create,mount tank/in/mine"));
    house.owner("zfs allow -c snapshot tank/in/mine");
    may("zfs receive tank/in/mine/x", &mine);
    // The receiver of a dataset has the create-time permissions.
    house.may("zfs snapshot tank/in/mine/x@own");
    house.may_not("zfs snapshot tank/in/mine@own");
    // A new dataset may be one that is never mounted.
    may_not("zfs receive -o canmount=off tank/in/mine/off", &mine);
    house.owner(&format!("zfs allow -u {GUEST} canmount tank/in/mine"));
    may("zfs receive -o canmount=off tank/in/mine/off", &mine);
    may_not("zfs receive -F -o canmount=off tank/in/mine/off", &sub);
    // -e: tank/in/mine/sub is permitted, tank/in/other and tank/in/sub are not.
    may_not("zfs receive tank/in/x", &mine);
    may_not("zfs receive -e tank/in", &other);
    may_not("zfs receive -e tank/in", &sub);
    may("zfs receive -e tank/in/mine", &sub);
    may_not("zfs receive -d tank/in", &other);
    may("zfs receive -d tank/in/mine", &sub);
    house.may("zfs snapshot tank/in/mine/src@own");
    // Permissions are needed for each dataset of a package.
    house.owner("zfs create tank/two");
    house.owner(&format!("zfs allow -l -u {GUEST} receive,create,mount tank/two"));
    may_not("zfs receive tank/two/all", &tree);
    assert_eq!(house.owner("zfs list -H -o name -r tank/two"), "tank/two\ntank/two/all\n");
    // Properties that were not allowed stay as they are.
    house.owner(&format!("zfs allow -u {GUEST} compression tank/in/mine"));
    let said = may("zfs receive tank/in/mine/p", &with_props);
    for refused in ["atime", "com.example:a"] {
        let line = format!("cannot receive {refused} property on tank/in/mine/p: permission denied");
        assert!(said.contains(&line), "{said}");
    }
    let props = house.owner("zfs get -H -o value,source compression,atime,com.example:a tank/in/mine/p");
    assert_eq!(props, "zstd\treceived\non\tdefault\n-\t-\n");
    // The origin of a clone is named by the stream.
    may_not("zfs receive tank/in/mine/copy", &copy);
    may_not("zfs receive -o origin=tank/src/other@s tank/in/mine/copy", &copy);
    house.owner(&format!("zfs allow -u {GUEST} clone tank/src/other"));
    may("zfs receive tank/in/mine/copy", &copy);
    // A stream that is damaged or stops leaves nothing, and no slot is kept.
    let bytes = fs::read(&mine).unwrap();
    let cut = house.live.dir.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let run = fed("zfs receive tank/in/mine/cut", &cut);
    assert!(run.code == 1 && run.err.contains("incomplete stream"), "{run:?}");
    assert!(!house.owner("zfs list -H -o name").contains("cut"));
    house.live.export_and_verify("tank");
}

/// `receive:append` admits new datasets and incremental streams, and takes nothing away.
#[test]
fn a_receive_that_may_append_destroys_nothing() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for line in
        ["zfs create tank/src", "zfs snapshot tank/src@1", "zfs snapshot tank/src@2", "zfs create tank/in"]
    {
        house.owner(line);
    }
    let full = house.stream("full", "zfs send tank/src@1");
    let more = house.stream("more", "zfs send -i @1 tank/src@2");
    house.owner(&format!("zfs allow -u {GUEST} receive:append,create,mount tank/in"));
    for stream in [&full, &more] {
        let run = house.guest_fed("zfs receive tank/in/x", stream);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    }
    house.owner("zfs snapshot tank/in/x@own");
    house.owner("zfs destroy tank/in/x@2");
    let guids = "zfs get -Hp -t all -r -o name,value guid tank/in";
    let before = house.owner(guids);
    for (stream, line) in [
        (&more, "zfs receive -F tank/in/x"),
        (&full, "zfs receive -F tank/in/x"),
        (&full, "zfs receive -F tank/in/new"),
    ] {
        let run = house.guest_fed(line, stream);
        assert!(run.code == 1 && run.err.contains("permission denied"), "{line}: {run:?}");
    }
    assert_eq!(house.owner(guids), before);
    house.owner(&format!("zfs allow -u {GUEST} receive tank/in"));
    let run = house.guest_fed("zfs receive -F tank/in/x", &more);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    house.live.export_and_verify("tank");
}

/// `rollback -R` needs `destroy` on each clone that goes.
#[test]
fn a_rollback_destroys_the_clones_that_its_user_may_destroy() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for line in [
        "zfs create tank/a",
        "zfs snapshot tank/a@x",
        "zfs snapshot tank/a@y",
        "zfs clone tank/a@y tank/c",
        "zfs snapshot tank/c@z",
    ] {
        house.owner(line);
    }
    house.owner(&format!("zfs allow -u {GUEST} rollback tank/a"));
    house.may("zfs rollback -R tank/a@y");
    let run = house.guest("zfs rollback -R tank/a@x");
    assert!(run.code == 1 && run.err.contains("cannot destroy 'tank/"), "{run:?}");
    house.owner(&format!("zfs allow -u {GUEST} mount,destroy tank/a"));
    let run = house.guest("zfs rollback -R tank/a@x");
    assert!(run.code == 1 && run.err.contains("cannot destroy 'tank/c"), "{run:?}");
    assert_eq!(
        house.owner("zfs list -H -o name -t all -r tank"),
        "tank\ntank/a\ntank/a@x\ntank/a@y\ntank/c\ntank/c@z\n"
    );
    house.owner(&format!("zfs allow -u {GUEST} mount,destroy tank/c"));
    house.may("zfs rollback -R tank/a@x");
    assert_eq!(house.owner("zfs list -H -o name -t all -r tank"), "tank\ntank/a\ntank/a@x\n");
    house.live.export_and_verify("tank");
}

#[test]
fn everybody_may_look_and_is_refused_all_else() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    house.owner("zfs create tank/a");
    house.owner("zfs create tank/b");
    house.owner("zfs snapshot tank/a@x");
    for line in ["zpool status", "zpool list", "zpool iostat", "zpool get all tank", "zpool history tank"] {
        assert!(house.may(line).contains("tank"), "{line}");
    }
    assert!(house.may("zpool events").contains("config_sync"));
    assert_eq!(house.may("zfs list -H -o name -t all"), "tank\ntank/a\ntank/a@x\ntank/b\n");
    assert_eq!(house.may("zfs get -H -o value compression tank/a"), "on\n");
    for line in ["zfs holds tank/a@x", "zfs mount", "zfs allow tank", "zpool upgrade", "zfs upgrade"] {
        house.may(line);
    }
    for (line, code, words) in [
        ("zfs create tank/c", 1, "cannot create 'tank/c': permission denied"),
        ("zfs destroy tank/b", 1, "cannot destroy 'tank/b': permission denied"),
        ("zfs destroy -r tank/a", 1, "cannot destroy snapshots: permission denied"),
        ("zfs destroy tank/a@x", 1, "cannot destroy snapshots: permission denied"),
        ("zfs snapshot tank/a@y", 1, "cannot create snapshots : permission denied"),
        ("zfs set atime=off tank/a", 255, "cannot set property for 'tank/a': permission denied"),
        ("zfs inherit atime tank/a", 1, "cannot inherit atime for 'tank/a': permission denied"),
        ("zfs rollback tank/a@x", 1, "cannot rollback 'tank/a': permission denied"),
        ("zfs rename tank/a tank/c", 1, "cannot rename 'tank/a': permission denied"),
        ("zfs mount tank/a", 1, "cannot mount 'tank/a': Insufficient privileges (permission denied)"),
        ("zfs create tank/none/b", 1, "cannot open 'tank/none': dataset does not exist"),
        ("zpool export tank", 1, "cannot export 'tank': permission denied"),
        ("zpool destroy tank", 1, "cannot destroy 'tank': permission denied"),
        ("zpool set comment=x tank", 1, "cannot set property for 'tank': permission denied"),
        ("zpool scrub tank", 1, "cannot scrub tank: permission denied"),
        ("zpool clear tank", 1, "cannot clear errors for tank: permission denied"),
        ("zpool events -c", 255, "cannot clear events: permission denied"),
        ("zpool detach tank x", 255, "cannot detach x: permission denied"),
        ("zpool attach tank x /y", 255, "cannot attach /y to x: permission denied"),
        ("zpool reguid tank", 255, "cannot reguid 'tank': permission denied"),
        ("zpool trim tank", 255, "cannot trim 'tank': permission denied"),
        ("zfs unload-key tank/a", 255, "Key unload error: Permission denied."),
        ("zfs userspace tank/a", 255, "cannot get used/quota for tank/a: permission denied"),
        ("zpool export none", 1, "cannot open 'none': no such pool"),
    ] {
        let run = house.guest(line);
        assert_eq!((run.code, run.err.trim_end()), (code, words), "{line}");
    }
    // The owner may not want that.
    house.owner("set aquifer_private_pools=1");
    for line in ["zpool status", "zpool list tank", "zfs list", "zpool history tank"] {
        house.may_not(line);
    }
    // Refusals do not reveal which names exist.
    for verb in [
        "zfs destroy NAME",
        "zfs snapshot NAME@y",
        "zfs promote NAME",
        "zfs destroy NAME@x",
        "zpool scrub NAME",
    ] {
        let said = |name: &str| house.guest(&verb.replace("NAME", name)).err.replace(name, "NAME");
        assert_eq!(said("tank/a"), said("tank/none"), "{verb}");
        assert_eq!(said("tank"), said("none"), "{verb}");
    }
    house.owner(&format!("zfs allow -u {GUEST} snapshot tank/a"));
    house.may("zfs snapshot tank/a@z");
    // After a kill of the daemon, users are not told that there are no pools.
    house.live.signal("-KILL");
    let run = house.guest("zpool status");
    assert!(run.code == 1 && run.err.contains("ended unexpectedly"), "{run:?}");
    house.owner("set aquifer_private_pools=0");
    house.may("zpool status tank");
    house.live.export_and_verify("tank");
}

#[test]
fn a_users_pools_stand_beside_the_systems() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    house.owner(&format!("zfs allow -u {GUEST} snapshot tank"));
    let home = house.live.dir.path().join("none");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let files = ["one", "two"].map(|name| home.join(name));
    for file in &files {
        fs::File::create(file).and_then(|file| file.set_len(128 << 20)).unwrap();
        std::os::unix::fs::chown(file, Some(GUEST), Some(GUEST)).unwrap();
    }
    std::os::unix::fs::chown(&home, Some(GUEST), Some(GUEST)).unwrap();
    let [one, two] = files.map(|file| file.display().to_string());
    house.may(&format!("zpool create -O mountpoint=none own {one}"));
    let run = house.guest(&format!("zpool create -O mountpoint=none tank {two}"));
    assert!(run.code == 1 && run.err.contains("is imported by the system's daemon"), "{run:?}");
    house.may("zfs create own/x");
    house.may("zfs snapshot own/x@s");
    house.may("zfs snapshot tank@s");
    house.may_not("zfs create tank/x");
    assert_eq!(house.may("zpool list -H -o name"), "tank\nown\n");
    assert_eq!(house.may("zpool list -H -o name own tank"), "tank\nown\n");
    assert_eq!(house.may("zpool list -H -o name own"), "own\n");
    assert_eq!(house.may("zfs list -H -o name -t all"), "tank\ntank@s\nown\nown/x\nown/x@s\n");
    let status = house.may("zpool status");
    assert!(status.contains("pool: tank") && status.contains("\n\n  pool: own"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&house.may("zpool list -j")).unwrap();
    assert!(json["pools"]["tank"].is_object() && json["pools"]["own"].is_object(), "{json}");
    let lines = house.may("zpool iostat -H 0.1 2").lines().filter(|line| line.starts_with("own")).count();
    assert_eq!(lines, 2);
    // Neither the owner nor the user loses sight of anything when permissions go.
    house.owner(&format!("zfs unallow -u {GUEST} tank"));
    house.may_not("zfs snapshot tank@t");
    house.may("zfs snapshot own/x@t");
    house.may("zpool export own");
    assert_eq!(house.may("zpool list -H -o name"), "tank\n");
    house.may("zpool import -d /nowhere-at-all");
    house.live.export_and_verify("tank");
}

#[test]
fn a_user_who_does_not_read_keeps_no_pool_busy() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for at in 0..30 {
        house.owner(&format!("zfs create tank/{at}"));
    }
    let command = |line: &str| {
        let mut command = std::process::Command::new(&house.program);
        command.args(line.split_whitespace()).uid(GUEST).gid(GUEST).current_dir("/");
        command.env("AQUIFER_GUESTS", house.door()).env("AQUIFER_RUN", house.live.dir.path().join("none"));
        command
    };
    // Files are written by the client: the daemon's rights are not the user's.
    let path = house.live.dir.path().join("said");
    let file = fs::File::create(&path).unwrap();
    assert!(command("zpool list -H -o name").stdout(file).status().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "tank\n");
    assert!(command("zpool status").stdout(std::process::Stdio::null()).status().unwrap().success());
    // A long report is made in pieces, between which others may write.
    for at in 0..9 {
        house.owner(&format!("zfs snapshot -r tank@{at}"));
    }
    let line = "zfs get -r -H -p guid,used,compression tank";
    assert_eq!(house.may(line), house.owner(line));
    // Each name is looked up once, changes reach the disk between many that do not exist, and no line is without end.
    let repeated = format!("zfs list -H -o name{}{}", " tank/1".repeat(2000), " tank/2".repeat(2000));
    assert_eq!(house.may(&repeated), "tank/1\ntank/2\n");
    let missing: String = (0..1100).map(|at| format!(" tank/none{at}")).collect();
    let run = house.guest(&format!("zfs get -H -o name,value guid tank/3{missing} tank/4"));
    assert_eq!((run.err.lines().count(), run.out.lines().count()), (1100, 2), "{run:?}");
    for endless in
        [format!("zfs list{}", " t".repeat(20_000)), format!("zfs get {}used", "used,".repeat(2000))]
    {
        let run = house.guest(&endless);
        assert!(run.code == 1 && run.err.contains("argument list too long"), "{run:?}");
    }
    // More than a pipe holds.
    let mut child = command("zfs get -r all tank").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    while rustix::io::ioctl_fionread(&out).unwrap() < 1 << 15 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(child.try_wait().unwrap().is_none(), "it must wait for its reader");
    house.owner("zpool export tank");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut out, &mut text).unwrap();
    assert!(child.wait().unwrap().success() && text.contains("tank/29"), "{}", text.len());
}

#[test]
fn links_in_a_users_folder_lead_no_mount_elsewhere() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: only root with /dev/fuse can mount for others");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("tank"));
    house.owner(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    house.owner("zfs create tank/home");
    std::os::unix::fs::chown(at.join("home"), Some(GUEST), Some(GUEST)).unwrap();
    house.owner(&format!("zfs allow -u {GUEST} create,mount tank/home"));
    let told = house.guest("zfs create tank/home/new");
    let words = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!((told.code, told.err.as_str()), (0, words));
    assert!(
        house.guest("zfs mount -a").err.starts_with("cannot mount 'tank/home/new': Insufficient privileges")
    );
    assert!(house.may("zdb").contains("pool_guid"));
    let (target, way) = (house.live.dir.path().join("secret"), at.join("home/new"));
    fs::create_dir(&target).unwrap();
    let link = || {
        let mut command = std::process::Command::new("ln");
        let done = command.arg("-s").arg(&target).arg(&way).uid(GUEST).gid(GUEST).status().unwrap();
        assert!(done.success());
    };
    link();
    for line in ["zfs mount tank/home/new", "zfs mount -a"] {
        let run = house.live.run(line);
        assert!(run.code != 0 && run.err.contains("symbolic link"), "{line}: {run:?}");
    }
    fs::remove_file(&way).unwrap();
    house.owner("zfs mount -a");
    assert_eq!(house.owner("zfs mount").lines().count(), 3);
    // Nor does the way to an unmount.
    house.owner("zfs unmount tank/home/new");
    fs::remove_dir(&way).unwrap();
    link();
    let run = house.live.run("zfs create tank/home/new/deep");
    assert!(run.err.ends_with("filesystem successfully created, but not mounted\n"), "{run:?}");
    assert!(!target.join("deep").exists());
    house.live.export_and_verify("tank");
}

#[test]
fn snapshots_are_made_by_mkdir_by_whoever_may_take_them() {
    let is_root = std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: only root with /dev/fuse can mount for others");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("tank"));
    house.owner(&format!("zpool create -O mountpoint={} tank {disk}", at.display()));
    let folder = at.join(".zfs/snapshot");
    let does = |program: &str, name: &str| {
        let mut command = std::process::Command::new(program);
        command.arg(folder.join(name)).uid(GUEST).gid(GUEST).stderr(std::process::Stdio::null());
        command.status().unwrap().success()
    };
    let seconds = || fs::metadata(&folder).unwrap().modified().unwrap().elapsed().unwrap().as_secs();
    assert!(seconds() > 1_000_000 && !does("mkdir", "one"));
    house.owner(&format!("zfs allow -u {GUEST} snapshot tank"));
    assert!(does("mkdir", "one") && seconds() < 100);
    assert!(!does("rmdir", "one"));
    house.owner(&format!("zfs allow -u {GUEST} destroy,mount tank"));
    assert!(does("rmdir", "one"));
    assert_eq!(house.owner("zfs list -H -t snapshot tank"), "");
    for line in ["-c -l create", "-s @set", "-e -u staff hold", "everyone type", "3999999999 hold"] {
        let run = house.live.run(&format!("zfs allow {line} tank"));
        assert!(run.code != 0, "{line}: {}", run.out);
    }
    house.live.export_and_verify("tank");
}

#[test]
fn limits_hold_users_who_may_not_change_them() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 64);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    house.owner("zfs create tank/a");
    house.owner(&format!("zfs allow -u {GUEST} create,mount,snapshot,canmount,allow tank/a"));
    house.owner("zfs set filesystem_limit=1 snapshot_limit=1 tank/a");
    house.may("zfs create -o canmount=off tank/a/one");
    house.may("zfs snapshot tank/a@one");
    for line in ["zfs create tank/a/two", "zfs snapshot tank/a@two"] {
        assert_eq!(house.guest(line).code, 1, "{line}");
        house.owner(line);
    }
    house.may_not(&format!("zfs allow -u {GUEST} allow tank/a"));
    house.may_not("zfs create -o mountpoint=/etc tank/a/three");
    house.owner(&format!("zfs allow -l -u {GUEST} filesystem_limit,snapshot_limit tank/a"));
    house.may("zfs create tank/a/three");
    house.may("zfs snapshot tank/a@three");
    assert_eq!(house.owner("zfs get -Hp -o value filesystem_count,snapshot_count tank/a"), "3\n3\n");
    house.owner("zpool destroy tank");
}

#[test]
fn accounts_of_others_need_the_permission() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    house.owner("zfs create tank/a");
    house.owner(&format!("zfs set userquota@{GUEST}=10M tank/a"));
    house.owner("zfs set userquota@0=20M groupquota@0=30M tank/a");
    house.owner("zfs snapshot tank/a@s");
    let get = |props: &str| house.may(&format!("zfs get -Hp -o property,value {props} tank/a"));
    assert_eq!(get(&format!("userquota@{GUEST}")), format!("userquota@{GUEST}\t10485760\n"));
    assert_eq!(get(&format!("groupused@{GUEST}")), format!("groupused@{GUEST}\t0\n"));
    let others = "userquota@0\t-\ngroupquota@0\t-\nuserused@0\t-\n";
    assert_eq!(get("userquota@0,groupquota@0,userused@0"), others);
    assert_eq!(house.may("zfs list -Hp -o name,userquota@0 tank/a"), "tank/a\t-\n");
    // No project is a user's own.
    assert_eq!(get("projectused@0"), "projectused@0\t-\n");
    let owner = house.owner("zfs get -Hp -o value userquota@0 tank/a");
    assert_eq!(owner, "20971520\n");
    house.owner(&format!("zfs allow -u {GUEST} userquota tank/a"));
    assert_eq!(get("userquota@0,groupquota@0"), "userquota@0\t20971520\ngroupquota@0\t-\n");
    assert_eq!(house.may("zfs get -Hp -o value userquota@0 tank/a@s"), "20971520\n");
    house.live.export_and_verify("tank");
}

/// The list of a file: owner and mask `rw`, the guest `r`, nothing for others.
fn list_for_guest() -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [(1u16, 6u16, NONE), (2, 4, GUEST), (4, 0, NONE), (16, 6, NONE), (32, 0, NONE)];
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(entry)).flatten().collect()
}

#[test]
fn a_read_only_tree_for_everybody_heeds_lists_where_they_count() {
    use rustix::fs::{XattrFlags, setxattr};
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return;
    }
    let house = House::new();
    let (disk, at) = (house.live.disk("a", 128), house.live.dir.path().join("mnt"));
    house.owner(&format!("zpool create -O mountpoint={} -O acltype=posix tank {disk}", at.display()));
    for name in ["on", "off"] {
        house.owner(&format!("zfs create tank/{name}"));
        let file = at.join(name).join("file");
        fs::write(&file, name).unwrap();
        setxattr(&file, "system.posix_acl_access", &list_for_guest(), XattrFlags::empty()).unwrap();
    }
    house.owner("zfs set acltype=off tank/off");
    house.live.export_and_verify("tank");
    let tree = house.live.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let (disks, to) = (house.live.disks(), tree.display());
    house.owner(&format!("mount -o allow_other -d {} tank {to}", disks.display()));
    let read = |name: &str| {
        let mut command = std::process::Command::new("cat");
        command.arg(tree.join(name).join("file")).uid(GUEST).gid(GUEST).current_dir("/");
        let run: Run = command.output().unwrap().into();
        run
    };
    let list = |name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(tree.join(name).join("file"), "system.posix_acl_access", &mut value)
    };
    let (on, off) = (read("on"), read("off"));
    let (shown, hidden) = (list("on"), list("off"));
    let unmounted = std::process::Command::new("umount").arg(&tree).status().unwrap();
    assert!(unmounted.success());
    assert_eq!((on.code, on.out.as_str()), (0, "on"), "{on:?}");
    assert!(off.code == 1 && off.err.contains("Permission denied"), "{off:?}");
    assert_eq!((shown, hidden), (Ok(44), Err(rustix::io::Errno::NODATA)));
}

/// A package changes encryption roots only of datasets that it brings, and only for users that may change keys.
#[test]
fn a_package_of_a_guest_locks_nothing_up() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    let key = house.live.dir.path().join("key");
    fs::write(&key, "password1").unwrap();
    let own = format!("-o keyformat=passphrase -o keylocation=file://{}", key.display());
    house.owner(&format!("zfs create -o encryption=on {own} tank/src"));
    house.owner("zfs create tank/src/kid");
    house.owner("zfs snapshot -r tank/src@s");
    let package = house.stream("package", "zfs send -Rw tank/src@s");
    house.owner("zfs snapshot -r tank/src@t");
    let next = house.stream("next", "zfs send -Rw -I @s tank/src@t");
    house.owner("zfs create tank/in");
    for stream in [&package, &next] {
        let mut receive = house.live.command("zfs receive -u tank/in/b");
        assert!(receive.stdin(fs::File::open(stream).unwrap()).status().unwrap().success());
    }
    house.owner("zfs load-key tank/in/b");
    house.owner(&format!("zfs change-key {own} tank/in/b/kid"));
    house.owner("zfs set keylocation=prompt tank/in/b/kid");
    house.owner(&format!("zfs allow -u {GUEST} receive,create,mount tank/in"));
    let roots = "zfs get -H -r -t filesystem -o value encryptionroot,keylocation tank/in/b";
    let before = house.owner(roots);
    assert!(before.ends_with("tank/in/b/kid\nprompt\n"), "{before}");

    // The list alone.
    let all = items(&fs::read(&package).unwrap());
    let forged = house.live.dir.path().join("forged");
    let ends: Vec<_> = [&all[..2], &all[all.len() - 1..]].concat();
    fs::write(&forged, encode(&ends, Endian::Little, &mut |_, _, _| ())).unwrap();
    let run = house.guest_fed("zfs receive tank/in/b", &forged);
    assert_eq!((run.code, house.owner(roots)), (0, before.clone()), "{}", run.err);
    // All of it: the snapshots are there already.
    let run = house.guest_fed("zfs receive tank/in/b", &next);
    assert!(run.code == 1 && run.err.contains("permission denied"), "{}: {}", run.code, run.err);
    assert_eq!(house.owner(roots), before);
    // Datasets that the caller created get the sender's encryption roots; only the owner sets the location of keys.
    let run = house.guest_fed("zfs receive tank/in/mine", &package);
    assert_eq!(run.code, 0, "{}", run.err);
    let mine = house.owner(&roots.replace("in/b", "in/mine"));
    assert_eq!(mine, "tank/in/mine\nprompt\ntank/in/mine\nnone\n");
    house.live.export_and_verify("tank");
}
