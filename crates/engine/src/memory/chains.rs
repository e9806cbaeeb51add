//! Items in a few lists, each in the order of use: insertion, removal and moves take constant time and no allocation once
//! the slots exist.

/// No slot.
const NONE: u32 = u32::MAX;

/// The number of an item's slot, until the item is removed.
pub(super) type Slot = u32;

#[derive(Debug)]
struct Node<T> {
    /// `None`: the slot is free, and `newer` is the next free one.
    item: Option<T>,
    list: usize,
    older: Slot,
    newer: Slot,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    oldest: Slot,
    newest: Slot,
}

const EMPTY: Ends = Ends { oldest: NONE, newest: NONE };

/// `LISTS` lists of items. A list number beyond them has no items.
#[derive(Debug)]
pub(super) struct Chains<T, const LISTS: usize> {
    nodes: Vec<Node<T>>,
    free: Slot,
    ends: [Ends; LISTS],
}

impl<T, const LISTS: usize> Default for Chains<T, LISTS> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NONE, ends: [EMPTY; LISTS] }
    }
}

impl<T, const LISTS: usize> Chains<T, LISTS> {
    fn node(&mut self, slot: Slot) -> Option<&mut Node<T>> {
        self.nodes.get_mut(usize::try_from(slot).unwrap_or(usize::MAX))
    }

    /// An item.
    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.nodes.get(usize::try_from(slot).unwrap_or(usize::MAX))?.item.as_ref()
    }

    /// An item, to be changed.
    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.node(slot)?.item.as_mut()
    }

    /// The item of a list that was not used for the longest time.
    pub(super) fn oldest(&self, list: usize) -> Option<Slot> {
        self.ends.get(list).map(|ends| ends.oldest).filter(|slot| *slot != NONE)
    }

    /// Adds an item as the newest one of a list. Returns its slot; `None` if there are 2^32 - 1 items already.
    pub(super) fn insert(&mut self, list: usize, item: T) -> Option<Slot> {
        let node = Node { item: Some(item), list, older: NONE, newer: NONE };
        let slot = if self.free == NONE {
            let slot = Slot::try_from(self.nodes.len()).ok().filter(|slot| *slot != NONE)?;
            self.nodes.push(node);
            slot
        } else {
            let slot = self.free;
            self.free = std::mem::replace(self.node(slot)?, node).newer;
            slot
        };
        self.link(slot, list);
        Some(slot)
    }

    /// Removes an item.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        self.get(slot)?;
        self.unlink(slot);
        let free = self.free;
        let node = self.node(slot)?;
        node.newer = free;
        let item = node.item.take();
        self.free = slot;
        if self.ends.iter().all(|ends| ends.oldest == NONE) {
            // Returns the memory of a cache that was emptied.
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
        item
    }

    /// Makes an item the newest one of a list.
    pub(super) fn use_again(&mut self, slot: Slot, list: usize) {
        let newest = self.ends.get(list).is_some_and(|ends| ends.newest == slot);
        if !newest && self.get(slot).is_some() {
            self.unlink(slot);
            self.link(slot, list);
        }
    }

    fn link(&mut self, slot: Slot, list: usize) {
        let Some(ends) = self.ends.get_mut(list) else { return };
        let before = std::mem::replace(&mut ends.newest, slot);
        if ends.oldest == NONE {
            ends.oldest = slot;
        }
        if let Some(node) = self.node(before) {
            node.newer = slot;
        }
        if let Some(node) = self.node(slot) {
            (node.list, node.older, node.newer) = (list, before, NONE);
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let Some((list, older, newer)) = self.node(slot).map(|node| (node.list, node.older, node.newer))
        else {
            return;
        };
        if let Some(node) = self.node(older) {
            node.newer = newer;
        }
        if let Some(node) = self.node(newer) {
            node.older = older;
        }
        if let Some(ends) = self.ends.get_mut(list) {
            if ends.oldest == slot {
                ends.oldest = newer;
            }
            if ends.newest == slot {
                ends.newest = older;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use stdx::rng::Rng;

    use super::*;

    fn all(chains: &Chains<u64, 2>, list: usize) -> Vec<u64> {
        let mut slot = chains.ends[list].oldest;
        let mut items = Vec::new();
        while slot != NONE {
            items.push(*chains.get(slot).unwrap());
            slot = chains.nodes[slot as usize].newer;
        }
        items
    }

    #[test]
    fn chains_agree_with_queues() {
        let (mut chains, mut rng) = (Chains::<u64, 2>::default(), Rng::new(7));
        let (mut model, mut slots) = ([VecDeque::new(), VecDeque::new()], Vec::new());
        for step in 0..20_000_u64 {
            let list = rng.below(2) as usize;
            match rng.below(3) {
                0 => {
                    slots.push((step, chains.insert(list, step).unwrap()));
                    model[list].push_back(step);
                }
                turn if !slots.is_empty() => {
                    let at = rng.below(slots.len() as u64) as usize;
                    let (item, slot) = slots[at];
                    model.iter_mut().for_each(|queue| queue.retain(|other| *other != item));
                    if turn == 1 {
                        chains.use_again(slot, list);
                        model[list].push_back(item);
                    } else {
                        assert_eq!(chains.remove(slot), Some(item));
                        assert_eq!((chains.remove(slot), chains.get(slot)), (None, None));
                        slots.swap_remove(at);
                    }
                }
                _ => {}
            }
            for (list, queue) in model.iter().enumerate() {
                let oldest = chains.oldest(list).and_then(|slot| chains.get(slot).copied());
                assert_eq!(oldest, queue.front().copied());
                if step % 100 == 0 {
                    assert_eq!(all(&chains, list), Vec::from(queue.clone()));
                }
            }
        }
        slots.iter().for_each(|(_, slot)| assert!(chains.remove(*slot).is_some()));
        assert!(chains.nodes.is_empty() && chains.oldest(0).is_none() && chains.oldest(1).is_none());
    }
}
