//! Spares and cache devices leave at once: nothing of the pool's data is on them.

use nvpair::NvList;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};

use super::start::BUSY;
use crate::dsl::write::Hooks as _;
use crate::error::{Error, Kind, Result};
use crate::spa::Spa;
use crate::spa::load::packed_nvlist;
use crate::spa::subjects::Removal;
use crate::zap::Zap;

/// The lists, and the vdev type that the history names.
const LISTS: [(&str, &str); 2] = [(mos::SPARES, "spare"), (mos::L2CACHE, "l2cache")];

impl Removal<'_> {
    /// Whether a spare or cache device has this guid.
    pub(super) fn is_aux(self, guid: u64) -> Result<bool> {
        for (list, _) in LISTS {
            if aux(self.spa, list)?
                .is_some_and(|(_, all)| all.iter().any(|entry| entry.u64("guid") == Some(guid)))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the spare or cache device of this guid; false when there is none.
    #[doc(alias = "spa_vdev_remove_aux")]
    pub(super) fn remove_aux(self, guid: u64) -> Result<bool> {
        if !self.is_aux(guid)? {
            return Ok(false);
        }
        let done = self.spa.sync_task(move |spa, tx| {
            for (name, kind) in LISTS {
                let Some((number, mut all)) = aux(spa, name)? else { continue };
                let Some(at) = all.iter().position(|entry| entry.u64("guid") == Some(guid)) else { continue };
                if kind == "spare" && spa.pool.tree().leaf(guid).is_some() {
                    return Err(Error::new(Kind::Busy, BUSY));
                }
                let entry = all.remove(at);
                if entry.str("type") == Some("dspare") {
                    return Err(Error::unsupported("dRAID spares cannot be removed"));
                }
                let mut list = NvList::new();
                list.add(name, all);
                let packed = list.encode_xdr().map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
                spa.write_packed(number, &packed, tx)?;
                let path = entry.str("path").unwrap_or("-");
                spa.log("vdev remove", "", 0, &format!("{} vdev ({kind}) {path}", spa.pool.name), tx)?;
                spa.reports().notify("vdev_remove_aux");
            }
            Ok(true)
        });
        if done.is_ok() {
            self.spa.caches().drop_device(guid);
        }
        done
    }
}

/// The object of a list of spares or cache devices, and its entries.
fn aux(spa: &Spa, list: &str) -> Result<Option<(u64, Vec<NvList>)>> {
    let view = spa.mos.view();
    let number = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(list)?.filter(|number| *number != 0);
    let Some(number) = number else { return Ok(None) };
    let listed = packed_nvlist(&view.object(number)?)?;
    Ok(Some((number, listed.nvlist_array(list).unwrap_or_default().to_vec())))
}
