//! Text form, as `zstream dump` prints lists: with the beginning and end of nested ones.

use std::fmt::{self, Display, Write};

use crate::{NvList, NvString, NvValue};

/// Shows a list as OpenZFS's library prints it by default; made by [`NvList::print`].
#[doc(alias = "nvlist_print")]
pub struct Print<'a> {
    list: &'a NvList,
    depth: usize,
}

impl NvList {
    /// The list as text: its version, one line a pair, nested lists framed.
    pub fn print(&self) -> Print<'_> {
        Print { list: self, depth: 0 }
    }
}

impl Display for Print<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}nvlist version: 0", tabs(self.depth))?;
        self.list.iter().try_for_each(|pair| pair_at(f, self.depth + 1, &pair.name, &pair.value))
    }
}

fn tabs(depth: usize) -> String {
    "\t".repeat(depth)
}

fn list_at(f: &mut dyn Write, depth: usize, list: &NvList) -> fmt::Result {
    write!(f, "{}", Print { list, depth })
}

fn pair_at(f: &mut dyn Write, depth: usize, name: &NvString, value: &NvValue) -> fmt::Result {
    let tabs = tabs(depth);
    match value {
        NvValue::List(list) => {
            writeln!(f, "{tabs}{name} = (embedded nvlist)")?;
            list_at(f, depth, list)?;
            writeln!(f, "{tabs}(end {name})\n")
        }
        NvValue::ListArray(lists) => {
            writeln!(f, "{tabs}{name} = (array of embedded nvlists)")?;
            for (i, list) in lists.iter().enumerate() {
                writeln!(f, "{tabs}(start {name}[{i}])")?;
                list_at(f, depth, list)?;
                writeln!(f, "{tabs}(end {name}[{i}])")?;
            }
            writeln!(f)
        }
        // An empty array has no line but its end.
        value => match words(value) {
            words if words.is_empty() => writeln!(f),
            words => writeln!(f, "{tabs}{name} = {}", words.join(" ")),
        },
    }
}

/// The value, or the members of an array.
fn words(value: &NvValue) -> Vec<String> {
    match value {
        NvValue::Boolean => vec!["1".to_owned()],
        NvValue::BooleanValue(v) => vec![u8::from(*v).to_string()],
        NvValue::Byte(v) => vec![format!("0x{v:02x}")],
        NvValue::Int8(v) => vec![v.to_string()],
        NvValue::Uint8(v) => vec![format!("{v:#x}")],
        NvValue::Int16(v) => vec![v.to_string()],
        NvValue::Uint16(v) => vec![format!("{v:#x}")],
        NvValue::Int32(v) => vec![v.to_string()],
        NvValue::Uint32(v) => vec![format!("{v:#x}")],
        NvValue::Int64(v) => vec![v.to_string()],
        NvValue::Uint64(v) => vec![format!("{v:#x}")],
        NvValue::Hrtime(v) => vec![format!("{v:#x}")],
        NvValue::Double(v) => vec![format!("0x{v:.6}")],
        NvValue::String(v) => vec![v.to_string()],
        NvValue::BooleanArray(v) => v.iter().map(|v| u8::from(*v).to_string()).collect(),
        NvValue::ByteArray(v) => v.iter().map(|v| format!("0x{v:02x}")).collect(),
        NvValue::Int8Array(v) => v.iter().map(ToString::to_string).collect(),
        NvValue::Uint8Array(v) => v.iter().map(|v| format!("{v:#x}")).collect(),
        NvValue::Int16Array(v) => v.iter().map(ToString::to_string).collect(),
        NvValue::Uint16Array(v) => v.iter().map(|v| format!("{v:#x}")).collect(),
        NvValue::Int32Array(v) => v.iter().map(ToString::to_string).collect(),
        NvValue::Uint32Array(v) => v.iter().map(|v| format!("{v:#x}")).collect(),
        NvValue::Int64Array(v) => v.iter().map(ToString::to_string).collect(),
        NvValue::Uint64Array(v) => v.iter().map(|v| format!("{v:#x}")).collect(),
        NvValue::StringArray(v) => v.iter().map(ToString::to_string).collect(),
        NvValue::List(_) | NvValue::ListArray(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_lists_are_framed() {
        let (mut inner, mut list) = (NvList::new(), NvList::new());
        inner.add("a", 16u64);
        list.add("name", "tank").add("in", inner.clone()).add("all", vec![inner]).add("n", vec![1u64, 2]);
        let text = "nvlist version: 0\n\tname = tank\n\tin = (embedded nvlist)\n\tnvlist version: 0\n\t\ta = 0x10\n\
                    \t(end in)\n\n\tall = (array of embedded nvlists)\n\t(start all[0])\n\tnvlist version: 0\n\t\ta = 0x10\n\
                    \t(end all[0])\n\n\tn = 0x1 0x2\n";
        assert_eq!(list.print().to_string(), text);
    }
}
