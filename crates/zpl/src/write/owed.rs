//! Bytes that writes of open txgs add to the usage of owners, so that a quota refuses at the call.
//!
//! The accounts on disk are as of the last txg. This module counts the upper bound of bytes that later txgs add: blocks that a
//! writer replaces are not subtracted, nor is the gain of compression known. So nothing is refused because of this count. A
//! writer for which it leaves no room waits for a txg, which tells the real usage, and is refused by the accounts on disk.
//!
//! Bytes are reserved before the transaction, so that many writers do not see the same room, and counted for its txg within it.

use std::collections::BTreeMap;

use engine::dmu::Tx;
use parking_lot::Mutex;

use super::quota_kind::QuotaKind;

/// Whose bytes.
pub(super) type Account = (QuotaKind, u64);

#[derive(Debug, Default)]
struct Sums {
    /// Of transactions that have not begun.
    reserved: BTreeMap<Account, u64>,
    txgs: BTreeMap<u64, BTreeMap<Account, u64>>,
}

impl Sums {
    fn of(&self, account: Account) -> u64 {
        let all = std::iter::once(&self.reserved).chain(self.txgs.values());
        all.filter_map(|sums| sums.get(&account)).fold(0, |sum, more| sum.saturating_add(*more))
    }
}

/// The bytes of all owners.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<Sums>);

/// Bytes that a writer may add, until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    owed: &'a Owed,
    accounts: Vec<Account>,
    bytes: u64,
}

impl Owed {
    /// Reserves up to `most` bytes, and at least `least`, for accounts with so many bytes left on disk as of txg `synced`.
    /// `None`: the bytes counted since leave too little room.
    pub(super) fn reserve(
        &self,
        synced: u64,
        left: &[(Account, u64)],
        (least, most): (u64, u64),
    ) -> Option<Reserved<'_>> {
        let mut sums = self.0.lock();
        sums.txgs = sums.txgs.split_off(&synced.saturating_add(1));
        let owed = |account: &Account| sums.of(*account);
        let room = left.iter().map(|(account, left)| left.saturating_sub(owed(account))).min();
        let room = room.unwrap_or(u64::MAX);
        // As in OpenZFS, a write of any length is allowed where something is left.
        if room < least && left.iter().any(|(account, _)| owed(account) > 0) {
            return None;
        }
        Some(self.take(&mut sums, left, most.min(room.max(least))))
    }

    fn take(&self, sums: &mut Sums, left: &[(Account, u64)], bytes: u64) -> Reserved<'_> {
        let accounts: Vec<Account> = left.iter().map(|(account, _)| *account).collect();
        for account in &accounts {
            let sum = sums.reserved.entry(*account).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Reserved { owed: self, accounts, bytes }
    }

    /// Reserves `bytes` for the accounts whatever is left to them.
    pub(super) fn reserve_anyway(&self, left: &[(Account, u64)], bytes: u64) -> Reserved<'_> {
        self.take(&mut self.0.lock(), left, bytes)
    }
}

impl Reserved<'_> {
    /// The bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts `bytes` for the transaction's txg instead.
    pub(super) fn spend(self, tx: &Tx, bytes: u64) {
        self.spend_in(tx.txg(), bytes);
    }

    fn spend_in(self, txg: u64, bytes: u64) {
        if !self.accounts.is_empty() {
            let mut sums = self.owed.0.lock();
            let of_txg = sums.txgs.entry(txg).or_default();
            for account in &self.accounts {
                let sum = of_txg.entry(*account).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.accounts.is_empty() {
            return;
        }
        let mut sums = self.owed.0.lock();
        for account in &self.accounts {
            if let Some(sum) = sums.reserved.get_mut(account) {
                *sum = sum.saturating_sub(self.bytes);
                if *sum == 0 {
                    sums.reserved.remove(account);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Account = (QuotaKind::User, 7);
    const GROUP: Account = (QuotaKind::Group, 7);

    #[test]
    fn bytes_count_from_their_reservation_until_their_txg_is_on_disk() {
        let owed = Owed::default();
        let left = [(USER, 100), (GROUP, 70)];
        let first = owed.reserve(4, &left, (10, 50)).unwrap();
        let second = owed.reserve(4, &left, (10, 50)).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (50, 20), "the group has no more left");
        assert!(owed.reserve(4, &left, (1, 50)).is_none());
        first.spend_in(6, 5);
        // The others have no quota of their group.
        assert_eq!(owed.reserve(4, &left[..1], (10, 200)).map(|third| third.bytes()), Some(75));
        drop(second);
        assert_eq!(owed.reserve(5, &left, (10, 200)).map(|third| third.bytes()), Some(65));
        assert_eq!(owed.reserve(6, &left, (10, 200)).map(|third| third.bytes()), Some(70));
        let sums = owed.0.lock();
        assert!(sums.txgs.is_empty() && sums.reserved.is_empty());
    }

    #[test]
    fn a_write_of_any_length_is_possible_where_something_is_left_and_nothing_is_owed() {
        let owed = Owed::default();
        let all = owed.reserve(4, &[(USER, 1)], (10, 50)).unwrap();
        assert_eq!(all.bytes(), 10);
        assert!(owed.reserve(4, &[(USER, 1)], (10, 50)).is_none());
        assert!(owed.reserve(4, &[((QuotaKind::User, 8), 1)], (10, 50)).is_some());
    }
}
