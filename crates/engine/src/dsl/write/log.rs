//! Changes the intent log's header in the root block of a dataset that is not open: at import, and in clones.

use ondisk::objset::ZilHeader;
use ondisk::{Blkptr, CompressType};

use super::account::BlockAccount;
use super::mos_tx::MosTx;
use super::open_datasets;
use crate::arc::write::write_all;
use crate::dmu::Objset;
use crate::dmu::dirty::sync::BlockOps;
use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zio::Form;
use crate::zio::write::WriteRequest;

/// Property bit of a block that is encrypted or carries a MAC.
const CRYPT: u64 = 1 << 61;

/// A clone has no log of its own yet, but the root block that it shares with its origin may name that of the file
/// system, as it was at the snapshot.
#[doc(alias = "dsl_dataset_zero_zil")]
pub(super) fn forget(at: &MosTx<'_>, number: u64) -> Result<()> {
    let bp = at.dataset(number)?.bp;
    if bp.is_hole() {
        return Ok(());
    }
    let header = Objset::open(at.mos.arc(), number, &bp, Form::NoKey)?.phys.zil_header;
    if header == ZilHeader::default() { Ok(()) } else { write_header(at, number, ZilHeader::default()) }
}

/// Writes head `number`'s root block with another head of its log (syncing context). Needs no key: the root
/// block's MACs do not cover the log.
#[doc(alias = "os_next_write_raw")]
pub(crate) fn write_header(at: &MosTx<'_>, number: u64, header: ZilHeader) -> Result<()> {
    let phys = at.dataset(number)?;
    let (arc, old) = (at.mos.arc(), phys.bp);
    let mut root = Objset::open(arc, number, &old, Form::NoKey)?.phys.clone();
    root.zil_header = header;
    let mut props = open_datasets::policy(at, at.hooks, phys.dir_obj)?.root();
    // Written as it is: its MACs do not change.
    props.encrypt = false;
    if old.uses_crypt() {
        props.compress = CompressType::Off;
    }
    let data = (&*root.to_bytes()).into();
    let request = WriteRequest {
        stored: None,
        data,
        props,
        old,
        placed: None,
        keeps_birth: false,
        txg: at.tx.txg(),
        at: Bookmark::root(number),
        may_wait: true,
    };
    let written = write_all(arc, vec![request]).into_iter().next();
    let mut new: Blkptr = written.ok_or_else(|| Error::corrupt("no block was written"))??;
    new.set_fill(old.fill());
    if old.uses_crypt() {
        new.set_prop(new.prop() | CRYPT);
    }
    let account = BlockAccount::open(*at, number)?;
    if !old.same_block(&new) {
        account.killed(&old, at.tx)?;
        account.born(&new, at.tx)?;
    }
    account.close(new)
}
