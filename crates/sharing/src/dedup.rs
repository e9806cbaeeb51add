//! `aquifer dedup`: out-of-band dedup of datasets of imported pools ([`engine::sharing`]).

use std::io::Write as _;

use clap::Args;
use clikit::bar::Bar;
use clikit::ctx::Ctx;
use clikit::interrupt::Interrupt;
use clikit::listing::{Json, Lines};
use clikit::output::json::{JsonStyle, document, print};
use clikit::output::table::{Column, Table};
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::sharing::{
    Amount, MEMORY_MIN, PassStep, SharingOutcome as Done, SharingStats, Target as Shared, Watch, share,
};
use engine::{Error, Kind};
use serde_json::{Map, Value, json};
use zcommon::units::{nicebytes, parse_nicenum};

use crate::advise;

/// Share equal blocks of file systems and volumes.
///
/// Finds blocks that are equal, in one dataset or in several of a pool, and makes them references to one block (block
/// cloning, as cp --reflink does). Files stay as they are and may be in use; a block that a program writes meanwhile is left
/// out. Later writes are not deduplicated: no table slows them down, and the property dedup may be off.
///
/// Equal blocks are found by the checksums in their pointers. With checksum=sha256, sha512, skein or blake3 no data is read;
/// with other checksums equal blocks are read and compared. Blocks are equal only with the same size, compression and number
/// of copies. Encrypted blocks and those without a checksum cannot be compared.
///
/// Snapshots do not change, and keep the blocks that they hold: HELD is the part of EQUAL whose space comes back when those
/// snapshots are destroyed. The next incremental stream contains the shared blocks. Datasets with readonly=on, such as the
/// target of a replication, are refused.
///
/// Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 interrupted: blocks shared so far stay shared.
#[derive(Debug, Args)]
pub struct Dedup {
    /// Show what would be shared, by checksums alone, and change nothing.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Everything below the datasets, too.
    #[arg(short = 'r', long)]
    pub recursive: bool,
    /// Maximum memory for tables; more blocks take more passes.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub memory: String,
    /// The format of lines.
    #[command(flatten)]
    pub lines: Lines,
    /// JSON instead of lines.
    #[command(flatten)]
    pub json: Json,
    /// File systems and volumes of one pool.
    #[arg(value_name = "DATASET", required = true)]
    pub names: Vec<String>,
}

/// Draws progress, and ends the run when the user interrupts it.
struct Shown {
    bar: Bar,
    /// Bytes of a walk, about.
    total: u64,
    interrupt: Interrupt,
}

impl Watch for Shown {
    fn goes_on(&mut self, pass: u64, step: PassStep, done: u64) -> bool {
        let what = match step {
            PassStep::Find => "finding equal blocks",
            PassStep::Choose => "choosing blocks",
            PassStep::Share => "sharing",
        };
        let pass = if pass == 0 { String::new() } else { format!(", pass {}", pass + 1) };
        self.bar.show(&format!("{what}{pass}"), done, self.total.max(done));
        !self.interrupt.is_set()
    }
}

fn refused(name: &str, e: &Error) -> Failure {
    match e.kind() {
        Kind::ReadOnly | Kind::Busy => Failure::cannot("dedup", name, e.what()),
        _ => Failure::cannot("dedup", name, why(e)),
    }
}

impl Dedup {
    /// The datasets, without repetition.
    fn all_names(&self, ctx: &mut Ctx) -> Result<Vec<String>, Failure> {
        let mut all = Vec::new();
        for name in &self.names {
            if name.contains(['@', '#']) {
                return Err(Failure::cannot("dedup", name, "snapshots do not change"));
            }
            let target = Target::of(name, ctx)?;
            target.dataset()?;
            match self.recursive {
                true => all.extend(target.tree()?.into_iter().map(|dir| dir.name)),
                false => all.push(name.clone()),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|name| seen.insert(name.clone()));
        let pool = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        match all.iter().map(|name| pool(name)).collect::<std::collections::BTreeSet<_>>().len() {
            0 | 1 => Ok(all),
            _ => Err(Failure::usage("blocks are shared within one pool: call it for each")),
        }
    }
}

impl Verb for Dedup {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let memory = parse_nicenum(&self.memory)
            .map_err(|_| Failure::usage(format!("invalid memory limit '{}'", self.memory)))?;
        if memory < MEMORY_MIN {
            return Err(Failure::usage(format!("the memory limit is at least {}", nicebytes(MEMORY_MIN))));
        }
        let names = self.all_names(ctx)?;
        let Some(first) = names.first() else { return Ok(Exit::OK) };
        let pool = Target::of(first, ctx)?.pool;
        let spa = pool.spa()?;
        let (mut targets, mut exit) = (Vec::new(), Exit::OK);
        for name in &names {
            match Shared::open(spa, name) {
                Ok(target) => targets.push(target),
                Err(e) => {
                    ctx.warn(refused(name, &e).message().unwrap_or_default());
                    exit = Exit::FAILED;
                }
            }
        }
        if targets.is_empty() {
            return Ok(exit);
        }
        if !self.dry_run {
            ctx.log(&pool)?;
        }
        let total = targets.iter().filter_map(|target| target.referenced(spa).ok()).sum();
        let bar = Bar::new(ctx.terminal());
        let mut shown = Shown { bar, total, interrupt: ctx.interrupt.clone() };
        let done = share(spa, &targets, memory, self.dry_run, &mut shown);
        shown.bar.clear();
        let done = done.map_err(|e| refused(first, &e))?;
        if !self.dry_run {
            // Reported results must be on disk.
            spa.sync()?;
        }
        let rows: Vec<_> = targets.iter().map(|target| target.name.as_str()).zip(&done.found).collect();
        match self.json.json {
            true => self.print_json(&rows, &done, ctx)?,
            false => self.print(&rows, &done, ctx)?,
        }
        if done.found.iter().any(|found| found.unreadable > 0) {
            exit = Exit::FAILED;
        }
        Ok(if done.interrupted { Exit::INTERRUPTED } else { exit })
    }
}

/// Columns and members of JSON.
const AMOUNTS: [(&str, fn(&SharingStats) -> Amount); 7] = [
    ("size", |found| found.all),
    ("already", |found| found.already),
    ("equal", |found| found.equal),
    ("shared", |found| found.shared),
    ("held", |found| found.held),
    ("changed", |found| found.changed),
    ("opaque", |found| found.opaque),
];

impl Dedup {
    fn print(&self, rows: &[(&str, &SharingStats)], done: &Done, ctx: &mut Ctx) -> Result<(), Failure> {
        let columns = AMOUNTS.iter().map(|(name, _)| Column::new(name.to_uppercase(), true));
        let mut table = Table::new(std::iter::once(Column::new("NAME", false)).chain(columns).collect());
        let number = |bytes: u64| match self.lines.literal {
            true => bytes.to_string(),
            false => nicebytes(bytes).to_string(),
        };
        for (name, found) in rows {
            let cells = AMOUNTS.iter().map(|(_, of)| number(of(found).bytes));
            table.push(std::iter::once((*name).to_owned()).chain(cells).collect());
        }
        table.print(&mut *ctx.out, self.lines.scripted)?;
        let unreadable: u64 = rows.iter().map(|(_, found)| found.unreadable).sum();
        if unreadable > 0 {
            ctx.warn(format!("{unreadable} places could not be read; 'zpool scrub' finds them"));
        }
        if done.interrupted {
            ctx.warn("interrupted: blocks shared so far stay shared");
        }
        Ok(())
    }

    fn print_json(&self, rows: &[(&str, &SharingStats)], done: &Done, ctx: &mut Ctx) -> Result<(), Failure> {
        let style = JsonStyle { int: self.json.json_int, ..JsonStyle::default() };
        let amount = |amount: Amount| json!({ "blocks": style.number(amount.blocks), "bytes": style.number(amount.bytes) });
        let dataset = |(name, found): &(&str, &SharingStats)| {
            let mut item = Map::new();
            item.insert("name".into(), json!(name));
            AMOUNTS.iter().for_each(|(name, of)| drop(item.insert((*name).to_owned(), amount(of(found)))));
            item.insert("different".into(), amount(found.different));
            item.insert("unreadable".into(), style.number(found.unreadable));
            ((*name).to_owned(), Value::Object(item))
        };
        let mut document = document(&ctx.command);
        document.insert("dry_run".into(), json!(self.dry_run));
        document.insert("interrupted".into(), json!(done.interrupted));
        document.insert("passes".into(), style.number(done.passes));
        document.insert("datasets".into(), Value::Object(rows.iter().map(dataset).collect()));
        Ok(print(&mut *ctx.out, &Value::Object(document))?)
    }
}

/// Informs the user at a terminal what `dedup=on` would have saved of existing data, which it does not change. Programs take a
/// line on standard error for a failure, so nothing is written elsewhere.
pub fn remark(settings: &[String], target: &Target, ctx: &Ctx) {
    const LEAST: u64 = 1 << 20;
    let turns_on = |word: &String| word.strip_prefix("dedup=").is_some_and(|value| value != "off");
    let Some(mut terminal) = ctx.terminal().filter(|_| settings.iter().any(turns_on)) else { return };
    let stored = target.dataset().map_or(0, |dataset| dataset.phys.referenced_bytes);
    if stored >= LEAST {
        let name = &target.name;
        // Without a key, for example, nothing can be estimated.
        let estimate = advise::on_dedup(target, ctx).unwrap_or_else(|| {
            format!(
                "'aquifer advise dedup {name}' estimates the equal blocks, 'aquifer dedup {name}' shares them"
            )
        });
        let stored = nicebytes(stored);
        // A terminal that is gone shows nothing.
        let _ = writeln!(terminal, "{stored} are stored already and stay as they are; {estimate}");
    }
}

#[cfg(test)]
mod tests {
    use clikit::testing::run;
    use clikit::verb::Exit;

    #[test]
    fn wrong_words_are_refused() {
        assert_eq!(run::<super::Dedup>(&["dedup"]).exit, Exit::USAGE);
        assert_eq!(run::<super::Dedup>(&["dedup", "--memory", "x", "tank"]).exit, Exit::USAGE);
        assert_eq!(run::<super::Dedup>(&["dedup", "--memory", "1K", "tank"]).exit, Exit::USAGE);
        assert_eq!(run::<super::Dedup>(&["dedup", "tank@x"]).exit, Exit::FAILED);
    }
}
