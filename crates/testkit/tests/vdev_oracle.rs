//! Every block that `zdb` knows of on raidz and draid pools, read by our plans from the raw images.
//!
//! `zdb` names each block's place, size, birth and checksum; a plan that reads all columns must find
//! bytes with that checksum, and no parity or padding that contradicts them. Then up to as many
//! children as there is parity are taken away, or filled with noise, and all blocks must still be
//! found. And a plan that writes the block's bytes must produce exactly the bytes on each child.
//!
//! Runs on the golden pools, and on fresh pools by `ztest`; prints a notice and passes where there are none
//! or no `zdb`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use engine::vdev::draid::{DraidGeometry, DraidPlan};
use engine::vdev::mirror::MirrorPlan;
use engine::vdev::plan::{ChildRead, ChildResult, Children, Depth, Fault, PlanOutcome, PlanStep, ReadPlan};
use engine::vdev::raidz::{RaidzGeometry, RaidzPlan};
use engine::vdev::write_plan::WritePlan;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use stdx::{AlignedBuf, Buf};
use testkit::ztest;
use zcommon::draid::DraidConfig;

/// Blocks read twice over with children lost are a sample of at most this many.
const SAMPLE: usize = 400;

const GOLDEN: [&str; 12] = [
    "raidz1-3",
    "raidz2-6",
    "raidz3-8",
    "expanded",
    "draid1",
    "mirror3",
    "stripe-mixed",
    "legacy-v28",
    "damaged-raidz1",
    "damaged-raidz2",
    "damaged-mirror",
    "replacing",
];

#[derive(Debug, Default)]
struct Node {
    fields: HashMap<String, String>,
    children: Vec<Node>,
}

impl Node {
    fn number(&self, key: &str) -> u64 {
        self.fields.get(key).map_or(0, |value| value.parse().unwrap())
    }

    fn kind(&self) -> &str {
        self.fields["type"].trim_matches('\'')
    }

    fn numbers(&self, key: &str) -> Vec<u64> {
        (0..).map_while(|i| self.fields.get(&format!("{key}[{i}]"))).map(|v| v.parse().unwrap()).collect()
    }

    fn leaves(&self) -> Vec<&Node> {
        if self.children.is_empty() {
            vec![self]
        } else {
            self.children.iter().flat_map(Node::leaves).collect()
        }
    }
}

/// Reads `key: value` lines, nested by indentation, below one line.
fn parse(lines: &[&str], at: &mut usize, indent: usize) -> Node {
    let mut node = Node::default();
    while let Some(line) = lines.get(*at) {
        let depth = line.len() - line.trim_start().len();
        if depth < indent {
            break;
        }
        *at += 1;
        let (key, value) = line.trim().split_once(':').unwrap_or((line.trim(), ""));
        if key.starts_with("children[") {
            node.children.push(parse(lines, at, depth + 4));
        } else {
            node.fields.insert(key.to_owned(), value.trim().to_owned());
        }
    }
    node
}

fn zdb(folder: &Path, pool: &str, flags: &[&str]) -> Option<String> {
    let mut command = testkit::zdb::command("zdb");
    let output = command.args(["-e", "-p"]).arg(folder).args(flags).arg(pool).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

enum Shape {
    Mirror,
    Raidz(RaidzGeometry),
    Draid(DraidGeometry),
}

enum Side {
    File(File),
    Spare(u32),
    Absent,
}

struct Top {
    ashift: u32,
    shape: Shape,
    nparity: usize,
    sides: Vec<Vec<Side>>,
    /// Children whose every byte is gone, and those that only give noise.
    lost: Vec<u32>,
    noisy: Vec<u32>,
}

impl Top {
    fn new(folder: &Path, node: &Node, reflow_info: u64) -> Self {
        let ashift = node.number("ashift") as u32;
        let width = node.children.len() as u32;
        let nparity = node.number("nparity");
        let shape = match node.kind() {
            "raidz" => {
                let reflow = node.fields.contains_key("raidz_expanding").then_some(reflow_info);
                let txgs = node.numbers("raidz_expand_txgs");
                Shape::Raidz(RaidzGeometry::new(ashift, width, nparity as u32, &txgs, reflow).unwrap())
            }
            "draid" => {
                let config = DraidConfig {
                    parity: nparity,
                    data: node.number("draid_ndata"),
                    children: u64::from(width),
                    spares: node.number("draid_nspares"),
                };
                Shape::Draid(DraidGeometry::new(ashift, config, node.number("draid_ngroups")).unwrap())
            }
            _ => Shape::Mirror,
        };
        let open = |leaf: &Node| match leaf.fields.get("path") {
            _ if leaf.kind() == "dspare" => Side::Spare(leaf.number("spareid") as u32),
            Some(path) => {
                let name = path.trim_matches('\'').rsplit('/').next().unwrap().to_owned();
                File::open(folder.join(name)).map_or(Side::Absent, Side::File)
            }
            None => Side::Absent,
        };
        let open_all = |node: &Node| node.leaves().into_iter().map(open).collect::<Vec<_>>();
        let sides = match shape {
            Shape::Mirror => vec![open_all(node)],
            _ => node.children.iter().map(open_all).collect(),
        };
        Self { ashift, shape, nparity: nparity as usize, sides, lost: Vec::new(), noisy: Vec::new() }
    }

    fn plan(&self, block: &Block, place: &Place, depth: Depth) -> Box<dyn ReadPlan> {
        match &self.shape {
            Shape::Mirror => Box::new(MirrorPlan::new(place.offset, block.size, depth, 0)),
            Shape::Raidz(geometry) => {
                Box::new(RaidzPlan::new(geometry, place.offset, block.size, block.birth, depth))
            }
            Shape::Draid(geometry) => Box::new(DraidPlan::new(geometry, place.offset, block.size, depth)),
        }
    }

    fn asize(&self, block: &Block) -> Option<u64> {
        match &self.shape {
            Shape::Mirror => None,
            Shape::Raidz(geometry) => Some(geometry.asize(block.size, block.birth)),
            Shape::Draid(geometry) => Some(geometry.asize(block.size)),
        }
    }

    fn file(&self, child: u32, side: u32, offset: u64) -> Option<(u32, &File)> {
        match (&self.sides[child as usize][side as usize], &self.shape) {
            (Side::File(file), _) => Some((child, file)),
            (Side::Spare(id), Shape::Draid(geometry)) => {
                self.file(geometry.spare_child(*id, offset)?, 0, offset)
            }
            _ => None,
        }
    }

    fn read(&self, read: &ChildRead) -> Option<Buf> {
        let (child, file) = self.file(read.child, read.side, read.offset)?;
        if self.lost.contains(&child) {
            return None;
        }
        let mut bytes = AlignedBuf::zeroed(read.len as usize);
        if self.noisy.contains(&child) {
            stdx::rng::Rng::new(read.offset).fill(&mut bytes);
        } else {
            file.read_exact_at(&mut bytes, read.leaf_offset()?).ok()?;
        }
        Some(bytes.into())
    }

    fn run(&self, block: &Block, place: &Place, depth: Depth) -> PlanOutcome {
        let mut plan = self.plan(block, place, depth);
        let mut step = plan.start(self);
        loop {
            let reads = match step {
                PlanStep::Issue(reads) => reads,
                PlanStep::Done(outcome) => return outcome,
            };
            let results =
                reads.into_iter().map(|read| ChildResult { data: self.read(&read), read }).collect();
            step = plan.resume(self, results, &mut |bytes| block.checksum == digest(&block.function, bytes));
        }
    }
}

impl Top {
    /// Whether a write of these bytes would leave every child as it is.
    fn would_write_the_same(&self, block: &Block, place: &Place, data: &Buf) -> bool {
        let plan = match &self.shape {
            Shape::Mirror => Some(WritePlan::mirror(self.ashift, place.offset, data)),
            Shape::Raidz(geometry) => WritePlan::raidz(geometry, place.offset, data, block.birth),
            Shape::Draid(geometry) => WritePlan::draid(geometry, place.offset, data),
        };
        plan.unwrap().writes.iter().all(|write| {
            let bytes: Vec<u8> = write.parts.iter().flat_map(|part| part.iter().copied()).collect();
            (0..self.sides(write.child, write.offset)).all(|side| {
                let read = ChildRead {
                    child: write.child,
                    side,
                    area: write.area,
                    offset: write.offset,
                    len: write.len(),
                };
                self.read(&read).is_none_or(|found| *found == *bytes)
            })
        })
    }
}

impl Children for Top {
    fn count(&self) -> u32 {
        self.sides.len() as u32
    }

    fn sides(&self, child: u32, _: u64) -> u32 {
        self.sides[child as usize].len() as u32
    }

    fn fault(&self, child: u32, side: u32, _: u64) -> Option<Fault> {
        matches!(self.sides[child as usize][side as usize], Side::Absent).then_some(Fault::Unreadable)
    }
}

struct Place {
    top: u64,
    offset: u64,
    asize: u64,
}

struct Block {
    places: Vec<Place>,
    size: u64,
    birth: u64,
    function: String,
    checksum: [u64; 4],
}

fn digest(function: &str, bytes: &[u8]) -> [u64; 4] {
    let algorithm = match function {
        "fletcher2" => checksum::Algorithm::Fletcher2,
        "fletcher4" => checksum::Algorithm::Fletcher4,
        "sha256" => checksum::Algorithm::Sha256,
        "sha512" => checksum::Algorithm::Sha512,
        _ => unreachable!("filtered in `block`"),
    };
    checksum::digest(algorithm, bytes, None, false)
}

/// A line of `zdb -bbbbbb`; `None` for blocks that this test can't judge.
fn block(line: &str) -> Option<Block> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    if !line.starts_with("objset ")
        || !line.contains("DVA[0]=")
        || line.contains(" gang ")
        || !line.contains(" unencrypted LE ")
    {
        return None;
    }
    let place = |dva: &str| {
        let mut parts = dva.split(':');
        Some(Place {
            top: parts.next()?.parse().ok()?,
            offset: hex(parts.next()?)?,
            asize: hex(parts.next()?)?,
        })
    };
    let places =
        line.split("=<").skip(1).map(|rest| place(rest.split_once('>')?.0)).collect::<Option<_>>()?;
    let field = |name: &str| line.split(name).nth(1)?.split(' ').next();
    let size = hex(field(" size=")?.split_once('/')?.1.trim_end_matches('P'))?;
    let birth = field(" birth=")?.split_once('/')?.1.trim_end_matches('P').parse().ok()?;
    let words: Vec<u64> = field(" cksum=")?.trim().split(':').map_while(hex).collect();
    let function = line.split("] ").last()?.split(' ').next()?.to_owned();
    ["fletcher2", "fletcher4", "sha256", "sha512"].contains(&function.as_str()).then_some(())?;
    Some(Block { places, size, birth, function, checksum: words.try_into().ok()? })
}

fn reflow_info(uberblock: &str) -> u64 {
    let line = uberblock.lines().find(|line| line.contains("raidz_reflow state="));
    let number =
        |line: &str, key: &str| line.split(key).nth(1)?.split(' ').next()?.trim().parse::<u64>().ok();
    line.and_then(|line| Some(number(line, "state=")? << 55 | number(line, "off=")? >> 9)).unwrap_or(0)
}

/// Reads all blocks of a pool; the number of copies read.
fn check_pool(folder: &Path, pool: &str, damaged: bool) -> Option<usize> {
    let config = zdb(folder, pool, &["-C"])?;
    let lines: Vec<&str> = config.lines().skip_while(|line| line.trim() != "vdev_tree:").skip(1).collect();
    let tree = parse(&lines, &mut 0, 12);
    let reflow = reflow_info(&zdb(folder, pool, &["-u"])?);
    let mut tops: BTreeMap<u64, Top> =
        tree.children.iter().map(|node| (node.number("id"), Top::new(folder, node, reflow))).collect();
    let report = zdb(folder, pool, &["-bbbbbb"])?;
    let blocks: Vec<Block> = report.lines().filter_map(block).collect();
    let mut copies = 0;
    for block in &blocks {
        for place in &block.places {
            let top = &tops[&place.top];
            let outcome = top.run(block, place, Depth::All);
            let whereabouts = format!("{pool} {}:{:x} size {:x}", place.top, place.offset, block.size);
            assert!(outcome.data.is_some(), "{whereabouts} birth {}: not found", block.birth);
            let complete = top.sides.iter().flatten().all(|side| !matches!(side, Side::Absent));
            assert!(!complete || damaged || outcome.bad.is_empty(), "{whereabouts}: {:?}", outcome.bad);
            if complete && !damaged {
                let data = outcome.data.as_ref().unwrap();
                assert!(top.would_write_the_same(block, place, data), "{whereabouts}: written otherwise");
            }
            assert!(top.asize(block).is_none_or(|asize| asize == place.asize), "{whereabouts}: asize");
            copies += 1;
        }
    }
    let step = blocks.len() / SAMPLE + 1;
    for (&id, top) in &mut tops {
        if top.nparity == 0 || damaged {
            continue;
        }
        for first in 0..top.sides.len() as u32 {
            let children: Vec<u32> =
                (0..top.nparity as u32).map(|n| (first + n) % top.sides.len() as u32).collect();
            for noisy in [false, true] {
                let (lost, noise) =
                    if noisy { (vec![], children.clone()) } else { (children.clone(), vec![]) };
                (top.lost, top.noisy) = (lost, noise);
                for block in blocks.iter().skip(first as usize % step).step_by(step) {
                    for place in block.places.iter().filter(|place| place.top == id) {
                        let found = top.run(block, place, Depth::First).data.is_some();
                        assert!(found, "{pool} {:x} without {children:?}, noisy {noisy}", place.offset);
                    }
                }
            }
        }
    }
    println!("{}: {} blocks, {copies} copies", folder.display(), blocks.len());
    Some(copies)
}

#[test]
fn plans_agree_with_zdb() {
    for golden in GOLDEN.iter().filter_map(|name| testkit::golden::get(name)) {
        let damaged = ["damaged", "replacing"].iter().any(|word| golden.name.contains(word));
        match check_pool(&golden.dir, "tank", damaged) {
            Some(copies) => assert!(copies > 20, "{}: only {copies} blocks", golden.name),
            None => eprintln!("SKIPPED: there is no zdb here"),
        }
    }
}

/// Pools that OpenZFS has just made, damaged on purpose.
#[test]
fn plans_agree_with_zdb_on_fresh_pools() {
    if !ztest::is_here() {
        return;
    }
    for kind in ztest::KINDS {
        let dir = tempfile::tempdir().unwrap();
        if ztest::make(kind, dir.path()) {
            let copies = check_pool(dir.path(), "ztest", true).unwrap();
            assert!(copies > 20, "{}: only {copies} blocks", kind.name);
        }
    }
}
