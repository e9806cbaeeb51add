//! Several snapshots in one stream: `-I`, `-R`.
//!
//! The list of datasets ([`tree`]) describes all of them; here each dataset's snapshots are sent in turn,
//! each building on the one before, and a clone not before its origin, a child not before its parent.
//!
//! Source: `zfs_send`, `dump_filesystems`, `dump_filesystem`, `dump_snapshot`, libzfs_sendrecv.c, OpenZFS 2.4.

use std::collections::{HashMap, HashSet};

use clikit::ctx::Ctx;
use clikit::source::PoolSource;
use clikit::verb::{Failure, Outcome};
use engine::Error;
use engine::dsl::Dataset;
use engine::dsl::write::LongHold;
use engine::send::{From, SendOptions as Stream, compound};

use super::running::{Output, Report, failure, run};
use super::scene::{Scene, reason};
use super::sizes::{self, Base};
use super::tree::{Gather, Head};
use super::{Options, exit};

/// A dataset of the package.
struct Entry {
    name: String,
    parent_guid: u64,
    origin_guid: u64,
    /// Snapshots of it, by guid.
    snaps: Vec<u64>,
}

/// One stream of the package.
struct Step {
    to: Dataset,
    from: Option<Dataset>,
}

/// The streams to send.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// Every snapshot that a stream needs.
    needed: Vec<Dataset>,
    /// The last snapshot was found in the last dataset.
    found: bool,
    /// Something could not be sent, and was reported.
    failed: bool,
}

struct Package<'a> {
    scene: &'a Scene,
    o: &'a Options,
    top: &'a str,
    from: Option<String>,
    to: &'a str,
    all: bool,
    from_origin: bool,
}

/// `zfs send` with `-I` or `-R`.
#[doc(alias = "zfs_send")]
pub(super) fn send(source: &PoolSource, o: &Options, (top, to): (&str, &str), ctx: &mut Ctx) -> Outcome {
    let scene = Scene::open(source, top, ctx)?;
    let head = scene.must(top)?;
    let (from, from_origin) = origin_or_from(&scene, o, &head)?;
    let all = !o.all_from.is_empty() || (o.replicate && from.is_none());
    let package = Package { scene: &scene, o, top, from, to, all, from_origin };
    package.run(ctx)
}

/// The part after the `@` of the package's base; or whether that is the dataset's origin.
fn origin_or_from(scene: &Scene, o: &Options, head: &Dataset) -> Result<(Option<String>, bool), Failure> {
    let Some(from) = o.from() else { return Ok((None, false)) };
    let Some((dataset, part)) = from.split_once('@') else { return Ok((Some(from.to_owned()), false)) };
    let origin = {
        let _quiet = scene.quiet();
        scene.origin(head)?.map(|origin| origin.name)
    };
    if origin.as_deref() == Some(from) {
        return Ok((None, true));
    }
    if !dataset.is_empty() && dataset != head.name {
        return Err(Failure::usage("incremental source must be in same filesystem"));
    }
    if part.contains(['@', '/']) {
        return Err(Failure::usage("invalid incremental source"));
    }
    Ok((Some(part.to_owned()), false))
}

impl Package<'_> {
    fn wanted(&self, name: &str) -> bool {
        let below = |above: &str| {
            name.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        !self.o.exclude.iter().flat_map(|all| all.split(',')).any(below)
    }

    fn run(&self, ctx: &mut Ctx) -> Outcome {
        let (o, top) = (self.o, self.top);
        if let Some(from) = &self.from {
            if from.is_empty() {
                return Err(Failure::cannot("send", top, "zero-length incremental source"));
            }
            self.scene.must(&format!("{top}@{from}"))?;
        }
        let toname = format!("{top}@{}", self.to);
        let last = self.scene.must(&toname)?;
        self.scene.ready(&last, o.raw, ctx)?;
        let mut head = Head { toname, features: 0, list: nvpair::NvList::new() };
        let mut is_listed = false;
        if o.replicate || o.props || o.holds {
            let wanted = |name: &str| self.wanted(name);
            let from = self.from.as_deref();
            let gather = Gather {
                scene: self.scene,
                options: o,
                top,
                from,
                to: self.to,
                all: self.all,
                wanted: &wanted,
            };
            (head, is_listed) = (gather.head(ctx)?, true);
        }
        let mut out = if o.dry { None } else { Some(Output::of(ctx)?) };
        let plan = self.plan(&head, ctx)?;
        let _holds = self.hold(&plan)?;
        if let Some(out) = &mut out {
            let list = is_listed.then_some(&head.list);
            compound::begin(out, &head.toname, head.features, list)
                .map_err(|e| failure(&e, &head.toname, reason))?;
        }
        if o.verbosity() > 0 {
            self.tell_sizes(&plan, ctx)?;
        }
        if !plan.found {
            return exit(false);
        }
        let Some(mut out) = out else { return exit(!plan.failed) };
        let report = Report { progress: o.verbose > 0, parsable: o.parsable, verbosity: 0 };
        let mut sent = Ok(());
        for step in &plan.steps {
            sent = self.step(step, &mut out, report, ctx);
            if sent.is_err() {
                break;
            }
        }
        // The receiver keeps completely received snapshots, whatever failed afterwards.
        match sent {
            Ok(()) => {}
            Err(Failure::Failed(why)) => {
                ctx.warn(why);
                compound::end(&mut out).map_err(|e| failure(&e, &head.toname, reason))?;
                out.finish(ctx)?;
                return exit(false);
            }
            Err(other) => return Err(other),
        }
        compound::end(&mut out).map_err(|e| failure(&e, &head.toname, reason))?;
        out.finish(ctx)?;
        exit(!plan.failed)
    }

    fn options(&self, step: &Step) -> engine::Result<Stream> {
        let from = step.from.as_ref().map(|from| {
            let is_clone = from.phys.dir_obj != step.to.phys.dir_obj;
            Ok::<_, Error>(From { is_clone, ..From::snapshot(from)? })
        });
        Ok(Stream { from: from.transpose()?, flags: self.o.flags(), ..Stream::default() })
    }

    fn step(&self, step: &Step, out: &mut Output, report: Report, ctx: &mut Ctx) -> Result<(), Failure> {
        let failed = |e: &Error| {
            failure(e, &step.to.name, |e| match e.kind() {
                engine::Kind::KeyMissing => "source key must be loaded".to_owned(),
                _ => reason(e),
            })
        };
        if let Some(from) = &step.from
            && !self.scene.is_before(from, &step.to)?
        {
            let why = "not an earlier snapshot from the same fs";
            return Err(Failure::failed(format!("warning: cannot send '{}': {why}", step.to.name)));
        }
        let options = self.options(step).map_err(|e| failed(&e))?;
        run(&step.to, &options, out, report, ctx).map_err(|e| failed(&e))
    }

    fn tell_sizes(&self, plan: &Plan, ctx: &mut Ctx) -> Result<(), Failure> {
        let (mut all, parsable, dry) = (0_u64, self.o.parsable, self.o.dry);
        for step in &plan.steps {
            // A stream that builds on another dataset's snapshot is estimated as if it did not.
            let from = step.from.as_ref().filter(|from| from.phys.dir_obj == step.to.phys.dir_obj);
            let base = from.map_or(Base::None, |from| Base::Snapshot(Box::new(from.clone())));
            let options = self.options(step)?;
            match sizes::of(self.scene, &step.to, &base, &options, ctx) {
                Ok(size) => {
                    let part = from.and_then(|from| from.name.split_once('@')).map(|(_, part)| part);
                    sizes::tell(&sizes::line(&step.to.name, part, size, parsable), dry, ctx)?;
                    all = all.wrapping_add(size);
                }
                Err(e) => {
                    ctx.warn(format!("warning: cannot estimate space for '{}': {}", step.to.name, reason(&e)))
                }
            }
        }
        sizes::tell(&sizes::total(all, parsable, true), dry, ctx)
    }

    fn hold(&self, plan: &Plan) -> Result<Vec<LongHold>, Failure> {
        let mut holds = Vec::new();
        for snapshot in &plan.needed {
            let held = self.scene.hold(snapshot, self.o.raw);
            holds.extend(held.map_err(|e| Failure::cannot("send", self.top, reason(&e)))?);
        }
        Ok(holds)
    }

    /// All streams, in order.
    fn plan(&self, head: &Head, ctx: &mut Ctx) -> Result<Plan, Failure> {
        let mut plan = Plan::default();
        if !self.o.replicate {
            self.dataset(self.top, &HashSet::new(), &mut plan, ctx)?;
            return Ok(plan);
        }
        let entries = entries(head);
        let owner: HashMap<u64, usize> =
            entries.iter().enumerate().flat_map(|(at, e)| e.snaps.iter().map(move |g| (*g, at))).collect();
        // Origins within the package are sent even when no other snapshot between the two ends is.
        let origins: HashSet<u64> = entries.iter().map(|e| e.origin_guid).filter(|g| *g != 0).collect();
        let mut sent = HashSet::new();
        loop {
            let (mut again, mut progress) = (false, false);
            for (at, entry) in entries.iter().enumerate() {
                if sent.contains(&at) {
                    continue;
                }
                let waits = |guid: u64| {
                    guid != 0 && owner.get(&guid).is_some_and(|of| *of != at && !sent.contains(of))
                };
                if waits(entry.parent_guid) || waits(entry.origin_guid) {
                    again = true;
                    continue;
                }
                self.dataset(&entry.name, &origins, &mut plan, ctx)?;
                sent.insert(at);
                progress = true;
            }
            if !again {
                return Ok(plan);
            }
            if !progress {
                return Err(Failure::cannot("send", self.top, "datasets wait for each other"));
            }
        }
    }

    /// The streams of one dataset.
    fn dataset(
        &self,
        name: &str,
        origins: &HashSet<u64>,
        plan: &mut Plan,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        if !self.wanted(name) {
            plan.found = true;
            return Ok(());
        }
        let _quiet = self.scene.quiet();
        let head = self.scene.pool.dsl.dataset(name)?;
        let snapshots = head.snapshots()?;
        let part = |s: &Dataset| s.name.split_once('@').map(|(_, part)| part.to_owned()).unwrap_or_default();
        let to = self.to;
        if !snapshots.iter().any(|s| part(s) == to) {
            ctx.err_line(&format!("WARNING: could not send {name}@{to}: does not exist"));
            plan.failed = true;
            return Ok(());
        }
        let from = self.from.as_deref();
        let has_from = from.is_some_and(|from| snapshots.iter().any(|s| part(s) == from));
        let (mut seen_from, mut seen_to) = (from.is_none() || (self.o.replicate && !has_from), false);
        let mut last: Option<Dataset> = None;
        for snapshot in snapshots {
            let name = part(&snapshot);
            let (is_from, is_to) = (from == Some(name.as_str()), name == to);
            if !seen_from && is_from {
                seen_from = true;
                plan.needed.push(snapshot.clone());
                last = Some(snapshot);
                continue;
            }
            if seen_to || !seen_from {
                continue;
            }
            seen_to = is_to;
            let is_between = !self.all && !is_from && !is_to;
            if is_between && !(self.o.replicate && origins.contains(&snapshot.phys.guid)) {
                continue;
            }
            let base = match &last {
                Some(last) => Some(last.clone()),
                None if self.from_origin || self.o.replicate => self.scene.origin(&head)?,
                None => None,
            };
            plan.needed.push(snapshot.clone());
            plan.steps.push(Step { to: snapshot.clone(), from: base });
            last = Some(snapshot);
        }
        plan.found = seen_to;
        if !seen_from || !seen_to {
            let from = from.unwrap_or_default();
            let why = if seen_from { "is not earlier than it" } else { "does not exist" };
            ctx.err_line(&format!(
                "WARNING: could not send {name}@{to}:\nincremental source ({name}@{from}) {why}"
            ));
            plan.failed = true;
        }
        Ok(())
    }
}

fn entries(head: &Head) -> Vec<Entry> {
    let Some(fss) = head.list.nvlist("fss") else { return Vec::new() };
    let of = |pair: &nvpair::NvPair| {
        let nvpair::NvValue::List(list) = &pair.value else { return None };
        let guids = |list: &nvpair::NvList| {
            list.iter()
                .filter_map(|pair| match pair.value {
                    nvpair::NvValue::Uint64(guid) => Some(guid),
                    _ => None,
                })
                .collect()
        };
        Some(Entry {
            name: list.string("name")?.to_string(),
            parent_guid: list.u64("parentfromsnap").unwrap_or(0),
            origin_guid: list.u64("origin").unwrap_or(0),
            snaps: list.nvlist("snaps").map(guids).unwrap_or_default(),
        })
    };
    fss.iter().filter_map(of).collect()
}
