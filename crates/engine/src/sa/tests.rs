use ondisk::ObjectType;
use ondisk::sa::{SaAttr, SaHeader};
use stdx::rng::Rng;

use super::*;
use crate::dmu::NewObject;
use crate::dmu::edit::{MemObjects, Objects};
use crate::error::Kind;
use crate::zap::{NewZap, ZapEdit};

const SPACE: usize = 320;

fn new() -> (MemObjects, SaTables) {
    let objects = MemObjects::default();
    let master = objects.create(&NewObject::plain(ObjectType::SA_MASTER_NODE, 512)).unwrap();
    ZapEdit::create(&mut *objects.edit(master).unwrap(), &NewZap { salt: 5, ..NewZap::default() }).unwrap();
    (objects, SaTables::new(master))
}

fn attr(tables: &SaTables, name: &str) -> SaAttr {
    tables.attr(name).unwrap()
}

#[test]
fn tables_are_stored_once_and_read_back() {
    let (objects, mut tables) = new();
    let mut rng = Rng::new(1);
    assert_eq!((attr(&tables, "ZPL_MODE").num, attr(&tables, "ZPL_PROJID").num), (5, 21));
    assert!(!tables.is_stored());
    let mut attrs = SaAttrs::new();
    attrs.set_word(attr(&tables, "ZPL_MODE"), 0o100644).unwrap();
    attrs.set(attr(&tables, "ZPL_SYMLINK"), &b"target"[..]).unwrap();
    let buffers = attrs.encode(&mut tables, SPACE).unwrap();
    assert_eq!(SaHeader::from_bytes(&buffers.bonus).unwrap().layout, 2);
    tables.store(&objects, &mut rng).unwrap();
    assert!(tables.is_stored() && objects.numbers().len() == 3);
    let read = SaTables::load_edited(&objects, 1).unwrap();
    assert!(read.is_stored());
    assert_eq!(SaAttrs::decode(&read, &buffers.bonus, None).unwrap(), attrs);
    // Another order is another layout, the same order is not.
    let mut tables = read;
    let layouts: Vec<u16> = [["ZPL_SYMLINK", "ZPL_MODE"], ["ZPL_MODE", "ZPL_SYMLINK"]]
        .iter()
        .map(|names| names.map(|n| attr(&tables, n)))
        .collect::<Vec<_>>()
        .iter()
        .map(|attrs| tables.number_of(attrs).unwrap())
        .collect();
    assert_eq!(layouts, [3, 2]);
    tables.store(&objects, &mut rng).unwrap();
    assert_eq!(SaTables::load_edited(&objects, 1).unwrap().layout(3).unwrap().len(), 2);
}

#[test]
fn a_copy_of_an_ordinary_files_attributes_allocates_nothing_for_its_bytes() {
    let (_, tables) = new();
    let names = [
        "MODE",
        "SIZE",
        "GEN",
        "UID",
        "GID",
        "PARENT",
        "FLAGS",
        "ATIME",
        "MTIME",
        "CTIME",
        "CRTIME",
        "LINKS",
        "PROJID",
        "DACL_COUNT",
        "DACL_ACES",
        "XATTR",
    ];
    let mut attrs = SaAttrs::new();
    for name in names {
        let attr = attr(&tables, &format!("ZPL_{name}"));
        let len = if attr.len == 0 { 24 } else { attr.len };
        attrs.set(attr, vec![7; len.into()]).unwrap();
    }
    let copy = attrs.clone();
    let within = std::ptr::from_ref(&copy).addr()..std::ptr::from_ref(&copy).addr() + size_of_val(&copy);
    let all: Vec<_> = copy.iter().collect();
    assert_eq!(all.len(), names.len());
    assert!(all.iter().all(|(_, bytes)| within.contains(&bytes.as_ptr().addr())));
    assert_eq!(copy, attrs);
}

#[test]
fn attributes_that_older_file_systems_lack_are_registered_later() {
    let (objects, mut tables) = new();
    tables.store(&objects, &mut Rng::new(2)).unwrap();
    let registry =
        ZapEdit::open(&mut *objects.edit(1).unwrap()).unwrap().lookup("REGISTRY").unwrap().unwrap();
    let mut object = objects.edit(registry.first().unwrap()).unwrap();
    let mut zap = ZapEdit::open(&mut *object).unwrap();
    zap.remove("ZPL_PROJID").unwrap();
    zap.insert("ZPL_FOREIGN", 21 | 8 << 24).unwrap();
    let mut tables = SaTables::load_edited(&objects, 1).unwrap();
    assert_eq!((attr(&tables, "ZPL_FOREIGN").num, attr(&tables, "ZPL_PROJID").num), (21, 22));
    assert!(!tables.is_stored());
    tables.store(&objects, &mut Rng::new(2)).unwrap();
    assert_eq!(zap.lookup("ZPL_PROJID").unwrap().unwrap().first(), Some(22 | 8 << 24));
}

/// After each of several random changes the buffers decode to the attributes.
#[test]
fn any_set_survives_its_buffers() {
    let mut rng = Rng::new(3);
    let (_, mut tables) = new();
    let names: Vec<&str> = ondisk::sa::ZPL_ATTRS.iter().map(|a| a.name).collect();
    let mut spilled = 0;
    for space in [320, 832, 16192] {
        let mut attrs = SaAttrs::new();
        for _ in 0..2000 {
            let attr = attr(&tables, names[rng.below(names.len() as u64) as usize]);
            let len = match (attr.len, rng.below(30)) {
                (0, 0) => rng.below(40_000),
                (0, _) => rng.below(150),
                (fixed, _) => fixed.into(),
            };
            let mut bytes = vec![0; len as usize];
            rng.fill(&mut bytes);
            let before = attrs.clone();
            if rng.below(4) == 0 {
                attrs.remove(attr);
            } else {
                attrs.set(attr, bytes).unwrap();
            }
            let buffers = match attrs.encode(&mut tables, space) {
                Ok(buffers) => buffers,
                Err(e) => {
                    // More than a block can hold, or more layouts than there are numbers for.
                    assert!(matches!(e.kind(), Kind::TooLong | Kind::Limit), "{e}");
                    attrs = before;
                    (_, tables) = new();
                    continue;
                }
            };
            assert!(buffers.bonus.len() <= if buffers.spill.is_some() { space - 128 } else { space });
            spilled += u32::from(buffers.spill.is_some());
            let again = SaAttrs::decode(&tables, &buffers.bonus, buffers.spill.as_deref()).unwrap();
            assert_eq!(again, attrs);
            assert_eq!(again.encode(&mut tables, space).unwrap(), buffers);
        }
    }
    assert!(spilled > 500, "{spilled}");
}

#[test]
fn old_znodes_are_changed_in_place() {
    let bonus: Vec<u8> = (0..=255).chain(0..50).collect();
    let mut attrs = SaAttrs::decode_znode(&bonus).unwrap();
    let (_, mut tables) = new();
    assert_eq!(attrs.encode(&mut tables, SPACE).unwrap().bonus, bonus);
    assert_eq!(attrs.znode_tail().unwrap().len(), 42);
    attrs.set_word(attr(&tables, "ZPL_MODE"), 0x0102).unwrap();
    assert!(!attrs.remove(attr(&tables, "ZPL_MODE")));
    assert_eq!(attrs.set(attr(&tables, "ZPL_SYMLINK"), []).unwrap_err().kind(), Kind::Unsupported);
    let changed = attrs.encode(&mut tables, SPACE).unwrap().bonus;
    assert_eq!(changed[72..80], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!((&changed[..72], &changed[80..]), (&bonus[..72], &bonus[80..]));
    assert!(SaAttrs::decode_znode(&bonus[..263]).is_err());
}
