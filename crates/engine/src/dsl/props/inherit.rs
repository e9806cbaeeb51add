//! The entry of a property ZAP that is in force, and the directory from which a property is inherited.
//!
//! A property ZAP may hold three entries of one property: `name` (local), `name$recvd` (came with a stream),
//! `name$inherit` (explicitly inherited, hides the received one).

use super::PropValue;
use crate::dsl::lookup::ReadNames;
use crate::error::Result;
use crate::zap::Zap;

/// Suffix of the name of an entry that came with a stream.
#[doc(alias = "ZPROP_RECVD_SUFFIX")]
pub(crate) const RECEIVED: &str = "$recvd";
/// Suffix of the name of an entry that means "inherited, regardless of a received value".
#[doc(alias = "ZPROP_INHERIT_SUFFIX")]
pub(crate) const INHERIT: &str = "$inherit";

/// The name of the entry of a property's received value.
pub(crate) fn received_entry(name: &str) -> String {
    format!("{name}{RECEIVED}")
}

/// The name of the entry that hides a property's received value.
pub(crate) fn inherit_entry(name: &str) -> String {
    format!("{name}{INHERIT}")
}

/// The value that a property ZAP gives to a property: the local one, or else the received one unless it is hidden.
pub(crate) fn own(zap: &Zap, name: &str) -> Result<Option<PropValue>> {
    let get = |name: &str| Ok(zap.lookup(name.as_bytes())?.map(|value| PropValue::from_zap(&value)));
    if let Some(value) = get(name)? {
        return Ok(Some(value));
    }
    match get(&inherit_entry(name))? {
        Some(_) => Ok(None),
        None => get(&received_entry(name)),
    }
}

/// The value of a property set on a directory or its nearest ancestor; `None`: the default holds.
#[doc(alias = "dsl_prop_get_dd")]
pub(crate) fn inherited<R: ReadNames + ?Sized>(at: &R, dir: u64, name: &str) -> Result<Option<PropValue>> {
    for step in at.ancestors(dir) {
        let (_, dir) = step?;
        let Some(zap) = at.open_zap(dir.props_zapobj)? else { continue };
        if let Some(value) = own(&zap, name)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}
