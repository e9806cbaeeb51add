//! Forged packages: their lists lie, their streams are missing, exchanged or of other names. Whatever they say, datasets
//! outside of the target stay as they are, the daemon goes on in bounded memory, and the pool is whole; a package that cannot
//! be read changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::cell::Cell;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use engine::recv::Item;
use live::{Live, Run};
use nvpair::{NvList, NvValue};
use ondisk::drr::{DrrBody, DrrObject, DrrWrite, stream_feature};
use ondisk::{Endian, Raw};
use stdx::rng::Rng;
use testkit::hostile::streams::{encode, items};

/// Memory that the daemon may take for a stream, beside that of the same stream without forgeries.
const MOST_KIB: u64 = 96 << 10;

/// A daemon with the source of packages, and a target that has received the first of them.
struct Place {
    live: Live,
    /// A package of all snapshots, one between two snapshots, and a stream of the first snapshot.
    full: Vec<Item>,
    more: Vec<Item>,
    one: Vec<Item>,
    /// How often the targets have changed.
    changes: Cell<u32>,
    attacks: Cell<usize>,
}

/// Ways to receive a package.
const WAYS: [&str; 4] = [
    "zfs receive -u -F tank/dst",
    "zfs receive -u -F -d tank/d",
    "zfs receive -u tank/dst",
    "zfs receive -u -F -e tank/d",
];

/// Changes of the targets after which they are made anew, which takes a second.
const RENEWED: u32 = 16;

impl Place {
    fn new() -> Self {
        let live = Live::new();
        live.ok(&format!("zpool create -m none tank {}", live.disk("a", 256)));
        for line in [
            "zfs create -o com.example:a=b tank/src",
            "zfs create -o quota=100M tank/src/kid",
            "zfs create -V 1M tank/src/vol",
            "zfs snapshot -r tank/src@1",
            "zfs clone tank/src/kid@1 tank/src/clone",
            "zfs snapshot -r tank/src@2",
            "zfs hold keep tank/src@2",
            "zfs create tank/other",
            "zfs snapshot tank/other@own",
        ] {
            live.ok(line);
        }
        let sent = |line: &str| {
            let path = live.dir.path().join("stream");
            let run: Run = live.command(line).stdout(File::create(&path).unwrap()).output().unwrap().into();
            assert_eq!(run.code, 0, "{line}: {}", run.err);
            items(&fs::read(&path).unwrap())
        };
        let full = sent("zfs send -R -h tank/src@2");
        live.ok("zfs snapshot -r tank/src@3");
        let more = sent("zfs send -R -h -I @2 tank/src@3");
        let one = sent("zfs send tank/src@1");
        let place = Self { live, full, more, one, changes: Cell::new(0), attacks: Cell::new(0) };
        place.renew();
        place
    }

    /// Makes the targets anew.
    fn renew(&self) {
        for target in ["tank/dst", "tank/d"] {
            let snapshots = self.live.run(&format!("zfs list -H -r -t snapshot -o name {target}")).out;
            for snapshot in snapshots.lines() {
                for hold in self.live.ok(&format!("zfs holds -H {snapshot}")).lines() {
                    let tag = hold.split('\t').nth(1).unwrap();
                    let released = self.live.command("zfs release").arg(tag).arg(snapshot).status().unwrap();
                    assert!(released.success(), "{hold}");
                }
            }
            let run = self.live.run(&format!("zfs destroy -R {target}"));
            assert!(self.live.run(&format!("zfs list {target}")).code != 0, "{target} stays: {}", run.err);
        }
        let whole = self.file(&encode(&self.full, Endian::Little, &mut |_, _, _| ()));
        self.live.ok("zfs create tank/d");
        for line in ["zfs receive -u tank/dst", "zfs receive -u -e tank/d"] {
            let run = self.fed(line, &whole);
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{line}");
        }
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.live.dir.path().join("forged");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn fed(&self, line: &str, stream: &PathBuf) -> Run {
        self.live.command(line).stdin(Stdio::from(File::open(stream).unwrap())).output().unwrap().into()
    }

    /// All that is outside of the targets, or inside.
    fn state(&self, inside: bool) -> String {
        let all = self.live.ok("zfs list -Hp -r -t all -o name,guid,origin,createtxg,userrefs tank");
        let is_inside = |line: &&str| line.starts_with("tank/d");
        all.lines().filter(|line| is_inside(line) == inside).collect::<Vec<_>>().join("\n")
    }

    /// Receives a forged package in one of four ways, another one each time. `harmless`: it cannot be read, so that nothing may
    /// change. Returns whether it was refused.
    fn attack(&self, what: &str, bytes: &[u8], harmless: bool) -> bool {
        let line = WAYS[self.attacks.get() % WAYS.len()];
        self.attacks.set(self.attacks.get() + 1);
        let (path, outside, inside) = (self.file(bytes), self.state(false), self.state(true));
        let run = self.fed(line, &path);
        assert!(matches!(run.code, 0 | 1), "{what}, {line}: {run:?}\nlog: {}", self.live.log());
        assert!(run.code == 0 || !run.err.is_empty(), "{what}, {line}: no word");
        assert!(!harmless || run.code == 1, "{what}, {line}: {run:?}");
        assert_eq!(self.state(false), outside, "{what}, {line}");
        if self.state(true) != inside {
            assert!(!harmless, "{what}, {line}: the target has changed: {}", self.state(true));
            self.changes.set(self.changes.get() + 1);
            let is_gone = |target| self.live.run(&format!("zfs list {target}")).code != 0;
            if self.changes.get().is_multiple_of(RENEWED)
                || ["tank/dst", "tank/d/src"].into_iter().any(is_gone)
            {
                self.renew();
            }
        }
        assert!(!self.live.log().contains("panicked"), "{what}: {}", self.live.log());
        run.code == 1
    }

    /// A package with another list.
    fn listed(&self, of: &[Item], change: &dyn Fn(&mut NvList)) -> Vec<u8> {
        let mut list = NvList::decode(&of[0].payload).unwrap();
        change(&mut list);
        with_list(of, list.encode_native().unwrap())
    }

    /// The most memory that the daemon has used since the last call, in KiB.
    fn peak(&self) -> u64 {
        let folder = PathBuf::from(format!("/proc/{}", self.live.pid().unwrap()));
        let status = fs::read_to_string(folder.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib = line.trim().trim_end_matches(" kB").parse().unwrap();
        fs::write(folder.join("clear_refs"), "5").unwrap();
        kib
    }
}

fn with_list(of: &[Item], list: Vec<u8>) -> Vec<u8> {
    let mut all = of.to_vec();
    all[0].drr.payloadlen = u32::try_from(list.len()).unwrap();
    all[0].payload = list;
    encode(&all, Endian::Little, &mut |_, _, _| ())
}

/// The list of the datasets.
fn datasets(list: &mut NvList) -> &mut NvList {
    match list.get_mut("fss") {
        Some(NvValue::List(all)) => all,
        other => panic!("{other:?}"),
    }
}

/// Changes the description of each dataset; the number counts them.
fn each(list: &mut NvList, change: &dyn Fn(usize, &mut NvList)) {
    let all = datasets(list);
    let names: Vec<_> = all.iter().map(|pair| pair.name.clone()).collect();
    for (number, name) in names.iter().enumerate() {
        if let Some(NvValue::List(one)) = all.get_mut(name.as_bytes()) {
            change(number, one);
        }
    }
}

fn set(list: &mut NvList, name: &str, value: impl Into<NvValue>) {
    list.remove(name);
    list.add(name, value);
}

fn sub<'l>(list: &'l mut NvList, name: &str) -> &'l mut NvList {
    if !list.contains(name) {
        list.add(name, NvValue::List(NvList::new()));
    }
    match list.get_mut(name) {
        Some(NvValue::List(all)) => all,
        other => panic!("{other:?}"),
    }
}

/// A list of `count` numbers.
fn numbers(count: u64, from: u64) -> NvValue {
    let mut list = NvList::new();
    (0..count).for_each(|n| list.push(format!("n{n}"), from.wrapping_add(n)));
    NvValue::List(list)
}

fn nested(depth: usize) -> NvValue {
    (0..depth).fold(NvValue::Boolean, |inner, _| {
        let mut list = NvList::new();
        list.add("in", inner);
        NvValue::List(list)
    })
}

/// Names that no dataset or snapshot may have.
fn bad_names() -> Vec<String> {
    let mut all: Vec<String> =
        ["", "/", "@", "..", "tank/../other", "tank/src/../../other", "/etc/passwd", "tank//src", "a@b@c"]
            .map(str::to_owned)
            .into();
    all.extend(["tank/$MOS", "tank/src/%recv", "tank/src/\u{1}\u{fffd}", "tank/other"].map(str::to_owned));
    all.push("x".repeat(10_000));
    all.push("tank/src".to_owned() + &"/a".repeat(2_000));
    all
}

#[test]
fn lists_that_lie_reach_nothing_outside_of_their_target() {
    let place = Place::new();
    // A snapshot of such a name could be given no command.
    let parent = "cannot rename to 'tank/other@..': parent reference, '..' is found in name\n";
    assert_eq!(place.live.fails("zfs rename tank/other@own tank/other@.."), parent);
    let mut refused = 0;
    let mut attack = |what: &str, change: &dyn Fn(&mut NvList)| {
        // Only packages between two snapshots rename and destroy.
        let of = if place.attacks.get() % 3 == 2 { &place.full } else { &place.more };
        refused += usize::from(place.attack(what, &place.listed(of, change), false));
    };
    for name in bad_names().into_iter().step_by(2).chain(["..".to_owned()]) {
        let what = format!("{name:.40}");
        attack(&format!("datasets named {what}"), &|list| {
            each(list, &|_, one| set(one, "name", name.as_str()))
        });
        attack(&format!("from {what}"), &|list| set(list, "fromsnap", name.as_str()));
        attack(&format!("snapshots named {what}"), &|list| {
            each(list, &|_, one| {
                let all = sub(one, "snaps");
                let old: Vec<_> = all.iter().map(|pair| pair.value.clone()).collect();
                *all = NvList::new();
                old.into_iter().for_each(|guid| all.push(name.as_str(), guid));
            });
        });
    }
    for name in ["tosnap", "fromsnap", "fss"] {
        attack(&format!("no {name}"), &|list| drop(list.remove(name)));
        attack(&format!("{name} is a number"), &|list| set(list, name, 7_u64));
        attack(&format!("{name} is nested"), &|list| set(list, name, nested(90)));
    }
    for name in ["name", "snaps", "props", "snapprops", "snapholds", "parentfromsnap", "origin"] {
        attack(&format!("no {name}"), &|list| each(list, &|_, one| drop(one.remove(name))));
        attack(&format!("{name} is a number"), &|list| each(list, &|_, one| set(one, name, 7_u64)));
        attack(&format!("{name} has many entries"), &|list| {
            each(list, &|_, one| set(one, name, numbers(3_000, 1)))
        });
    }
    attack("parents are in a circle", &|list| {
        each(list, &|_, one| {
            let own = sub(one, "snaps").iter().find_map(|pair| match pair.value {
                NvValue::Uint64(guid) => Some(guid),
                _ => None,
            });
            let own = own.unwrap_or(1);
            set(one, "parentfromsnap", own);
            set(one, "origin", own);
        });
    });
    attack("all datasets have the snapshots of the first", &|list| {
        let first = datasets(list).iter().find_map(|pair| match &pair.value {
            NvValue::List(one) => one.get("snaps").cloned(),
            _ => None,
        });
        each(list, &|_, one| set(one, "snaps", first.clone().unwrap()));
    });
    attack("datasets exchange their names", &|list| {
        each(list, &|number, one| {
            set(one, "name", ["tank/src/kid", "tank/src", "tank/src/vol", "tank/src/clone"][number % 4])
        });
    });
    attack("the same dataset a thousand times", &|list| {
        let all = datasets(list);
        let first = all.iter().next().unwrap().clone();
        (0..1_000).for_each(|_| all.push(first.name.clone(), first.value.clone()));
    });
    attack("properties of any name and value", &|list| {
        each(list, &|_, one| {
            let all = sub(one, "props");
            for name in [
                "mountpoint",
                "quota",
                "compression",
                "recordsize",
                "volsize",
                "type",
                "guid",
                "origin",
                "encryption",
            ] {
                set(all, name, u64::MAX);
            }
            for name in ["canmount", "copies", "sharenfs", "a:b", "..", "a\nb:c"] {
                set(all, name, "/".repeat(9_000).as_str());
            }
        });
    });
    attack("holds of any name", &|list| {
        each(list, &|_, one| {
            let of = sub(sub(one, "snapholds"), "2");
            for tag in ["", "a@b", "\u{fffd}", &"t".repeat(9_000)] {
                of.push(tag, 1_u64);
            }
        });
    });
    attack("roots of keys that are none", &|list| {
        list.add("raw", NvValue::Boolean);
        each(list, &|_, one| set(one, "is_encroot", NvValue::Boolean));
    });
    assert!(refused > 5, "{refused}");
    place.live.export_and_verify("tank");
}

#[test]
fn packages_that_cannot_be_read_change_nothing() {
    let place = Place::new();
    for (of, all) in [("full", &place.full), ("more", &place.more)] {
        let list = &all[0].payload;
        for cut in [1, 7, 12, list.len() / 3, list.len() / 2 / 8 * 8, list.len() - 8, list.len() - 1] {
            place.attack(
                &format!("{of}: {cut} bytes of the list"),
                &with_list(all, list[..cut].to_vec()),
                true,
            );
        }
        let plain = encode(all, Endian::Little, &mut |_, _, _| ());
        place.attack(&format!("{of}: ends in the list"), &plain[..400], true);
        let no_end: Vec<_> = [&all[..1], &all[2..]].concat();
        place.attack(
            &format!("{of}: no END behind the list"),
            &encode(&no_end, Endian::Little, &mut |_, _, _| ()),
            true,
        );
        let twice: Vec<_> = [&all[..1], &all[..]].concat();
        place.attack(
            &format!("{of}: the head twice"),
            &encode(&twice, Endian::Little, &mut |_, _, _| ()),
            true,
        );
        let mut long = plain;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        place.attack(&format!("{of}: a list of 4 GiB"), &long, true);
    }
    // Bits of the list that are changed, with a right checksum: what is read may be done.
    let mut rng = Rng::new(7);
    for _ in 0..40 {
        let mut list = place.more[0].payload.clone();
        for _ in 0..3 {
            let at = usize::try_from(rng.next_u64() % list.len() as u64).unwrap();
            list[at] ^= 1 << (rng.next_u64() % 8);
        }
        place.attack("changed bits", &with_list(&place.more, list), false);
    }
    place.live.export_and_verify("tank");
}

#[test]
fn streams_within_a_package_do_not_choose_where_they_go() {
    let place = Place::new();
    let forged = |change: &dyn Fn(&mut Vec<Item>)| {
        let mut all = place.full.clone();
        change(&mut all);
        encode(&all, Endian::Little, &mut |_, _, _| ())
    };
    for name in bad_names() {
        for first in [true, false] {
            let what = format!("streams named {name:.40}, {first}");
            let package = forged(&|all| {
                let mut begins = 0;
                for item in all.iter_mut() {
                    if let DrrBody::Begin(begin) = &mut item.drr.body {
                        begins += 1;
                        let mut raw = [0; 256];
                        let named = format!("{name}@2");
                        // Perhaps without a zero at its end.
                        let len = named.len().min(256);
                        raw[..len].copy_from_slice(&named.as_bytes()[..len]);
                        if (begins == 1) == first {
                            begin.toname = Raw(raw);
                        }
                    }
                }
            });
            place.attack(&what, &package, false);
        }
    }
    place.attack("streams in the reverse order", &forged(&|all| all[2..].reverse()), false);
    let ends =
        |all: &mut Vec<Item>| all.retain(|item| matches!(item.drr.body, DrrBody::Begin(_) | DrrBody::End(_)));
    place.attack("streams without objects", &forged(&ends), false);
    place.attack("the list alone", &forged(&|all| all.truncate(2)), false);
    place.attack("no end", &forged(&|all| drop(all.pop())), false);
    place.live.export_and_verify("tank");
}

/// The claimed length of a record is not allocated: the daemon's largest use of memory is that of the stream itself.
#[test]
fn claims_of_hostile_streams_take_no_memory() {
    let place = Place::new();
    place.renew();
    place.peak();
    place.renew();
    let base = place.peak();
    let real = encode(&place.one, Endian::Little, &mut |_, _, _| ());
    let with = |all: &[Item], body: DrrBody, payload: Vec<u8>, count: usize| {
        let mut all = all.to_vec();
        let item = Item {
            drr: ondisk::drr::Drr { payloadlen: 0, body, checksum: Some([1; 4]) },
            payload,
            offset: 0,
        };
        let at = all.len() - 1;
        all.splice(at..at, std::iter::repeat_n(item, count));
        all
    };
    let inserted = |body: DrrBody, payload: Vec<u8>, count: usize| {
        encode(&with(&place.one, body, payload, count), Endian::Little, &mut |_, _, _| ())
    };
    let toguid = match place.one[0].drr.body {
        DrrBody::Begin(begin) => begin.toguid,
        _ => panic!("no BEGIN"),
    };
    let object = DrrObject {
        object: 100,
        object_type: 19,
        bonustype: 44,
        blksz: 16 << 20,
        bonuslen: 0,
        nlevels: 1,
        nblkptr: 1,
        indblkshift: 17,
        dn_slots: 1,
        toguid,
        ..Default::default()
    };
    let write =
        DrrWrite { object: 100, object_type: 19, toguid, logical_size: 1 << 60, ..Default::default() };
    let packed = DrrWrite { logical_size: 16 << 20, compressiontype: 15, compressed_size: 512, ..write };
    let mut blocks = with(&place.one, DrrBody::Object(object), Vec::new(), 1);
    for number in 0..3_000 {
        blocks = with(&blocks, DrrBody::Write(DrrWrite { offset: number << 24, ..packed }), vec![0; 512], 1);
    }
    if let DrrBody::Begin(begin) = &mut blocks[0].drr.body {
        begin.versioninfo |=
            (stream_feature::LARGE_BLOCKS | stream_feature::COMPRESSED | stream_feature::LZ4) << 2;
    }
    let blocks = encode(&blocks, Endian::Little, &mut |_, _, _| ());
    let mut long = real.clone();
    long[4..8].copy_from_slice(&0xffff_fff8_u32.to_le_bytes());
    // Lists of packages: 32 MiB of pairs, and 32 MiB that are no list.
    let mut list = NvList::new();
    list.add("fss", numbers(400_000, 1));
    let pairs = with_list(&place.full, list.encode_native().unwrap());
    let noise = with_list(&place.full, vec![1; 32 << 20]);
    let cases = [
        ("a list of 4 GiB", long, 0),
        ("a block of 2^60 bytes", inserted(DrrBody::Write(write), Vec::new(), 1), 0),
        (
            "a bonus of 4 GiB",
            inserted(DrrBody::Object(DrrObject { bonuslen: u32::MAX, ..object }), Vec::new(), 1),
            0,
        ),
        ("objects of 16 MiB blocks", inserted(DrrBody::Object(object), Vec::new(), 5_000), 0),
        ("packed blocks of 16 MiB", blocks, 0),
        ("a list of 400,000 datasets", pairs, 96 << 10),
        ("a list of noise", noise, 96 << 10),
    ];
    for (what, bytes, more) in cases {
        let path = place.file(&bytes);
        let run = place.fed("zfs receive -u tank/new", &path);
        assert!(matches!(run.code, 0 | 1), "{what}: {run:?}");
        let peak = place.peak();
        eprintln!("{what}: {} MiB, {} MiB before: {}", peak >> 10, base >> 10, run.err.trim());
        assert!(peak < base + MOST_KIB + more, "{what}: {peak} KiB, {base} KiB before");
        let listed = place.live.run("zfs list tank/new").code;
        assert_eq!(listed, run.code, "{what}");
        if listed == 0 {
            place.live.ok("zfs destroy -r tank/new");
        }
    }
    place.live.export_and_verify("tank");
}
