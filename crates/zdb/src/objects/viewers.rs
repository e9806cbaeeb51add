//! Selects the viewer of an object's content or bonus buffer, by type.

use engine::dmu::Object;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::dnode::DNODE_CORE_SIZE;
use ondisk::{Byteswap, ObjectType};

use super::dump::{Done, Dump, out};
use super::view::View;
use super::{bpobj, dsl, files, records, zap};

/// A type's name in an object's row: for self-describing types only the kind of byte swap.
pub fn type_name(object_type: ObjectType) -> &'static str {
    match object_type.name() {
        Some(name) => name,
        None => object_type.byteswap().filter(|_| object_type.is_newtype()).map_or("UNKNOWN", Byteswap::name),
    }
}

/// The type whose viewer prints it: self-describing ZAPs and arrays have one, others none.
fn viewed_as(object_type: ObjectType) -> Option<ObjectType> {
    if !object_type.is_newtype() {
        return Some(object_type).filter(|t| t.is_valid());
    }
    match object_type.byteswap()? {
        Byteswap::Zap => Some(ObjectType::ZAP_OTHER),
        Byteswap::Uint64 => Some(ObjectType::UINT64_OTHER),
        _ => None,
    }
}

/// Prints the bonus buffer.
pub fn bonus(dump: &mut Dump<'_>, view: &mut View, object: &Object) -> Done {
    let kind = object.dnode.bonustype;
    if object.number == 0 {
        return Ok(());
    }
    if view.hides(kind) {
        out!(dump, "\t\t(bonus encrypted)\n");
        return Ok(());
    }
    let data = object.dnode.bonus();
    use ObjectType as T;
    match viewed_as(kind) {
        None => unknown(dump),
        Some(T::PACKED_NVLIST_SIZE | T::FUID_SIZE) => records::packed_nvlist(dump, object),
        Some(T::BPOBJ_HDR) => bpobj::header(dump, object),
        Some(T::DSL_DIR) => dsl::dir(dump, data),
        Some(T::DSL_DATASET) => dsl::dataset(dump, data),
        Some(T::ZNODE | T::SA) => files::znode(dump, view, object),
        Some(T::SPA_HISTORY_OFFSETS) => records::history_offsets(dump, data),
        Some(T::UINT64_OTHER | T::OBJECT_ARRAY) => records::words(dump, &room(object)),
        Some(_) => Ok(()),
    }
}

/// The bonus buffer with all the space that the dnode has for it.
fn room(object: &Object) -> Vec<u8> {
    let dnode = &object.dnode;
    let taken = DNODE_CORE_SIZE + dnode.nblkptr() * BLKPTR_SIZE;
    let mut bytes = dnode.bonus().to_vec();
    bytes.resize(dnode.size().saturating_sub(taken), 0);
    bytes
}

/// Prints the content.
pub fn content(dump: &mut Dump<'_>, view: &mut View, object: &Object) -> Done {
    let kind = object.dnode.object_type;
    if view.hides(kind) {
        out!(dump, "\t\t(object encrypted)\n");
        return Ok(());
    }
    use ObjectType as T;
    let Some(viewed) = viewed_as(kind) else { return unknown(dump) };
    match viewed {
        T::OBJECT_ARRAY | T::UINT64_OTHER => records::array(dump, object),
        T::DIRECTORY_CONTENTS => zap::directory(dump, object),
        T::DDT_ZAP => zap::stats_only(dump, object),
        T::SA_ATTR_REGISTRATION => zap::sa_attrs(dump, object),
        T::SA_ATTR_LAYOUTS => zap::sa_layouts(dump, object),
        T::BPOBJ_SUBOBJ => bpobj::subobjs(dump, object),
        _ if viewed.byteswap() == Some(Byteswap::Zap) => zap::entries(dump, object),
        _ => Ok(()),
    }
}

fn unknown(dump: &mut Dump<'_>) -> Done {
    out!(dump, "\tUNKNOWN OBJECT TYPE\n");
    Ok(())
}
