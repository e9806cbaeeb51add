//! Streams of delegated users: sent, received, lent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use ondisk::Endian;
use testkit::hostile::streams::{encode, items};

use super::live::Run;
use super::{DELEGATED, House, is_root};

#[test]
fn streams_are_lent_to_no_server_of_another_user() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let run = house.live.dir.path().join("squatted");
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(DELEGATED), Some(DELEGATED)).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let as_delegated = |words: &[&str]| {
        let mut command = std::process::Command::new(&house.program);
        command.args(words).uid(DELEGATED).gid(DELEGATED).current_dir("/").env("AQUIFER_RUN", &run);
        command
    };
    let mut server =
        as_delegated(&["daemon", "--stay"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
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
    let fed = |line: &str, stream: &PathBuf| house.delegated_fed(line, stream);
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
    house.owner(&format!("zfs allow -u {DELEGATED} receive,create,mount tank/in/mine"));
    house.owner("zfs allow -c snapshot tank/in/mine");
    may("zfs receive tank/in/mine/x", &mine);
    // The receiver of a dataset has the create-time permissions.
    house.may("zfs snapshot tank/in/mine/x@own");
    house.may_not("zfs snapshot tank/in/mine@own");
    // A new dataset may be one that is never mounted.
    may_not("zfs receive -o canmount=off tank/in/mine/off", &mine);
    house.owner(&format!("zfs allow -u {DELEGATED} canmount tank/in/mine"));
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
    house.owner(&format!("zfs allow -l -u {DELEGATED} receive,create,mount tank/two"));
    may_not("zfs receive tank/two/all", &tree);
    assert_eq!(house.owner("zfs list -H -o name -r tank/two"), "tank/two\ntank/two/all\n");
    // Properties that were not allowed stay as they are.
    house.owner(&format!("zfs allow -u {DELEGATED} compression tank/in/mine"));
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
    house.owner(&format!("zfs allow -u {DELEGATED} clone tank/src/other"));
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
    house.owner(&format!("zfs allow -u {DELEGATED} receive:append,create,mount tank/in"));
    for stream in [&full, &more] {
        let run = house.delegated_fed("zfs receive tank/in/x", stream);
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
        let run = house.delegated_fed(line, stream);
        assert!(run.code == 1 && run.err.contains("permission denied"), "{line}: {run:?}");
    }
    assert_eq!(house.owner(guids), before);
    house.owner(&format!("zfs allow -u {DELEGATED} receive tank/in"));
    let run = house.delegated_fed("zfs receive -F tank/in/x", &more);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
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
        command.args(line.split_whitespace()).uid(DELEGATED).gid(DELEGATED).current_dir("/");
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
    let run = house.delegated(&format!("zfs get -H -o name,value guid tank/3{missing} tank/4"));
    assert_eq!((run.err.lines().count(), run.out.lines().count()), (1100, 2), "{run:?}");
    for endless in
        [format!("zfs list{}", " t".repeat(20_000)), format!("zfs get {}used", "used,".repeat(2000))]
    {
        let run = house.delegated(&endless);
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

/// A package changes encryption roots only of datasets that it brings, and only for users that may change keys.
#[test]
fn a_package_of_a_delegated_user_locks_nothing_up() {
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
    house.owner(&format!("zfs allow -u {DELEGATED} receive,create,mount tank/in"));
    let roots = "zfs get -H -r -t filesystem -o value encryptionroot,keylocation tank/in/b";
    let before = house.owner(roots);
    assert!(before.ends_with("tank/in/b/kid\nprompt\n"), "{before}");

    // The list alone.
    let all = items(&fs::read(&package).unwrap());
    let forged = house.live.dir.path().join("forged");
    let ends: Vec<_> = [&all[..2], &all[all.len() - 1..]].concat();
    fs::write(&forged, encode(&ends, Endian::Little, &mut |_, _, _| ())).unwrap();
    let run = house.delegated_fed("zfs receive tank/in/b", &forged);
    assert_eq!((run.code, house.owner(roots)), (0, before.clone()), "{}", run.err);
    // All of it: the snapshots are there already.
    let run = house.delegated_fed("zfs receive tank/in/b", &next);
    assert!(run.code == 1 && run.err.contains("permission denied"), "{}: {}", run.code, run.err);
    assert_eq!(house.owner(roots), before);
    // Datasets that the caller created get the sender's encryption roots; only the owner sets the location of keys.
    let run = house.delegated_fed("zfs receive tank/in/mine", &package);
    assert_eq!(run.code, 0, "{}", run.err);
    let mine = house.owner(&roots.replace("in/b", "in/mine"));
    assert_eq!(mine, "tank/in/mine\nprompt\ntank/in/mine\nnone\n");
    house.live.export_and_verify("tank");
}
