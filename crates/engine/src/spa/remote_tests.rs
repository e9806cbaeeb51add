use super::*;

fn uberblock() -> Uberblock {
    let mut bytes = vec![0; 1024];
    bytes[..8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
    Uberblock::from_bytes(&bytes).unwrap()
}

#[test]
fn an_import_waits_longer_than_an_owner_holds_out() {
    let mut uberblock = uberblock();
    let mut labels = NvList::default();
    labels.add("state", PoolState::Active as u64).add("hostid", 7_u64);
    assert!(!has_heartbeats(&uberblock));
    uberblock.set_mmp(1_000_000_000, 1000, 3, 10);
    assert!(has_heartbeats(&uberblock));
    assert!(may_be_in_use(&labels, 8) && !may_be_in_use(&labels, 7));
    let mut exported = NvList::default();
    exported.add("state", PoolState::Exported as u64).add("hostid", 7_u64);
    assert!(may_be_in_use(&exported, 8) && !may_be_in_use(&exported, 7));
    let limits = Limits::default();
    assert_eq!(wait(&uberblock, &limits), Duration::from_secs(20));
    uberblock.set_mmp(1_000_000_000, 1000, 3, 0);
    assert_eq!(wait(&uberblock, &limits), Duration::from_secs(40));
    uberblock.set_mmp(1_000_000_000, 100, 3, 2);
    assert_eq!(wait(&uberblock, &limits), Duration::from_millis(400));
}
