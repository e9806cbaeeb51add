//! Copies of a mount that are not ours: bind mounts, and those in other mount namespaces (`unshare -m`, containers). The kernel
//! ends a connection with the last copy.
//!
//! Most copies go with the mount, because the kernel propagates the unmounting to the peers and slaves of the parent mount
//! (mount_namespaces(7)). A private copy stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::kernel;

/// A process in whose mount namespace a private copy of the connection's mount is; `None` if there is none, or this process may
/// not see it. `own`: the mounts of this process, in the format of `/proc/PID/mountinfo`.
pub fn holder(own: &[u8], connection: u32) -> Option<u32> {
    let parents = groups_of_parents(own, connection);
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace("self").into_iter().collect();
    let processes = fs::read_dir("/proc").ok()?;
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut others = numbers.filter(|number| {
        let other = namespace(&number.to_string());
        other.is_some_and(|other| seen.insert(other))
    });
    others.find(|number| {
        let mounts = fs::read(format!("/proc/{number}/mountinfo")).unwrap_or_default();
        stays(&mounts, connection, &parents)
    })
}

/// The place of a bind mount of the connection, or of a directory in it, that stays when the mounts with the numbers `ours` are
/// unmounted; `None` if there is none. `own`: the mounts of this process.
pub fn bound(own: &[u8], connection: u32, ours: &[u64]) -> Option<PathBuf> {
    let all: Vec<Line> = lines(own).collect();
    let parent = |line: &Line| all.iter().find(|other| other.id == line.parent);
    let going: Vec<(&Line, &Line)> = all
        .iter()
        .filter(|line| ours.contains(&line.id))
        .filter_map(|line| Some((line, parent(line)?)))
        .collect();
    // The unmounting reaches the same place below the peers and slaves of the parent.
    let goes = |copy: &Line| {
        let Some(below) = parent(copy) else { return false };
        going.iter().any(|(ours, above)| {
            let sends = above.shared.as_ref().is_some_and(|group| below.groups.contains(group));
            above.id != below.id && sends && above.place_of(ours) == below.place_of(copy)
        })
    };
    let copies = all.iter().filter(|line| line.connection == Some(connection) && !ours.contains(&line.id));
    copies.into_iter().find(|copy| !goes(copy)).map(|copy| kernel::unescape(copy.at.as_bytes()))
}

/// Whether a copy of the connection's mount in `mounts` stays when that below `parents`, peer groups, is unmounted.
fn stays(mounts: &[u8], connection: u32, parents: &BTreeSet<String>) -> bool {
    let all: Vec<Line> = lines(mounts).collect();
    all.iter().filter(|line| line.connection == Some(connection)).any(|copy| {
        let parent = all.iter().find(|line| line.id == copy.parent);
        !parent.is_some_and(|parent| parent.groups.iter().any(|group| parents.contains(group)))
    })
}

/// The peer groups of the mounts on which the connection is mounted.
fn groups_of_parents(mounts: &[u8], connection: u32) -> BTreeSet<String> {
    let all: Vec<Line> = lines(mounts).collect();
    let copies = all.iter().filter(|line| line.connection == Some(connection));
    let parents = copies.filter_map(|copy| all.iter().find(|line| line.id == copy.parent));
    parents.flat_map(|parent| parent.shared.clone()).collect()
}

/// A mount.
struct Line {
    id: u64,
    parent: u64,
    connection: Option<u32>,
    /// The directory of its file system that is shown, and where, as the kernel escapes them.
    root: String,
    at: String,
    /// The peer group that it sends to and receives from.
    shared: Option<String>,
    /// The peer groups that it receives from.
    groups: Vec<String>,
}

impl Line {
    /// The place of a mount on this one, as a path in this one's file system.
    fn place_of(&self, child: &Line) -> Option<String> {
        let below = |path: &str| path.trim_end_matches('/').to_owned();
        let place = child.at.strip_prefix(&below(&self.at))?;
        Some(below(&self.root) + place)
    }
}

fn lines(mounts: &[u8]) -> impl Iterator<Item = Line> + '_ {
    mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let text = String::from_utf8_lossy(line);
        let fields = text.split_once(" - ")?.0;
        let mut words = fields.split(' ');
        let (id, parent) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (root, at) = (words.nth(1)?.to_owned(), words.next()?.to_owned());
        let optional = || fields.split(' ').skip(6);
        let of = |kind: &str| optional().find_map(|word| word.strip_prefix(kind)).map(str::to_owned);
        let (shared, master) = (of("shared:"), of("master:"));
        let groups = shared.iter().chain(&master).cloned().collect();
        Some(Line { id, parent, connection: kernel::number(line), root, at, shared, groups })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_unless_the_unmounting_reaches_its_parent() {
        let tree = |root: &str| {
            let ours = "37 25 0:5 / /mnt rw - fuse.zfs tank rw,user_id=0,group_id=0";
            format!(
                "25 1 8:1 / / rw {root}- ext4 /dev/sda rw\n{ours}\n38 25 0:6 / /run rw shared:3 - tmpfs t rw\n"
            )
        };
        let shared = groups_of_parents(tree("shared:1 ").as_bytes(), 5);
        assert_eq!(shared, BTreeSet::from(["1".to_owned()]));
        for (root, remains) in [("shared:1 ", false), ("master:1 ", false), ("shared:9 master:1 ", false)] {
            assert_eq!(stays(tree(root).as_bytes(), 5, &shared), remains, "{root}");
        }
        for root in ["", "shared:2 ", "master:2 ", "unbindable "] {
            assert!(stays(tree(root).as_bytes(), 5, &shared), "{root}");
            assert!(!stays(tree(root).as_bytes(), 4, &shared), "{root}");
        }
        let private = groups_of_parents(tree("").as_bytes(), 5);
        assert!(private.is_empty() && stays(tree("").as_bytes(), 5, &private));
    }

    #[test]
    fn a_bind_mount_stays_unless_it_is_a_copy_that_the_kernel_made() {
        let mount = "37 25 0:5 / /mnt/a\\040b rw shared:2 - fuse.zfs tank rw,user_id=0,group_id=0\n";
        let tree =
            |root: &str, more: &str| format!("25 1 8:1 / / rw {root}- ext4 /dev/sda rw\n{mount}{more}");
        let bound = |tree: &str| bound(tree.as_bytes(), 5, &[37]);
        let bind = "40 25 0:5 /sub /srv/x\\040y rw shared:2 - fuse.zfs tank rw\n";
        assert_eq!(bound(&tree("shared:1 ", "")), None);
        for root in ["shared:1 ", ""] {
            assert_eq!(bound(&tree(root, bind)), Some(PathBuf::from("/srv/x y")));
        }
        // A recursive bind mount of the directory above, before and after which the kernel made copies.
        let peer = |groups: &str, place: &str| {
            let copy = format!("42 41 0:5 / {place} rw shared:2 - fuse.zfs tank rw\n");
            tree("shared:1 ", &format!("41 25 8:1 /mnt /srv/m rw {groups}- ext4 /dev/sda rw\n{copy}"))
        };
        assert_eq!(bound(&peer("shared:1 ", "/srv/m/a\\040b")), None);
        assert_eq!(bound(&peer("master:1 ", "/srv/m/a\\040b")), None);
        assert_eq!(bound(&peer("shared:1 ", "/srv/m/c")), Some(PathBuf::from("/srv/m/c")));
        assert_eq!(bound(&peer("", "/srv/m/a\\040b")), Some(PathBuf::from("/srv/m/a b")));
    }
}
