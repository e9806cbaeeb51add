//! A worker's records, and the check of its directory against them.
//!
//! Names: exactly the state after some started operation, not before the last one that synced anything, because the
//! intent log keeps their order. Bytes of a file: the state after its last sync or after a later operation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::script::{Op, Script, State};
use super::worker::Worker;

/// The content of a directory, by name.
pub type Found = BTreeMap<String, Vec<u8>>;

/// Reads a directory of plain files.
pub fn read_dir(dir: &Path) -> Result<Found, String> {
    let said = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut found = Found::new();
    for entry in fs::read_dir(dir).map_err(said)? {
        let entry = entry.map_err(said)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.insert(name, fs::read(entry.path()).map_err(said)?);
    }
    Ok(found)
}

/// The progress of a worker.
#[derive(Debug)]
pub struct Ledger {
    /// Its directory was durable.
    pub ready: bool,
    /// The reason of its end.
    pub failed: Option<String>,
    begun: usize,
    done: BTreeSet<usize>,
    /// Its operations, and the state after each, beginning with the empty one.
    ops: Vec<Op>,
    states: Vec<State>,
}

impl Ledger {
    /// Reads the records of `worker`.
    pub fn read(worker: &Worker) -> Result<Self, String> {
        let text = fs::read_to_string(&worker.ledger).unwrap_or_default();
        let mut ledger = Self {
            ready: false,
            failed: None,
            begun: 0,
            done: BTreeSet::new(),
            ops: Vec::new(),
            states: vec![State::default()],
        };
        let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("begun", text)) => ledger.begun = number(text)?,
                Some(("done", text)) => drop(ledger.done.insert(number(text)?)),
                Some(("failed", why)) => ledger.failed = Some(why.to_owned()),
                _ => ledger.ready = true,
            }
        }
        let mut script = Script::new(worker.seed);
        for _ in 0..ledger.begun {
            ledger.ops.push(script.next_op());
            ledger.states.push(script.state.clone());
        }
        Ok(ledger)
    }

    /// Number of completed operations.
    pub fn count(&self) -> u64 {
        self.done.len() as u64
    }

    /// Number of operations that made something durable.
    pub fn syncs(&self) -> u64 {
        self.synced().count() as u64
    }

    /// Numbers of completed operations that made something durable.
    fn synced(&self) -> impl Iterator<Item = (usize, &Op)> {
        let all = (1..).zip(&self.ops).filter(|(number, _)| self.done.contains(number));
        all.filter(|(_, op)| matches!(op, Op::Sync(_) | Op::SyncDir | Op::Map { .. } | Op::Snapshot(_)))
    }

    /// Snapshots taken: number, and content.
    pub fn snapshots(&self) -> Vec<(u64, Found)> {
        let mut all = Vec::new();
        for ((at, op), state) in (1..).zip(&self.ops).zip(self.states.iter().skip(1)) {
            if let Op::Snapshot(number) = op
                && self.done.contains(&at)
            {
                let bytes = |name: &String| state.bytes(name).map(|b| b.to_vec()).unwrap_or_default();
                let found = state.names.keys().map(|name| (name.clone(), bytes(name))).collect();
                all.push((*number, found));
            }
        }
        all
    }

    /// Checks whether the directory may contain `found`.
    pub fn allows(&self, found: &Found) -> Result<(), String> {
        let last = self.synced().last().map_or(0, |(number, _)| number);
        let names: BTreeSet<&String> = found.keys().collect();
        let mut why = None;
        for state in self.states.iter().skip(last) {
            if !state.names.keys().eq(names.iter().copied()) {
                continue;
            }
            match found.iter().try_for_each(|(name, bytes)| self.allows_file(state, name, bytes)) {
                Ok(()) => return Ok(()),
                Err(e) => why = Some(e),
            }
        }
        let synced: Vec<&String> = self.states.get(last).into_iter().flat_map(|s| s.names.keys()).collect();
        Err(why.unwrap_or_else(|| {
            format!(
                "names {names:?}; operation {last} of {} synced {synced:?}; then {:?}",
                self.begun,
                self.ops.get(last..)
            )
        }))
    }

    fn allows_file(&self, state: &State, name: &str, bytes: &[u8]) -> Result<(), String> {
        let Some(file) = state.names.get(name) else { return Err(format!("{name} should not be there")) };
        let is_of = |number: usize, of: &str| {
            self.states.get(number).is_some_and(|state| state.names.get(of) == Some(file))
        };
        let covers = |number: usize, op: &Op| match op {
            Op::Sync(of) | Op::Map { name: of, .. } => is_of(number, of),
            Op::Snapshot(_) => true,
            _ => false,
        };
        let synced = self.synced().filter(|(number, op)| covers(*number, op)).last().map_or(0, |(n, _)| n);
        let mut forms: Vec<&Arc<Vec<u8>>> =
            self.states.iter().skip(synced).filter_map(|state| state.files.get(file)).collect();
        forms.dedup();
        let lens = || forms.iter().map(|form| form.len());
        let (short, long) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
        if !(short..=long).contains(&bytes.len()) {
            let what = format!("{name} has {} bytes instead of {short} to {long}", bytes.len());
            return Err(format!("{what}; synced by operation {synced} of {}", self.begun));
        }
        let is_there = |(at, byte): (usize, &u8)| forms.iter().any(|form| form.get(at).unwrap_or(&0) == byte);
        match bytes.iter().enumerate().position(|byte| !is_there(byte)) {
            None => Ok(()),
            Some(at) => {
                let wanted: Vec<u8> = forms.iter().map(|form| form.get(at).copied().unwrap_or(0)).collect();
                let has = bytes.get(at).copied().unwrap_or(0);
                let what =
                    format!("{name} has {has} at {at} of {} instead of one of {wanted:?}", bytes.len());
                Err(format!("{what}; synced by operation {synced} of {}", self.begun))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(dir: &Path, lines: &str) -> Ledger {
        let ledger = dir.join("ledger");
        fs::write(&ledger, lines).unwrap();
        let [dir, over, binary] = ["d", "o", "b"].map(|name| dir.join(name));
        Ledger::read(&Worker { seed: 1, dir, ledger, over, dataset: "t".into(), binary }).unwrap()
    }

    fn contents(state: &State) -> Found {
        state.names.keys().map(|name| (name.clone(), state.bytes(name).unwrap().to_vec())).collect()
    }

    #[test]
    fn synced_changes_must_be_there_and_later_ones_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = (1..=60).map(|n| format!("begun {n}\ndone {n}\n")).collect();
        let ledger = noted(dir.path(), &lines);
        assert_eq!((ledger.count(), ledger.begun), (60, 60));
        let (last, _) = ledger.synced().last().unwrap();
        for (number, state) in ledger.states.iter().enumerate() {
            let is_allowed = ledger.allows(&contents(state)).is_ok();
            assert!(is_allowed || number < last, "{number} of {last}");
        }
        // Content older than the last sync is wrong.
        let (number, name) = ledger
            .synced()
            .filter_map(|(n, op)| if let Op::Sync(name) = op { Some((n, name.clone())) } else { None })
            .last()
            .unwrap();
        let mut found = contents(&ledger.states[number]);
        assert!(found.keys().eq(ledger.states[last].names.keys()) && ledger.allows(&found).is_ok());
        let bytes = found.get_mut(&name).unwrap();
        bytes[0] ^= 0x55;
        assert!(ledger.allows(&found).unwrap_err().contains("instead of one of"));
        found.get_mut(&name).unwrap().clear();
        assert!(ledger.allows(&found).is_err());
        found.remove(&name);
        assert!(ledger.allows(&found).is_err());
    }
}
