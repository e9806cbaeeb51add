//! `zpool status`: how a pool and its vdevs are.
//!
//! Differs from OpenZFS: a pool that is not imported has counted no errors; devices are judged as an import
//! would find them now. `-x` without findings reports that.

use std::io::Write;

use clap::{ArgAction, Args};
use clikit::ctx::Ctx;
use clikit::listing::PoolJson;
use clikit::output::json::{JsonStyle, document, print};
use clikit::output::status::{KnownErrors, StatusReport, StatusVdev};
use clikit::repeat::{Repeat, Report};
use clikit::session::Home;
use clikit::source::{PoolSource, Seen};
use clikit::verb::{Exit, Outcome, Verb};
use serde_json::{Map, Value};
use zcommon::features::Feature;
use zcommon::status::PoolStatus;
use zcommon::vdev::VdevKind;
use zfs::unheeded;
use zutil::import_listing::class_of;
use zutil::names::vdev_name;
use zutil::tree::VdevNode;

use super::activity::Activity;
use super::condition::condition;
use super::dedup;
use super::errors::known_errors;
use super::progress::Work;
use super::prop::PoolView;
use super::redundancy;
use super::scripts::mark::Mark;
use super::scripts::{Scripts, power};
use super::status_json;
use super::unavailable::Absent;
use super::vdev_names::VdevNames;

/// Print the health of pools and their devices.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// List damaged files.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print only pools that have problems or errors.
    #[arg(short = 'x')]
    pub exceptions: bool,
    /// Print only vdevs that are unhealthy or have errors.
    #[arg(short = 'e')]
    pub unhealthy: bool,
    /// Print the numbers of slow requests.
    #[arg(short = 's')]
    pub slow: bool,
    /// Print the initialization status of devices.
    #[arg(short = 'i')]
    pub initialized: bool,
    /// Print the TRIM status of devices.
    #[arg(short = 't')]
    pub trimmed: bool,
    /// Print the numbers of checksum errors of direct I/O. Before a directory or device: find the pool there.
    #[arg(short = 'd', action = ArgAction::Count)]
    pub direct: u8,
    /// Print a histogram of the dedup tables.
    #[arg(short = 'D', action = ArgAction::Count)]
    pub dedup: u8,
    /// Print the power status of the devices' slots.
    #[arg(long)]
    pub power: bool,
    /// Columns from the output of scripts for each device; without a name, list the scripts.
    #[arg(short = 'c', value_name = "SCRIPT,…", num_args = 0..=1, default_missing_value = "")]
    pub scripts: Vec<String>,
    /// Print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub literal: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    #[command(flatten)]
    pub(crate) json: PoolJson,
    /// Print vdevs in JSON as one map instead of a tree.
    #[arg(long = "json-flat-vdevs", requires = "json")]
    pub json_flat_vdevs: bool,
    /// Pools (default: all that are found); then an interval in seconds and a number of reports.
    #[arg(value_name = "POOL… [INTERVAL [COUNT]]")]
    pub pools: Vec<String>,
}

impl Verb for Status {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        self.take_devices();
        let repeat = Repeat::take(&mut self.source, &mut self.pools)?;
        let plain = !self.json.style.json;
        repeat.run(ctx, plain, |ctx, first| {
            let exit = self.once(ctx, first, repeat)?;
            if !self.scripts.is_empty() {
                write!(ctx.out, "{}", Mark::End.text())?;
            }
            Ok(Report { exit, is_last: exit != Exit::OK })
        })
    }
}

impl Status {
    /// Separates OpenZFS's `-d`, without a value, from ours, with one: a `-d` before a path is ours, as no
    /// pool's name has a `/`.
    fn take_devices(&mut self) {
        while self.direct > 0
            && let Some(at) = self.pools.iter().position(|name| name.contains('/'))
        {
            self.direct -= 1;
            self.source.device.push(self.pools.remove(at));
        }
    }

    /// Where it runs.
    pub fn home(&self) -> Home {
        let is_path = self.direct > 0 && self.pools.iter().any(|name| name.contains('/'));
        if is_path { Home::Here } else { self.source.home_of_report(&self.pools) }
    }

    /// Scripts that add columns.
    pub fn scripts(&self) -> Option<Scripts> {
        Scripts::new("status", &self.scripts, self.json.style.json)
    }

    fn once(&self, ctx: &mut Ctx, first: bool, repeat: Repeat) -> Outcome {
        let mut pools = Map::new();
        let mut printed = 0_usize;
        let mut seen = 0_usize;
        let style = self.json_style();
        let none = |ctx: &mut Ctx| {
            ctx.warn("no pools available");
            Ok(())
        };
        let exit = self.source.each_known(&self.pools, ctx, none, |found, ctx| {
            let (pool, candidate) = match found {
                Seen::Pool(pool, candidate) => (pool, candidate),
                Seen::Unavailable(name, pool) => {
                    let pool = Absent::new(name, pool);
                    if self.json.style.json {
                        pools.insert(pool.key(&style), pool.status_object(&style));
                        return Ok(Exit::OK);
                    }
                    if printed > 0 || !first {
                        writeln!(ctx.out)?;
                    }
                    printed += 1;
                    pool.report(self.names.style(), self.literal).print(&mut *ctx.out)?;
                    return Ok(Exit::OK);
                }
            };
            let view = PoolView::new(pool, candidate, ctx);
            let errors = known_errors(pool, view.imported(), self.verbose, ctx);
            let condition = condition(&view, candidate, &errors);
            seen += 1;
            let lacking = view.tree.walk().any(|vdev| view.lacks_something(vdev.guid));
            if self.exceptions && is_fine(condition) && !lacking {
                if !self.pools.is_empty() && !self.json.style.json {
                    writeln!(ctx.out, "pool '{}' is healthy", view.pool.name)?;
                    printed += 1;
                }
                return Ok(Exit::OK);
            }
            if self.json.style.json {
                pools.insert(super::pool_key(&view, &style), self.object(&view, condition, &errors));
                return Ok(Exit::OK);
            }
            if printed > 0 || !first {
                writeln!(ctx.out)?;
            }
            printed += 1;
            let mut report = self.report(&view, condition, errors);
            if lacking && is_fine(condition) {
                let is_kept = view.pool.features.is_active(Feature::ZpoolCheckpoint.info().guid);
                let action = match () {
                    () if is_kept => KEPT_ACTION,
                    () if view.is_left_incomplete() => INCOMPLETE_ACTION,
                    () => LACKING_ACTION,
                };
                (report.status, report.action) = (Some(wrap(LACKING)), Some(wrap(action)));
            }
            if let (Some(status), Some(more)) = (&mut report.status, redundancy::sentence(&view)) {
                *status += &format!("\n\t{more}");
            }
            add_unheeded(&mut report, &view);
            report.print(&mut *ctx.out)?;
            if self.dedup > 0 {
                dedup::print(&view, (self.dedup, self.literal), &mut *ctx.out)?;
            }
            Ok(Exit::OK)
        })?;
        if self.json.style.json && exit != Exit::OK && !self.pools.is_empty() {
            // Part of a document would pass for the whole.
        } else if self.json.style.json {
            let mut doc = document(&ctx.command);
            doc.insert("pools".into(), pools.into());
            doc.extend(repeat.time(&style).map(|time| ("time".to_owned(), time)));
            print(&mut *ctx.out, &Value::Object(doc))?;
        } else if self.exceptions && printed == 0 && seen > 0 {
            writeln!(ctx.out, "all pools are healthy")?;
        }
        Ok(exit)
    }
}

/// Devices are back that missed something, and no resilver has begun yet.
const LACKING: &str = "One or more devices lack data that was written while they were out of use.\nThey are not \
    read for it, so the pool has less redundancy than its layout gives.";
const LACKING_ACTION: &str = "Wait for the resilver, or begin it anew with 'zpool resilver'.";
/// The same where the last resilver has ended.
const INCOMPLETE_ACTION: &str = "The last resilver could not read or write all blocks: when the cause is mended, begin it\nanew with \
    'zpool resilver'.";
/// The same where a checkpoint has blocks that no resilver meets.
const KEPT_ACTION: &str = "Discard the checkpoint with 'zpool checkpoint -d': until then the devices may lack blocks of it,\nand no \
    resilver makes them whole.";

const UNHEEDED: &str = "Some settings have no effect in this build:";
const UNHEEDED_ACTION: &str = "None: they are kept for OpenZFS, which heeds them. 'zfs inherit' clears them.";

/// Adds the settings of datasets that have no effect.
fn add_unheeded(report: &mut StatusReport, view: &PoolView<'_>) {
    let lines = view.imported().map(unheeded::lines).unwrap_or_default();
    if lines.is_empty() {
        return;
    }
    let text = format!("{UNHEEDED}\n\t{}", lines.join("\n\t"));
    report.status = Some(match report.status.take() {
        Some(status) => format!("{status}\n\t{text}"),
        None => text,
    });
    report.action.get_or_insert_with(|| UNHEEDED_ACTION.to_owned());
}

/// Conditions that `-x` does not mention.
fn is_fine(condition: PoolStatus) -> bool {
    use PoolStatus as S;
    matches!(condition, S::Ok | S::VersionOlder | S::FeatDisabled | S::CompatibilityErr | S::IncompatibleFeat)
}

impl Status {
    fn json_style(&self) -> JsonStyle {
        JsonStyle {
            int: self.json.style.json_int,
            flat_vdevs: self.json_flat_vdevs,
            pool_key_guid: self.json.json_pool_key_guid,
        }
    }

    /// The pool in JSON.
    fn object(&self, view: &PoolView<'_>, condition: PoolStatus, errors: &KnownErrors) -> Value {
        let chosen = status_json::Chosen {
            names: self.names.style(),
            literal: self.literal,
            unhealthy: self.unhealthy,
            initialized: self.initialized,
            trimmed: self.trimmed,
            power: self.power,
            direct: self.direct > 0,
            dedup: self.dedup,
        };
        let mut item = status_json::pool(view, condition, errors, chosen, &self.json_style());
        let notes = view.imported().map(unheeded::lines).unwrap_or_default();
        if let Some(item) = item.as_object_mut().filter(|_| !notes.is_empty()) {
            item.insert("notes".into(), notes.into());
        }
        item
    }

    fn report(&self, view: &PoolView<'_>, condition: PoolStatus, errors: KnownErrors) -> StatusReport {
        let tops =
            view.tree.children.iter().filter(|v| !matches!(v.kind, VdevKind::Hole | VdevKind::Indirect));
        let tops: Vec<&VdevNode> = tops.collect();
        let of_class = |class: Option<&str>| -> Vec<StatusVdev> {
            tops.iter().filter(|v| class_of(v) == class).map(|v| self.vdev(view, v, false)).collect()
        };
        let aux = |list: &[VdevNode], spare: bool| list.iter().map(|v| self.vdev(view, v, spare)).collect();
        let (facts, advice) = (view.facts.as_ref(), view.advice(condition));
        let classes = ["dedup", "special", "logs"];
        let classes = classes.into_iter().map(|c| (c.to_owned(), of_class(Some(c))));
        StatusReport {
            pool: view.pool.name.clone(),
            state: view.state().to_owned(),
            status: advice.status.as_deref().map(wrap),
            action: advice.action.as_deref().map(wrap),
            see: advice.id.map(str::to_owned),
            activity: Activity::of(view).lines(view),
            root: StatusVdev {
                name: view.pool.name.clone(),
                state: view.tree.health.name().to_owned(),
                errors: Some([0; 3]),
                slow: self.slow.then_some(None),
                power: self.power.then_some("-"),
                direct: (self.direct > 0).then(|| view.direct_errors(view.tree.guid)),
                note: note(view, &view.tree),
                is_hidden: false,
                children: of_class(None),
            },
            classes: classes.filter(|(_, vdevs)| !vdevs.is_empty()).collect(),
            cache: facts.map(|f| aux(&f.l2cache, false)).unwrap_or_default(),
            spares: facts.map(|f| aux(&f.spares, true)).unwrap_or_default(),
            errors: Some(errors),
            literal: self.literal,
            more_heads: if self.scripts.is_empty() { String::new() } else { Mark::Heads.text() },
        }
    }

    /// The text behind a vdev's counts and its note: columns of scripts, and operations under way.
    fn more(&self, view: &PoolView<'_>, vdev: &VdevNode) -> String {
        let path = vdev.path.as_deref().filter(|_| !self.scripts.is_empty());
        let mut more = path
            .map(|path| Mark::Leaf(String::from_utf8_lossy(path).into()))
            .map_or_else(String::new, |m| m.text());
        if vdev.is_leaf() {
            let possible = !self.trimmed || view.can_be_trimmed(vdev);
            let (init, trim) = (Work::Initialize, Work::Trim);
            more += &init.note(init.on(view, vdev), self.initialized, true);
            more += &trim.note(trim.on(view, vdev), self.trimmed, possible);
        }
        more
    }

    fn vdev(&self, view: &PoolView<'_>, vdev: &VdevNode, spare: bool) -> StatusVdev {
        let in_use = spare && view.is_spare_in_use(vdev);
        let state = match vdev.health.name() {
            _ if in_use => "INUSE",
            "ONLINE" if spare => "AVAIL",
            name => name,
        };
        let slow = (self.slow && !spare).then(|| vdev.is_leaf().then(|| view.slow_ios(vdev.guid)));
        let is_slow = slow.flatten().is_some_and(|count| count > 0);
        StatusVdev {
            name: vdev_name(vdev, self.names.style(), true),
            state: state.to_owned(),
            errors: (!spare).then(|| view.errors_of(vdev.guid)),
            slow,
            power: self.power.then(|| if vdev.is_leaf() { power(vdev.path.as_deref()) } else { "-" }),
            direct: (self.direct > 0 && !spare).then(|| view.direct_errors(vdev.guid)),
            note: match view.user_of(vdev).filter(|_| spare) {
                Some(pool) => format!("  in use by pool '{pool}'"),
                None if in_use => "  currently in use".to_owned(),
                None => note(view, vdev) + &self.more(view, vdev),
            },
            is_hidden: self.unhealthy && !is_slow && !status_json::is_unhealthy(view, vdev),
            children: vdev.children.iter().map(|c| self.vdev(view, c, spare)).collect(),
        }
    }
}

/// Continued lines begin with a tab.
fn wrap(text: &str) -> String {
    text.replace('\n', "\n\t")
}

/// The note behind a vdev's counts.
fn note(view: &PoolView<'_>, vdev: &VdevNode) -> String {
    let path = || vdev.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let aux = vdev.health.aux.text();
    let mut note = match aux {
        _ if vdev.not_present => format!("  {}", zcommon::vdev::was_at(&path())),
        "" => vdev.non_native_block().map_or_else(String::new, |(configured, native)| {
            format!("  block size: {}B configured, {}B native", 1u64 << configured, 1u64 << native)
        }),
        text => format!("  {text}"),
    };
    if vdev.removing {
        note += "  (removing)";
    } else if vdev.no_alloc {
        note += "  (non-allocating)";
    }
    if aux.is_empty() && !vdev.not_present && view.lacks_something(vdev.guid) {
        note += match () {
            () if view.is_resilvering() && !vdev.deferred => "  (resilvering)",
            () if view.is_left_incomplete() => "  (lacks data)",
            () => "  (awaiting resilver)",
        };
    } else if vdev.is_leaf() && vdev.health.name() == "ONLINE" && view.is_repairing(vdev.guid) {
        note += if view.is_resilvering() { "  (resilvering)" } else { "  (repairing)" };
    }
    note
}
