//! System attributes of the golden pools: decoded and built again, they are the same bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use engine::sa::{SaAttrs, SaTables};
use engine::spa::OpenOptions;
use engine::zap::Zap;
use ondisk::ObjectType;
use ondisk::names::{MASTER_NODE_OBJECT, master_node};
use testkit::golden;

#[derive(Default, Debug)]
struct Seen {
    files: u32,
    spilled: u32,
    znodes: u32,
}

fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1)
}

fn look(objset: &std::sync::Arc<engine::dmu::Objset>, seen: &mut Seen) {
    let Ok(master) = objset.object(MASTER_NODE_OBJECT).and_then(|o| Zap::open(&o)) else { return };
    let sa = master.u64(master_node::SA_ATTRS).unwrap();
    let mut tables = sa.map_or_else(|| SaTables::new(0), |number| SaTables::load(objset, number).unwrap());
    let stored = tables.clone();
    for object in objset.objects().flatten() {
        let at = format!("objset {} object {}", objset.id, object.number);
        let bonus = object.dnode.bonus();
        let space = object.dnode.size() - 192;
        match object.dnode.bonustype {
            ObjectType::SA => {
                let spill = object.spill().unwrap();
                let attrs = SaAttrs::decode(&tables, bonus, spill.as_deref()).unwrap();
                let again = attrs.encode(&mut tables, space).unwrap();
                assert_eq!(again.bonus.len(), bonus.len(), "{at}");
                // Where attributes moved to the spill block, their bytes may still stand behind the others.
                let same = if spill.is_some() { used(&again.bonus) } else { bonus.len() };
                assert_eq!(again.bonus[..same], bonus[..same], "{at}");
                assert_eq!(again.spill.is_some(), spill.is_some(), "{at}");
                seen.files += 1;
                if let (Some(again), Some(spill)) = (again.spill, spill) {
                    seen.spilled += 1;
                    // A spill block that was larger once keeps its size and its old bytes.
                    assert!(again.len() <= spill.len(), "{at}");
                    let used = used(&again);
                    assert_eq!(again[..used], spill[..used], "{at}");
                }
            }
            ObjectType::ZNODE => {
                seen.znodes += 1;
                let attrs = SaAttrs::decode_znode(bonus).unwrap();
                assert_eq!(attrs.encode(&mut tables, space).unwrap().bonus, bonus, "{at}");
            }
            _ => {}
        }
    }
    // Nothing needed a layout that OpenZFS had not made.
    assert_eq!(tables.is_stored(), stored.is_stored());
}

#[test]
fn attributes_of_openzfs_are_built_as_openzfs_does() {
    for golden in golden::all() {
        let pool = golden.open_with_keys(OpenOptions::default()).unwrap();
        let mut seen = Seen::default();
        for dir in pool.dsl.walk(pool.dsl.root().unwrap()) {
            let Ok(head) = dir.unwrap().head() else { continue };
            for dataset in std::iter::once(head.clone()).chain(head.snapshots().unwrap()) {
                let Ok(objset) = dataset.objset() else { continue };
                look(&objset, &mut seen);
            }
        }
        println!("{}: {seen:?}", golden.name);
    }
}
