//! The expected content of a pool: names, bytes, attributes and snapshots, according to the operations that
//! succeeded.
//!
//! States share their common parts, so that one can be kept for every step of a workload.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::dmu::Span;
use engine::dsl::{Dataset, Dir, Dsl};
use engine::spa::Pool;
use engine::zap::Zap;
use ondisk::ObjsetType;
use ondisk::acl::Ace;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::names::{MASTER_NODE_OBJECT, ZVOL_OBJECT, master_node};
use parking_lot::Mutex;
use zpl::{FileKind, Filesystem, Inode};
use zvol::Volume;

use crate::content::Content;
use crate::keys;

/// A name in a directory or a dataset.
pub type Name = Vec<u8>;

/// A file of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its type.
    pub kind: FileKind,
    /// Names it has; not kept for directories.
    pub links: u64,
    /// Permission bits, with set-id and sticky bits.
    pub perm: u32,
    /// Owner and group.
    pub ids: (u64, u64),
    /// Content of a file, target of a symbolic link.
    pub bytes: Arc<Content>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    /// Access control list.
    pub acl: Vec<Ace>,
}

impl Item {
    /// A new file with one name.
    pub fn new(kind: FileKind, perm: u32) -> Self {
        let (bytes, xattrs) = Default::default();
        Self { kind, links: 1, perm, ids: (0, 0), bytes, xattrs, acl: Vec::new() }
    }
}

/// A file system: files by object number, and names in directories. A volume: one item without a name.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// All files but the root directory.
    pub items: BTreeMap<u64, Arc<Item>>,
    /// Entries of each directory.
    pub names: BTreeMap<u64, Arc<BTreeMap<Name, u64>>>,
    /// Bytes that users may take.
    pub quotas: BTreeMap<u64, u64>,
}

impl Tree {
    /// An empty file system.
    pub fn new(root: u64) -> Self {
        Self { names: BTreeMap::from([(root, Arc::default())]), ..Self::default() }
    }

    /// A volume with these bytes.
    pub fn volume(bytes: Content) -> Self {
        let item = Item { bytes: Arc::new(bytes), ..Item::new(FileKind::BlockDevice, 0) };
        Self { items: BTreeMap::from([(ZVOL_OBJECT, Arc::new(item))]), ..Self::default() }
    }

    /// Whether this is a volume.
    pub fn is_volume(&self) -> bool {
        self.names.is_empty()
    }

    /// The file that `name` refers to in directory `dir`.
    pub fn get(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.names.get(&dir)?.get(name).copied()
    }

    /// Adds a name; returns the file it replaces.
    pub fn set(&mut self, dir: u64, name: &[u8], number: u64) -> Option<u64> {
        Arc::make_mut(self.names.entry(dir).or_default()).insert(name.to_vec(), number)
    }

    /// Removes a name, and the file with its last one.
    pub fn unlink(&mut self, dir: u64, name: &[u8]) {
        let number = self.names.get_mut(&dir).and_then(|names| Arc::make_mut(names).remove(name));
        if let Some(number) = number {
            self.drop_link(number);
        }
    }

    /// Decrements the link count of a file.
    pub fn drop_link(&mut self, number: u64) {
        let Some(item) = self.items.get_mut(&number).map(Arc::make_mut) else { return };
        item.links -= 1;
        if item.links == 0 {
            self.items.remove(&number);
            self.names.remove(&number);
        }
    }

    /// Changes a file.
    pub fn change(&mut self, number: u64, work: impl FnOnce(&mut Item)) {
        if let Some(item) = self.items.get_mut(&number) {
            work(Arc::make_mut(item));
        }
    }

    /// Whether a file is a directory.
    pub fn is_dir(&self, number: u64) -> bool {
        self.names.contains_key(&number)
    }

    /// Whether `number` is `top` or below it.
    pub fn is_below(&self, top: u64, number: u64) -> bool {
        top == number || self.names.get(&top).is_some_and(|n| n.values().any(|&c| self.is_below(c, number)))
    }
}

/// A snapshot: its position in the order of all, and its content.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The txg of its creation.
    pub order: u64,
    /// Content.
    pub tree: Arc<Tree>,
}

/// A dataset.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// Content.
    pub tree: Arc<Tree>,
    /// By name.
    pub snapshots: BTreeMap<String, Snapshot>,
    /// Properties set here.
    pub settings: BTreeMap<&'static str, u64>,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Its own key, if it is an encryption root.
    pub key: Option<u64>,
}

/// A pool.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// By name.
    pub heads: BTreeMap<String, Head>,
}

impl Model {
    /// The effective property, inherited or not.
    pub fn setting(&self, dataset: &str, name: &str) -> Option<u64> {
        let mut at = dataset;
        loop {
            if let Some(value) = self.heads.get(at).and_then(|head| head.settings.get(name)) {
                return Some(*value);
            }
            at = at.rsplit_once('/')?.0;
        }
    }

    /// Names of datasets that are clones of a snapshot of `dataset`.
    pub fn clones_of(&self, dataset: &str) -> Vec<String> {
        let of = |head: &Head| head.origin.as_ref().is_some_and(|o| o.split('@').next() == Some(dataset));
        self.heads.iter().filter(|(_, head)| of(head)).map(|(name, _)| name.clone()).collect()
    }
}

/// Comparisons known to be equal: root pointers and trees. Blocks with equal checksums have equal content; other
/// checks verify that all blocks match their checksums.
#[derive(Debug, Default)]
pub struct Known(Mutex<BTreeSet<([u8; BLKPTR_SIZE], usize)>>);

type Verdict = Result<(), String>;

fn said(e: engine::Error) -> String {
    e.to_string()
}

/// Compares a pool with the model, and loads its keys.
pub fn compare(pool: &Pool, model: &Model, known: &Known) -> Verdict {
    keys::unlock(pool, model)?;
    let mut left: BTreeSet<&str> = model.heads.keys().map(String::as_str).collect();
    for dir in pool.dsl.walk(pool.dsl.root().map_err(said)?) {
        let dir = dir.map_err(said)?;
        let head = model.heads.get(&dir.name).ok_or(format!("{} should not exist", dir.name))?;
        left.remove(dir.name.as_str());
        compare_head(&pool.dsl, &dir, head, known).map_err(|why| format!("{}: {why}", dir.name))?;
    }
    match left.first() {
        Some(name) => Err(format!("{name} is missing")),
        None => Ok(()),
    }
}

fn compare_head(dsl: &Arc<Dsl>, dir: &Dir, head: &Head, known: &Known) -> Verdict {
    let dataset = dir.head().map_err(said)?;
    let encrypted = dsl.keys.root_of(dir).map_err(said)?.is_some();
    if encrypted != head.encrypted {
        return Err(format!("encrypted: {encrypted}"));
    }
    compare_dataset(&dataset, &head.tree, known)?;
    let snapshots = dataset.snapshots().map_err(said)?;
    let found: BTreeSet<String> = snapshots.iter().map(name_of).collect();
    let wanted: BTreeSet<String> = head.snapshots.keys().cloned().collect();
    if found != wanted {
        return Err(format!("snapshots {found:?} instead of {wanted:?}"));
    }
    for snap in &snapshots {
        if let Some(model) = head.snapshots.get(&name_of(snap)) {
            compare_dataset(snap, &model.tree, known).map_err(|why| format!("{}: {why}", snap.name))?;
        }
    }
    let origin = origin_of(dir)?;
    if origin != head.origin {
        return Err(format!("the origin is {origin:?} instead of {:?}", head.origin));
    }
    let props = dsl.zap(dir.phys.props_zapobj).map_err(said)?;
    for (&name, &wanted) in &head.settings {
        let found = props.as_ref().map(|zap| zap.u64(name)).transpose().map_err(said)?.flatten();
        // A limit of none may be absent.
        if found.unwrap_or(0) != wanted {
            return Err(format!("{name} is {found:?} instead of {wanted}"));
        }
    }
    Ok(())
}

/// The snapshot's part of its name.
fn name_of(snap: &Dataset) -> String {
    snap.name.split('@').nth(1).unwrap_or_default().to_owned()
}

fn origin_of(dir: &Dir) -> Result<Option<String>, String> {
    let origin = match dir.phys.origin_obj {
        0 => None,
        number => Some(engine::dsl::props::names::dataset_name(&dir.dsl, number).map_err(said)?),
    };
    Ok(origin.filter(|name| !name.contains('$')))
}

fn compare_dataset(dataset: &Dataset, tree: &Arc<Tree>, known: &Known) -> Verdict {
    let key = (dataset.phys.bp.to_bytes(), Arc::as_ptr(tree) as usize);
    if known.0.lock().contains(&key) {
        return Ok(());
    }
    match tree.is_volume() {
        true => {
            let wanted = tree.items.get(&ZVOL_OBJECT).map(|i| Arc::clone(&i.bytes)).unwrap_or_default();
            same_bytes(&device_of(dataset)?, &wanted)?;
        }
        false => {
            compare_tree(&Filesystem::open_committed(dataset).map_err(said)?, tree)?;
            let quotas = quotas_of(dataset).map_err(said)?;
            if quotas != tree.quotas {
                return Err(format!("quotas {quotas:?} instead of {:?}", tree.quotas));
            }
        }
    }
    known.0.lock().insert(key);
    Ok(())
}

/// Compares a file system with the model.
pub fn compare_tree(fs: &Arc<Filesystem>, tree: &Tree) -> Verdict {
    let root = fs.root().map_err(said)?;
    let mut met = BTreeSet::from([root.number()]);
    compare_dir(&root, tree, &mut met, "")?;
    match tree.items.keys().find(|number| !met.contains(number)) {
        Some(number) => Err(format!("object {number} of the model has no name")),
        None => Ok(()),
    }
}

fn compare_dir(dir: &Inode, tree: &Tree, met: &mut BTreeSet<u64>, path: &str) -> Verdict {
    let names = tree.names.get(&dir.number()).ok_or(format!("{path}/ should be no directory"))?;
    let mut found = BTreeMap::new();
    for entry in dir.entries().map_err(said)? {
        let entry = entry.map_err(said)?;
        found.insert(entry.name, entry.object);
    }
    if found != **names {
        let text = |names: &BTreeMap<Name, u64>| {
            let text = names.iter().map(|(n, o)| format!("{}={o}", String::from_utf8_lossy(n)));
            text.collect::<Vec<_>>().join(" ")
        };
        return Err(format!("{path}/ has [{}] instead of [{}]", text(&found), text(names)));
    }
    let subdirs = names.values().filter(|n| tree.is_dir(**n)).count();
    let (size, links) = (dir.attr().size, dir.attr().links);
    if (size, links) != (names.len() as u64 + 2, subdirs as u64 + 2) {
        return Err(format!("{path}/ says {size} entries and {links} links"));
    }
    for (name, number) in names.iter() {
        let path = format!("{path}/{}", String::from_utf8_lossy(name));
        let inode = dir.child(name).map_err(said)?;
        let item = tree.items.get(number).ok_or(format!("{path}: no object {number} in the model"))?;
        if met.insert(*number) {
            compare_item(&inode, item).map_err(|why| format!("{path} (object {number}): {why}"))?;
        }
        if inode.is_dir() {
            compare_dir(&inode, tree, met, &path)?;
        }
    }
    Ok(())
}

/// Quotas of users.
fn quotas_of(dataset: &Dataset) -> engine::Result<BTreeMap<u64, u64>> {
    let (objset, mut quotas) = (dataset.objset()?, BTreeMap::new());
    let master = Zap::open(&objset.object(MASTER_NODE_OBJECT)?)?;
    let Some(object) = master.u64(master_node::USERQUOTA)? else { return Ok(quotas) };
    for entry in Zap::open(&objset.object(object)?)?.entries() {
        let entry = entry?;
        let id = u64::from_str_radix(&entry.name_lossy(), 16)
            .map_err(|e| engine::Error::corrupt(e.to_string()))?;
        quotas.extend(entry.value.first().map(|limit| (id, limit)));
    }
    Ok(quotas)
}

/// All bytes of a volume.
fn device_of(dataset: &Dataset) -> Result<Content, String> {
    let volume = Volume::open_committed(dataset).map_err(said)?;
    let next = |at| data_from(volume.span(at, u64::MAX));
    Content::read(volume.size, next, |at, out| volume.read_at(at, out)).map_err(said)
}

/// The offset of the next data according to `span`.
pub(crate) fn data_from(span: Option<Span>) -> engine::Result<Option<u64>> {
    match span {
        None => Ok(None),
        Some(Span::Data(data)) => Ok(Some(data.start)),
        Some(Span::Hole(hole)) => Ok(Some(hole.end)),
        Some(Span::Unreadable(u)) => Err(u.error),
    }
}

/// The content of a pool whose keys are loaded.
pub fn read_model(pool: &Pool) -> Result<Model, String> {
    let mut model = Model::default();
    for dir in pool.dsl.walk(pool.dsl.root().map_err(said)?) {
        let dir = dir.map_err(said)?;
        let dataset = dir.head().map_err(said)?;
        let mut snapshots = BTreeMap::new();
        for snap in dataset.snapshots().map_err(said)? {
            let tree = Arc::new(read_dataset(&snap)?);
            snapshots.insert(name_of(&snap), Snapshot { order: snap.phys.creation_txg, tree });
        }
        let tree = Arc::new(read_dataset(&dataset)?);
        let encrypted = pool.dsl.keys.root_of(&dir).map_err(said)?.is_some();
        let head = Head { tree, snapshots, origin: origin_of(&dir)?, encrypted, ..Head::default() };
        model.heads.insert(dir.name, head);
    }
    Ok(model)
}

/// The content of a dataset.
pub fn read_dataset(dataset: &Dataset) -> Result<Tree, String> {
    if dataset.objset().map_err(said)?.phys.objset_type == ObjsetType::Zvol {
        return device_of(dataset).map(Tree::volume);
    }
    let mut tree = read_tree(&Filesystem::open_committed(dataset).map_err(said)?)?;
    tree.quotas = quotas_of(dataset).map_err(said)?;
    Ok(tree)
}

/// The content of a file system. Fails if its names and files are inconsistent.
fn read_tree(fs: &Arc<Filesystem>) -> Result<Tree, String> {
    let root = fs.root().map_err(said)?;
    let mut tree = Tree::new(root.number());
    read_dir(&root, &mut tree)?;
    for item in tree.items.values_mut().map(Arc::make_mut).filter(|item| item.kind == FileKind::Directory) {
        item.links = 1;
    }
    compare_tree(fs, &tree)?;
    Ok(tree)
}

fn read_dir(dir: &Inode, tree: &mut Tree) -> Verdict {
    for entry in dir.entries().map_err(said)? {
        let entry = entry.map_err(said)?;
        tree.set(dir.number(), &entry.name, entry.object);
        if tree.items.contains_key(&entry.object) {
            tree.change(entry.object, |item| item.links += 1);
            continue;
        }
        let inode = dir.child(&entry.name).map_err(said)?;
        let xattrs = inode.xattrs().map_err(said)?.into_iter().collect();
        let bytes = Arc::new(bytes_of(&inode)?);
        let (attr, acl) = (inode.attr(), acl_of(&inode)?);
        let item =
            Item { bytes, xattrs, acl, ids: (attr.owner, attr.group), ..Item::new(attr.kind, attr.perm) };
        tree.items.insert(entry.object, Arc::new(item));
        if inode.is_dir() {
            tree.names.insert(entry.object, Arc::default());
            read_dir(&inode, tree)?;
        }
    }
    Ok(())
}

fn acl_of(inode: &Inode) -> Result<Vec<Ace>, String> {
    Ok(inode.acl().map_err(said)?.map(|acl| acl.aces).unwrap_or_default())
}

fn bytes_of(inode: &Inode) -> Result<Content, String> {
    match inode.attr().kind {
        FileKind::Symlink => inode.readlink().map(|target| Content::of(&target)).map_err(said),
        FileKind::Regular => {
            Content::read(inode.attr().size, |at| inode.next_data(at), |at, out| inode.read_at(at, out))
                .map_err(said)
        }
        _ => Ok(Content::default()),
    }
}

/// Compares one file with the model.
pub fn compare_item(inode: &Inode, item: &Item) -> Verdict {
    let attr = inode.attr();
    if (attr.kind, attr.perm) != (item.kind, item.perm) {
        let wanted = (item.kind, item.perm);
        return Err(format!("{:?} {:o} instead of {wanted:?}", attr.kind, attr.perm));
    }
    let ids = (attr.owner, attr.group);
    if ids != item.ids {
        return Err(format!("owner and group {ids:?} instead of {:?}", item.ids));
    }
    let xattrs: BTreeMap<_, _> = inode.xattrs().map_err(said)?.into_iter().collect();
    if xattrs != item.xattrs {
        let sizes = |all: &BTreeMap<Name, Vec<u8>>| {
            all.iter().map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), v.len())).collect::<Vec<_>>()
        };
        let (found, wanted) = (sizes(&xattrs), sizes(&item.xattrs));
        return Err(format!("extended attributes {found:?} instead of {wanted:?}"));
    }
    let acl = acl_of(inode)?;
    if acl != item.acl {
        return Err(format!("access control list {acl:?} instead of {:?}", item.acl));
    }
    if item.kind == FileKind::Directory {
        return Ok(());
    }
    let bytes = bytes_of(inode)?;
    if attr.links != item.links {
        return Err(format!("{} links instead of {}", attr.links, item.links));
    }
    same_bytes(&bytes, &item.bytes)
}

/// Reports the differences of bytes.
pub fn same_bytes(found: &Content, wanted: &Content) -> Verdict {
    if found.len() != wanted.len() {
        return Err(format!("{} bytes instead of {}", found.len(), wanted.len()));
    }
    match found.first_difference(wanted) {
        Some(at) => Err(format!("other bytes from {at} on (of {})", wanted.len())),
        None => Ok(()),
    }
}
