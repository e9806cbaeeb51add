//! Which snapshot a corrective receive repairs, and its entry in the history.
//!
//! Source: `recv_begin_check_existing_impl`, `dmu_recv_end_sync`, dmu_recv.c, OpenZFS 2.4.

use ondisk::drr::{begin_flag, stream_feature};

use super::super::tasks::Tasks;
use super::super::{crypto, names};
use super::resume::has_resume_state;
use super::{Wish, embedded, partial, refuse};
use crate::dsl::RECEIVE_CHILD;
use crate::error::{Kind, Result};

impl Tasks<'_> {
    /// Returns the object number of the snapshot that the stream of `wish` repairs: `target@snapshot`, the same snapshot
    /// as the sender's.
    ///
    /// # Errors
    /// As OpenZFS; `Unsupported` if it is another snapshot, `KeyMissing` if the stream is not raw and the key not loaded.
    pub(crate) fn begin_heal(&self, wish: &Wish) -> Result<u64> {
        let name = format!("{}@{}", wish.target, wish.snapshot);
        let (found, number) = names::find_snapshot(&self.at, self.pool, &name)?;
        self.check_features(wish)?;
        let dir = self.at.dir(found.dir)?;
        if self.at.zap_word(dir.child_dir_zapobj, RECEIVE_CHILD)?.is_some()
            || has_resume_state(&self.at, found.head)?
        {
            return Err(partial(&wish.target));
        }
        // As OpenZFS: a clone is not received into an existing dataset.
        if wish.force || wish.flags & begin_flag::CLONE != 0 || wish.origin.is_some() {
            return Err(refuse(Kind::Invalid, "invalid backup stream"));
        }
        let encrypted = crypto::key_object(&self.at, found.dir)?.is_some();
        if encrypted && !wish.is_raw() {
            if wish.has(stream_feature::EMBED_DATA) {
                return Err(embedded());
            }
            self.datasets.keys.open_for_writing(found.head).map_err(|_| {
                let what = "key must be loaded to do a non-raw corrective recv on an encrypted dataset.";
                refuse(Kind::Denied, what)
            })?;
        }
        if self.at.dataset(number)?.guid != wish.to_guid || (wish.is_raw() && !encrypted) {
            return Err(refuse(Kind::Unsupported, "stream is not compatible with the data in the pool."));
        }
        self.log("receive", &wish.target, found.head, " ")?;
        Ok(number)
    }

    /// Notes the end of a corrective receive of snapshot `number` in the pool's history.
    pub(crate) fn end_heal(&self, wish: &Wish, number: u64) -> Result<()> {
        self.log("finish receiving", &wish.target, number, &format!("snap={}", wish.snapshot))
    }
}
