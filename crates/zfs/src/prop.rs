//! The properties of one dataset, snapshot or bookmark: from the engine's values to the printed ones.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use clikit::output::row::{DatasetKind, Prop, Source};
use clikit::output::value::{Raw, dataset as printed};
use daemon::mounts::Hidden;
use engine::Kind;
use engine::dmu::Objset;
use engine::dsl::props::bookmarks::BookmarkInfo;
use engine::dsl::props::settings::{PropRules, Setpoint};
use engine::dsl::props::{DslDatasetStats, PropValue, Settings, resume, zpl};
use engine::dsl::{Dataset, DatasetKind as HeadKind};
use engine::zio::Form;
use ondisk::names::DEFAULT_QUOTAS;
use zcommon::props::{DatasetTypes, PropDefault, PropInfo, PropType, ZfsProp};

/// The property tables' facts on inheritance, for the engine.
pub(crate) const RULES: PropRules = PropRules {
    is_inherited: |name| ZfsProp::from_name(name).is_none_or(|p| p.info().inheritable()),
    is_for_snapshots: |name| {
        ZfsProp::from_name(name).is_none_or(|p| p.info().types.contains(DatasetTypes::SNAPSHOT))
    },
};

/// The object of a row.
#[derive(Debug)]
pub enum Node {
    /// A head or a snapshot, and the head's kind.
    Dataset(Dataset, HeadKind),
    /// A bookmark of the head of that name.
    Bookmark(String, BookmarkInfo),
}

impl Node {
    /// The full name.
    pub fn name(&self) -> String {
        match self {
            Node::Dataset(dataset, _) => dataset.name.clone(),
            Node::Bookmark(head, info) => format!("{head}#{}", info.name),
        }
    }

    /// Its type.
    pub fn kind(&self) -> DatasetKind {
        match self {
            Node::Dataset(dataset, _) if dataset.is_snapshot() => DatasetKind::Snapshot,
            Node::Dataset(_, HeadKind::Filesystem) => DatasetKind::Filesystem,
            Node::Dataset(_, HeadKind::Volume) => DatasetKind::Volume,
            Node::Bookmark(..) => DatasetKind::Bookmark,
        }
    }

    /// The txg that created it.
    pub fn createtxg(&self) -> u64 {
        match self {
            Node::Dataset(dataset, _) => dataset.phys.creation_txg,
            Node::Bookmark(_, info) => info.phys.creation_txg,
        }
    }
}

/// The kind as a set of one, for tables.
pub fn types_of(kind: DatasetKind) -> DatasetTypes {
    match kind {
        DatasetKind::Filesystem => DatasetTypes::FILESYSTEM,
        DatasetKind::Volume => DatasetTypes::VOLUME,
        DatasetKind::Snapshot => DatasetTypes::SNAPSHOT,
        DatasetKind::Bookmark => DatasetTypes::BOOKMARK,
    }
}

/// Reads the properties of one node; each source is read when it is first needed.
#[derive(Debug)]
pub struct Props<'a> {
    node: &'a Node,
    pool_space: u64,
    settings: OnceCell<Option<Settings>>,
    stats: OnceCell<Option<DslDatasetStats>>,
    zpl: OnceCell<BTreeMap<&'static str, u64>>,
    volume: OnceCell<Option<(u64, u64)>>,
    notes: RefCell<Vec<String>>,
    /// Property values that options of its mount override; `None` when it isn't mounted.
    mounted: Option<Hidden>,
}

impl<'a> Props<'a> {
    /// For a node of a pool that may hold `pool_space` bytes in all.
    pub fn new(node: &'a Node, pool_space: u64) -> Self {
        Self {
            node,
            pool_space,
            settings: OnceCell::new(),
            stats: OnceCell::new(),
            zpl: OnceCell::new(),
            volume: OnceCell::new(),
            notes: RefCell::default(),
            mounted: None,
        }
    }

    /// Sets the mount's options that override properties; `None`: not mounted.
    #[must_use]
    pub fn mounted(self, mounted: Option<Hidden>) -> Self {
        Self { mounted, ..self }
    }

    /// A native property; `None` where it does not apply, or can't be known.
    #[doc(alias = "zfs_prop_get")]
    pub fn native(&self, prop: ZfsProp) -> Option<Prop> {
        let info = prop.info();
        if !self.applies(info) {
            return None;
        }
        let (raw, source) = match self.node {
            Node::Dataset(dataset, _) => self.of_dataset(prop, dataset)?,
            Node::Bookmark(_, bookmark) => (of_bookmark(prop, bookmark)?, Source::None),
        };
        let mut value = printed(prop, &raw, source);
        let received = self.settings().and_then(|s| s.received(info.name)).filter(|_| !info.read_only());
        value.received = received.map(|raw| {
            let p = printed(prop, &to_raw(raw), Source::Received);
            (p.nice, p.literal)
        });
        match prop {
            ZfsProp::Type => Some(Prop::text(self.node.kind().word(), Source::None)),
            ZfsProp::Name => Some(Prop::text(self.node.name(), Source::None)),
            _ => Some(self.temporary(prop, &value).unwrap_or(value)),
        }
    }

    /// Returns the value of a mount option where it differs from the property.
    fn temporary(&self, prop: ZfsProp, value: &Prop) -> Option<Prop> {
        let hidden = self.mounted.as_ref()?.iter().rev().find(|(hidden, _)| *hidden == prop);
        let (_, on) = hidden?;
        let word = if *on { "on" } else { "off" };
        ((value.literal != "off") != *on).then(|| Prop::text(word, Source::Temporary))
    }

    /// A snapshot has a property only if its head could have it, or if it is for snapshots alone. Texts
    /// are not held to that.
    fn applies(&self, info: &PropInfo) -> bool {
        if !info.types.contains(types_of(self.node.kind())) {
            return false;
        }
        let Node::Dataset(dataset, head) = self.node else { return true };
        let head = match head {
            HeadKind::Filesystem => DatasetTypes::FILESYSTEM,
            HeadKind::Volume => DatasetTypes::VOLUME,
        };
        let own = info.types == DatasetTypes::SNAPSHOT || info.data_type == PropType::String;
        !dataset.is_snapshot() || own || info.types.contains(head)
    }

    /// A user property; one that is only received, and excluded here, has the value `-`.
    pub fn user(&self, name: &str) -> Option<Prop> {
        let settings = self.settings()?;
        let text = |value: &PropValue| match value {
            PropValue::Text(t) => t.clone(),
            PropValue::Number(n) => n.to_string(),
        };
        let received = settings.received(name).map(|v| (text(v), text(v)));
        let prop = match settings.get(name) {
            Some(setting) => Prop::text(text(&setting.value), self.source(&setting.setpoint)),
            None if received.is_some() => Prop::text("-", Source::None),
            None => return None,
        };
        Some(Prop { received, ..prop })
    }

    /// Names of the user properties in force, in the order in which OpenZFS finds them.
    pub fn user_names(&self) -> Vec<String> {
        let all = self.settings().into_iter().flat_map(Settings::iter).map(|(name, _)| name);
        all.filter(|name| name.contains(':')).map(str::to_owned).collect()
    }

    /// Returns the read errors so far. A missing key is not reported as damage.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    fn or_note<T>(&self, read: engine::Result<T>) -> Option<T> {
        read.inspect_err(|e| {
            if !matches!(e.kind(), Kind::KeyMissing | Kind::KeyWrong) {
                self.notes.borrow_mut().push(e.to_string());
            }
        })
        .ok()
    }

    fn settings(&self) -> Option<&Settings> {
        let read = || match self.node {
            Node::Dataset(dataset, _) => self.or_note(Settings::of(dataset, RULES)),
            Node::Bookmark(..) => None,
        };
        self.settings.get_or_init(read).as_ref()
    }

    fn own_number(&self, name: &str) -> u64 {
        self.settings().and_then(|s| s.get(name)).and_then(|s| s.value.number()).unwrap_or(0)
    }

    fn stats(&self) -> Option<&DslDatasetStats> {
        let read = || match self.node {
            Node::Dataset(dataset, _) => {
                let (refquota, reserve) = (self.own_number("refquota"), self.own_number("refreservation"));
                self.or_note(DslDatasetStats::of(dataset, self.pool_space, refquota, reserve))
            }
            Node::Bookmark(..) => None,
        };
        self.stats.get_or_init(read).as_ref()
    }

    /// Properties in the object set itself; empty while a receive is unfinished.
    fn zpl(&self, name: &str) -> Option<u64> {
        let read = || {
            let Node::Dataset(dataset, HeadKind::Filesystem) = self.node else { return BTreeMap::new() };
            if self.stats().is_some_and(|s| s.inconsistent) {
                return BTreeMap::new();
            }
            let objset = readable_without_key(dataset);
            self.or_note(objset.and_then(|os| zpl::file_system(&os))).unwrap_or_default()
        };
        self.zpl.get_or_init(read).get(name).copied()
    }

    fn volume(&self) -> Option<(u64, u64)> {
        let read = || {
            let Node::Dataset(dataset, HeadKind::Volume) = self.node else { return None };
            self.or_note(readable_without_key(dataset).and_then(|os| zpl::volume(&os)))
        };
        *self.volume.get_or_init(read)
    }

    fn source(&self, setpoint: &Setpoint) -> Source {
        match setpoint {
            Setpoint::Received => Source::Received,
            Setpoint::Dataset(name) if *name == self.node.name() => Source::Local,
            Setpoint::Dataset(name) => Source::Inherited(name.clone()),
        }
    }

    fn of_dataset(&self, prop: ZfsProp, dataset: &Dataset) -> Option<(Raw, Source)> {
        use ZfsProp as P;
        let phys = &dataset.phys;
        let stat = |n: u64| Some((Raw::Number(n), Source::None));
        let text = |t: String| (!t.is_empty()).then_some((Raw::Text(t), Source::None));
        match prop {
            P::Type | P::Name => text(self.node.name()),
            P::Creation => stat(phys.creation_time),
            P::Createtxg => stat(phys.creation_txg),
            P::Guid => stat(phys.guid),
            P::Objsetid => stat(dataset.number),
            P::Referenced => stat(phys.referenced_bytes),
            P::Logicalreferenced => stat(phys.uncompressed_bytes),
            P::Unique => stat(phys.unique_bytes),
            P::Used => stat(self.stats()?.used),
            P::Compressratio => stat(self.stats()?.compressratio),
            P::Refcompressratio => stat(self.stats()?.refcompressratio),
            P::Written => stat(self.stats()?.written?),
            P::Inconsistent => stat(u64::from(self.stats()?.inconsistent)),
            P::RedactSnaps => text(guids(self.stats()?.redact_snaps.as_deref()?)),
            P::Redacted => stat(u64::from(self.stats()?.redact_snaps.is_some())),
            P::Mounted => text(if self.mounted.is_some() { "yes" } else { "no" }.to_owned()),
            P::Version | P::Utf8only | P::Normalization | P::Casesensitivity => stat(self.zpl(prop.name())?),
            _ if DEFAULT_QUOTAS.contains(&prop.name()) => stat(self.zpl(prop.name())?),
            P::Mountpoint => Some(self.mountpoint(dataset)),
            P::Volsize => Some((Raw::Number(self.volume()?.0), Source::Local)),
            P::Volblocksize => Some(self.once(prop, self.volume()?.1)),
            P::ReceiveResumeToken => text(self.or_note(resume::token(dataset))??),
            _ => self
                .of_head(prop)
                .or_else(|| self.of_snapshot(prop))
                .or_else(|| self.crypto(prop))
                .or_else(|| self.setting(prop)),
        }
    }

    /// Properties of heads only.
    fn of_head(&self, prop: ZfsProp) -> Option<(Raw, Source)> {
        use ZfsProp as P;
        let counts = matches!(prop, P::FilesystemCount | P::SnapshotCount);
        let usedby = matches!(
            prop,
            P::Usedbysnapshots | P::Usedbydataset | P::Usedbychildren | P::Usedbyrefreservation
        );
        let others = matches!(
            prop,
            P::Available | P::Logicalused | P::Quota | P::Reservation | P::Origin | P::SnapshotsChanged
        );
        if !counts && !usedby && !others {
            return None;
        }
        let head = self.stats()?.head.as_ref()?;
        let stat = |n: u64| Some((Raw::Number(n), Source::None));
        match prop {
            P::Available => stat(head.available),
            P::Logicalused => stat(head.logicalused),
            P::Quota => Some(self.limit(prop, head.quota)),
            P::Reservation => Some(self.limit(prop, head.reservation)),
            P::FilesystemCount => stat(head.filesystem_count?),
            P::SnapshotCount => stat(head.snapshot_count?),
            P::Origin => Some((Raw::Text(head.origin.clone()?), Source::None)),
            P::SnapshotsChanged => stat(head.snapshots_changed).filter(|_| head.snapshots_changed != 0),
            P::Usedbysnapshots => stat(head.breakdown?.snapshots),
            P::Usedbydataset => stat(head.breakdown?.dataset),
            P::Usedbychildren => stat(head.breakdown?.children),
            P::Usedbyrefreservation => stat(head.breakdown?.refreservation),
            _ => None,
        }
    }

    /// Properties of snapshots only.
    fn of_snapshot(&self, prop: ZfsProp) -> Option<(Raw, Source)> {
        use ZfsProp as P;
        if !matches!(prop, P::Clones | P::Numclones | P::Userrefs | P::DeferDestroy) {
            return None;
        }
        let snapshot = self.stats()?.snapshot.as_ref()?;
        let number = match prop {
            P::Clones if snapshot.clones.is_empty() => return None,
            P::Clones => return Some((Raw::Text(snapshot.clones.join(",")), Source::None)),
            P::Numclones => u64::try_from(snapshot.clones.len()).unwrap_or(u64::MAX),
            P::Userrefs => snapshot.userrefs,
            _ => u64::from(snapshot.defer_destroy),
        };
        Some((Raw::Number(number), Source::None))
    }

    fn crypto(&self, prop: ZfsProp) -> Option<(Raw, Source)> {
        use ZfsProp as P;
        let wanted = [P::Encryption, P::Keyformat, P::Pbkdf2iters, P::Encryptionroot, P::Keystatus];
        if !wanted.contains(&prop) && !matches!(prop, P::Keyguid | P::Ivsetguid | P::Pbkdf2salt) {
            return None;
        }
        let crypto = self.stats()?.crypto.as_ref()?;
        let stat = |n: u64| Some((Raw::Number(n), Source::None));
        match prop {
            P::Encryption => Some(self.once(prop, crypto.suite)),
            P::Keyformat => Some(self.once(prop, crypto.keyformat)),
            P::Pbkdf2iters => Some(self.once(prop, crypto.iterations)),
            P::Pbkdf2salt => Some(self.once(prop, crypto.salt?)),
            P::Encryptionroot => Some((Raw::Text(crypto.root.clone()), Source::None)),
            P::Keystatus => stat(if self.key_is_loaded() { 2 } else { 1 }),
            P::Keyguid => stat(crypto.key_guid),
            P::Ivsetguid => stat(crypto.ivset_guid?),
            _ => None,
        }
    }

    fn key_is_loaded(&self) -> bool {
        let Node::Dataset(dataset, _) = self.node else { return false };
        let root = dataset.dir().and_then(|dir| dataset.dsl.keys.root_of(&dir));
        root.ok().flatten().is_some_and(|root| dataset.dsl.keys.is_loaded(&root))
    }

    /// A number that was fixed at creation: it has no source, unless it is the default.
    fn once(&self, prop: ZfsProp, n: u64) -> (Raw, Source) {
        let default = prop.info().default == PropDefault::Number(n);
        (Raw::Number(n), if default { Source::Default } else { Source::None })
    }

    /// A limit that the directory records: its source is the setting's, if there is one.
    fn limit(&self, prop: ZfsProp, n: u64) -> (Raw, Source) {
        let set = self.settings().and_then(|s| s.get(prop.name())).map(|s| self.source(&s.setpoint));
        (Raw::Number(n), set.unwrap_or(if n == 0 { Source::Default } else { Source::Local }))
    }

    /// The setting, or the default; a missing statistic has no default.
    fn setting(&self, prop: ZfsProp) -> Option<(Raw, Source)> {
        let info = prop.info();
        if let Some(setting) = self.settings().and_then(|s| s.get(info.name)) {
            return Some((to_raw(&setting.value), self.source(&setting.setpoint)));
        }
        let counts = matches!(prop, ZfsProp::FilesystemCount | ZfsProp::SnapshotCount);
        match info.default {
            PropDefault::Number(n) if !info.read_only() || counts || prop == ZfsProp::Pbkdf2iters => {
                Some((Raw::Number(n), Source::Default))
            }
            PropDefault::String(text) if !info.read_only() => {
                Some((Raw::Text(text.to_owned()), Source::Default))
            }
            _ => None,
        }
    }

    /// Where it would be mounted: the setting, and below an ancestor's the rest of the name.
    fn mountpoint(&self, dataset: &Dataset) -> (Raw, Source) {
        let setting = self.settings().and_then(|s| s.get("mountpoint"));
        let (value, source, from) = match setting {
            None => ("/".to_owned(), Source::Default, ""),
            Some(s) => {
                let from = match &s.setpoint {
                    Setpoint::Dataset(name) => name.as_str(),
                    Setpoint::Received => dataset.name.as_str(),
                };
                (s.value.text().unwrap_or("none").to_owned(), self.source(&s.setpoint), from)
            }
        };
        if !value.starts_with('/') {
            return (Raw::Text(value), source);
        }
        let below = dataset.name.strip_prefix(from).unwrap_or("").trim_start_matches('/');
        let path = match (value.as_str(), below) {
            (_, "") => value,
            ("/", _) => format!("/{below}"),
            _ => format!("{value}/{below}"),
        };
        let root = dataset.dsl.altroot.get().map_or("", String::as_str);
        let path = if path == "/" && !root.is_empty() { root.to_owned() } else { format!("{root}{path}") };
        (Raw::Text(path), source)
    }
}

/// The object set of a dataset; without its key when that is not loaded. Master nodes and the ZAPs of volumes are
/// authenticated, not encrypted, so OpenZFS shows their properties without the key.
pub(super) fn readable_without_key(dataset: &Dataset) -> engine::Result<Arc<Objset>> {
    match dataset.objset() {
        Err(e) if e.kind() == Kind::KeyMissing => dataset.objset_as(Form::NoKey),
        other => other,
    }
}

fn of_bookmark(prop: ZfsProp, bookmark: &BookmarkInfo) -> Option<Raw> {
    use ZfsProp as P;
    let phys = &bookmark.phys;
    let sized = phys.flags & ondisk::dsl::ZfsBookmark::FLAG_HAS_FBN != 0;
    Some(Raw::Number(match prop {
        P::Type | P::Name => return Some(Raw::Text(String::new())),
        P::Creation => phys.creation_time,
        P::Createtxg => phys.creation_txg,
        P::Guid => phys.guid,
        P::Ivsetguid if phys.ivset_guid != 0 => phys.ivset_guid,
        P::Referenced if sized => phys.referenced_bytes_refd,
        P::Logicalreferenced if sized => phys.uncompressed_bytes_refd,
        P::RedactSnaps => return Some(Raw::Text(guids(bookmark.redact_snaps.as_deref()?))),
        _ => return None,
    }))
}

fn guids(list: &[u64]) -> String {
    list.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

fn to_raw(value: &PropValue) -> Raw {
    match value {
        PropValue::Number(n) => Raw::Number(*n),
        PropValue::Text(t) => Raw::Text(t.clone()),
    }
}
