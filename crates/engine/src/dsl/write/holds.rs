//! Holds keep a snapshot from being destroyed.
//!
//! A temporary hold lasts as long as the work that needs its snapshot. One directory of the pool names them all
//! (`<snapshot in hex>-<tag>`), and the next import releases those that a crash has left there. The snapshot
//! of such work is marked to be destroyed from the start, so that it goes with its hold.
//!
//! Source: `dsl_userhold.c`, `dsl_pool_clean_tmp_userrefs`, OpenZFS 2.3.

use ondisk::ObjectType;
use ondisk::dsl::DslDataset;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::hooks::version;
use super::tasks::Tasks;
use super::{destroy, names, space};
use crate::error::{Error, Kind, Result};

fn entry(snapshot: u64, tag: &str) -> String {
    format!("{snapshot:x}-{tag}")
}

impl Tasks<'_> {
    /// Holds a snapshot by a tag.
    #[doc(alias = "dsl_dataset_user_hold")]
    pub fn hold(&self, name: &str, tag: &str) -> Result<()> {
        self.hold_as(name, tag, false)
    }

    /// Makes a snapshot that goes when `tag` is released, or when the pool is imported again.
    ///
    /// # Errors
    /// As [`Tasks::snapshot`] and [`Tasks::hold`].
    #[doc(alias = "dmu_objset_snapshot_tmp")]
    pub fn snapshot_tmp(&self, name: &str, tag: &str) -> Result<()> {
        self.check_holds(name, tag)?;
        self.snapshot(&[name], &[])?;
        self.hold_as(name, tag, true)?;
        self.destroy_snapshots(&[name], true)
    }

    fn check_holds(&self, name: &str, tag: &str) -> Result<()> {
        space::check_room(&self.at, 1, true)?;
        if !self.at.since(version::USERREFS) {
            return Err(Error::unsupported("this pool version has no holds").in_dataset(name));
        }
        if tag.is_empty() || tag.len() >= zcommon::names::MAX_NAME_LEN {
            return Err(Error::new(Kind::TooLong, "a tag has 1 to 255 bytes").in_dataset(name));
        }
        Ok(())
    }

    fn hold_as(&self, name: &str, tag: &str, temporary: bool) -> Result<()> {
        self.check_holds(name, tag)?;
        let (_, number) = names::find_snapshot(&self.at, self.pool, name)?;
        let mut zap = self.at.dataset(number)?.userrefs_obj;
        if zap != 0 && self.at.zap_word(zap, tag)?.is_some() {
            return Err(Error::new(Kind::Exists, "tag already exists on this snapshot").in_dataset(name));
        }
        if zap == 0 {
            zap = self.at.create_zap(ObjectType::USERREFS)?;
            self.at.change_dataset(number, |snap| snap.userrefs_obj = zap)?;
        }
        let now = self.at.seconds();
        self.at.zap_add(zap, tag, now)?;
        if temporary {
            self.at.zap_add(self.temporary_made()?, &entry(number, tag), now)?;
        }
        let refs = self.refs(number)?;
        self.log("hold", name, number, &format!("tag={tag} temp={} refs={refs}", u8::from(temporary)))
    }

    fn temporary(&self) -> Result<u64> {
        Ok(self.at.zap_word(MOS_DIRECTORY_OBJECT, mos::TMP_USERREFS)?.unwrap_or(0))
    }

    /// The directory of temporary holds, made when there is none.
    fn temporary_made(&self) -> Result<u64> {
        let found = self.temporary()?;
        if found != 0 {
            return Ok(found);
        }
        let made = self.at.create_zap(ObjectType::USERREFS)?;
        self.at.zap_add(MOS_DIRECTORY_OBJECT, mos::TMP_USERREFS, made)?;
        Ok(made)
    }

    fn refs(&self, snapshot: u64) -> Result<u64> {
        destroy::holds(&self.at, &self.at.dataset(snapshot)?)
    }

    /// Releases a hold; a snapshot that waited for it is destroyed.
    #[doc(alias = "dsl_dataset_user_release")]
    pub fn release(&self, name: &str, tag: &str) -> Result<()> {
        let (_, number) = names::find_snapshot(&self.at, self.pool, name)?;
        self.release_of(number, name, tag)
    }

    fn release_of(&self, number: u64, name: &str, tag: &str) -> Result<()> {
        let snap = self.at.dataset(number)?;
        let missing = || Error::not_found("no such tag on this snapshot").in_dataset(name);
        if snap.userrefs_obj == 0 || self.at.zap_word(snap.userrefs_obj, tag)?.is_none() {
            return Err(missing());
        }
        let waits = snap.num_children == 1 && snap.flags & DslDataset::FLAG_DEFER_DESTROY != 0;
        if waits && self.refs(number)? == 1 {
            destroy::check_unheld(&self.at, number).map_err(|e| e.in_dataset(name))?;
        }
        self.at.zap_remove(snap.userrefs_obj, tag)?;
        let (temporary, entry) = (self.temporary()?, entry(number, tag));
        if temporary != 0 && self.at.zap_word(temporary, entry.as_str())?.is_some() {
            self.at.zap_remove(temporary, &entry)?;
        }
        let left = self.refs(number)?;
        self.log("release", name, number, &format!("tag={tag} refs={left}"))?;
        if left == 0 && waits {
            self.log("destroy", name, number, " ")?;
            return destroy::snapshot(&self.at, number, None, false);
        }
        Ok(())
    }

    /// Releases all temporary holds: their owners are gone. An entry that fits nothing is left alone.
    #[doc(alias = "dsl_pool_clean_tmp_userrefs")]
    pub(crate) fn release_temporary(&self) -> Result<()> {
        for held in self.at.zap_entries(self.temporary()?)? {
            let entry = String::from_utf8_lossy(held.name()).into_owned();
            let Some((number, tag)) = entry.split_once('-') else { continue };
            let Ok(number) = u64::from_str_radix(number, 16) else { continue };
            if let Ok(name) = names::of_snapshot(&self.at, self.pool, number) {
                self.release_of(number, &name, tag)?;
            }
        }
        Ok(())
    }
}
