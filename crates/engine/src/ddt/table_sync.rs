//! Storing the entries of a table: classes, statistics, the end of a table.

use ondisk::ddt::{
    DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_VERSION_FDT, DdtHistogram, DdtKey, DdtPhys, compress_value, encode_value,
};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT, ddt_dir, mos};
use ondisk::{Blkptr, Byteswap, ObjectType};
use zcommon::features::Feature;

use super::fingerprints::Fingerprints;
use super::host::DdtHost;
use super::live::{Live, is_damage};
use super::stored::{ChangedEntry, PendingEntry, Stored, class_of, no_copies, references};
use super::{DdtClass, stats};
use crate::dmu::NewObject;
use crate::error::{Kind, Result};
use crate::zap::{NewZap, Value, ZapEdit};

/// Block of a table's ZAP.
#[doc(alias = "ddt_zap_default_bs")]
const ZAP_BLOCK: u64 = 1 << 15;
/// Type of a table's directory.
#[doc(alias = "DMU_OTN_ZAP_METADATA")]
const DIRECTORY: ObjectType = ObjectType::newtype(Byteswap::Zap, true, false);

impl Live {
    /// Stores the changes since the last pass. Blocks without references go to `freed`.
    #[doc(alias = "ddt_sync_table")]
    pub(super) fn store_pending(&mut self, host: &dyn DdtHost, freed: &mut Vec<Blkptr>) -> Result<()> {
        self.close();
        let pending = std::mem::take(&mut self.pending);
        let is_changed = |p: &PendingEntry| match &p.stored {
            Some(stored) => stored.phys != p.phys,
            None => !p.phys.is_empty(),
        };
        let mut changed = Vec::new();
        for (key, mut entry) in pending.into_iter().filter(|(_, p)| is_changed(p)) {
            if let Some(Stored { class: Some(class), phys, logged: false }) = &entry.stored {
                self.count(host, *class, (&key, phys), true);
            }
            for start in entry.phys.iter_mut().filter_map(|p| p.class_start.as_mut()) {
                *start = host.now();
            }
            changed.push((key, entry.stored, entry.phys));
        }
        if self.has_log {
            let changed = self.end_unused(host, changed, freed)?;
            return if changed.is_empty() { Ok(()) } else { self.append(host, changed) };
        }
        for (key, stored, phys) in changed {
            self.put(host, &key, stored.and_then(|stored| stored.class), phys, freed)?;
        }
        Ok(())
    }

    /// Removes entries without references from their ZAPs; returns the records for the log: one without
    /// copies for each removed key that the log has, and the other entries.
    fn end_unused(
        &mut self,
        host: &dyn DdtHost,
        changed: Vec<ChangedEntry>,
        freed: &mut Vec<Blkptr>,
    ) -> Result<Vec<ChangedEntry>> {
        let is_unused = |(_, _, phys): &ChangedEntry| phys.iter().all(|p| p.refcnt == 0);
        let (unused, mut rest): (Vec<_>, Vec<_>) = changed.into_iter().partition(is_unused);
        for (key, stored, phys) in unused {
            self.put(host, &key, stored.as_ref().and_then(|stored| stored.class), phys, freed)?;
            if let Some(stored) = stored.filter(|stored| stored.logged) {
                rest.push((key, Some(Stored { class: None, ..stored }), vec![no_copies()]));
            }
        }
        Ok(rest)
    }

    pub(super) fn count(
        &mut self,
        host: &dyn DdtHost,
        class: DdtClass,
        entry: (&DdtKey, &[DdtPhys]),
        out: bool,
    ) {
        let histogram = self.histograms.entry(class).or_default();
        stats::tally(histogram, entry, self.checksum, &|bp| host.dsize(bp), out);
    }

    /// Stores an entry in the ZAP for its number of references, and removes it from its old one. Blocks
    /// without references go to `freed`. An entry whose place is damaged is lost, and its blocks leak.
    #[doc(alias = "ddt_sync_flush_entry")]
    pub(super) fn put(
        &mut self,
        host: &dyn DdtHost,
        key: &DdtKey,
        from: Option<DdtClass>,
        phys: Vec<DdtPhys>,
        freed: &mut Vec<Blkptr>,
    ) -> Result<()> {
        self.dirty = true;
        // Ditto copies, which old versions made, are not kept up.
        let (stay, gone): (Vec<_>, Vec<_>) = phys.into_iter().partition(|p| p.variant != 0 && p.refcnt > 0);
        let checksum = self.checksum;
        let gone = gone.iter().filter(|p| p.phys_birth != 0).map(|p| {
            let mut bp = p.blkptr(key, checksum);
            bp.set_dedup(false);
            bp
        });
        let references = references(&stay);
        let class = class_of(&stay);
        let words = key.to_words();
        if let Some(from) = from.filter(|from| references == 0 || *from != class) {
            let object = self.objects.get(&from).copied().unwrap_or(0);
            let removed = ZapEdit::open(&mut *host.objects().edit(object)?)?.remove(words.as_slice());
            match removed {
                // The entry stays, and no look-up gets past it: the block leaks.
                Err(e) if e.kind() != Kind::NotFound && is_damage(&e) => return Ok(()),
                Ok(()) => self.known.remove(from, key),
                absent => may_be_absent(absent)?,
            }
        }
        freed.extend(gone);
        if references == 0 {
            return Ok(());
        }
        let object = self.object(host, class)?;
        // Known first: a place that takes no entry must be looked up in vain.
        self.known.put(class, key, from == Some(class));
        let value = compress_value(&encode_value(self.flat, &stay));
        let mut edit = host.objects().edit(object)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        match zap.update(words.as_slice(), value.as_slice()) {
            // A place that takes no entry must not look as if there were none: then blocks with owners would be freed.
            Err(e) if is_damage(&e) && zap.lookup(words.as_slice()).is_err_and(|e| is_damage(&e)) => Ok(()),
            stored => {
                stored?;
                drop(edit);
                self.count(host, class, (key, &stay), false);
                Ok(())
            }
        }
    }

    /// The ZAP of a class; made when it is not there.
    #[doc(alias = "ddt_object_create")]
    fn object(&mut self, host: &dyn DdtHost, class: DdtClass) -> Result<u64> {
        if let Some(object) = self.objects.get(&class) {
            return Ok(*object);
        }
        let root = self.directory(host)?;
        // As the ZAP has it.
        let salt = host.salt() | 1;
        let hashing = Fingerprints::hashing(self.checksum, salt);
        let new = NewZap { flags: hashing.flags(), salt, ..NewZap::default() };
        let object = create_zap(host, (ObjectType::DDT_ZAP, ZAP_BLOCK), new, (root, &self.name(class)))?;
        self.known.add(class, hashing);
        self.objects.insert(class, object);
        Ok(object)
    }

    /// The directory that names the table's objects; made when it is not there.
    #[doc(alias = "ddt_create_dir")]
    pub(super) fn directory(&mut self, host: &dyn DdtHost) -> Result<u64> {
        if self.root != 0 {
            return Ok(self.root);
        }
        let name = names::ddt_directory(self.checksum.name());
        let within = (MOS_DIRECTORY_OBJECT, name.as_str());
        let root = create_zap(host, (DIRECTORY, 512), plain(host), within)?;
        let mut edit = host.objects().edit(root)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        zap.insert(ddt_dir::VERSION, DDT_VERSION_FDT)?;
        zap.insert(ddt_dir::FLAGS, DDT_FLAG_FLAT | DDT_FLAG_LOG)?;
        host.count_feature(Feature::FastDedup, 1)?;
        self.root = root;
        Ok(root)
    }

    /// Writes the statistics; true when there are no entries any more: then the table is gone.
    #[doc(alias = "ddt_sync_update_stats")]
    pub(super) fn sync(&mut self, host: &dyn DdtHost) -> Result<bool> {
        let objects = host.objects();
        let mut entries = 0;
        for object in self.objects.values() {
            entries += ZapEdit::open(&mut *objects.edit(*object)?)?.count()?;
        }
        entries += self.sides.as_ref().map_or(0, |sides| u64::try_from(sides.len()).unwrap_or(u64::MAX));
        let mut edit = objects.edit(MOS_DIRECTORY_OBJECT)?;
        let statistics = ZapEdit::open(&mut *edit)?.lookup(mos::DDT_STATS)?.and_then(|v| v.first());
        drop(edit);
        let statistics = match statistics {
            None if entries > 0 => {
                let within = (MOS_DIRECTORY_OBJECT, mos::DDT_STATS);
                Some(create_zap(host, (ObjectType::DDT_STATS, 512), plain(host), within)?)
            }
            known => known,
        };
        for (class, object) in &self.objects {
            let name = self.name(*class);
            let mut edit = statistics.map(|number| objects.edit(number)).transpose()?;
            let mut statistics = edit.as_mut().map(|edit| ZapEdit::open(&mut **edit)).transpose()?;
            if entries > 0 {
                let words = words(self.histograms.get(class).copied().unwrap_or_default());
                statistics.as_mut().map_or(Ok(()), |s| s.update(&name, words))?;
                continue;
            }
            statistics.as_mut().map_or(Ok(()), |s| may_be_absent(s.remove(&name)))?;
            ZapEdit::open(&mut *objects.edit(self.root)?)?.remove(&name)?;
            objects.free(*object)?;
        }
        if entries == 0 && self.root != MOS_DIRECTORY_OBJECT && self.root != 0 {
            if let Some(sides) = &self.sides {
                sides.objects().into_iter().try_for_each(|log| objects.free(log.object))?;
            }
            let mut edit = objects.edit(MOS_DIRECTORY_OBJECT)?;
            ZapEdit::open(&mut *edit)?.remove(&names::ddt_directory(self.checksum.name()))?;
            objects.free(self.root)?;
            host.count_feature(Feature::FastDedup, -1)?;
        }
        Ok(entries == 0)
    }
}

fn plain(host: &dyn DdtHost) -> NewZap {
    NewZap { salt: host.salt(), ..NewZap::default() }
}

/// A new ZAP, named in another one.
fn create_zap(
    host: &dyn DdtHost,
    (kind, block): (ObjectType, u64),
    new: NewZap,
    (within, name): (u64, &str),
) -> Result<u64> {
    let objects = host.objects();
    let object = objects.create(&NewObject::plain(kind, block))?;
    ZapEdit::create(&mut *objects.edit(object)?, &new)?;
    ZapEdit::open(&mut *objects.edit(within)?)?.insert(name, object)?;
    Ok(object)
}

fn words(histogram: DdtHistogram) -> Value {
    let bytes = histogram.to_bytes();
    Value::from(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect::<Vec<_>>())
}

fn may_be_absent(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}
