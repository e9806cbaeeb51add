//! Random operations on datasets, each one task in syncing context, and their effects on the model.

use std::sync::Arc;

use crypt::Suite;
use engine::ddt;
use engine::ddt::prune::Prune;
use engine::dsl::props::PropValue;
use engine::dsl::write::Tasks;
use engine::dsl::write::crypto::{Cipher, Encryption};
use engine::dsl::write::props::SettingSource;
use engine::{Kind, Result};
use ondisk::ObjsetType;
use zcommon::features::Feature;
use zpl::write::create_fs;

use crate::actor::{Actor, is_refusal};
use crate::keys;
use crate::model::{Head, Model, Snapshot, Tree};
use crate::world::{POOL, new_fs};

/// Maximum number of file systems, and of snapshots of each.
const HEADS: usize = 7;
const SNAPSHOTS: usize = 4;

/// Settings and the values that are tried.
const SETTINGS: [(&str, &[u64]); 14] = [
    // lzjb, gzip-1, zle, lz4, zstd, off.
    ("compression", &[3, 5, 14, 15, 16, 2]),
    // fletcher4, SHA-256, SHA-512, skein, edonr, blake3.
    ("checksum", &[7, 8, 11, 12, 13, 14]),
    ("recordsize", &[512, 4 << 10, 16 << 10, 128 << 10, 256 << 10, 1 << 20]),
    ("copies", &[1, 2, 3]),
    ("logbias", &[0, 1]),
    ("xattr", &[1, 2]),
    ("redundant_metadata", &[0, 1, 2, 3]),
    ("refquota", &[0, 20 << 20]),
    ("reservation", &[0, 1 << 20, 3 << 20]),
    ("refreservation", &[0, 1 << 20]),
    ("quota", &[0, 24 << 20]),
    ("special_small_blocks", &[0, 4 << 10, 64 << 10]),
    // off, on, verify, SHA-512, edonr with verify.
    ("dedup", &[2, 1, 1 | 1 << 8, 11, 13 | 1 << 8]),
    // legacy, 1k, 4k.
    ("dnodesize", &[0, 1 << 10, 4 << 10]),
];
/// Properties of file systems only.
const OF_FILES: [&str; 6] = ["recordsize", "xattr", "quota", "refquota", "special_small_blocks", "dnodesize"];

/// Tested ciphers.
const SUITES: [Suite; 2] = [Suite::Aes256Gcm, Suite::Aes128Ccm];

impl Actor {
    pub(crate) fn task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tasks<'_>) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        match self.spa.dsl_task(work) {
            Ok(value) => Ok(Some(value)),
            Err(e) if is_refusal(&e) => Ok(None),
            // Pools of old versions lack later features.
            Err(e) if e.kind() == Kind::Unsupported && self.is_old() => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_old(&self) -> bool {
        !self.spa.features.is_enabled(Feature::Encryption)
    }

    pub(crate) fn new_name(&mut self, kind: char) -> String {
        self.named += 1;
        format!("{kind}{}", self.named)
    }

    /// Operations on files, the mark, and one change of datasets in the same txg. All of it is on disk on return.
    pub(crate) fn dataset_step(&mut self) -> Result<()> {
        let all: Vec<String> = self.model.heads.keys().cloned().collect();
        let below: Vec<String> = all.iter().filter(|name| *name != POOL).cloned().collect();
        let (Some(any), child) = (self.pick(&all), self.pick(&below)) else { return Ok(()) };
        let above = if self.tree(&any).is_volume() { POOL.to_owned() } else { any.clone() };
        let what = self.random.below(28);
        self.tell(format!("dataset operation {what} on {any} or {child:?}"));
        if let (7 | 10, Some(child)) = (what, &child) {
            // A file system must be unmounted for a rollback or destroy.
            self.unmount(child)?;
            self.barred = Some(child.clone());
        }
        self.change()?;
        self.barred = None;
        match (what, child) {
            (0..2, _) if all.len() < HEADS => self.create_head(&above, None),
            (2..5, _) => self.snapshot(&all, &any),
            (5 | 6, _) if all.len() < HEADS => self.clone_one(&any),
            (7, Some(child)) => self.rollback(&child),
            (8 | 9, _) => self.destroy_snapshot(&any),
            (10, Some(child)) => self.destroy_head(&child),
            (11, Some(child)) => self.rename_head(&child),
            (12, _) => self.rename_snapshot(&any),
            (13, Some(child)) => self.promote(&child),
            (14..16, _) => self.set(&any),
            (16 | 17, _) if all.len() < HEADS => self.create_volume(&above),
            (18 | 19, _) if all.len() < HEADS => {
                let key = self.random.next_u64();
                self.create_head(&above, Some(key))
            }
            (20, _) => self.resize(),
            (21 | 22, Some(child)) => self.change_key(&child),
            (24..27, _) => self.prune(),
            (27, _) => self.limit_tables(),
            _ => self.spa.sync(),
        }
    }

    /// Takes entries with one reference from the dedup tables; has them made from now on if there are none.
    fn prune(&mut self) -> Result<()> {
        if self.listed() == 0 {
            return self.set_to(POOL, ("dedup", 1));
        }
        // Entries of logs stay: often all are in their tables.
        for _ in 0..self.random.below(3) * 12 {
            self.spa.sync()?;
        }
        let which = match self.random.below(2) {
            0 => Prune::Age(0),
            _ => Prune::Percentage(1 + self.random.below(100)),
        };
        let before = self.listed();
        match self.spa.sharing().prune_ddt(which) {
            Err(e) if e.kind() == Kind::Unsupported || is_refusal(&e) => {}
            done => done?,
        }
        self.pruned += before.saturating_sub(self.listed());
        self.spa.sync()
    }

    /// Entries of the dedup tables.
    fn listed(&self) -> u64 {
        let tables = ddt::tables(&self.spa.mos.view(), &mut Vec::new());
        tables.iter().flat_map(|table| &table.stores).map(|store| store.count).sum()
    }

    /// Limits the size of the dedup tables, or no longer does.
    fn limit_tables(&mut self) -> Result<()> {
        let quota = self.pick(&[0, u64::MAX, 1, 64 << 10]).unwrap_or(0);
        let settings = [("dedup_table_quota".to_owned(), PropValue::Number(quota))];
        self.spa.sync_task(move |spa, tx| spa.props().set(&settings, tx))?;
        self.spa.sync()
    }

    /// Creates a file system, encrypted like its parent, or with a key of its own.
    fn create_head(&mut self, parent: &str, key: Option<u64>) -> Result<()> {
        let name = format!("{parent}/{}", self.new_name(if key.is_some() { 'e' } else { 'd' }));
        let (task_name, fs) = (name.clone(), new_fs(&self.spa.pool.env));
        let mut encryption = Encryption::default();
        if let Some(key) = key {
            let cipher = Cipher::Suite(self.pick(&SUITES).unwrap_or(Suite::Aes256Gcm));
            encryption = Encryption { cipher, key: Some(keys::new_key(key)?) };
        }
        let made = self.task(move |tasks| {
            tasks.create_encrypted(&task_name, ObjsetType::Zfs, 0, encryption, &mut |live, tx| {
                create_fs(&live.objset, tx, &fs)
            })
        })?;
        if made.is_some() {
            let inherits = self.model.heads.get(parent).is_some_and(|head| head.encrypted);
            let encrypted = inherits || key.is_some();
            self.model.heads.insert(name.clone(), Head { encrypted, key, ..Head::default() });
            let root = self.writer(&name)?.root;
            self.edit(&name, |tree| *tree = Tree::new(root));
        }
        Ok(())
    }

    /// Takes a snapshot of one file system or of all of them.
    fn snapshot(&mut self, all: &[String], one: &String) -> Result<()> {
        let of = if self.random.below(3) == 0 { all } else { std::slice::from_ref(one) };
        let full = |name: &String| self.model.heads.get(name).is_some_and(|h| h.snapshots.len() >= SNAPSHOTS);
        if of.iter().any(full) {
            return self.destroy_snapshot(one);
        }
        let (snap, of) = (self.new_name('s'), of.to_vec());
        let names: Vec<String> = of.iter().map(|name| format!("{name}@{snap}")).collect();
        let order = self.spa.txgs.open();
        let done = self.task(move |tasks| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            tasks.snapshot(&names, &[])
        })?;
        if done.is_some() {
            for name in of {
                if let Some(head) = self.model.heads.get_mut(&name) {
                    head.snapshots.insert(snap.clone(), Snapshot { order, tree: Arc::clone(&head.tree) });
                }
            }
        }
        Ok(())
    }

    fn some_snapshot(&mut self, head: &str) -> Option<String> {
        let names: Vec<String> = self.model.heads.get(head)?.snapshots.keys().cloned().collect();
        self.pick(&names)
    }

    fn clone_one(&mut self, head: &str) -> Result<()> {
        let Some(snap) = self.some_snapshot(head) else { return self.spa.sync() };
        let (origin, name) = (format!("{head}@{snap}"), format!("{POOL}/{}", self.new_name('c')));
        let (task_origin, task_name) = (origin.clone(), name.clone());
        if self.task(move |tasks| tasks.clone_snapshot(&task_origin, &task_name))?.is_some() {
            let Some(of) = self.model.heads.get(head) else { return Ok(()) };
            let tree = of.snapshots.get(&snap).map(|s| Arc::clone(&s.tree)).unwrap_or_default();
            let clone = Head { tree, origin: Some(origin), encrypted: of.encrypted, ..Head::default() };
            self.model.heads.insert(name, clone);
        }
        Ok(())
    }

    fn rollback(&mut self, name: &str) -> Result<()> {
        let newest = self.model.heads.get(name).and_then(|h| h.snapshots.values().max_by_key(|s| s.order));
        let Some(tree) = newest.map(|s| Arc::clone(&s.tree)) else { return self.spa.sync() };
        let task_name = name.to_owned();
        if self.task(move |tasks| tasks.rollback(&task_name, None))?.is_some()
            && let Some(head) = self.model.heads.get_mut(name)
        {
            head.tree = tree;
        }
        Ok(())
    }

    fn has_clones(&self, head: &str, snap: &str) -> bool {
        let origin = format!("{head}@{snap}");
        self.model.heads.values().any(|h| h.origin.as_ref() == Some(&origin))
    }

    fn destroy_snapshot(&mut self, head: &str) -> Result<()> {
        let Some(snap) = self.some_snapshot(head) else { return self.spa.sync() };
        if self.has_clones(head, &snap) {
            return self.spa.sync();
        }
        let name = format!("{head}@{snap}");
        if self.task(move |tasks| tasks.destroy(&name, false))?.is_some()
            && let Some(head) = self.model.heads.get_mut(head)
        {
            head.snapshots.remove(&snap);
        }
        Ok(())
    }

    /// Destroys a file system with its snapshots, if nothing depends on it.
    fn destroy_head(&mut self, name: &str) -> Result<()> {
        let inside = format!("{name}/");
        if self.model.heads.keys().any(|n| n.starts_with(&inside)) || !self.model.clones_of(name).is_empty() {
            return self.spa.sync();
        }
        let Some(head) = self.model.heads.get(name) else { return Ok(()) };
        let snapshots: Vec<String> = head.snapshots.keys().map(|snap| format!("{name}@{snap}")).collect();
        let task_name = name.to_owned();
        let done = self.task(move |tasks| {
            let names: Vec<&str> = snapshots.iter().map(String::as_str).collect();
            tasks.destroy_snapshots(&names, false)?;
            tasks.destroy(&task_name, false)
        })?;
        if done.is_some() {
            self.model.heads.remove(name);
        }
        Ok(())
    }

    fn rename_head(&mut self, old: &str) -> Result<()> {
        let name = self.new_name('r');
        let parent = old.rsplit_once('/').map_or(POOL, |(parent, _)| parent);
        // Often it moves up, too.
        let parent = if self.random.below(2) == 0 { POOL } else { parent };
        let new = format!("{parent}/{name}");
        let names = (old.to_owned(), new.clone());
        if self.unless_keys(old, move |tasks| tasks.rename(&names.0, &names.1))?.is_some() {
            self.renamed(old, &new);
            rename_in(&mut self.model, old, &new);
        }
        Ok(())
    }

    fn rename_snapshot(&mut self, head: &str) -> Result<()> {
        let Some(snap) = self.some_snapshot(head) else { return self.spa.sync() };
        let new = self.new_name('s');
        let names = (format!("{head}@{snap}"), new.clone());
        if self.task(move |tasks| tasks.rename_snapshot(&names.0, &names.1))?.is_some() {
            move_origin(&mut self.model, &format!("{head}@{snap}"), &format!("{head}@{new}"));
            if let Some(head) = self.model.heads.get_mut(head)
                && let Some(moved) = head.snapshots.remove(&snap)
            {
                head.snapshots.insert(new, moved);
            }
        }
        Ok(())
    }

    fn promote(&mut self, name: &str) -> Result<()> {
        let Some(origin) = self.model.heads.get(name).and_then(|h| h.origin.clone()) else {
            return self.spa.sync();
        };
        let task_name = name.to_owned();
        if self.unless_keys(name, move |tasks| tasks.promote(&task_name))?.is_some() {
            promote_in(&mut self.model, name, &origin);
        }
        Ok(())
    }

    /// Runs a task that is refused if it would separate an encrypted dataset from its key.
    fn unless_keys(
        &self,
        name: &str,
        work: impl FnOnce(&Tasks<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Option<()>> {
        let encrypted = self.model.heads.get(name).is_some_and(|head| head.encrypted);
        match self.task(work) {
            Err(e) if encrypted && e.kind() == Kind::Denied => Ok(None),
            other => other,
        }
    }

    /// Gives an encrypted dataset a key of its own, or its parent's.
    fn change_key(&mut self, name: &str) -> Result<()> {
        let Some(head) = self.model.heads.get(name) else { return Ok(()) };
        if !head.encrypted || head.origin.is_some() {
            return self.spa.sync();
        }
        let parent = name.rsplit_once('/').and_then(|(parent, _)| self.model.heads.get(parent));
        let inherits = head.key.is_some() && parent.is_some_and(|p| p.encrypted) && self.random.below(2) == 0;
        let key = if inherits { None } else { Some(self.random.next_u64()) };
        let (task_name, new) = (name.to_owned(), key.map(keys::new_key).transpose()?);
        if self.task(move |tasks| tasks.change_key(&task_name, new))?.is_some()
            && let Some(head) = self.model.heads.get_mut(name)
        {
            head.key = key;
        }
        Ok(())
    }

    fn set(&mut self, name: &str) -> Result<()> {
        let Some((prop, values)) = self.pick(&SETTINGS) else { return Ok(()) };
        let Some(value) = self.pick(values) else { return Ok(()) };
        self.set_to(name, (prop, value))
    }

    fn set_to(&mut self, name: &str, (prop, value): (&'static str, u64)) -> Result<()> {
        let Some(head) = self.model.heads.get(name) else { return Ok(()) };
        if (head.tree.is_volume() && OF_FILES.contains(&prop))
            || (head.encrypted && (prop, value) == ("copies", 3))
        {
            return self.spa.sync();
        }
        let task_name = name.to_owned();
        let done = self.task(move |tasks| {
            tasks.set(&task_name, &[(prop, Some(PropValue::Number(value)))], SettingSource::Local)
        });
        match done {
            Ok(Some(())) => {}
            // A refquota below the referenced space.
            Err(e) if e.kind() == Kind::Quota => return Ok(()),
            other => return other.map(|_| ()),
        }
        if let Some(head) = self.model.heads.get_mut(name) {
            head.settings.insert(prop, value);
        }
        Ok(())
    }
}

fn move_origin(model: &mut Model, old: &str, new: &str) {
    for head in model.heads.values_mut().filter(|head| head.origin.as_deref() == Some(old)) {
        head.origin = Some(new.to_owned());
    }
}

/// The new name of `name` when `old` is renamed; `None` if it stays.
pub(crate) fn new_name_of(name: &str, old: &str, new: &str) -> Option<String> {
    let rest = name.strip_prefix(old)?;
    (rest.is_empty() || rest.starts_with(['/', '@'])).then(|| format!("{new}{rest}"))
}

fn rename_in(model: &mut Model, old: &str, new: &str) {
    let renamed = |name: &str| new_name_of(name, old, new);
    let heads = std::mem::take(&mut model.heads).into_iter();
    model.heads = heads
        .map(|(name, mut head)| {
            if let Some(origin) = head.origin.as_deref().and_then(renamed) {
                head.origin = Some(origin);
            }
            (renamed(&name).unwrap_or(name), head)
        })
        .collect();
}

/// The clone gets the snapshots up to its origin, and the position of the file system that it was a clone of.
fn promote_in(model: &mut Model, name: &str, origin: &str) {
    let Some((old, snap)) = origin.split_once('@') else { return };
    let Some(from) = model.heads.get_mut(old) else { return };
    let last = from.snapshots.get(snap).map_or(0, |s| s.order);
    let moved: Vec<String> =
        from.snapshots.iter().filter(|(_, s)| s.order <= last).map(|(n, _)| n.clone()).collect();
    let above = from.origin.replace(format!("{name}@{snap}"));
    let key = from.key.take();
    let mut snapshots = Vec::new();
    for snap in moved {
        snapshots.extend(from.snapshots.remove(&snap).map(|s| (snap, s)));
    }
    if let Some(clone) = model.heads.get_mut(name) {
        clone.origin = above;
        clone.key = key;
        clone.snapshots.extend(snapshots.iter().cloned());
    }
    for (snap, _) in snapshots {
        move_origin(model, &format!("{old}@{snap}"), &format!("{name}@{snap}"));
    }
}
