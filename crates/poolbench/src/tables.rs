//! The tables: which measurements they consist of, in which order.

use std::path::PathBuf;

use clap::ValueEnum;
use clikit::verb::Failure;

use super::layout::Layout;
use super::plan::Plan;
use super::pool::{Bed, Spec};
use super::report::{Cell, Results, Unit};
use super::sample::Sample;
use super::scratch::Scratch;
use super::stats::{self, Figure};
use super::steps::Steps;
use super::work::{RunClock, Small, names};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// Layouts of the devices: speed, capacity, devices that may fail.
    Layouts,
    /// Compression, checksum and recordsize.
    Compression,
    /// Small files.
    Files,
    /// Random reads and rewrites.
    Random,
    /// Synchronous appends.
    Fsync,
}

/// The devices of pools, or the dataset of an existing pool.
#[derive(Debug)]
pub enum Place {
    /// Pools are made of these.
    Disks(Vec<PathBuf>, Layout),
    /// Datasets are made below this one.
    Within(String),
}

/// Everything that the tables need.
pub struct Tables<'a> {
    /// The clock.
    pub bench: &'a RunClock,
    /// The amount of work.
    pub plan: &'a Plan,
    /// The benchmark's directory.
    pub scratch: &'a Scratch,
    /// Where.
    pub place: &'a Place,
    /// Whether files are used through the mount.
    pub mounts: bool,
    /// The samples of the table `compression`.
    pub samples: &'a [Sample],
    /// Progress.
    pub steps: Steps,
}

const COMPRESSIONS: [&str; 4] = ["off", "lz4", "zstd-3", "gzip-6"];
const CHECKSUMS: [&str; 3] = ["fletcher4", "blake3", "sha256"];
const RECORDSIZES: [&str; 3] = ["16K", "128K", "1M"];
const BLOCKS: [(u64, &str); 2] = [(8 << 10, "8K"), (16 << 10, "16K")];
const DEPTHS: [u64; 2] = [1, 16];

/// Compression, checksum and recordsize of each row.
fn combinations(quick: bool) -> Vec<[&'static str; 3]> {
    let (checksums, sizes): (&[_], &[_]) = match quick {
        true => (&["fletcher4", "blake3"], &["128K"]),
        false => (&CHECKSUMS, &RECORDSIZES),
    };
    let compressions: &[_] = if quick { &["off", "lz4", "zstd-3"] } else { &COMPRESSIONS };
    let mut all = Vec::new();
    for compression in compressions {
        for checksum in checksums {
            all.extend(sizes.iter().map(|size| [*compression, *checksum, *size]));
        }
    }
    all
}

/// Number of runs of all these tables, for the progress.
pub fn count(which: &[Which], plan: &Plan, place: &Place, samples: usize) -> u64 {
    let layouts = match place {
        Place::Disks(disks, _) => Layout::all(disks.len()).len(),
        Place::Within(_) => 1,
    };
    let of = |table: &Which| match table {
        Which::Layouts => layouts * 3,
        Which::Compression => combinations(plan.quick).len() * samples * 2,
        Which::Files => 8,
        Which::Random => BLOCKS.len() * DEPTHS.len() * 2,
        Which::Fsync => DEPTHS.len(),
    };
    plan.runs * which.iter().map(of).sum::<usize>() as u64
}

/// The runs of one cell.
#[derive(Debug, Default)]
struct Runs(Vec<stats::Measurement>);

impl Runs {
    fn cell(&self) -> Cell {
        Figure::of(&self.0).into()
    }
}

impl Tables<'_> {
    /// Measures one table.
    ///
    /// # Errors
    /// Errors of the pool, or an interruption by the user.
    pub fn measure(&mut self, which: Which) -> Result<Results, Failure> {
        match which {
            Which::Layouts => self.layouts(),
            Which::Compression => self.compression(),
            Which::Files => self.files(),
            Which::Random => self.random(),
            Which::Fsync => self.fsync(),
        }
    }

    fn bed(&self, layout: Option<&Layout>, specs: &[Spec]) -> Result<Bed, Failure> {
        match self.place {
            Place::Disks(disks, usual) => {
                let words: Vec<String> = disks.iter().map(|disk| disk.display().to_string()).collect();
                let vdevs = layout.unwrap_or(usual).words(&words);
                Bed::create(self.scratch, disks, &vdevs, specs, (self.plan.cache, self.mounts))
            }
            Place::Within(parent) => Bed::within(self.scratch, parent, specs),
        }
    }

    /// Whether reads after [`Bed::cool`] come from the devices.
    fn is_cold(&self) -> bool {
        matches!(self.place, Place::Disks(..)) || self.plan.exceeds()
    }

    fn add(&mut self, runs: &mut Runs, what: &str, unit: Unit, sample: stats::Measurement) {
        runs.0.push(sample);
        let shown = if unit == Unit::Speed { "MB/s" } else { "/s" };
        self.steps.step(what, &format!("{} {shown}", unit.nice(sample.rate)));
    }

    fn layouts(&mut self) -> Result<Results, Failure> {
        let beds = match self.place {
            Place::Disks(disks, _) => Layout::all(disks.len()).into_iter().map(Some).collect(),
            Place::Within(_) => vec![None],
        };
        let rows = beds.iter().map(|layout| self.layout(layout.as_ref())).collect::<Result<_, _>>()?;
        Ok(Results {
            name: "layouts",
            title: "Layouts, large files, incompressible".to_owned(),
            keys: vec!["layout"],
            columns: vec![
                ("write", Unit::Speed),
                ("cold read", Unit::Speed),
                ("hot read", Unit::Speed),
                ("capacity", Unit::Bytes),
                ("may fail", Unit::Count),
            ],
            rows,
        })
    }

    fn layout(&mut self, layout: Option<&Layout>) -> Result<(Vec<String>, Vec<Cell>), Failure> {
        let name = layout.map_or("as it is", |layout| layout.name);
        let mut bed = self.bed(layout, &[Spec::new("data", &["compression=off"])])?;
        let (data, size, hot) = (Sample::random(), self.plan.size, self.plan.hot());
        let [mut write, mut cold, mut warm] = [(); 3].map(|()| Runs::default());
        for run in 0..self.plan.runs {
            let path = format!("data/large{run}");
            let rate = self.bench.write(&bed, &path, size, &data)?;
            self.add(&mut write, &format!("{name} write"), Unit::Speed, rate);
            bed.cool()?;
            let rate = self.bench.read(bed.store(), &path, size)?;
            self.add(&mut cold, &format!("{name} cold read"), Unit::Speed, rate);
            self.bench.read(bed.store(), &path, hot)?;
            let rate = self.bench.read(bed.store(), &path, hot)?;
            self.add(&mut warm, &format!("{name} hot read"), Unit::Speed, rate);
            bed.store().remove(&path).map_err(|e| Failure::failed(e.to_string()))?;
        }
        let cold = if self.is_cold() { cold.cell() } else { Cell::Missing };
        let capacity = bed.capacity.map_or(Cell::Missing, |bytes| Cell::Known(bytes as f64));
        let may_fail = layout.map_or(Cell::Missing, |layout| Cell::Known(layout.parity as f64));
        bed.destroy()?;
        Ok((vec![name.to_owned()], vec![write.cell(), cold, warm.cell(), capacity, may_fail]))
    }

    fn compression(&mut self) -> Result<Results, Failure> {
        let all = combinations(self.plan.quick);
        let named = |(at, [compression, checksum, size]): (usize, &[&str; 3])| {
            let props = [("compression", compression), ("checksum", checksum), ("recordsize", size)];
            let props = props.iter().map(|(name, value)| format!("{name}={value}")).collect();
            Spec { name: format!("c{at}"), props }
        };
        let specs: Vec<Spec> = all.iter().enumerate().map(named).collect();
        let mut bed = self.bed(None, &specs)?;
        let mut rows = Vec::new();
        for sample in self.samples {
            for (spec, words) in specs.iter().zip(&all) {
                let cells = self.combination(&mut bed, (spec, words), sample)?;
                let keys = words.iter().map(|word| (*word).to_owned());
                rows.push((std::iter::once(sample.name.clone()).chain(keys).collect(), cells));
            }
        }
        bed.destroy()?;
        Ok(Results {
            name: "compression",
            title: "Compression, checksum and recordsize, large files".to_owned(),
            keys: vec!["sample", "compression", "checksum", "recordsize"],
            columns: vec![("write", Unit::Speed), ("cold read", Unit::Speed), ("ratio", Unit::Ratio)],
            rows,
        })
    }

    fn combination(
        &mut self,
        bed: &mut Bed,
        (spec, words): (&Spec, &[&str; 3]),
        sample: &Sample,
    ) -> Result<Vec<Cell>, Failure> {
        if bed.skipped.contains(&spec.name) {
            return Ok(vec![Cell::Missing; 3]);
        }
        let failed = |e: std::io::Error| Failure::failed(e.to_string());
        let (what, mut ratio) = (words.join(" "), Cell::Missing);
        let [mut write, mut read] = [(); 2].map(|()| Runs::default());
        for run in 0..self.plan.runs {
            let path = format!("{}/{}{run}", spec.name, "large");
            let rate = self.bench.write(bed, &path, self.plan.size, sample)?;
            self.add(&mut write, &format!("{what} write"), Unit::Speed, rate);
            bed.cool()?;
            let rate = self.bench.read(bed.store(), &path, self.plan.size)?;
            self.add(&mut read, &format!("{what} cold read"), Unit::Speed, rate);
            let stored = bed.store().stat(&path).map_err(failed)?;
            ratio = Cell::Known(self.plan.size as f64 / stored.max(512) as f64);
            bed.store().remove(&path).map_err(failed)?;
        }
        let read = if self.is_cold() { read.cell() } else { Cell::Missing };
        Ok(vec![write.cell(), read, ratio])
    }

    fn files(&mut self) -> Result<Results, Failure> {
        let mut bed = self.bed(None, &[Spec::new("files", &[])])?;
        let data = Sample::text();
        let mut rows = Vec::new();
        for (order, sequential) in [("sequential", true), ("random", false)] {
            let mut all = [(); 4].map(|()| Runs::default());
            for run in 0..self.plan.runs {
                let dir = format!("files/{order}{run}");
                bed.store().mkdir(&dir).map_err(|e| Failure::failed(e.to_string()))?;
                let (made, later) = names(self.plan.files, sequential, run + 1);
                let works = [
                    ("create", Small::Create),
                    ("stat", Small::Stat),
                    ("read", Small::Read),
                    ("delete", Small::Delete),
                ];
                for ((word, what), runs) in works.into_iter().zip(&mut all) {
                    if what == Small::Stat {
                        bed.cool()?;
                    }
                    let names = if what == Small::Create { &made } else { &later };
                    let rate = self.bench.small(&bed, &dir, (names, what), &data)?;
                    self.add(runs, &format!("{order} {word}"), Unit::Rate, rate);
                }
                bed.store().rmdir(&dir).map_err(|e| Failure::failed(e.to_string()))?;
            }
            rows.push((vec![order.to_owned()], all.iter().map(Runs::cell).collect()));
        }
        bed.destroy()?;
        Ok(Results {
            name: "files",
            title: format!("{} files of 3000 bytes in one directory", self.plan.files),
            keys: vec!["order"],
            columns: vec![
                ("create", Unit::Rate),
                ("stat", Unit::Rate),
                ("read", Unit::Rate),
                ("delete", Unit::Rate),
            ],
            rows,
        })
    }

    fn random(&mut self) -> Result<Results, Failure> {
        let props =
            |word: &str| Spec::new(format!("r{word}"), &["compression=off", &format!("recordsize={word}")]);
        let specs: Vec<Spec> = BLOCKS.iter().map(|(_, word)| props(word)).collect();
        let mut bed = self.bed(None, &specs)?;
        let (data, size, time) = (Sample::random(), self.plan.size, self.plan.time);
        let mut rows = Vec::new();
        for (block, word) in BLOCKS {
            let path = format!("r{word}/large");
            self.bench.write(&bed, &path, size, &data)?;
            for depth in DEPTHS {
                let [mut reads, mut writes] = [(); 2].map(|()| Runs::default());
                for run in 0..self.plan.runs {
                    bed.cool()?;
                    let shape = (size, block, depth);
                    let rate = self.bench.random(&bed, &path, shape, (None, time), run * 2 + 1)?;
                    self.add(&mut reads, &format!("{word} read, depth {depth}"), Unit::Rate, rate);
                    let rate = self.bench.random(&bed, &path, shape, (Some(&data), time), run * 2 + 2)?;
                    self.add(&mut writes, &format!("{word} rewrite, depth {depth}"), Unit::Rate, rate);
                }
                let reads = if self.is_cold() { reads.cell() } else { Cell::Missing };
                rows.push((vec![word.to_owned(), depth.to_string()], vec![reads, writes.cell()]));
            }
            bed.store().remove(&path).map_err(|e| Failure::failed(e.to_string()))?;
        }
        bed.destroy()?;
        Ok(Results {
            name: "random",
            title: "Random I/O, recordsize equal to the block".to_owned(),
            keys: vec!["block", "depth"],
            columns: vec![("read", Unit::Rate), ("rewrite", Unit::Rate)],
            rows,
        })
    }

    fn fsync(&mut self) -> Result<Results, Failure> {
        let bed = self.bed(None, &[Spec::new("logs", &[])])?;
        let data = Sample::text();
        let mut rows = Vec::new();
        for callers in DEPTHS {
            let mut runs = Runs::default();
            for run in 0..self.plan.runs {
                let rate = self.bench.fsync(&bed, "logs", (callers, self.plan.time), (&data, run))?;
                self.add(&mut runs, &format!("fsync, {callers} callers"), Unit::Rate, rate);
            }
            rows.push((vec![callers.to_string()], vec![runs.cell()]));
        }
        bed.destroy()?;
        Ok(Results {
            name: "fsync",
            title: "Appends of 4 KiB, each with fsync".to_owned(),
            keys: vec!["callers"],
            columns: vec![("fsync", Unit::Rate)],
            rows,
        })
    }
}
