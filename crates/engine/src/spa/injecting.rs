//! Injected faults of an imported pool (`zinject`): where handlers are added, listed and removed.

use std::sync::Arc;

use super::subjects::Injections;
use crate::error::{Error, Kind, Result};
use crate::inject::{Action, Handler};

impl Injections<'_> {
    /// Adds a handler; `guid`: of a leaf, unless the action is of blocks. `frequency`: of 1,000,000 requests, 0 is all.
    ///
    /// # Errors
    /// `NotFound` if the pool has no such leaf.
    #[doc(alias = "zio_inject_fault")]
    pub fn inject(self, guid: u64, action: Action, frequency: u64) -> Result<Arc<Handler>> {
        let seed = self.spa.pool.env.guid();
        if matches!(action, Action::Block(_)) {
            let handler = Handler::new(0, action, frequency, seed);
            self.spa.pool.zio.inject.add(Arc::clone(&handler));
            return Ok(handler);
        }
        let tree = self.spa.pool.zio.tree();
        let none = || Error::new(Kind::NotFound, format!("the pool has no device with the guid {guid}"));
        let leaf = tree.leaf(guid).ok_or_else(none)?;
        let handler = Handler::new(guid, action, frequency, seed);
        leaf.inject.add(Arc::clone(&handler));
        Ok(handler)
    }

    /// All handlers by their numbers.
    #[doc(alias = "zio_inject_list_next")]
    pub fn list(self) -> Vec<Arc<Handler>> {
        let tree = self.spa.pool.zio.tree();
        let mut all: Vec<_> = tree.leaves().flat_map(|leaf| leaf.inject.list()).collect();
        all.extend(self.spa.pool.zio.inject.list());
        all.sort_unstable_by_key(|handler| handler.id);
        all.dedup_by_key(|handler| handler.id);
        all
    }

    /// Removes a handler; whether the pool had it.
    #[doc(alias = "zio_clear_fault")]
    pub fn cancel(self, id: u64) -> bool {
        let tree = self.spa.pool.zio.tree();
        let removed = tree.leaves().filter(|leaf| leaf.inject.remove(id)).count();
        self.spa.pool.zio.inject.remove(id) || removed > 0
    }
}
