//! Both encodings against each other, against hand-made bytes, and against hostile ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use nvpair::{
    DecodeErrorKind, EncodeError, Encoding, Endian, MAX_DEPTH, NvFlags, NvList, NvString, NvType, NvValue,
};
use proptest::prelude::*;

/// One value of each type.
fn every_type() -> NvList {
    let mut inner = NvList::with_flags(NvFlags(0));
    inner.add("x", 1u64).add("x", 2u64);
    let mut list = NvList::new();
    list.add("boolean", NvValue::Boolean)
        .add("byte", NvValue::Byte(0xfe))
        .add("int16", -2i16)
        .add("uint16", 0xfffeu16)
        .add("int32", -3i32)
        .add("uint32", u32::MAX)
        .add("int64", i64::MIN)
        .add("uint64", u64::MAX)
        .add("string", &b"caf\xe9"[..])
        .add("bytes", NvValue::ByteArray(vec![1, 2, 3, 4, 5]))
        .add("int16s", vec![-1i16, 2, -3])
        .add("uint16s", vec![1u16])
        .add("int32s", vec![-1i32, 2])
        .add("uint32s", vec![7u32; 3])
        .add("int64s", vec![-1i64])
        .add("uint64s", vec![1u64, u64::MAX])
        .add("strings", vec![NvString::from("a"), NvString::from(""), NvString::from("long enough")])
        .add("hrtime", NvValue::Hrtime(123_456_789))
        .add("list", inner.clone())
        .add("lists", vec![inner, NvList::new()])
        .add("true", true)
        .add("int8", -8i8)
        .add("uint8", 200u8)
        .add("bools", vec![true, false, true])
        .add("int8s", vec![-1i8, 1])
        .add("uint8s", vec![255u8, 0, 1])
        .add("double", 1.5f64)
        .add("empty", Vec::<u64>::new());
    list
}

#[test]
fn every_type_survives_both_encodings() {
    let list = every_type();
    for (bytes, encoding) in [
        (list.encode_xdr().unwrap(), Encoding::Xdr),
        (list.encode_native().unwrap(), Encoding::Native(Endian::Little)),
    ] {
        let (back, found, used) = NvList::decode_prefix(&[bytes.as_slice(), &[0xff; 9]].concat()).unwrap();
        assert_eq!((&back, found, used), (&list, encoding, bytes.len()));
    }
    assert_eq!((1..=27).filter(|&n| NvType::from_number(n).is_some()).count(), 27);
}

#[test]
fn bytes_are_those_of_libnvpair() {
    let list = every_type();
    let (native, xdr) = (include_bytes!("data/every-type.native"), include_bytes!("data/every-type.xdr"));
    assert_eq!(NvList::decode(native).unwrap(), list);
    assert_eq!(list.encode_native().unwrap(), native);
    // The user-space library, unlike the kernel, extends signs of narrow numbers: read as well, but not written.
    assert_eq!(NvList::decode(xdr).unwrap(), list);
    let ours = list.encode_xdr().unwrap();
    let differing = ours.iter().zip(xdr).filter(|(ours, theirs)| ours != theirs);
    assert!(differing.clone().all(|(&ours, &theirs)| (ours, theirs) == (0, 0xff)));
    assert_eq!((ours.len(), differing.count()), (xdr.len(), 21));
}

/// The label configurations of real devices, and the output of `zdb -l` for them. The last is a big-endian
/// machine's.
#[test]
fn labels_decode_print_and_encode_as_they_were() {
    let labels: [(&[u8], &str); 4] = [
        (include_bytes!("data/classes-disk1.xdr"), include_str!("data/classes-disk1.txt")),
        (include_bytes!("data/draid1-disk3.xdr"), include_str!("data/draid1-disk3.txt")),
        (include_bytes!("data/legacy-v28-disk1.xdr"), include_str!("data/legacy-v28-disk1.txt")),
        (include_bytes!("data/sparc.xdr"), include_str!("data/sparc.txt")),
    ];
    for (bytes, text) in labels {
        let (list, encoding, used) = NvList::decode_prefix(bytes).unwrap();
        assert_eq!((encoding, used), (Encoding::Xdr, bytes.len()));
        assert_eq!(list.dump(4).to_string(), text);
        // The header's byte order is that of the writer.
        assert_eq!(list.encode_xdr().unwrap()[2..], bytes[2..]);
    }
}

#[test]
fn zeros_are_no_list() {
    assert_eq!(NvList::decode(&[0; 4096]).unwrap_err().kind, DecodeErrorKind::Blank);
    assert_eq!(NvList::decode(&[0; 3]).unwrap_err().kind, DecodeErrorKind::Truncated { need: 4, have: 3 });
}

#[test]
fn each_truncation_is_an_error() {
    for bytes in [every_type().encode_xdr().unwrap(), every_type().encode_native().unwrap()] {
        for cut in 0..bytes.len() {
            assert!(NvList::decode(&bytes[..cut]).is_err(), "{cut} of {}", bytes.len());
        }
    }
}

#[test]
fn the_sizes_in_xdr_are_those_of_libnvpair() {
    // `version` = 5000 as the first pair of every label's config.
    let mut list = NvList::new();
    list.add("version", 5000u64);
    let expect = b"\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\x24\0\0\0\x20\0\0\0\x07version\0\0\0\0\x08\0\0\0\x01\
        \0\0\0\0\0\0\x13\x88\0\0\0\0\0\0\0\0";
    assert_eq!(list.encode_xdr().unwrap(), expect);
}

#[test]
fn native_of_the_other_byte_order_is_read() {
    let mut bytes = vec![0, 0, 0, 0];
    bytes.extend(0u32.to_be_bytes());
    bytes.extend(1u32.to_be_bytes());
    bytes.extend(32u32.to_be_bytes());
    bytes.extend(4u16.to_be_bytes());
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(1u32.to_be_bytes());
    bytes.extend(8u32.to_be_bytes());
    bytes.extend(b"abc\0\0\0\0\0");
    bytes.extend(0x1122_3344_5566_7788u64.to_be_bytes());
    bytes.extend(0u32.to_be_bytes());
    let (list, encoding, _) = NvList::decode_prefix(&bytes).unwrap();
    assert_eq!(encoding, Encoding::Native(Endian::Big));
    assert_eq!(list.u64("abc"), Some(0x1122_3344_5566_7788));
}

#[test]
fn nesting_has_a_limit() {
    let mut list = NvList::new();
    for _ in 1..MAX_DEPTH {
        let inner = std::mem::take(&mut list);
        list.add("x", inner);
    }
    assert!(NvList::decode(&list.encode_xdr().unwrap()).is_ok());
    assert!(NvList::decode(&list.encode_native().unwrap()).is_ok());
    let mut deeper = NvList::new();
    deeper.add("x", list);
    assert_eq!(deeper.encode_xdr(), Err(EncodeError::Depth));
    assert_eq!(deeper.encode_native(), Err(EncodeError::Depth));
}

#[test]
fn errors_name_the_offset() {
    let mut list = NvList::new();
    list.add("version", 5000u64);
    let mut bytes = list.encode_xdr().unwrap();
    bytes[35] = 99;
    let error = NvList::decode(&bytes).unwrap_err();
    assert_eq!((error.offset, error.kind), (32, DecodeErrorKind::Type(99)));
    assert_eq!(NvList::decode(&[7, 1, 0, 0]).unwrap_err().kind, DecodeErrorKind::Encoding(7));
    assert_eq!(NvList::decode(&[1, 3, 0, 0]).unwrap_err().kind, DecodeErrorKind::Endian(3));
}

#[test]
fn a_huge_count_takes_no_memory() {
    let mut list = NvList::new();
    list.add("a", vec![1u64]);
    let mut bytes = list.encode_xdr().unwrap();
    let count = bytes.len() - 8 - 8 - 4 - 4;
    for at in [count, count + 4] {
        bytes[at..at + 4].copy_from_slice(&0x7fff_ffffu32.to_be_bytes());
    }
    assert!(matches!(NvList::decode(&bytes).unwrap_err().kind, DecodeErrorKind::Truncated { .. }));
}

#[test]
fn names_and_strings_have_no_nul() {
    let mut list = NvList::new();
    list.add("a", "x\0y");
    assert!(matches!(list.encode_xdr(), Err(EncodeError::Nul(_))));
    assert!(matches!(list.encode_native(), Err(EncodeError::Nul(_))));
    let mut list = NvList::new();
    list.add("n".repeat(40_000), 1u64);
    assert_eq!(list.encode_xdr(), Err(EncodeError::NameLength(40_000)));
}

#[test]
fn unique_names_replace() {
    let mut list = NvList::new();
    list.add("a", 1u64).add("b", 2u64).add("a", "text");
    assert_eq!((list.len(), list.str("a"), list.u64("a")), (2, Some("text"), None));
    let mut typed = NvList::with_flags(NvFlags::UNIQUE_NAME_TYPE);
    typed.add("a", 1u64).add("a", "text").add("a", 3u64);
    assert_eq!(typed.len(), 2);
    assert_eq!(list.remove("a"), Some(NvValue::from("text")));
    assert!(!list.contains("a"));
}

#[test]
fn text_is_zdbs() {
    let mut child = NvList::new();
    child.add("type", "file").add("id", 0u64).add("is_spare", NvValue::Boolean);
    let mut list = NvList::new();
    list.add("version", 5000u64).add("name", "tank").add("children", vec![child.clone(), child]);
    list.add("rewind", true).add("stats", vec![1u64, 2]);
    let expect = "    version: 5000\n    name: 'tank'\n    children[0]:\n        type: 'file'\n        id: 0\n        \
                  is_spare\n    children[1]:\n        type: 'file'\n        id: 0\n        is_spare\n    rewind: true\n    \
                  stats[0]: 1\n    stats[1]: 2\n";
    assert_eq!(list.dump(4).to_string(), expect);
}

#[test]
fn json_keeps_order_and_types() {
    let mut list = NvList::new();
    list.add("z", NvValue::Boolean).add("a", vec![1u64, 2]).add("s", "\"q\"").add("l", vec![NvList::new()]);
    assert_eq!(list.to_json().to_string(), r#"{"z":true,"a":[1,2],"s":"\"q\"","l":[{}]}"#);
}

fn scalar() -> impl Strategy<Value = NvValue> {
    prop_oneof![
        Just(NvValue::Boolean),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i8>().prop_map(NvValue::Int8),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<u64>().prop_map(NvValue::Uint64),
        any::<bool>().prop_map(NvValue::BooleanValue),
        prop::collection::vec(1u8.., 0..20).prop_map(|b| NvValue::String(b.into())),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(NvValue::ByteArray),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(NvValue::Uint16Array),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(NvValue::Int64Array),
        prop::collection::vec(prop::collection::vec(1u8.., 0..9), 0..5)
            .prop_map(|v| NvValue::StringArray(v.into_iter().map(NvString::from).collect())),
    ]
}

fn list_of(value: impl Strategy<Value = NvValue>) -> impl Strategy<Value = NvList> {
    prop::collection::vec(("[a-z:_]{1,12}", value), 0..6).prop_map(NvList::from_iter)
}

fn any_list() -> impl Strategy<Value = NvList> {
    let value = scalar().prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            list_of(inner.clone()).prop_map(NvValue::List),
            prop::collection::vec(list_of(inner), 0..4).prop_map(NvValue::ListArray),
        ]
    });
    list_of(value)
}

proptest! {
    #[test]
    fn any_list_survives(list in any_list()) {
        prop_assert_eq!(&NvList::decode(&list.encode_xdr().unwrap()).unwrap(), &list);
        prop_assert_eq!(&NvList::decode(&list.encode_native().unwrap()).unwrap(), &list);
    }

    #[test]
    fn damaged_bytes_never_panic(list in any_list(), damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..8)) {
        for mut bytes in [list.encode_xdr().unwrap(), list.encode_native().unwrap()] {
            for &(at, value) in &damage {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if let Ok(list) = NvList::decode(&bytes) {
                let _ = (list.dump(0).to_string(), list.to_json(), list.encode_xdr(), list.encode_native());
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(encoding in 0u8..2, endian in 0u8..2, tail in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>(), 1u8..32], 0..400)) {
        let bytes = [&[encoding, endian, 0, 0], tail.as_slice()].concat();
        let _ = NvList::decode(&bytes);
    }
}
