//! JSON form.

use serde_json::{Map, Value};

use crate::{NvList, NvString, NvValue};

impl NvList {
    /// The list as a JSON object in the list's order. A `Boolean` becomes `true`; bytes that are not UTF-8 become
    /// U+FFFD; a number that JSON doesn't have (an infinite double) becomes null.
    #[doc(alias = "nvlist_print_json")]
    pub fn to_json(&self) -> Value {
        Value::Object(self.iter().map(|p| (p.name.to_string(), p.value.to_json())).collect::<Map<_, _>>())
    }
}

impl NvValue {
    /// The value as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Boolean => Value::Bool(true),
            Self::BooleanValue(v) => Value::from(*v),
            Self::Byte(v) | Self::Uint8(v) => Value::from(*v),
            Self::Int8(v) => Value::from(*v),
            Self::Int16(v) => Value::from(*v),
            Self::Uint16(v) => Value::from(*v),
            Self::Int32(v) => Value::from(*v),
            Self::Uint32(v) => Value::from(*v),
            Self::Int64(v) | Self::Hrtime(v) => Value::from(*v),
            Self::Uint64(v) => Value::from(*v),
            Self::Double(v) => Value::from(*v),
            Self::String(v) => Value::from(v.to_string()),
            Self::ByteArray(v) | Self::Uint8Array(v) => Value::from(v.as_slice()),
            Self::Int8Array(v) => Value::from(v.as_slice()),
            Self::Int16Array(v) => Value::from(v.as_slice()),
            Self::Uint16Array(v) => Value::from(v.as_slice()),
            Self::Int32Array(v) => Value::from(v.as_slice()),
            Self::Uint32Array(v) => Value::from(v.as_slice()),
            Self::Int64Array(v) => Value::from(v.as_slice()),
            Self::Uint64Array(v) => Value::from(v.as_slice()),
            Self::BooleanArray(v) => Value::from(v.as_slice()),
            Self::StringArray(v) => v.iter().map(NvString::to_string).collect(),
            Self::List(v) => v.to_json(),
            Self::ListArray(v) => v.iter().map(NvList::to_json).collect(),
        }
    }
}
