//! The properties of a pool: from the engine's values to the printed ones.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clikit::ctx::Ctx;
use clikit::output::nice::ratio;
use clikit::output::row::{Prop, Source};
use clikit::output::value::number_or_word;
use clikit::pool_state;
use clikit::session::Home;
use daemon::Imported;
use engine::dsl::props::PropValue;
use engine::spa::props::{PoolStats, settings};
use engine::spa::space::PoolSpace;
use engine::spa::suspension::Suspension;
use engine::spa::sweep::SweepKind;
use engine::spa::{Pool, WaitActivity};
use engine::vdev::leaf::Leaf;
use zcommon::features::{FEATURES, Feature};
use zcommon::props::{PropDefault, PropType, ZpoolProp};
use zcommon::status::{PoolStatus, pool_action, pool_status};
use zcommon::units::{nicebytes, nicenum};
use zcommon::vdev::{VdevKind, VdevState};
use zutil::PoolCandidate;
use zutil::import_listing::{MosFacts, assessed_aux};
use zutil::tree::VdevNode;

use super::sizes::Sizes;

/// `ZIO_FAILURE_MODE_CONTINUE`.
const FAILMODE_CONTINUE: u64 = 1;

/// The version from which on features count.
const FEATURES_VERSION: u64 = 5000;

/// The status of a pool, and the recommended action.
#[derive(Debug)]
pub struct Advice {
    /// The status.
    pub status: Option<String>,
    /// The action.
    pub action: Option<String>,
    /// Of the message that OpenZFS has on it.
    pub id: Option<&'static str>,
}

/// A pool as its verbs see it.
#[derive(Debug)]
pub struct PoolView<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Its vdevs with their states.
    pub tree: VdevNode,
    /// Spares and cache devices with their states, and more.
    pub facts: Option<MosFacts>,
    /// Space of the pool and its vdevs.
    pub space: PoolSpace,
    /// Sizes of each vdev.
    pub sizes: Sizes,
    live: Option<Arc<Imported>>,
    /// The names of pools that use spares of this one, by the spares' guids.
    lent: BTreeMap<u64, String>,
    stats: PoolStats,
    settings: BTreeMap<String, PropValue>,
}

impl<'a> PoolView<'a> {
    /// Whether a spare stands in for a disk, of this pool or of another that has the spare, too.
    #[doc(alias = "VDEV_AUX_SPARED")]
    pub fn is_spare_in_use(&self, spare: &VdevNode) -> bool {
        let is_spare = self.facts.as_ref().is_some_and(|f| f.spares.iter().any(|s| s.guid == spare.guid));
        is_spare && (holds(&self.tree, spare.guid) || self.user_of(spare).is_some())
    }

    /// The other pool that uses a spare of this one.
    #[doc(alias = "used_by_other")]
    pub fn user_of(&self, spare: &VdevNode) -> Option<&str> {
        self.lent.get(&spare.guid).map(String::as_str)
    }

    /// Looks at everything once.
    pub fn new(pool: &'a Pool, candidate: &PoolCandidate, ctx: &mut Ctx) -> Self {
        let mut notes = Vec::new();
        let live = if ctx.home == Home::Here { None } else { ctx.pool(&pool.guid.to_string()) };
        let dedup = live.as_ref().and_then(|live| live.spa().ok()).map(|spa| spa.sharing().dedup_totals());
        let space = PoolSpace::of_imported(pool, dedup, &mut notes);
        let stats = PoolStats::of(pool, &space);
        let settings = settings(pool).unwrap_or_else(|e| {
            notes.push(e);
            BTreeMap::new()
        });
        let facts = zutil::load::facts(pool);
        let tree = pool_state::tree(pool, candidate, facts.as_ref(), live.is_some());
        let has_left = |pool, guid| ctx.registry().is_ok_and(|registry| registry.has_left(pool, guid));
        let facts = facts.map(|facts| assessed_aux(candidate, &facts, &has_left));
        notes.iter().for_each(|note| ctx.warn(format!("{}: {note}", pool.name)));
        let devices = live.is_some().then(|| pool.tree());
        let mut sizes = Sizes::of(&tree, facts.as_ref(), &space, candidate, devices.as_deref());
        if let Some(spa) = live.as_ref().and_then(|live| live.spa().ok()) {
            sizes.add_caches(&spa.caches().devices());
        }
        let spares = facts.as_ref().filter(|_| live.is_some()).map(|facts| facts.spares.as_slice());
        let lent = lent(spares.unwrap_or_default(), &tree, ctx);
        Self { pool, tree, facts, space, sizes, live, lent, stats, settings }
    }

    /// `ONLINE`, `DEGRADED`, …, `SUSPENDED`.
    #[doc(alias = "zpool_get_state_str")]
    pub fn state(&self) -> &'static str {
        pool_state::word(&self.tree, self.is_suspended())
    }

    /// The pool, if it is imported.
    pub fn imported(&self) -> Option<&Imported> {
        self.live.as_deref()
    }

    /// Whether nothing can be written any more.
    pub fn is_suspended(&self) -> bool {
        self.suspension().is_some()
    }

    /// Why nothing can be written any more, if that is so.
    fn suspension(&self) -> Option<Suspension> {
        pool_state::suspension(self.live.as_deref()?)
    }

    /// The texts of `zpool status` for status and action. OpenZFS's words blame devices for every suspension.
    pub fn advice(&self, condition: PoolStatus) -> Advice {
        let is_told = matches!(condition, PoolStatus::IoFailureWait | PoolStatus::IoFailureContinue);
        if let Some(why) = self.suspension().filter(|why| is_told && (why.is_ours || why.is_damage)) {
            let (whose, action) = match why.is_ours {
                true => (
                    "of an error of Aquifer",
                    "Export the pool with 'zpool export -f' and import it again: it is then as it was\n\
                     last on disk.  Please report the error, with what the daemon's log says of it.",
                ),
                false => (
                    "metadata is damaged",
                    "Export the pool with 'zpool export -f' and import it again: it is then as it was\n\
                     last on disk.  'zpool import -o readonly=on' imports it for reading only.",
                ),
            };
            let status = format!("The pool is suspended because {whose}; no device failed.\n{}", why.cause);
            return Advice { status: Some(status), action: Some(action.to_owned()), id: None };
        }
        let [status, action] =
            [pool_status(condition), pool_action(condition)].map(|text| text.map(str::to_owned));
        Advice { status, action, id: condition.message_id() }
    }

    /// Whether writes to a suspended pool fail instead of waiting.
    pub fn fails_on(&self) -> bool {
        matches!(self.settings.get("failmode"), Some(PropValue::Number(FAILMODE_CONTINUE)))
    }

    /// The leaf of a vdev or cache device, in a pool that is in use.
    pub fn leaf(&self, guid: u64) -> Option<Arc<Leaf>> {
        let live = self.live.as_ref()?;
        self.pool.tree().leaf(guid).cloned().or_else(|| {
            let caches = live.spa().ok()?.caches().devices();
            caches.into_iter().map(|cache| cache.leaf).find(|leaf| leaf.guid == guid)
        })
    }

    /// Whether a device in use lacks writes from a time when it was out of use.
    pub fn lacks_something(&self, guid: u64) -> bool {
        self.leaf(guid).is_some_and(|leaf| leaf.device().is_some() && !leaf.dtl.read().is_empty())
    }

    /// Whether devices lack data that the last resilver could not restore.
    pub fn is_left_incomplete(&self) -> bool {
        let spa = self.live.as_ref().and_then(|live| live.spa().ok());
        spa.is_some_and(|spa| spa.scans().is_left_incomplete())
    }

    /// The property `ashift`; 0: new vdevs suit their devices.
    pub fn ashift(&self) -> u64 {
        self.settings.get("ashift").and_then(PropValue::number).unwrap_or(0)
    }

    /// Whether a resilver is under way.
    pub fn is_resilvering(&self) -> bool {
        let spa = self.live.as_ref().and_then(|live| live.spa().ok());
        spa.is_some_and(|spa| spa.background().left(WaitActivity::Resilver).is_ok_and(|left| left.is_some()))
    }

    /// How far the initialization or trim of a leaf is; `None` for a pool that is not imported.
    pub fn sweep_progress(&self, kind: SweepKind, guid: u64) -> Option<[u64; 3]> {
        self.live.as_ref()?.spa().ok()?.free_space().progress(kind, guid)
    }

    /// Whether a scrub is under way that has repaired blocks of the device.
    pub fn is_repairing(&self, guid: u64) -> bool {
        let spa = self.live.as_ref().and_then(|live| live.spa().ok());
        spa.is_some_and(|spa| spa.scans().is_scanning())
            && self.leaf(guid).is_some_and(|leaf| leaf.scan_processed.load(Ordering::Relaxed) > 0)
    }

    /// Bytes of repairs: those since the pool was opened of blocks that should have been good, and those of the last scan.
    pub fn repairs(&self, guid: u64) -> [u64; 2] {
        self.leaf(guid).map_or([0; 2], |leaf| {
            [&leaf.self_healed, &leaf.scan_processed].map(|count| count.load(Ordering::Relaxed))
        })
    }

    /// Requests that took very long.
    pub fn slow_ios(&self, guid: u64) -> u64 {
        self.leaf(guid).map_or(0, |leaf| leaf.stats.slow.load(Ordering::Relaxed))
    }

    /// Whether reads do without a disk.
    pub fn sits_out(&self, guid: u64) -> bool {
        self.leaf(guid).is_some_and(|leaf| leaf.sits_out())
    }

    /// Direct requests whose checksums were wrong because their bytes changed meanwhile. Always 0: data from
    /// a mount is copied before the checksum is computed, direct or not.
    #[doc(alias = "vs_dio_verify_errors")]
    pub fn direct_errors(&self, _vdev: u64) -> u64 {
        0
    }

    /// Requests and bytes read, requests and bytes written, at and below a vdev since the pool was imported.
    pub fn traffic_of(&self, vdev: &VdevNode) -> [u64; 4] {
        self.sum_of(vdev, |leaf| {
            let own = [&leaf.reads.count, &leaf.reads.bytes, &leaf.writes.count, &leaf.writes.bytes];
            own.map(|n| n.load(Ordering::Relaxed))
        })
    }

    /// Trims and the bytes of them, at and below a vdev since the pool was imported.
    pub fn trims_of(&self, vdev: &VdevNode) -> [u64; 2] {
        self.sum_of(vdev, |leaf| [&leaf.trims.count, &leaf.trims.bytes].map(|n| n.load(Ordering::Relaxed)))
    }

    /// Sums of counts of the leaves at and below a vdev.
    fn sum_of<const N: usize>(&self, vdev: &VdevNode, counts: impl Fn(&Leaf) -> [u64; N]) -> [u64; N] {
        let leaves = vdev.walk().filter_map(|vdev| self.leaf(vdev.guid));
        leaves.fold([0; N], |mut sum, leaf| {
            sum.iter_mut().zip(counts(&leaf)).for_each(|(sum, n)| *sum = sum.saturating_add(n));
            sum
        })
    }

    /// Whether a leaf's device supports trim: files always, disks that report it; none that was never open.
    #[doc(alias = "vdev_has_trim")]
    pub fn can_be_trimmed(&self, vdev: &VdevNode) -> bool {
        let is_open = matches!(vdev.health.state, VdevState::Healthy | VdevState::Degraded);
        // One that was open since the import and failed then is still known to support it; one that was faulted before is not.
        let was_open = || self.traffic_of(vdev) != [0; 4];
        (is_open || was_open()) && is_trimmable(vdev)
    }

    /// A native property.
    #[doc(alias = "zpool_get_prop")]
    pub fn native(&self, prop: ZpoolProp) -> Option<Prop> {
        use ZpoolProp as P;
        let s = &self.stats;
        // Scripts wait for a plain 0.
        let number = |n: u64| Some(stat(n, nicenum(n).to_string(), n.to_string()));
        let bytes = |n: u64| Some(stat(n, nicebytes(n).to_string(), n.to_string()));
        let dash_if_0 =
            |n: u64| Some(if n == 0 { dash() } else { stat(n, nicebytes(n).to_string(), n.to_string()) });
        let hundredths = |n: u64| Some(stat(n, ratio(n, false), ratio(n, true)));
        let percent = |n: u64| Some(stat(n, format!("{n}%"), n.to_string()));
        let plain = |n: u64| Some(stat(n, n.to_string(), n.to_string()));
        match prop {
            P::Name => Some(Prop::text(self.pool.name.clone(), Source::None)),
            P::Size => bytes(s.size),
            P::Capacity => percent(s.allocated.saturating_mul(100).checked_div(s.size).unwrap_or(0)),
            P::Health => Some(Prop::text(self.state(), Source::None)),
            P::Guid => plain(self.pool.guid),
            P::Version => Some(self.version()),
            P::Dedupratio => hundredths(s.dedupratio),
            P::Free => bytes(s.size.saturating_sub(s.allocated)),
            P::Allocated => bytes(s.allocated),
            P::Readonly => Some(self.readonly()),
            P::Altroot => Some(self.altroot()),
            P::Cachefile => Some(self.cachefile()),
            P::Bootfs => Some(self.bootfs()),
            P::Expandsize => dash_if_0(self.sizes.expandable),
            P::LoadGuid => self.live.as_ref().map_or_else(|| Some(dash()), |live| plain(live.load_guid)),
            P::Freeing => number(s.freeing),
            P::Leaked => number(s.leaked),
            P::Fragmentation => s.fragmentation.map_or_else(|| Some(dash()), percent),
            P::Checkpoint => dash_if_0(s.checkpoint),
            P::Bcloneused => number(s.bcloneused),
            P::Bclonesaved => number(s.bclonesaved),
            P::Bcloneratio => hundredths(s.bcloneratio),
            P::DedupTableSize => number(s.dedup_table_size),
            P::DedupTableQuota => Some(self.quota(prop)),
            P::LastScrubbedTxg => plain(s.last_scrubbed_txg),
            P::Comment | P::Compatibility => Some(self.config_prop(prop)),
            P::Dedupcached => number(self.live.as_ref()?.spa().ok()?.sharing().dedup_cached()),
            P::Maxblocksize | P::Maxdnodesize | P::Tname => None,
            _ => Some(self.setting(prop)),
        }
    }

    /// Errors of a device since the import, or since they were cleared: reads, writes, checksums. None for a
    /// pool that is not imported.
    pub fn errors_of(&self, guid: u64) -> [u64; 3] {
        self.leaf(guid).map(|leaf| leaf.errors.counts()).unwrap_or_default()
    }

    /// Seconds since it was imported; `None` of a pool that is only looked at.
    pub fn imported_for(&self) -> Option<f64> {
        self.live.as_ref().map(|live| live.since.elapsed().as_secs_f64())
    }

    /// Whether anything went wrong on any device.
    #[doc(alias = "vdev_errors")]
    pub fn has_failing_device(&self) -> bool {
        let is_degraded = |vdev: &VdevNode| vdev.is_leaf() && vdev.health.state == VdevState::Degraded;
        self.tree.walk().any(|vdev| is_degraded(vdev) || self.errors_of(vdev.guid) != [0; 3])
    }

    /// `feature@NAME`.
    #[doc(alias = "zpool_prop_get_feature")]
    pub fn feature(&self, feature: Feature) -> Prop {
        let state = match self.pool.features.count(feature.info().guid) {
            None => "disabled",
            Some(0) => "enabled",
            Some(_) => "active",
        };
        Prop::text(state, Source::Local)
    }

    /// Guids of features that the pool has and this program does not know, with their descriptions.
    pub fn unsupported(&self) -> Vec<(String, Prop)> {
        let f = &self.pool.features;
        let unknown = |guid: &&String| Feature::from_guid(guid).is_none();
        let state = |count: u64, active: &str| {
            Prop::text(if count == 0 { "inactive" } else { active }, Source::Local)
        };
        let read = f.for_read.iter().filter(|(g, _)| unknown(g)).map(|(g, n)| (g, state(*n, "unsupported")));
        let write = f.for_write.iter().filter(|(g, _)| unknown(g)).map(|(g, n)| (g, state(*n, "readonly")));
        read.chain(write).map(|(guid, prop)| (format!("unsupported@{guid}"), prop)).collect()
    }

    /// All properties in the order of `zpool get all`: native, of users, features, unsupported features.
    #[doc(alias = "zpool_expand_proplist")]
    pub fn all(&self) -> Vec<(String, Prop)> {
        let visible = ZpoolProp::ALL.iter().copied().filter(|p| p.info().visible && *p != ZpoolProp::Name);
        let native = visible.filter_map(|p| Some((p.name().to_owned(), self.native(p)?)));
        let features = FEATURES.iter().map(|f| (format!("feature@{}", f.info().name), self.feature(*f)));
        let user = self.settings.iter().filter(|(name, _)| name.contains(':'));
        let user = user.map(|(name, value)| (name.clone(), Prop::text(text(value), Source::Local)));
        native.chain(user).chain(features).chain(self.unsupported()).collect()
    }

    /// The property of a user's word; `None`: there is no such property, or no such [feature](is_of_feature).
    pub fn named(&self, word: &str) -> Option<(String, Prop)> {
        if let Some(prop) = ZpoolProp::from_user(word) {
            return Some((prop.name().to_owned(), self.native(prop).unwrap_or_else(dash)));
        }
        if let Some(name) = word.strip_prefix("feature@") {
            let feature = Feature::from_name(name).or_else(|| Feature::from_guid(name))?;
            return Some((word.to_owned(), self.feature(feature)));
        }
        if word.starts_with("unsupported@") {
            return self.unsupported().into_iter().find(|(name, _)| name == word);
        }
        word.contains(':').then(|| {
            let set = self.settings.get(word).map(text).filter(|value| !value.is_empty());
            let value = set.map(|value| Prop::text(value, Source::Local));
            (word.to_owned(), value.unwrap_or_else(|| Prop::text("-", Source::Default)))
        })
    }

    /// A pool that is not imported is only read. The value is a state, which has no source.
    fn readonly(&self) -> Prop {
        match &self.live {
            Some(live) if !live.is_read_only() => Prop { number: Some(0), ..Prop::text("off", Source::None) },
            _ => Prop::text("on", Source::None),
        }
    }

    fn altroot(&self) -> Prop {
        let root = self.live.as_ref().and_then(|live| live.manner.read().altroot.clone());
        root.map_or_else(|| Prop::text("-", Source::Default), |root| Prop::text(root, Source::Local))
    }

    fn cachefile(&self) -> Prop {
        let manner = self.live.as_ref().map(|live| live.manner.read().clone()).unwrap_or_default();
        match (&self.live, manner.cachefile) {
            (Some(_), Some(path)) => Prop::text(path.display().to_string(), Source::Local),
            (Some(_), None) if !manner.cached => Prop::text("none", Source::Local),
            _ => Prop::text("-", Source::Default),
        }
    }

    fn bootfs(&self) -> Prop {
        match self.settings.get("bootfs") {
            Some(PropValue::Text(name)) => Prop::text(name.clone(), Source::Local),
            _ => Prop::text("-", Source::Default),
        }
    }

    /// Pools with features show no version.
    fn version(&self) -> Prop {
        match self.pool.version() {
            n if n >= FEATURES_VERSION => Prop::text("-", Source::Default),
            n => Prop { number: Some(n), ..Prop::text(n.to_string(), Source::Local) },
        }
    }

    fn quota(&self, prop: ZpoolProp) -> Prop {
        let set = self.settings.get(prop.name()).and_then(PropValue::number);
        match set {
            None | Some(u64::MAX) => Prop::text("auto", Source::Default),
            Some(0) => Prop { number: Some(0), ..Prop::text("none", Source::Local) },
            Some(n) => Prop { source: Source::Local, ..stat(n, nicebytes(n).to_string(), n.to_string()) },
        }
    }

    /// Kept in the pool's config.
    fn config_prop(&self, prop: ZpoolProp) -> Prop {
        match (self.pool.config.str(prop.name()), prop.info().default) {
            (Some(text), _) => Prop::text(text, Source::Local),
            (None, PropDefault::String(text)) => Prop::text(text, Source::Default),
            (None, _) => Prop::text("-", Source::Default),
        }
    }

    /// The setting, or the default.
    fn setting(&self, prop: ZpoolProp) -> Prop {
        let info = prop.info();
        let (value, source) = match (self.settings.get(info.name), info.default) {
            (Some(PropValue::Number(n)), PropDefault::Number(d)) if *n == d => {
                (PropValue::Number(d), Source::Default)
            }
            (Some(value), _) => (value.clone(), Source::Local),
            (None, PropDefault::Number(n)) => (PropValue::Number(n), Source::Default),
            (None, PropDefault::String(text)) => (PropValue::Text(text.to_owned()), Source::Default),
            (None, PropDefault::None) => (PropValue::Text("-".to_owned()), Source::Default),
        };
        match value {
            PropValue::Text(text) => Prop::text(text, source),
            PropValue::Number(n) => {
                let (nice, literal) = number_or_word(info, n);
                let number = (info.data_type == PropType::Number).then_some(n);
                Prop { nice, literal, number, source, received: None }
            }
        }
    }
}

/// Whether the kind of device supports trim.
pub(super) fn is_trimmable(vdev: &VdevNode) -> bool {
    let path = vdev.path.as_deref().map(|path| Path::new(OsStr::from_bytes(path)));
    path.is_some_and(|path| vdev.kind == VdevKind::File || can_discard(path))
}

/// Whether a disk reports support for discard.
fn can_discard(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let dirs = ["queue", "../queue"].map(|dir| format!("/sys/dev/block/{major}:{minor}/{dir}"));
    let text = dirs.iter().find_map(|dir| fs::read_to_string(format!("{dir}/discard_max_bytes")).ok());
    text.is_some_and(|text| text.trim().parse::<u64>().is_ok_and(|max| max > 0))
}

fn stat(n: u64, nice: String, literal: String) -> Prop {
    Prop { nice, literal, number: Some(n), source: Source::None, received: None }
}

/// Whether a word asks for a feature. The feature may be unknown: programs ask so for features of newer releases.
pub fn is_of_feature(word: &str) -> bool {
    word.starts_with("feature@") || word.starts_with("unsupported@")
}

/// The placeholder where there is no value.
pub fn dash() -> Prop {
    Prop::text("-", Source::None)
}

fn text(value: &PropValue) -> String {
    match value {
        PropValue::Text(text) => text.clone(),
        PropValue::Number(n) => nicenum(*n).to_string(),
    }
}

/// The spares that other pools use, by guid, with the names of these pools.
fn lent(spares: &[VdevNode], tree: &VdevNode, ctx: &Ctx) -> BTreeMap<u64, String> {
    let Ok(registry) = ctx.registry() else { return BTreeMap::new() };
    let elsewhere = spares.iter().filter(|spare| !holds(tree, spare.guid));
    elsewhere.filter_map(|spare| Some((spare.guid, registry.user_of(spare.guid)?.name()))).collect()
}

/// Whether a vdev of that guid is part of the tree.
fn holds(vdev: &VdevNode, guid: u64) -> bool {
    vdev.guid == guid || vdev.children.iter().any(|child| holds(child, guid))
}
