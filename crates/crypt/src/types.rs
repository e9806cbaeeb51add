//! Which object types are encrypted (`dmu_ot[].ot_encrypt`, dmu.c; `DMU_OT_ENCRYPTED`, dmu.h).

/// Set in types that are described by their own bits instead of the table.
const NEWTYPE: u8 = 0x80;
/// Within such a type: encrypted.
const NEWTYPE_ENCRYPTED: u8 = 0x20;

/// Legacy types with encrypted contents, a bit for each.
const LEGACY: u64 = {
    let types: [u8; 19] = [9, 10, 18, 19, 20, 22, 23, 25, 26, 33, 34, 35, 39, 40, 44, 45, 46, 47, 49];
    let mut bits = 0;
    let mut i = 0;
    while i < types.len() {
        #[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
        let ty = types[i];
        bits |= 1 << ty;
        i += 1;
    }
    bits
};

/// True when the contents of objects (or bonus buffers) of this type are encrypted in an encrypted
/// dataset; other types are authenticated only.
#[doc(alias = "DMU_OT_IS_ENCRYPTED")]
pub fn is_encrypted_type(object_type: u8) -> bool {
    if object_type & NEWTYPE != 0 {
        return object_type & NEWTYPE_ENCRYPTED != 0;
    }
    object_type < 64 && LEGACY >> object_type & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_each() {
        for ty in [10, 19, 20, 44, 0xa4] {
            assert!(is_encrypted_type(ty), "{ty}");
        }
        for ty in [0, 11, 17, 21, 27, 53, 63, 64, 0x7f, 0x84, 0xc4] {
            assert!(!is_encrypted_type(ty), "{ty}");
        }
    }
}
