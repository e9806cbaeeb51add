//! Structures with a byte order known only at run time: intent log records and send streams.
//!
//! Declared field by field in their order on disk, without padding between them.

use crate::{Blkptr, Cursor, Endian, Malformed};

/// A field of fixed size in either byte order.
pub trait Field: Sized {
    /// Bytes that it takes.
    const SIZE: usize;
    /// Reads it in the cursor's order.
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed>;
    /// Appends it in the given order.
    fn write(&self, out: &mut Vec<u8>, endian: Endian);
}

macro_rules! int_field {
    ($($ty:ident)*) => {$(
        impl Field for $ty {
            const SIZE: usize = size_of::<$ty>();
            fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
                let endian = at.endian();
                let raw = at.array()?;
                Ok(match endian {
                    Endian::Little => $ty::from_le_bytes(raw),
                    Endian::Big => $ty::from_be_bytes(raw),
                })
            }
            fn write(&self, out: &mut Vec<u8>, endian: Endian) {
                out.extend_from_slice(&match endian {
                    Endian::Little => self.to_le_bytes(),
                    Endian::Big => self.to_be_bytes(),
                });
            }
        }
    )*};
}

int_field! { u8 u32 u64 }

/// Bytes that mean themselves in either order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Raw<const N: usize>(pub [u8; N]);

impl<const N: usize> Default for Raw<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> std::fmt::Debug for Raw<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl<const N: usize> Field for Raw<N> {
    const SIZE: usize = N;
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        at.array().map(Self)
    }
    fn write(&self, out: &mut Vec<u8>, _: Endian) {
        out.extend_from_slice(&self.0);
    }
}

impl<const N: usize> Field for [u64; N] {
    const SIZE: usize = 8 * N;
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        at.u64s()
    }
    fn write(&self, out: &mut Vec<u8>, endian: Endian) {
        self.iter().for_each(|word| word.write(out, endian));
    }
}

impl Field for Blkptr {
    const SIZE: usize = crate::blkptr::BLKPTR_SIZE;
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        at.u64s().map(Blkptr::from_words)
    }
    fn write(&self, out: &mut Vec<u8>, endian: Endian) {
        self.words().write(out, endian);
    }
}

impl Field for crate::ddt::DdtKey {
    const SIZE: usize = 40;
    fn read(at: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(Self { cksum: at.u64s()?, prop: at.u64()? })
    }
    fn write(&self, out: &mut Vec<u8>, endian: Endian) {
        self.cksum.write(out, endian);
        self.prop.write(out, endian);
    }
}

/// Declares a structure of [`Field`]s and asserts its size on disk.
macro_rules! field_struct {
    (
        $(#[$doc:meta])*
        $name:ident, $size:literal bytes {
            $($(#[$fdoc:meta])* $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        const _: () = assert!(<$name as $crate::fields::Field>::SIZE == $size);

        impl $crate::fields::Field for $name {
            const SIZE: usize = 0 $(+ <$ty as $crate::fields::Field>::SIZE)*;
            fn read(at: &mut $crate::Cursor<'_>) -> Result<Self, $crate::Malformed> {
                Ok(Self { $($field: <$ty as $crate::fields::Field>::read(at)?,)* })
            }
            fn write(&self, out: &mut Vec<u8>, endian: $crate::Endian) {
                $($crate::fields::Field::write(&self.$field, out, endian);)*
            }
        }
    };
}
pub(crate) use field_struct;
