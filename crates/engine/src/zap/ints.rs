//! Integers as keys and counters as values: the ZAPs that count references and name objects.
//!
//! An integer's name is its hexadecimal digits.

use super::{Value, ZapEdit};
use crate::error::{Kind, Result};

/// The name of an integer key.
#[doc(alias = "zap_name_int")]
pub fn int_name(key: u64) -> String {
    format!("{key:x}")
}

impl ZapEdit<'_> {
    /// Adds `delta` to a counter; a counter that becomes 0 is removed. Returns the new count.
    #[doc(alias = "zap_increment")]
    pub fn increment(&mut self, name: &[u8], delta: i64) -> Result<u64> {
        let old = self.lookup(name)?.and_then(|v| v.first());
        let new = old.unwrap_or(0).wrapping_add_signed(delta);
        match (old, new) {
            (_, new) if delta == 0 => return Ok(new),
            (None, 0) => {}
            (Some(_), 0) => self.remove(name)?,
            (_, new) => self.update(name, new)?,
        }
        Ok(new)
    }

    /// [`Self::increment`] of an integer key.
    #[doc(alias = "zap_increment_int")]
    pub(crate) fn increment_int(&mut self, key: u64, delta: i64) -> Result<u64> {
        self.increment(int_name(key).as_bytes(), delta)
    }

    /// Adds an integer to a set of integers.
    #[doc(alias = "zap_add_int")]
    pub fn add_int(&mut self, value: u64) -> Result<()> {
        self.insert(&int_name(value), value)
    }

    /// Removes an integer from a set.
    #[doc(alias = "zap_remove_int")]
    pub fn remove_int(&mut self, value: u64) -> Result<()> {
        self.remove(&int_name(value))
    }

    /// Whether a set contains an integer.
    #[doc(alias = "zap_lookup_int")]
    pub fn has_int(&self, value: u64) -> Result<bool> {
        Ok(self.lookup(&int_name(value))?.is_some())
    }

    /// Adds a word under an integer key.
    #[doc(alias = "zap_add_int_key")]
    pub(crate) fn add_int_key(&mut self, key: u64, value: u64) -> Result<()> {
        self.insert(&int_name(key), value)
    }

    /// Sets the word under an integer key.
    #[doc(alias = "zap_update_int_key")]
    pub(crate) fn update_int_key(&mut self, key: u64, value: u64) -> Result<()> {
        self.update(&int_name(key), value)
    }

    /// Adds all single words of `from`; [`Kind::Exists`] at the first name that is already present.
    #[doc(alias = "zap_join")]
    pub fn join(&mut self, from: &[super::ZapEntry]) -> Result<()> {
        for entry in from {
            self.insert(&entry.key, joined(&entry.value)?)?;
        }
        Ok(())
    }
}

fn joined(value: &Value) -> Result<u64> {
    let err = || crate::error::Error::new(Kind::Invalid, "only single words can be joined");
    value.single().ok_or_else(err)
}
