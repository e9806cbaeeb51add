//! One replication, from the snapshot to the prune.
//!
//! No state is kept between runs except that on both sides, so each run begins with a look at them. After a
//! partial receive was continued, the plan is made anew. A dataset that fails is left for the next run, and
//! the others go on.
//!
//! Why an interruption is safe: a step is one `zfs receive -s`, which makes its snapshot or leaves a partial receive. Holds
//! are placed before they are needed and released only when a newer common snapshot is held. A prune looks at both
//! sides again, removes only snapshots that are older than the newest common one, and never that one.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stdx::wake::{Naps, Watch};

use crate::host::{Failed, Host, is_lost, said, text_of};
use crate::look::{Dataset, Snapshot, Tree};
use crate::marks::{AT_ONCE, Marks, hold, keep, mark};
use crate::plan::{Act, Stand, Step, plan, stands};
use crate::pretended::Pretended;
use crate::pump::{End, copy};
use crate::report::{Report, size};
use crate::retention::Rule;
use crate::time::{now, stamp};
use crate::verify::Comparison;
use crate::{Around, Job, words};

/// Plans that are made in one run: one for each partial receive that goes on, and one more.
const ROUNDS: usize = 10_000;
/// Interval of checks of a transfer.
const TICK: Duration = Duration::from_millis(50);
/// Time for a receiver to store the received data when the run is stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Everything is at the target.
    Whole,
    /// Something failed, and was reported.
    Partly,
}

/// Runs a job; with `dry` only reports its steps.
///
/// # Errors
/// The error that stopped the whole run, or an interruption.
pub fn run(job: &Job, around: &Around, dry: bool, report: &mut Report) -> Result<Done, Failed> {
    let hosts = [Host::of(&job.source, around), Host::of(&job.target, around)];
    let mut run = Run {
        job,
        around,
        hosts,
        report,
        failed: BTreeSet::new(),
        told: BTreeSet::new(),
        sealed: BTreeSet::new(),
        pretended: Pretended::default(),
        rolled_back: BTreeSet::new(),
        marks: None,
    };
    let done = run.whole(dry);
    run.report.finish();
    done
}

struct Run<'a> {
    job: &'a Job,
    around: &'a Around,
    /// Source and target.
    hosts: [Host; 2],
    report: &'a mut Report,
    /// Datasets that failed, by relative name.
    failed: BTreeSet<String>,
    /// Problems that were reported.
    told: BTreeSet<(String, String)>,
    /// Datasets that are encrypted at the target, or will be, by relative name.
    sealed: BTreeSet<String>,
    /// The snapshot that a dry run does not take.
    pretended: Pretended,
    /// Datasets whose target was rolled back, by relative name.
    rolled_back: BTreeSet<String>,
    /// Names of its holds and bookmarks, once the target has been looked at.
    marks: Option<Marks>,
}

/// A name and those of the datasets above it, nearest first; the last one is empty for a relative name.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| name.rsplit_once('/').map(|(above, _)| above))
}

/// Which side of a transfer failed.
enum Trouble {
    Sender(String),
    Receiver(String),
    Stopped,
}

impl Run<'_> {
    fn source(&self) -> &Host {
        let [source, _] = &self.hosts;
        source
    }

    fn target(&self) -> &Host {
        let [_, target] = &self.hosts;
        target
    }

    /// Looks at both sides.
    fn look(&self) -> Result<(Tree, Option<Tree>), Failed> {
        look(self.job, &self.hosts)
    }

    fn problem(&mut self, dataset: &str, text: String) {
        if self.told.insert((dataset.to_owned(), text.clone())) {
            let whole = format!("{}{dataset}", self.job.source.dataset);
            self.report.problem(&whole, &text);
        }
    }

    fn whole(&mut self, dry: bool) -> Result<Done, Failed> {
        let taken = if self.job.snapshot { Some(self.snapshot(dry)?) } else { None };
        for _ in 0..ROUNDS {
            let (mut source, target) = self.look()?;
            self.learn_marks()?;
            if let Some(name) = taken.as_ref().filter(|_| dry) {
                self.pretended = Pretended::take(&mut source, name);
            }
            let found = plan(self.job, &source, target.as_ref());
            for (dataset, text) in found.problems {
                self.problem(&dataset, text);
            }
            self.note_sealed(&found.steps, target.as_ref())?;
            let mut steps = found.steps;
            steps.retain(|step| !self.failed.contains(&step.dataset));
            if dry {
                self.tell(&steps)?;
                break;
            }
            if steps.is_empty() || !self.perform(&steps)? {
                break;
            }
        }
        if !dry {
            self.settle()?;
            self.prune()?;
        }
        if self.job.verify && !dry {
            self.verify()?;
        }
        Ok(if self.told.is_empty() { Done::Whole } else { Done::Partly })
    }

    fn learn_marks(&mut self) -> Result<(), Failed> {
        if self.marks.is_none() {
            let pool = self.job.target.dataset.split('/').next().unwrap_or_default();
            // The root's guid is the pool's alone, whatever its host is called.
            let pool = self.target().run(&["get", "-Hp", "-o", "value", "guid", pool])?;
            self.marks = Some(self.job.marks(pool.trim()));
        }
        Ok(())
    }

    /// Notes which of the steps' datasets are encrypted at the target: those take no embedded blocks unless they come as they are
    /// on disk.
    fn note_sealed(&mut self, steps: &[Step], target: Option<&Tree>) -> Result<(), Failed> {
        let mut above = None;
        for step in steps.iter().filter(|step| matches!(step.act, Act::Send { raw: false, .. })) {
            let known = ancestors(&step.dataset).find_map(|name| target?.datasets.get(name));
            let is_sealed = match (known, above) {
                (Some(dataset), _) => dataset.is_encrypted,
                (None, Some(above)) => above,
                (None, None) => *above.insert(self.is_sealed_above()?),
            };
            if is_sealed {
                self.sealed.insert(step.dataset.clone());
            } else {
                self.sealed.remove(&step.dataset);
            }
        }
        Ok(())
    }

    /// Whether the nearest dataset above the target that is there is encrypted.
    fn is_sealed_above(&self) -> Result<bool, Failed> {
        for name in ancestors(&self.job.target.dataset).skip(1).filter(|name| !name.is_empty()) {
            match self.target().run(&["get", "-H", "-o", "value", "encryption", name]) {
                Ok(value) => return Ok(!matches!(value.trim(), "off" | "-" | "")),
                Err(e) if e.is_missing() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Takes the job's own snapshot, and returns its name.
    fn snapshot(&mut self, dry: bool) -> Result<String, Failed> {
        let name = format!("{}{}", self.job.prefix(), stamp(now()));
        let root = &self.job.source.dataset;
        let mut words = vec!["snapshot".to_owned()];
        if self.job.recursive && !self.job.exclude.is_empty() {
            // The target may be away: snapshots are taken all the same.
            let source = Tree::look(self.source(), root, true)?;
            let all = source.map(|source| stands(self.job, &source, None)).unwrap_or_default();
            words.extend(all.iter().map(|(relative, _)| format!("{root}{relative}@{name}")));
        } else {
            words.extend(self.job.recursive.then(|| "-r".to_owned()));
            words.push(format!("{root}@{name}"));
        }
        if dry {
            self.report.line(&format!("would take snapshot {root}@{name}"));
            return Ok(name);
        }
        run_words(self.source(), &words)?;
        Ok(name)
    }

    /// Reports the plan of a dry run.
    fn tell(&mut self, steps: &[Step]) -> Result<(), Failed> {
        let mut total = 0;
        for step in steps {
            let bytes = self.estimate(step)?;
            total += bytes;
            let text = format!("would {} ({})", words::said(self.job, step), size(bytes));
            self.report.line(&text);
            self.report.planned(words::fields(self.job, step), bytes);
        }
        self.report.line(&format!("{} to send in {} steps", size(total), steps.len()));
        Ok(())
    }

    /// The words of `zfs` that send a step's stream; `None` for a step without one.
    fn send(&self, step: &Step) -> Option<Vec<String>> {
        words::send(self.job, step, self.sealed.contains(&step.dataset))
    }

    /// Bytes of a step's stream, as the source expects them.
    fn estimate(&self, step: &Step) -> Result<u64, Failed> {
        if let Some(bytes) = self.pretended.estimate(step) {
            return Ok(bytes);
        }
        let Some(words) = self.send(step) else { return Ok(0) };
        let (verb, rest) = words.split_first().map_or(("", &[][..]), |(verb, rest)| (verb.as_str(), rest));
        let mut dry = vec![verb.to_owned(), "-nP".to_owned()];
        dry.extend(rest.iter().cloned());
        match run_words(self.source(), &dry) {
            Ok(text) => {
                let last = text.lines().rev().find_map(|line| line.strip_prefix("size\t"));
                Ok(last.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0))
            }
            Err(e) if e.is_stopped => Err(e),
            // The stream itself will report the error.
            Err(_) => Ok(0),
        }
    }

    /// Performs a plan. Returns whether a new one is to be made.
    fn perform(&mut self, steps: &[Step]) -> Result<bool, Failed> {
        self.hold_wanted(steps);
        let sizes = steps.iter().map(|step| self.estimate(step)).collect::<Result<Vec<_>, _>>()?;
        self.report.begin(sizes.iter().sum());
        let mut again = false;
        for (step, expected) in steps.iter().zip(sizes) {
            if self.is_hopeless(step) {
                continue;
            }
            let text = words::said(self.job, step);
            self.report.step(&format!("{text} ({})", size(expected)));
            let sent = match self.perform_one(step) {
                Ok(sent) => sent,
                Err(Trouble::Stopped) => return Err(Failed::stopped()),
                Err(Trouble::Sender(why)) if matches!(step.act, Act::Resume { .. }) && is_lost(&why) => {
                    again |= self.give_up(step, &why)?;
                    continue;
                }
                Err(Trouble::Sender(why) | Trouble::Receiver(why)) => {
                    self.failed.insert(step.dataset.clone());
                    self.problem(&step.dataset, why);
                    continue;
                }
            };
            again |= matches!(step.act, Act::Resume { .. });
            self.report.stepped(words::fields(self.job, step), sent, expected);
        }
        self.report.finish();
        Ok(again)
    }

    /// Whether the dataset failed, or is new and a dataset above it failed.
    fn is_hopeless(&self, step: &Step) -> bool {
        let creates = matches!(step.act, Act::Send { creates: true, .. });
        self.failed.iter().any(|failed| {
            let below = step.dataset.strip_prefix(failed.as_str());
            below.is_some_and(|rest| rest.is_empty() || creates && rest.starts_with('/'))
        })
    }

    fn perform_one(&mut self, step: &Step) -> Result<u64, Trouble> {
        let Some(send) = self.send(step) else {
            let Act::Rollback { to } = &step.act else { return Ok(0) };
            let name = format!("{}{}@{to}", self.job.target.dataset, step.dataset);
            return match self.target().run(&["rollback", "-r", &name]) {
                Ok(_) => {
                    self.rolled_back.insert(step.dataset.clone());
                    Ok(0)
                }
                Err(e) if e.is_stopped => Err(Trouble::Stopped),
                Err(e) => Err(Trouble::Receiver(e.text)),
            };
        };
        let receive = words::receive(self.job, step, self.rolled_back.contains(&step.dataset));
        self.transfer(&send, &receive)
    }

    /// The source can't continue a partial receive any more: the target forgets it, once.
    fn give_up(&mut self, step: &Step, why: &str) -> Result<bool, Failed> {
        let name = format!("{}{}", self.job.target.dataset, step.dataset);
        self.report.line(&format!("{name}: the partial receive cannot go on and is dropped: {why}"));
        match self.target().run(&["receive", "-A", &name]) {
            Ok(_) => Ok(true),
            Err(e) if e.is_stopped => Err(e),
            Err(e) => {
                self.failed.insert(step.dataset.clone());
                self.problem(&step.dataset, e.text);
                Ok(false)
            }
        }
    }

    /// One stream.
    fn transfer(&mut self, send: &[String], receive: &[String]) -> Result<u64, Trouble> {
        let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join("\u{0}");
        let (send, receive) = (words(send), words(receive));
        let send: Vec<&str> = send.split('\u{0}').collect();
        let receive: Vec<&str> = receive.split('\u{0}').collect();
        let mut sender = self.source().zfs(&send);
        sender.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut sender = sender.spawn().map_err(|e| Trouble::Sender(format!("cannot be run: {e}")))?;
        let mut receiver = self.target().zfs(&receive);
        receiver.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut receiver = match receiver.spawn() {
            Ok(receiver) => receiver,
            Err(e) => {
                let _ = sender.kill();
                let _ = sender.wait();
                return Err(Trouble::Receiver(format!("cannot be run: {e}")));
            }
        };
        let (send_err, receive_err) = (text_of(sender.stderr.take()), text_of(receiver.stderr.take()));
        let (from, to) = (sender.stdout.take(), receiver.stdin.take());
        let done = AtomicU64::new(0);
        let rate = self.job.rate;
        let stop: &AtomicBool = &self.around.stop;
        let end = thread::scope(|scope| {
            let (wake, watch) = Watch::new();
            let done = &done;
            let copying = scope.spawn(move || {
                let _wake = wake;
                let (Some(mut from), Some(mut to)) = (from, to) else { return End::NoSource };
                copy(&mut from, &mut to, rate, done, stop)
            });
            while watch.goes_on(TICK) {
                self.report.progress(done.load(Ordering::Relaxed));
                if stop.load(Ordering::Relaxed) {
                    // A copy that waits for the sender ends with it.
                    let _ = sender.kill();
                }
            }
            copying.join().unwrap_or(End::NoSource)
        });
        if end != End::Whole {
            let _ = sender.kill();
        }
        // The receiver's input is closed: it stores the received data.
        let sent = sender.wait().is_ok_and(|status| status.success());
        let received = self.wait_receiver(&mut receiver);
        let (send_err, receive_err) =
            (send_err.join().unwrap_or_default(), receive_err.join().unwrap_or_default());
        if self.around.is_stopped() || end == End::Stopped {
            return Err(Trouble::Stopped);
        }
        if end == End::Whole && !sent || end == End::NoSource {
            return Err(Trouble::Sender(said(&send_err, &send)));
        }
        if !received || end == End::NoReader {
            return Err(Trouble::Receiver(said(&receive_err, &receive)));
        }
        Ok(done.load(Ordering::Relaxed))
    }

    fn wait_receiver(&self, receiver: &mut std::process::Child) -> bool {
        let (began, mut naps) = (Instant::now(), Naps::up_to(TICK));
        loop {
            match receiver.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if self.around.is_stopped() && began.elapsed() > PATIENCE => {
                    let _ = receiver.kill();
                    let _ = receiver.wait();
                    return false;
                }
                Ok(None) => thread::sleep(naps.pause()),
                Err(_) => return false,
            }
        }
    }

    /// Holds the last snapshot that each dataset will get, so that it is still there when its turn comes.
    fn hold_wanted(&mut self, steps: &[Step]) {
        let Some(tag) = self.marks.as_ref().map(Marks::tag).filter(|_| !self.job.no_holds) else { return };
        for (at, step) in steps.iter().enumerate() {
            let is_last = !steps.iter().skip(at + 1).any(|later| later.dataset == step.dataset);
            if let Act::Send { to, .. } = &step.act
                && is_last
            {
                let name = format!("{}{}@{to}", self.job.source.dataset, step.dataset);
                // Without the hold the stream still works.
                let _ = hold(self.source(), &tag, &name);
            }
        }
    }

    /// The newest common snapshots are held on both sides and get a bookmark; older holds and bookmarks of the job go.
    fn settle(&mut self) -> Result<(), Failed> {
        let (source, target) = self.look()?;
        let (Some(target), Some(marks)) = (target, self.marks.clone()) else { return Ok(()) };
        let prefix = self.job.prefix();
        let hosts = self.hosts.clone();
        for (relative, stand) in stands(self.job, &source, Some(&target)) {
            let Stand::Common { guid, .. } = stand else { continue };
            for (host, tree) in hosts.iter().zip([&source, &target]) {
                let Some(dataset) = tree.datasets.get(&relative) else { continue };
                let done = keep(host, dataset, guid, &tree.whole(&relative), (&marks, self.job.no_holds));
                if let Err(e) = done {
                    if e.is_stopped {
                        return Err(e);
                    }
                    self.report.line(&format!("{}: {e}", tree.whole(&relative)));
                }
            }
            let Some(from) = source.datasets.get(&relative) else { continue };
            if let Err(e) = mark(self.source(), from, guid, &source.whole(&relative), (&marks, &prefix)) {
                if e.is_stopped {
                    return Err(e);
                }
                self.report.line(&format!("{}: {e}", source.whole(&relative)));
            }
        }
        Ok(())
    }

    /// Removes own snapshots that the rules do not keep.
    fn prune(&mut self) -> Result<(), Failed> {
        if self.job.keep.is_none() && self.job.keep_target.is_none() {
            return Ok(());
        }
        let (source, target) = self.look()?;
        let Some(target) = target else { return Ok(()) };
        let prefix = self.job.prefix();
        for (relative, stand) in stands(self.job, &source, Some(&target)) {
            let Stand::Common { guid, .. } = stand else { continue };
            let sides = [
                (self.source(), &source, self.job.keep.as_ref()),
                (self.target(), &target, self.job.keep_target.as_ref()),
            ];
            let mut said = Vec::new();
            for (host, tree, rule) in sides {
                let (Some(rule), Some(dataset)) = (rule, tree.datasets.get(&relative)) else { continue };
                let whole = tree.whole(&relative);
                for names in expired(dataset, guid, rule, &prefix).chunks(AT_ONCE) {
                    match host.run(&["destroy", &format!("{whole}@{}", names.join(","))]) {
                        Ok(_) => said.push(format!("{whole}: {} old snapshots destroyed", names.len())),
                        Err(e) if e.is_stopped => return Err(e),
                        Err(e) => said.push(format!("{whole}: {e}")),
                    }
                }
            }
            said.iter().for_each(|line| self.report.line(line));
        }
        Ok(())
    }

    /// Compares the newest common snapshot of each dataset.
    fn verify(&mut self) -> Result<(), Failed> {
        let (source, target) = self.look()?;
        let Some(target) = target else { return Ok(()) };
        for (relative, stand) in stands(self.job, &source, Some(&target)) {
            let Stand::Common { guid, .. } = stand else { continue };
            let sides = [&source, &target].map(|tree| tree.datasets.get(&relative));
            let [Some(from), Some(to)] = sides else { continue };
            let (Some(one), Some(other)) = (from.by_guid(guid), to.by_guid(guid)) else { continue };
            let names = [
                format!("{}@{}", source.whole(&relative), one.name),
                format!("{}@{}", target.whole(&relative), other.name),
            ];
            self.report.step(&format!("compare {} with {}", names[0], names[1]));
            let raw = from.is_encrypted && to.is_encrypted;
            let compared = Comparison { hosts: &self.hosts, names: &names, raw }.run(self.around);
            self.report.compared(&names, raw, compared.as_ref());
            match compared {
                Ok(None) => self.report.line(&format!("{}: both sides are equal", names[1])),
                Ok(Some(difference)) => self.problem(&relative, format!("the sides differ: {difference}")),
                Err(e) if e.is_stopped => return Err(e),
                Err(e) => self.problem(&relative, format!("cannot be compared: {e}")),
            }
        }
        Ok(())
    }
}

/// Looks at both sides of a job. The source must exist.
pub(crate) fn look(job: &Job, hosts: &[Host; 2]) -> Result<(Tree, Option<Tree>), Failed> {
    let [from, to] = hosts;
    let source = Tree::look(from, &job.source.dataset, job.recursive)?;
    let missing = || Failed::new(format!("{}: dataset does not exist", job.source));
    Ok((source.ok_or_else(missing)?, Tree::look(to, &job.target.dataset, job.recursive)?))
}

fn run_words(host: &Host, words: &[String]) -> Result<String, Failed> {
    host.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Names of the own snapshots, older than the newest common one, that a rule does not keep.
fn expired(dataset: &Dataset, common: u64, rule: &Rule, prefix: &str) -> Vec<String> {
    let own = dataset.snapshots.iter().filter(|snapshot| snapshot.name.starts_with(prefix));
    let own: Vec<&Snapshot> = own.collect();
    let times: Vec<u64> = own.iter().map(|snapshot| snapshot.creation).collect();
    // Without the common snapshot here, nothing is known to be older than it.
    let limit = dataset.by_guid(common).map_or(0, |common| common.createtxg);
    let goes = |(snapshot, keep): &(&&Snapshot, bool)| {
        !keep && snapshot.createtxg < limit && snapshot.guid != common && snapshot.userrefs == 0
    };
    let all = own.iter().zip(rule.keeps(&times));
    all.filter(goes).map(|(snapshot, _)| snapshot.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prune_keeps_the_newest_common_snapshot_and_what_is_newer() {
        let snapshot = |at: u64, name: &str| Snapshot {
            name: name.to_owned(),
            guid: at,
            createtxg: at,
            creation: at * 3600,
            userrefs: u64::from(at == 2),
        };
        let names = ["own_1", "own_2", "mine", "own_4", "own_5", "own_6", "own_7"];
        let snapshots = (1..).zip(names).map(|(at, name)| snapshot(at, name)).collect();
        let dataset = Dataset { snapshots, ..Dataset::default() };
        let rule: Rule = "1".parse().unwrap();
        // The second one is held, the third is none of ours, those from the common one on are needed.
        assert_eq!(expired(&dataset, 6, &rule, "own_"), ["own_1", "own_4", "own_5"]);
        assert_eq!(expired(&dataset, 5, &rule, "own_"), ["own_1", "own_4"]);
        assert_eq!(expired(&dataset, 7, &"3".parse().unwrap(), "own_"), ["own_1", "own_4"]);
        assert!(expired(&dataset, 99, &rule, "own_").is_empty());
    }
}
