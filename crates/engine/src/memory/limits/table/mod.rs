//! The settings with their names, bounds and defaults, one file for each subject.

mod cache;
mod datasets;
mod dedup;
mod jobs;
mod pools;
mod txgs;
mod vdevs;

use super::{Info, Limit};

/// Maximum of the settings that are 32-bit numbers in OpenZFS.
const U32: u64 = (1 << 32) - 1;

/// A setting that is on (1) or off (0).
const fn switch(limit: Limit, name: &'static str, on: bool, about: &'static str) -> Info {
    let plain = if on { 1 } else { 0 };
    Info { limit, name, bytes: false, least: 0, most: 1, plain, zero_is_default: !on, about }
}

/// A setting with bounds and a default.
const fn number(
    limit: Limit,
    name: &'static str,
    (least, most): (u64, u64),
    plain: u64,
    about: &'static str,
) -> Info {
    Info { limit, name, bytes: false, least, most, plain, zero_is_default: plain == 0 || least > 0, about }
}

/// A setting in bytes with bounds and a default.
const fn bytes(
    limit: Limit,
    name: &'static str,
    bounds: (u64, u64),
    plain: u64,
    about: &'static str,
) -> Info {
    Info { bytes: true, ..number(limit, name, bounds, plain, about) }
}

/// The settings by subject.
const SUBJECTS: [&[Info]; 7] =
    [&cache::ROWS, &datasets::ROWS, &dedup::ROWS, &jobs::ROWS, &pools::ROWS, &txgs::ROWS, &vdevs::ROWS];

/// Number of settings, from the last one.
const COUNT: usize = Limit::LoadMetaslabs as usize + 1;

/// All settings, in the order of [`Limit`].
pub const LIMITS: [Info; COUNT] = in_order();

/// The rows of all subjects, each at the position of its setting. A setting without a row or with two rows fails the
/// build.
#[expect(clippy::indexing_slicing, clippy::panic, reason = "evaluated when the program is built")]
const fn in_order() -> [Info; COUNT] {
    let mut slots: [Option<Info>; COUNT] = [None; COUNT];
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            let info = SUBJECTS[subject][row];
            assert!(slots[info.limit as usize].is_none(), "a setting has two rows");
            slots[info.limit as usize] = Some(info);
            row += 1;
        }
        subject += 1;
    }
    let mut rows = [cache::ROWS[0]; COUNT];
    let mut at = 0;
    while at < COUNT {
        rows[at] = match slots[at] {
            Some(info) => info,
            None => panic!("a setting has no row"),
        };
        at += 1;
    }
    rows
}
