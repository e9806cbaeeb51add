//! The features of a pool that is being written: enabling them and counting their use.
//!
//! Changes are made in syncing context and reach the disk in that txg, together with the change that made
//! them necessary. Source: zfeature.c, OpenZFS 2.3 (`feature_sync`, `feature_enable_sync`).

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Byteswap, ObjectType, names};
use parking_lot::Mutex;
use zcommon::features::{Feature, FeatureFlags};

use super::features::PoolFeatures;
use crate::dmu::edit::Objects;
use crate::dmu::{LiveObjset, NewObject, Tx};
use crate::error::{Error, Kind, Result};
use crate::metaslab::SpaceMapFeatures;
use crate::zap::{NewZap, Zap, ZapEdit};

/// Type of ZAPs of the MOS that have no type of their own.
#[doc(alias = "DMU_OTN_ZAP_METADATA")]
pub(super) const ZAP_METADATA: ObjectType = ObjectType::newtype(Byteswap::Zap, true, false);

/// Features that space maps may use.
pub(super) fn space_map_features(features: &[Feature]) -> SpaceMapFeatures {
    let has = |feature| features.contains(&feature);
    SpaceMapFeatures {
        log: has(Feature::LogSpacemap),
        two_words: has(Feature::SpacemapV2),
        histogram: has(Feature::SpacemapHistogram),
        obsolete_counts: has(Feature::ObsoleteCounts),
    }
}

/// The ZAPs of enabled features.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    for_read: u64,
    for_write: u64,
    descriptions: u64,
    enabled_txg: u64,
}

#[derive(Debug, Default)]
struct State {
    numbers: Numbers,
    /// How often each enabled feature is in use.
    counts: BTreeMap<Feature, u64>,
}

/// Features of a pool that is being written.
#[derive(Debug)]
pub struct FeatureSet {
    mos: Arc<LiveObjset>,
    state: Mutex<State>,
}

impl FeatureSet {
    /// The features of an existing pool; none in pools before version 5000.
    pub fn load(mos: &Arc<LiveObjset>) -> Result<Self> {
        let view = mos.view();
        let directory = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?;
        let number = |name: &str| Ok::<u64, Error>(directory.u64(name)?.unwrap_or(0));
        let numbers = Numbers {
            for_read: number(mos::FEATURES_FOR_READ)?,
            for_write: number(mos::FEATURES_FOR_WRITE)?,
            descriptions: number(mos::FEATURE_DESCRIPTIONS)?,
            enabled_txg: number(mos::FEATURE_ENABLED_TXG)?,
        };
        let stored = PoolFeatures::load(&view, &directory)?;
        let known = |guid: &str| Feature::from_guid(guid);
        let all = stored.for_read.iter().chain(&stored.for_write);
        let counts = all.filter_map(|(guid, &n)| Some((known(guid)?, n))).collect();
        Ok(Self { mos: Arc::clone(mos), state: Mutex::new(State { numbers, counts }) })
    }

    /// No features yet.
    pub fn none(mos: &Arc<LiveObjset>) -> Self {
        Self { mos: Arc::clone(mos), state: Mutex::default() }
    }

    /// In a new pool of version 5000: creates the ZAPs and enables `wanted` with their dependencies.
    #[doc(alias = "spa_feature_create_zap_objects")]
    pub fn create(&self, wanted: &[Feature], salt: u64, tx: &Tx) -> Result<()> {
        let mos = &self.mos;
        let make = |name: &str| -> Result<u64> {
            let objects = mos.within(tx);
            let number = objects.create(&NewObject::plain(ZAP_METADATA, 512))?;
            ZapEdit::create(&mut *objects.edit(number)?, &NewZap { salt, ..NewZap::default() })?;
            ZapEdit::open(&mut *objects.edit(MOS_DIRECTORY_OBJECT)?)?.insert(name, number)?;
            Ok(number)
        };
        let numbers = Numbers {
            for_read: make(names::mos::FEATURES_FOR_READ)?,
            for_write: make(names::mos::FEATURES_FOR_WRITE)?,
            descriptions: make(names::mos::FEATURE_DESCRIPTIONS)?,
            enabled_txg: 0,
        };
        self.state.lock().numbers = numbers;
        wanted.iter().try_for_each(|&feature| self.enable(feature, salt, tx))
    }

    /// Whether the feature may be used.
    pub fn is_enabled(&self, feature: Feature) -> bool {
        self.state.lock().counts.contains_key(&feature)
    }

    /// Whether the feature is in use.
    pub fn is_active(&self, feature: Feature) -> bool {
        self.count(feature) > 0
    }

    /// How often it is in use.
    pub fn count(&self, feature: Feature) -> u64 {
        self.state.lock().counts.get(&feature).copied().unwrap_or(0)
    }

    /// Guids of features in use that a reader must know to find the MOS; labels list them.
    pub fn in_labels(&self) -> Vec<&'static str> {
        let state = self.state.lock();
        let of_mos = |f: &Feature| f.info().flags.contains(FeatureFlags::MOS);
        let in_use = state.counts.iter().filter(|&(f, &n)| n > 0 && of_mos(f));
        in_use.map(|(f, _)| f.info().guid).collect()
    }

    /// Enables a feature and those it depends on.
    #[doc(alias = "spa_feature_enable")]
    pub fn enable(&self, feature: Feature, salt: u64, tx: &Tx) -> Result<()> {
        if self.is_enabled(feature) {
            return Ok(());
        }
        let info = feature.info();
        for &needed in info.depends {
            self.enable(needed, salt, tx)?;
        }
        let first = u64::from(info.flags.contains(FeatureFlags::ACTIVATE_ON_ENABLE));
        let objects = self.mos.within(tx);
        let numbers = self.state.lock().numbers;
        let mut text = info.description.as_bytes().to_vec();
        text.push(0);
        let text = crate::zap::Value { width: 1, ints: text.into_iter().map(u64::from).collect() };
        ZapEdit::open(&mut *objects.edit(numbers.descriptions)?)?.update(info.guid, text)?;
        self.store(feature, first, tx)?;
        if feature == Feature::EnabledTxg {
            let number = objects.create(&NewObject::plain(ZAP_METADATA, 512))?;
            ZapEdit::create(&mut *objects.edit(number)?, &NewZap { salt, ..NewZap::default() })?;
            ZapEdit::open(&mut *objects.edit(MOS_DIRECTORY_OBJECT)?)?
                .insert(mos::FEATURE_ENABLED_TXG, number)?;
            self.state.lock().numbers.enabled_txg = number;
        }
        if self.is_enabled(Feature::EnabledTxg) {
            self.increment(Feature::EnabledTxg, tx)?;
            let number = self.state.lock().numbers.enabled_txg;
            ZapEdit::open(&mut *objects.edit(number)?)?.insert(info.guid, tx.txg())?;
        }
        Ok(())
    }

    /// Changes how often a feature is in use.
    pub(crate) fn count_by(&self, feature: Feature, delta: i64, tx: &Tx) -> Result<()> {
        let count = self.enabled_count(feature)?.checked_add_signed(delta);
        match count {
            Some(count) => self.store(feature, count, tx),
            None => Err(Error::corrupt(format!("{} is used less than never", feature.info().name))),
        }
    }

    /// Counts one use more.
    #[doc(alias = "spa_feature_incr")]
    pub fn increment(&self, feature: Feature, tx: &Tx) -> Result<()> {
        self.count_by(feature, 1, tx)
    }

    /// Counts one use less.
    #[doc(alias = "spa_feature_decr")]
    pub(crate) fn decrement(&self, feature: Feature, tx: &Tx) -> Result<()> {
        self.count_by(feature, -1, tx)
    }

    fn enabled_count(&self, feature: Feature) -> Result<u64> {
        let count = self.state.lock().counts.get(&feature).copied();
        count.ok_or_else(|| {
            let what = format!("the feature {} is not enabled in this pool", feature.info().name);
            Error::new(Kind::Unsupported, what)
        })
    }

    fn store(&self, feature: Feature, count: u64, tx: &Tx) -> Result<()> {
        let info = feature.info();
        let number = {
            let mut state = self.state.lock();
            state.counts.insert(feature, count);
            if info.read_only_compatible() { state.numbers.for_write } else { state.numbers.for_read }
        };
        ZapEdit::open(&mut *self.mos.within(tx).edit(number)?)?.update(info.guid, count)
    }
}
