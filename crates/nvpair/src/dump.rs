//! Text form, as zdb prints configurations.

use std::fmt::{self, Display, Write};

use crate::{NvList, NvString, NvValue};

/// Columns that each level of nesting is indented by.
const STEP: usize = 4;

/// Shows a list as `zdb -C` and `zdb -l` do; made by [`NvList::dump`].
#[doc(alias = "dump_nvlist")]
pub struct Dump<'a> {
    list: &'a NvList,
    indent: usize,
}

impl NvList {
    /// The list as text, one line a pair, each line indented by `indent` columns.
    pub fn dump(&self, indent: usize) -> Dump<'_> {
        Dump { list: self, indent }
    }
}

impl Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.iter().try_for_each(|pair| dump_pair(f, self.indent, &pair.name, &pair.value))
    }
}

fn line(f: &mut dyn Write, indent: usize, name: &NvString, value: impl Display) -> fmt::Result {
    writeln!(f, "{:indent$}{name}: {value}", "")
}

fn lines<T: Display>(
    f: &mut dyn Write,
    indent: usize,
    name: &NvString,
    values: impl IntoIterator<Item = T>,
) -> fmt::Result {
    values.into_iter().enumerate().try_for_each(|(i, v)| writeln!(f, "{:indent$}{name}[{i}]: {v}", ""))
}

fn dump_pair(f: &mut dyn Write, indent: usize, name: &NvString, value: &NvValue) -> fmt::Result {
    match value {
        NvValue::Boolean => writeln!(f, "{:indent$}{name}", ""),
        NvValue::BooleanValue(v) => line(f, indent, name, v),
        NvValue::Byte(v) | NvValue::Uint8(v) => line(f, indent, name, v),
        NvValue::Int8(v) => line(f, indent, name, v),
        NvValue::Int16(v) => line(f, indent, name, v),
        NvValue::Uint16(v) => line(f, indent, name, v),
        NvValue::Int32(v) => line(f, indent, name, v),
        NvValue::Uint32(v) => line(f, indent, name, v),
        NvValue::Int64(v) | NvValue::Hrtime(v) => line(f, indent, name, v),
        NvValue::Uint64(v) => line(f, indent, name, v),
        NvValue::Double(v) => line(f, indent, name, format_args!("{v:.6}")),
        NvValue::String(v) => line(f, indent, name, format_args!("'{v}'")),
        NvValue::ByteArray(v) | NvValue::Uint8Array(v) => lines(f, indent, name, v),
        NvValue::Int8Array(v) => lines(f, indent, name, v),
        NvValue::Int16Array(v) => lines(f, indent, name, v),
        NvValue::Uint16Array(v) => lines(f, indent, name, v),
        NvValue::Int32Array(v) => lines(f, indent, name, v),
        NvValue::Uint32Array(v) => lines(f, indent, name, v),
        NvValue::Int64Array(v) => lines(f, indent, name, v),
        NvValue::Uint64Array(v) => lines(f, indent, name, v),
        NvValue::BooleanArray(v) => lines(f, indent, name, v),
        NvValue::StringArray(v) => lines(f, indent, name, v.iter().map(|s| format!("'{s}'"))),
        NvValue::List(v) => {
            writeln!(f, "{:indent$}{name}:", "")?;
            write!(f, "{}", v.dump(indent + STEP))
        }
        NvValue::ListArray(v) => v.iter().enumerate().try_for_each(|(i, list)| {
            writeln!(f, "{:indent$}{name}[{i}]:", "")?;
            write!(f, "{}", list.dump(indent + STEP))
        }),
    }
}
