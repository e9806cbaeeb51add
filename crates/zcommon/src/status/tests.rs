use std::collections::BTreeMap;

use super::PoolStatus::*;
use super::*;
use crate::vdev::{PoolState, VdevAux, VdevState};

/// Output of OpenZFS 2.3.2's `zpool` for a three-way mirror in each of these conditions, by our names for
/// them.
const STATUS: &str = include_str!("../../tests/data/zpool-status.txt");
const IMPORT: &str = include_str!("../../tests/data/zpool-import.txt");

const ALL: &[PoolStatus] = &[
    MissingDevR,
    MissingDevNr,
    CorruptLabelR,
    CorruptLabelNr,
    BadGuidSum,
    CorruptPool,
    CorruptData,
    FailingDev,
    VersionNewer,
    HostidMismatch,
    HostidActive,
    HostidRequired,
    IoFailureWait,
    IoFailureContinue,
    IoFailureMmp,
    BadLog,
    Errata(super::Errata::Scrub),
    Errata(super::Errata::AsyncDestroy),
    Errata(super::Errata::Encryption),
    Errata(super::Errata::EncryptionIvset),
    UnsupFeatRead,
    UnsupFeatWrite,
    FaultedDevR,
    FaultedDevNr,
    VersionOlder,
    FeatDisabled,
    Resilvering,
    OfflineDev,
    RemovedDev,
    Rebuilding,
    RebuildScrub,
    NonNativeAshift,
    CompatibilityErr,
    IncompatibleFeat,
    Ok,
];

fn name(status: PoolStatus) -> String {
    match status {
        Errata(errata) => format!("Errata{}", errata as u8),
        other => format!("{other:?}"),
    }
}

/// The golden sections by name: everything between `state:` and `config:`.
fn sections(text: &'static str) -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let sections = text.split("== ").skip(1);
    sections
        .map(|section| {
            let (name, rest) = section.split_once("\n state: ").unwrap();
            let (state, rest) = rest.split_once('\n').unwrap();
            (name, (state, rest))
        })
        .collect()
}

fn print(status: PoolStatus, words: Option<&str>, action: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(words) = words {
        out += &format!("status: {}\n", wrap(words, ""));
    }
    if status.lists_features() {
        out += &(PoolStatus::feature_line("com.example:foo", "Foo") + "\n");
        if status == UnsupFeatRead {
            out += &(PoolStatus::feature_line("com.example:bar", "") + "\n");
        }
    }
    if let Some(action) = action {
        out += &format!("action: {}\n", wrap(action, ""));
    }
    if let Some(id) = status.message_id() {
        out += &format!("   see: {MESSAGE_URL}{id}\n");
    }
    out
}

#[test]
fn zpool_status_says_the_same() {
    let golden = sections(STATUS);
    let mut seen = 0;
    for &status in ALL {
        let Some((_, expect)) = golden.get(name(status).as_str()) else { continue };
        assert_eq!(print(status, pool_status(status), pool_action(status)), *expect, "{status:?}");
        seen += 1;
    }
    assert_eq!((seen, golden.len()), (33, 33));
}

#[test]
fn zpool_import_says_the_same() {
    let golden = sections(IMPORT);
    let mut seen = 0;
    for &status in ALL {
        let Some((state, expect)) = golden.get(name(status).as_str()) else { continue };
        let state = match *state {
            "ONLINE" => VdevState::Healthy,
            "DEGRADED" => VdevState::Degraded,
            _ => VdevState::CantOpen,
        };
        let active_host = Some(("other", 99));
        let facts = ImportFacts { state, aux: VdevAux::None, pool_state: PoolState::Exported, active_host };
        assert_eq!(
            print(status, import_status(status), Some(&import_action(status, &facts))),
            *expect,
            "{status:?}"
        );
        seen += 1;
    }
    assert_eq!((seen, golden.len()), (26, 26));
}

#[test]
fn corrupt_pools_may_be_something_else() {
    let facts = |pool_state| ImportFacts {
        state: VdevState::CantOpen,
        aux: VdevAux::CorruptData,
        pool_state,
        active_host: None,
    };
    assert!(import_note(&facts(PoolState::Destroyed)).unwrap().contains("-Df"));
    assert!(import_note(&facts(PoolState::Active)).unwrap().contains("active on another"));
    assert_eq!(import_note(&facts(PoolState::Exported)), None);
}

#[test]
fn comments_indent() {
    assert_eq!(wrap("a\nb", ""), "a\n\tb");
    assert_eq!(wrap("a\nb", " "), "a\n\t b");
}
