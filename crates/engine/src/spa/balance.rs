//! Which vdevs give blocks to others, so that all of a class are equally full.

use std::collections::BTreeMap;

use ondisk::Blkptr;

use super::subjects::SpaceFacts;

impl SpaceFacts<'_> {
    /// Bytes that each top-level vdev has more than its share of its class, without those that are about to leave it.
    pub fn surplus(self) -> BTreeMap<u64, u64> {
        let synced = self.spa.txgs.synced();
        let leaving = self.spa.leaving.lock();
        let of = |vdev: &u64| leaving.get(vdev).map_or(0, |changed| changed.after(synced));
        let surplus = self.spa.space.surplus().into_iter();
        let left = surplus.map(|(vdev, bytes)| (vdev, bytes.saturating_sub(of(&vdev))));
        left.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// A block is written again in txg `txg`: its copies leave their vdevs.
    pub fn note_leaving(self, bp: &Blkptr, txg: u64) {
        let mut leaving = self.spa.leaving.lock();
        for dva in bp.dvas() {
            leaving.entry(u64::from(dva.vdev)).or_default().add(txg, dva.asize);
        }
    }
}
