//! The pages of section 7: properties and features from their tables, and the concepts of pools and datasets.

use zcommon::features::{FEATURES, Feature, FeatureFlags};
use zcommon::props::{PropAttr, PropDefault, PropInfo, VdevProp, ZfsProp, ZpoolProp};

use super::about;
use super::topic::{Paragraph, Topic, on, plain};

/// All topics.
pub fn topics() -> Vec<Topic> {
    vec![zfsprops(), zpoolprops(), vdevprops(), features(), zpoolconcepts(), zfsconcepts()]
}

/// The topic behind `zpool help WORD` or `zfs help WORD`, by its word or its name.
pub fn find(command: &str, word: &str) -> Option<Topic> {
    let of_command = |topic: &Topic| topic.name.starts_with(command) && topic.word == word;
    topics().into_iter().find(|topic| topic.name == word || of_command(topic))
}

/// `on | off; default off; inherited.`, then the description.
fn property(info: &PropInfo, about: &str) -> Paragraph {
    let values = info.values.unwrap_or_default();
    let default = match info.default {
        PropDefault::Number(n) => info.word(n).map(str::to_owned),
        PropDefault::String(text) => Some(text.to_owned()),
        PropDefault::None => None,
    };
    let default =
        default.filter(|word| !info.read_only() && !word.is_empty() && values.contains(word.as_str()));
    let default = default.map(|word| format!(" The default is {word}.")).unwrap_or_default();
    let nature = match info.attr {
        PropAttr::Inherit => " It is inherited.",
        PropAttr::OneTime | PropAttr::OneTimeDefault => " It is set at creation only.",
        PropAttr::Default | PropAttr::ReadOnly => "",
    };
    on(format!("{}={values}", info.name), format!("{about}{default}{nature}"))
}

/// Two sections: read-only properties and settable ones.
fn sections<'a>(
    all: impl Iterator<Item = (&'a PropInfo, &'static str)>,
) -> Vec<(&'static str, Vec<Paragraph>)> {
    let mut rows: Vec<_> = all.filter(|(info, _)| info.values.is_some()).collect();
    rows.sort_by_key(|(info, _)| info.name);
    let (told, set): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(info, _)| info.read_only());
    let part = |rows: Vec<(&PropInfo, &'static str)>| {
        rows.into_iter().map(|(info, about)| property(info, about)).collect()
    };
    vec![("READ-ONLY PROPERTIES", part(told)), ("PROPERTIES THAT CAN BE SET", part(set))]
}

fn topic(
    name: &'static str,
    word: &'static str,
    about: &'static str,
    description: &[&str],
    more: Vec<(&'static str, Vec<Paragraph>)>,
    see: &str,
) -> Topic {
    let mut sections = vec![("DESCRIPTION", description.iter().map(|text| plain(*text)).collect())];
    sections.extend(more);
    sections.push(("SEE ALSO", vec![plain(see)]));
    Topic { name, word, about, sections }
}

fn zfsprops() -> Topic {
    let mut more = sections(ZfsProp::ALL.iter().map(|prop| (prop.info(), about::of_dataset(*prop))));
    more.push((
        "PROPERTIES OF USERS, GROUPS AND PROJECTS",
        vec![
            on(
                "userused@WHO, groupused@WHO, projectused@ID",
                "Space of the files that a user, group or project owns.",
            ),
            on(
                "userobjused@WHO, groupobjused@WHO, projectobjused@ID",
                "The number of files and directories they own.",
            ),
            on(
                "userquota@WHO, groupquota@WHO, projectquota@ID",
                "The maximum space of their files. Exceeding it is noticed some seconds late.",
            ),
            on(
                "userobjquota@WHO, groupobjquota@WHO, projectobjquota@ID",
                "The maximum number of their files and directories.",
            ),
        ],
    ));
    more.push(("USER PROPERTIES", vec![plain(
        "A name with a colon is a property of the user's own, as in com.example:backup=daily. Its value is any text of up to \
         8191 bytes. Every kind of dataset can have it, and it is inherited. zfs inherit clears it.",
    )]));
    topic(
        "zfsprops",
        "props",
        "properties of file systems, volumes, snapshots and bookmarks",
        &[
            "zfs get shows properties, zfs set changes them, and zfs inherit removes a local value. The source of a value is local \
             if it was set there, inherited from a dataset above, received with a stream, default, or temporary for one mount.",
            "Sizes are bytes and may have the letters K, M, G, T, P or E. With -p numbers are exact.",
        ],
        more,
        "zfs(8), zfs-get(8), zfs-set(8), zfs-inherit(8), zfsconcepts(7), zpoolprops(7)",
    )
}

fn zpoolprops() -> Topic {
    let mut more = sections(ZpoolProp::ALL.iter().map(|prop| (prop.info(), about::of_pool(*prop))));
    more.push(("FEATURES", vec![on(
        "feature@NAME=disabled | enabled | active",
        "Whether a feature may be used, and whether it is in use. zpool set feature@NAME=enabled enables it; that cannot be \
         undone. zpool-features(7) lists them.",
    )]));
    topic(
        "zpoolprops",
        "props",
        "properties of pools",
        &[
            "zpool get shows properties and zpool set changes them; some are set by zpool create or zpool import only.",
        ],
        more,
        "zpool(8), zpool-get(8), zpool-set(8), vdevprops(7), zpool-features(7), zfsprops(7)",
    )
}

fn vdevprops() -> Topic {
    topic(
        "vdevprops",
        "vdevprops",
        "properties of vdevs",
        &[
            "zpool get PROPERTY POOL VDEV shows properties of a vdev, all-vdevs those of all vdevs, and zpool set changes them. \
             Counters restart when the pool is imported.",
        ],
        sections(VdevProp::ALL.iter().map(|prop| (prop.info(), about::of_vdev(*prop)))),
        "zpool(8), zpool-get(8), zpool-set(8), zpoolprops(7)",
    )
}

fn features() -> Topic {
    let one = |feature: &Feature| {
        let info = feature.info();
        let has = |flag| info.flags.contains(flag);
        let mut text = format!("{} Its guid is {}.", info.reading, info.guid);
        text += match info.read_only_compatible() {
            true => " A program that does not know it can still open the pool read-only.",
            false => " A program that does not know it cannot open a pool where it is active.",
        };
        if has(FeatureFlags::ACTIVATE_ON_ENABLE) {
            text += " It is active as soon as it is enabled.";
        }
        if has(FeatureFlags::PER_DATASET) {
            text += " It is active while a dataset uses it.";
        }
        if has(FeatureFlags::NO_UPGRADE) {
            text += " zpool upgrade does not enable it.";
        }
        let needs: Vec<&str> = info.depends.iter().map(|feature| feature.info().name).collect();
        if !needs.is_empty() {
            text += &format!(" It needs {}.", needs.join(", "));
        }
        on(info.name, text)
    };
    let mut rows: Vec<&Feature> = FEATURES.iter().collect();
    rows.sort_by_key(|feature| feature.info().name);
    topic(
        "zpool-features",
        "features",
        "features of pools",
        &[
            "A pool of version 5000 lists its features by name. A feature is disabled, enabled (it may be used) or active (it is in \
             use on disk). A program that does not know an active feature cannot open the pool, or cannot write it.",
            "zpool create enables all features that OpenZFS 2.4 knows, or those that the property compatibility allows \
             (openzfs-2.3-linux and older sets for pools that older releases import). zpool upgrade enables the missing ones, \
             except dynamic_gang_header.",
        ],
        vec![("FEATURES", rows.into_iter().map(one).collect())],
        "zpool-upgrade(8), zpoolprops(7)",
    )
}

fn zpoolconcepts() -> Topic {
    let vdevs = vec![
        on("disk", "A block device, named by its path or by a name below /dev."),
        on(
            "file",
            "A regular file, named by an absolute path, or by one that begins with ./ or ../. The pool is as safe as the file system that holds it.",
        ),
        on("mirror", "Devices with equal contents. All but one may fail."),
        on(
            "raidz, raidz1, raidz2, raidz3",
            "Devices over which each block is spread with one, two or three parities; as many devices may fail.",
        ),
        on(
            "draid[PARITY][:DATAd][:CHILDRENc][:SPARESs]",
            "Raidz groups spread over all devices, with distributed spare space, so that a rebuild reads and writes all of them.",
        ),
        on("spare", "A standby device for failed ones. Several pools may share it."),
        on(
            "log",
            "Vdevs for the intent log, which makes synchronous writes wait for these devices only. They may be mirrors.",
        ),
        on("cache", "Devices that extend the cache in memory. They are never needed to open a pool."),
        on(
            "special",
            "Vdevs for metadata, and for small blocks according to special_small_blocks. The pool is lost with them: give them the pool's redundancy.",
        ),
        on("dedup", "Vdevs for the dedup tables; as with special, the pool is lost with them."),
    ];
    let states = vec![
        on("ONLINE", "It works normally."),
        on("DEGRADED", "It works with less redundancy than it should have."),
        on("FAULTED", "It had too many errors and is no longer used."),
        on("OFFLINE", "zpool offline took it out of use."),
        on("REMOVED", "The device was pulled."),
        on("UNAVAIL", "It cannot be opened, or too much of it is missing."),
        on(
            "SUSPENDED",
            "Of a pool: writes fail and it has stopped. Pending changes stay in memory; zpool clear resumes once the devices are back.",
        ),
    ];
    topic(
        "zpoolconcepts",
        "concepts",
        "concepts of pools",
        &[
            "A pool is a set of top-level vdevs, over which new blocks are spread. Each vdev has its own redundancy; when one of \
             them is lost, the pool is. Every block has a checksum in the block that points to it, so a bad copy is detected, and a good \
             one is read.",
            "Changes are collected in transaction groups and written to free space; then a new uberblock points to the new tree. \
             After a power cut the pool has the state of the last complete group, and changes acknowledged by fsync are replayed \
             from the intent log.",
            "A log with a record that cannot be replayed is kept, and its file system is not mounted: the error names the record. \
             zfs mount -o ro shows the replayable part; zfs discard-log -n lists the waiting records; zfs discard-log discards them. \
             When the replay itself suspends the pool, zpool import -N imports it without mounting first.",
            "Aquifer's daemon owns the imported pools and runs commands on them. The first command that needs it starts it, and \
             after a crash the next command imports its pools again.",
        ],
        vec![
            ("VDEVS", vdevs),
            ("STATES", states),
            (
                "CHECKPOINT",
                vec![plain(
                    "A checkpoint preserves the state of the whole pool. zpool import --rewind-to-checkpoint returns to it. While \
                 it exists, freed blocks still take space.",
                )],
            ),
        ],
        "zpool(8), zpool-create(8), zpool-import(8), zpoolprops(7), zfsconcepts(7)",
    )
}

fn zfsconcepts() -> Topic {
    let kinds = vec![
        on(
            "file system",
            "POOL/NAME…: a tree of files with properties, snapshots and a mount point of its own. The pool's root is one, too.",
        ),
        on(
            "volume",
            "POOL/NAME…, made with -V: a byte range of fixed size, for a foreign file system or a machine's disk.",
        ),
        on(
            "snapshot",
            "DATASET@NAME: the state of the dataset at one moment. It takes space as the dataset changes. .zfs/snapshot shows the snapshots of a mounted file system.",
        ),
        on(
            "clone",
            "A dataset that begins as a snapshot and shares its blocks. The snapshot must exist as long as the clone; zfs promote exchanges their roles.",
        ),
        on(
            "bookmark",
            "DATASET#NAME: the moment of a snapshot without its data. An incremental stream can begin there.",
        ),
    ];
    topic(
        "zfsconcepts",
        "concepts",
        "concepts of datasets",
        &[
            "Datasets form a tree of names, which is also the tree of inheritance: a property that is set on a dataset applies to \
             those below it, unless they have their own value. All of them share the pool's space; quotas and reservations divide it.",
            "A name has at most 255 bytes and 50 levels; its components consist of letters, digits, and the characters - _ . : and space.",
        ],
        vec![
            ("KINDS OF DATASETS", kinds),
            (
                "MOUNT POINTS",
                vec![plain(
                    "A file system is mounted at the path of its property mountpoint, which those below inherit with their names \
                 appended. An import mounts all mountable file systems, a create mounts the new one. Mounts are FUSE mounts of the type \
                 fuse.zfs with the dataset as their source.",
                )],
            ),
            (
                "ENCRYPTION",
                vec![plain(
                    "An encrypted dataset encrypts file names, data and attributes; names of datasets and snapshots, sizes and properties \
                 are not. Its key is loaded by zfs load-key, zfs mount -l or zpool import -l, and datasets that inherit encryption use the key of \
                 their encryption root.",
                )],
            ),
        ],
        "zfs(8), zfs-create(8), zfs-snapshot(8), zfsprops(7), zpoolconcepts(7)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_that_users_see_is_described() {
        let dataset = ZfsProp::ALL.iter().map(|prop| (prop.info(), about::of_dataset(*prop)));
        let pool = ZpoolProp::ALL.iter().map(|prop| (prop.info(), about::of_pool(*prop)));
        let vdev = VdevProp::ALL.iter().map(|prop| (prop.info(), about::of_vdev(*prop)));
        for (info, about) in dataset.chain(pool).chain(vdev) {
            assert_eq!(info.values.is_some(), about.ends_with('.'), "{}", info.name);
        }
    }

    #[test]
    fn topics_have_their_words() {
        for (command, word, name) in [
            ("zpool", "concepts", "zpoolconcepts"),
            ("zfs", "concepts", "zfsconcepts"),
            ("zpool", "props", "zpoolprops"),
            ("zfs", "props", "zfsprops"),
            ("zpool", "features", "zpool-features"),
            ("zfs", "zpool-features", "zpool-features"),
        ] {
            assert_eq!(find(command, word).unwrap().name, name);
        }
        assert!(find("zfs", "nonsense").is_none());
        let text = find("zfs", "props").unwrap().text();
        assert!(text.contains("  atime=on | off\n      Whether reading a file sets its access time. The default is on. It is"), "{text}");
        let text = find("zpool", "features").unwrap().text();
        assert!(FEATURES.iter().all(|feature| text.contains(&format!("  {}\n", feature.info().name))));
    }
}
