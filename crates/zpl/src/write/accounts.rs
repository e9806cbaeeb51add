//! The accounts of users, groups and projects, as the DSL's sync asks for them.

use std::sync::Arc;

use engine::dmu::live::sync::Changed;
use engine::dmu::{LiveObjset, Tx};
use engine::dsl::write::live::Accounting;
use engine::{Result, sa};
use ondisk::ObjsetType;

/// Keeps the accounts of file systems; to be given to [`engine::dsl::write::live::DslPool::set_accounting`].
#[derive(Debug, Clone, Copy)]
pub struct FileAccounts {
    /// Any number: the seed of new tables' hashes.
    pub salt: u64,
}

impl Accounting for FileAccounts {
    fn account(&self, objset: &Arc<LiveObjset>, changed: &[Changed], tx: &Tx) -> Result<()> {
        if objset.objset_type() != ObjsetType::Zfs {
            return Ok(());
        }
        sa::usage::account(objset, changed, tx, self.salt)
    }
}
