//! Operations of several steps: all of them happen, or none.
//!
//! An operation changes entries, attributes and objects one after the other, and each of these steps may fail: a ZAP
//! has no space for a name, a block cannot be read. The transaction cannot be abandoned, because its txg holds the
//! changes of others. So each step leaves its inverse, and a failure applies the inverses, the newest first. What has
//! no inverse (freeing objects, telling the intent log) waits until every other step has succeeded.
//!
//! ```text
//!  attempt ─▶ steps, each leaves its inverse ─┬─ all succeed ─▶ frees ─▶ log and memory ─▶ Ok
//!                                            └─ one fails ───▶ inverses ────────────────▶ Err
//! ```
//!
//! The caller holds the locks of the operation during all of this. An inverse reads only blocks that its step has
//! changed; these stay in memory until the txg is on disk. Counters (links, entries) get the difference back and other
//! attributes their former value unless they have changed since, because other operations may change the same file.
//! If an inverse fails nevertheless, or a second free after a first one, half a change would be left: the operation
//! panics within its transaction, and the txg is never written ([`engine::txg`]).
//!
//! Differs from OpenZFS, which undoes some of these steps only: a failed `zfs_link_destroy` in `zfs_rename` gives the
//! old name back, and the file that the target named is gone.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use engine::dmu::Tx;
use engine::{Error, Result};
use ondisk::sa::SaAttr;

use super::fs::FsWriter;
use super::node::{Node, NodeState, StoredWhen};

type Inverse = Box<dyn FnOnce(&FsWriter, &Tx) -> Result<()>>;
type Last = Box<dyn FnOnce(&FsWriter, &Tx)>;

/// The steps of one operation so far. It is used as the transaction that it belongs to.
pub(super) struct Steps<'a> {
    tx: &'a Tx,
    inverses: RefCell<Vec<Inverse>>,
    frees: RefCell<Vec<u64>>,
    last: RefCell<Vec<Last>>,
}

impl Deref for Steps<'_> {
    type Target = Tx;

    fn deref(&self) -> &Tx {
        self.tx
    }
}

impl Steps<'_> {
    /// The inverse of the step that has just been made.
    pub fn inverse(&self, inverse: impl FnOnce(&FsWriter, &Tx) -> Result<()> + 'static) {
        self.inverses.borrow_mut().push(Box::new(inverse));
    }

    /// Frees an object when all steps have succeeded.
    pub fn free(&self, object: u64) {
        self.frees.borrow_mut().push(object);
    }

    /// Does what cannot fail (the intent log, state in memory) when all steps have succeeded.
    pub fn at_last(&self, last: impl FnOnce(&FsWriter, &Tx) + 'static) {
        self.last.borrow_mut().push(Box::new(last));
    }
}

fn word(bytes: Option<&[u8]>) -> u64 {
    bytes.and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl FsWriter {
    /// Makes the steps of `work` under `tx`, all or none.
    ///
    /// # Errors
    /// The error of the step that failed; nothing has changed then.
    pub(super) fn attempt<T>(&self, tx: &Tx, work: impl FnOnce(&Steps<'_>) -> Result<T>) -> Result<T> {
        let steps =
            Steps { tx, inverses: RefCell::default(), frees: RefCell::default(), last: RefCell::default() };
        let done = work(&steps).and_then(|done| free_at_end(self, &steps).map(|()| done));
        match &done {
            Ok(_) => steps.last.take().into_iter().for_each(|last| last(self, tx)),
            Err(_) => {
                for inverse in steps.inverses.take().into_iter().rev() {
                    inverse(self, tx).unwrap_or_else(|e| tear(&e));
                }
            }
        }
        done
    }

    /// Changes a file's attributes as a step; it changes only those in `attrs`.
    pub(super) fn change_step<T, const N: usize>(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        attrs: [SaAttr; N],
        work: impl FnOnce(&mut NodeState) -> Result<T>,
    ) -> Result<T> {
        self.change_step_as(steps, node, attrs, |state| Ok((work(state)?, StoredWhen::Now)))
    }

    /// As [`FsWriter::change_step`]; `work` says when the attributes are stored.
    pub(super) fn change_step_as<T, const N: usize>(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Node>,
        attrs: [SaAttr; N],
        work: impl FnOnce(&mut NodeState) -> Result<(T, StoredWhen)>,
    ) -> Result<T> {
        self.may_fail()?;
        let mut after = None;
        let (done, before) = self.replace(steps, node, |state| {
            let done = work(state)?;
            after = Some(state.attrs.clone());
            Ok(done)
        })?;
        let Some((before, after)) = before.zip(after) else { return Ok(done) };
        let node = Arc::clone(node);
        steps.inverse(move |fs, tx| {
            fs.change(tx, &node, |state| {
                let put_back = |&attr: &SaAttr| put_back(fs, state, attr, before.get(attr), after.get(attr));
                attrs.iter().try_for_each(put_back)
            })
        });
        Ok(done)
    }
}

fn free_at_end(fs: &FsWriter, steps: &Steps<'_>) -> Result<()> {
    for (at, object) in steps.frees.take().into_iter().enumerate() {
        if at == 0 {
            // The log must not forget the writes to a file that stays.
            fs.may_fail()?;
            fs.objset.handle(object)?.check_readable(0, u64::MAX)?;
        }
        match (fs.free_object(steps, object), at) {
            (Err(e), 0) => return Err(e),
            (Err(e), _) => tear(&e),
            (Ok(()), _) => {}
        }
    }
    Ok(())
}

fn put_back(
    fs: &FsWriter,
    state: &mut NodeState,
    attr: SaAttr,
    before: Option<&[u8]>,
    after: Option<&[u8]>,
) -> Result<()> {
    if attr == fs.fields.links || attr == fs.fields.size {
        let delta = word(before).wrapping_sub(word(after));
        let now = state.word(attr).wrapping_add(delta);
        return state.attrs.set_word(attr, now);
    }
    match before {
        _ if state.attrs.get(attr) != after => Ok(()),
        Some(before) => state.attrs.set(attr, before),
        None => {
            state.attrs.remove(attr);
            Ok(())
        }
    }
}

#[expect(
    clippy::panic,
    reason = "half a change must not reach the disk: the txg of a transaction that panics never does"
)]
fn tear(why: &Error) -> ! {
    panic!("an operation that failed cannot be undone: {why}");
}
