//! Operations on datasets and pools.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{DELEGATED, House, is_root};

#[test]
fn allowed_verbs_work_and_no_others() {
    if !is_root() {
        return;
    }
    let house = House::new();
    let disk = house.live.disk("a", 128);
    house.owner(&format!("zpool create -O mountpoint=none tank {disk}"));
    for name in ["tank/a", "tank/a/old", "tank/b"] {
        house.owner(&format!("zfs create {name}"));
    }
    house.owner(&format!("zfs allow -u {DELEGATED} snapshot,create,mount,destroy,hold,release tank/a"));
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
    house.owner(&format!("zfs unallow {DELEGATED} destroy tank/a"));
    house.owner(&format!("zfs allow -l {DELEGATED} destroy tank/a/old"));
    // Snapshots are descendents of their dataset.
    house.may_not("zfs destroy tank/a/old@only");
    house.owner(&format!("zfs unallow -l {DELEGATED} destroy tank/a/old"));
    house.owner(&format!("zfs allow -d {DELEGATED} destroy,send tank/a/old"));
    house.may("zfs send -n tank/a/old@only");
    house.may("zfs destroy -r tank/a@only");
    house.owner("zfs snapshot -r tank/a@both");
    house.may_not("zfs destroy -r tank/a@both");
    house.may_not("zfs destroy -r tank/a/old");
    assert_eq!(house.owner("zfs list -H -o name -t snapshot"), "tank/a@both\ntank/a/old@both\n");
    house.owner(&format!("zfs allow -u {DELEGATED} destroy tank/a"));
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
    house.may_not(&format!("zfs allow -u {DELEGATED} destroy tank/a"));
    house.may_not(&format!("zfs unallow {DELEGATED} tank/a"));
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
    assert!(house.owner("zpool history -l tank").contains(&DELEGATED.to_string()));
    house.may("zfs destroy tank/a/own");

    // The pool's own property forbids it all.
    house.owner("zpool set delegation=off tank");
    house.may_not("zfs snapshot tank/a@y");
    house.owner("zpool set delegation=on tank");
    house.may("zfs snapshot tank/a@y");
    house.owner(&format!("zfs unallow {DELEGATED} tank/a"));
    house.may_not("zfs snapshot tank/a@z");
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
    house.owner(&format!("zfs allow -u {DELEGATED} rollback tank/a"));
    house.may("zfs rollback -R tank/a@y");
    let run = house.delegated("zfs rollback -R tank/a@x");
    assert!(run.code == 1 && run.err.contains("cannot destroy 'tank/"), "{run:?}");
    house.owner(&format!("zfs allow -u {DELEGATED} mount,destroy tank/a"));
    let run = house.delegated("zfs rollback -R tank/a@x");
    assert!(run.code == 1 && run.err.contains("cannot destroy 'tank/c"), "{run:?}");
    assert_eq!(
        house.owner("zfs list -H -o name -t all -r tank"),
        "tank\ntank/a\ntank/a@x\ntank/a@y\ntank/c\ntank/c@z\n"
    );
    house.owner(&format!("zfs allow -u {DELEGATED} mount,destroy tank/c"));
    house.may("zfs rollback -R tank/a@x");
    assert_eq!(house.owner("zfs list -H -o name -t all -r tank"), "tank\ntank/a\ntank/a@x\n");
    house.live.export_and_verify("tank");
}

#[test]
fn any_user_may_look_and_is_refused_all_else() {
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
        let run = house.delegated(line);
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
        let said = |name: &str| house.delegated(&verb.replace("NAME", name)).err.replace(name, "NAME");
        assert_eq!(said("tank/a"), said("tank/none"), "{verb}");
        assert_eq!(said("tank"), said("none"), "{verb}");
    }
    house.owner(&format!("zfs allow -u {DELEGATED} snapshot tank/a"));
    house.may("zfs snapshot tank/a@z");
    // After a kill of the daemon, users are not told that there are no pools.
    house.live.signal("-KILL");
    let run = house.delegated("zpool status");
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
    house.owner(&format!("zfs allow -u {DELEGATED} snapshot tank"));
    let home = house.live.dir.path().join("none");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let files = ["one", "two"].map(|name| home.join(name));
    for file in &files {
        fs::File::create(file).and_then(|file| file.set_len(128 << 20)).unwrap();
        std::os::unix::fs::chown(file, Some(DELEGATED), Some(DELEGATED)).unwrap();
    }
    std::os::unix::fs::chown(&home, Some(DELEGATED), Some(DELEGATED)).unwrap();
    let [one, two] = files.map(|file| file.display().to_string());
    house.may(&format!("zpool create -O mountpoint=none own {one}"));
    let run = house.delegated(&format!("zpool create -O mountpoint=none tank {two}"));
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
    house.owner(&format!("zfs unallow -u {DELEGATED} tank"));
    house.may_not("zfs snapshot tank@t");
    house.may("zfs snapshot own/x@t");
    house.may("zpool export own");
    assert_eq!(house.may("zpool list -H -o name"), "tank\n");
    house.may("zpool import -d /nowhere-at-all");
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
    house.owner(&format!("zfs allow -u {DELEGATED} create,mount,snapshot,canmount,allow tank/a"));
    house.owner("zfs set filesystem_limit=1 snapshot_limit=1 tank/a");
    house.may("zfs create -o canmount=off tank/a/one");
    house.may("zfs snapshot tank/a@one");
    for line in ["zfs create tank/a/two", "zfs snapshot tank/a@two"] {
        assert_eq!(house.delegated(line).code, 1, "{line}");
        house.owner(line);
    }
    house.may_not(&format!("zfs allow -u {DELEGATED} allow tank/a"));
    house.may_not("zfs create -o mountpoint=/etc tank/a/three");
    house.owner(&format!("zfs allow -l -u {DELEGATED} filesystem_limit,snapshot_limit tank/a"));
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
    house.owner(&format!("zfs set userquota@{DELEGATED}=10M tank/a"));
    house.owner("zfs set userquota@0=20M groupquota@0=30M tank/a");
    house.owner("zfs snapshot tank/a@s");
    let get = |props: &str| house.may(&format!("zfs get -Hp -o property,value {props} tank/a"));
    assert_eq!(get(&format!("userquota@{DELEGATED}")), format!("userquota@{DELEGATED}\t10485760\n"));
    assert_eq!(get(&format!("groupused@{DELEGATED}")), format!("groupused@{DELEGATED}\t0\n"));
    let others = "userquota@0\t-\ngroupquota@0\t-\nuserused@0\t-\n";
    assert_eq!(get("userquota@0,groupquota@0,userused@0"), others);
    assert_eq!(house.may("zfs list -Hp -o name,userquota@0 tank/a"), "tank/a\t-\n");
    // No project is a user's own.
    assert_eq!(get("projectused@0"), "projectused@0\t-\n");
    let owner = house.owner("zfs get -Hp -o value userquota@0 tank/a");
    assert_eq!(owner, "20971520\n");
    house.owner(&format!("zfs allow -u {DELEGATED} userquota tank/a"));
    assert_eq!(get("userquota@0,groupquota@0"), "userquota@0\t20971520\ngroupquota@0\t-\n");
    assert_eq!(house.may("zfs get -Hp -o value userquota@0 tank/a@s"), "20971520\n");
    house.live.export_and_verify("tank");
}
