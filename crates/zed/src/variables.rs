//! The environment of a zedlet: an event's fields in OpenZFS's encodings, and the daemon's own variables.
//!
//! Source: cmd/zed/zed_event.c, OpenZFS 2.4.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clikit::names::{BUILD, RELEASE};
use clikit::output::time::offset_clock;
use nvpair::{NvList, NvPair, NvValue};
use zcommon::vdev::{VdevAux, VdevState};

use crate::source::Event;

/// Maximum bytes of `NAME=VALUE` with its end: OpenZFS leaves out longer variables.
#[doc(alias = "MAXBUF")]
const MAX: usize = 4096;
/// Maximum variables of an event.
const COUNT: usize = 1024;
/// The value of a field whose type has no encoding.
const NO_ENCODING: &str = "_NOT_IMPLEMENTED_";
/// The search path of zedlets.
#[doc(alias = "_PATH_STDPATH")]
const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// Commands that zedlets call through a variable of that name in upper case.
const COMMANDS: [&str; 5] = ["zdb", "zed", "zfs", "zinject", "zpool"];
/// Variables of the daemon's own environment that zedlets keep.
const KEPT: [&str; 2] = ["TZ", daemon::paths::RUN];
/// The same for a user other than root, whose daemon is found by them.
const KEPT_BY_USERS: [&str; 4] = ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"];

/// The variables of one event, by name.
pub type Variables = BTreeMap<String, OsString>;

/// The part of the environment that all events have.
#[derive(Debug, Clone)]
pub struct Surroundings {
    variables: Variables,
}

impl Surroundings {
    /// For zedlets of this directory. With a `path` (`-P`) commands are found through it.
    pub fn new(zedlet_dir: &Path, path: Option<&OsString>) -> Self {
        let mut variables = Variables::new();
        let mut set = |name: &str, value: OsString| variables.insert(name.to_owned(), value);
        set("IFS", " \t\n".into());
        set("PATH", path.cloned().unwrap_or_else(|| search_path(&folder_of_commands())));
        for command in COMMANDS {
            let place = if path.is_some() { command.into() } else { folder_of_commands().join(command) };
            set(&command.to_uppercase(), place.into());
        }
        set("ZFS_ALIAS", format!("zfs-{RELEASE}-{BUILD}").into());
        set("ZFS_VERSION", RELEASE.into());
        set("ZFS_RELEASE", BUILD.into());
        set("ZED_PID", std::process::id().to_string().into());
        set("ZED_ZEDLET_DIR", zedlet_dir.into());
        let users = if rustix::process::geteuid().is_root() { &[][..] } else { &KEPT_BY_USERS };
        for name in KEPT.iter().chain(users) {
            if let Some(value) = std::env::var_os(name) {
                set(name, value);
            }
        }
        Self { variables }
    }

    /// The variables of an event, and the names of the fields that have none because they are too long.
    pub fn of_event(&self, event: &Event) -> (Variables, Vec<String>) {
        let mut fields = Fields::default();
        fields.add_all(&event.payload);
        fields.variables.extend(self.variables.clone());
        fields.add("subclass", subclass(&event.class).unwrap_or(&event.class));
        let (seconds, nanos) = event.time;
        fields.add("time_secs", &seconds.to_string());
        fields.add("time_nsecs", &nanos.to_string());
        if let Some(text) = offset_clock(seconds) {
            fields.add("time_string", &text);
        }
        (fields.variables, fields.left_out)
    }
}

/// The directory with this program's links, or that of a system's commands.
fn folder_of_commands() -> PathBuf {
    let own = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    own.filter(|dir| dir.join("zpool").exists()).unwrap_or_else(|| "/usr/sbin".into())
}

/// The search path, with the directory of this program's links first if it does not contain that directory: an installed
/// OpenZFS must not be taken for this one.
fn search_path(links: &Path) -> OsString {
    if PATH.split(':').any(|dir| Path::new(dir) == links) || links.as_os_str().as_bytes().contains(&b':') {
        return PATH.into();
    }
    let mut path = links.as_os_str().to_owned();
    path.push(":");
    path.push(PATH);
    path
}

/// The part of a class after its third dot: `statechange` of `resource.fs.zfs.statechange`.
pub fn subclass(class: &str) -> Option<&str> {
    class.splitn(4, '.').nth(3)
}

#[derive(Debug, Default)]
struct Fields {
    variables: Variables,
    left_out: Vec<String>,
}

impl Fields {
    fn add_all(&mut self, payload: &NvList) {
        payload.iter().for_each(|pair| self.add_pair(pair));
    }

    fn add_pair(&mut self, pair: &NvPair) {
        let name = pair.name.to_string_lossy().into_owned();
        match &pair.value {
            NvValue::String(text) => self.add_bytes(&name, text.as_bytes()),
            NvValue::StringArray(texts) => {
                let words: Vec<&[u8]> = texts.iter().map(nvpair::NvString::as_bytes).collect();
                self.add_bytes(&name, &words.join(&b' '));
            }
            value => self.add(&name, &shown(&name, value)),
        }
        if let Some(state) = state_of(&name, &pair.value) {
            self.add(&format!("{name}_str"), state);
        }
    }

    fn add(&mut self, name: &str, value: &str) {
        self.add_bytes(name, value.as_bytes());
    }

    fn add_bytes(&mut self, name: &str, value: &[u8]) {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let variable = variable(name);
        // An environment cannot have values with a zero byte.
        let fits = variable.len() + value.len() + 2 <= MAX && self.variables.len() < COUNT;
        if !is_name || !fits || value.contains(&0) {
            if self.left_out.len() < COUNT {
                self.left_out.push(name.chars().take(64).collect());
            }
            return;
        }
        self.variables.insert(variable, OsString::from_vec(value.to_vec()));
    }
}

/// `vdev_guid` becomes `ZEVENT_VDEV_GUID`; each byte other than a letter or a digit becomes an underscore.
fn variable(name: &str) -> String {
    let fitted = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_uppercase().into() } else { '_' };
    "ZEVENT_".chars().chain(name.bytes().map(fitted)).collect()
}

/// Whether a number of this name is printed in hexadecimal.
fn is_hex(name: &str) -> bool {
    ["_guid", "_guids"].iter().any(|end| name.find(end).is_some_and(|at| at + end.len() == name.len()))
}

/// The name of the state that a number stands for.
fn state_of(name: &str, value: &NvValue) -> Option<&'static str> {
    let NvValue::Uint64(number) = value else { return None };
    match name {
        "vdev_state" | "vdev_laststate" => {
            Some(VdevState::from_number(*number).unwrap_or(VdevState::Unknown).name(VdevAux::None))
        }
        "pool_state" => Some(pool_state(*number)),
        _ => None,
    }
}

#[doc(alias = "zpool_pool_state_to_name")]
fn pool_state(number: u64) -> &'static str {
    match number {
        0 => "ACTIVE",
        1 => "EXPORTED",
        2 => "DESTROYED",
        3 => "SPARE",
        4 => "L2CACHE",
        5 => "UNINITIALIZED",
        6 => "UNAVAIL",
        7 => "POTENTIALLY_ACTIVE",
        _ => "UNKNOWN",
    }
}

/// A value as OpenZFS encodes it. Single signed numbers of 8 and 16 bits are printed without their sign, those of arrays with
/// it.
fn shown(name: &str, value: &NvValue) -> String {
    fn all<T>(values: &[T], form: impl Fn(&T) -> String) -> String {
        // More values than this do not fit in a variable.
        values.iter().take(MAX).map(form).collect::<Vec<_>>().join(" ")
    }
    let long = |n: &u64| if is_hex(name) { format!("0x{n:016X}") } else { n.to_string() };
    match value {
        NvValue::Boolean | NvValue::BooleanValue(true) => "1".to_owned(),
        NvValue::BooleanValue(false) => "0".to_owned(),
        NvValue::Byte(n) | NvValue::Uint8(n) => n.to_string(),
        NvValue::Int8(n) => n.cast_unsigned().to_string(),
        NvValue::Int16(n) => n.cast_unsigned().to_string(),
        NvValue::Uint16(n) => n.to_string(),
        NvValue::Int32(n) => n.to_string(),
        NvValue::Uint32(n) => n.to_string(),
        NvValue::Int64(n) => n.to_string(),
        NvValue::Hrtime(n) => n.cast_unsigned().to_string(),
        NvValue::Uint64(n) => long(n),
        NvValue::Double(n) => general(*n),
        NvValue::Int8Array(values) => all(values, ToString::to_string),
        NvValue::Uint8Array(values) => all(values, ToString::to_string),
        NvValue::Int16Array(values) => all(values, ToString::to_string),
        NvValue::Uint16Array(values) => all(values, ToString::to_string),
        NvValue::Int32Array(values) => all(values, ToString::to_string),
        NvValue::Uint32Array(values) => all(values, ToString::to_string),
        NvValue::Int64Array(values) => all(values, ToString::to_string),
        NvValue::Uint64Array(values) => all(values, long),
        _ => NO_ENCODING.to_owned(),
    }
}

/// A number in the format `%g` of C.
fn general(n: f64) -> String {
    const DIGITS: i32 = 6;
    if !n.is_finite() {
        return if n.is_nan() {
            "nan"
        } else if n > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let scientific = format!("{n:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let places = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        return trimmed(&format!("{n:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload: NvList) -> (Variables, Vec<String>) {
        let around = Surroundings { variables: Variables::new() };
        let class = "resource.fs.zfs.statechange".to_owned();
        around.of_event(&Event { eid: 7, time: (1_795_218_190, 42), class, payload })
    }

    #[test]
    fn fields_have_the_encodings_of_openzfs() {
        let mut list = NvList::new();
        list.add("class", "resource.fs.zfs.statechange").add("eid", 7u64);
        list.add("pool_guid", 0xabcu64).add("vdev_state", 5u64).add("pool_state", NvValue::Int32(0));
        list.add("time", NvValue::Int64Array(vec![1_795_218_190, -42]));
        list.add("vdev_spare_guids", NvValue::Uint64Array(vec![1, u64::MAX]));
        list.add("vdev_spare_paths", NvValue::StringArray(vec!["/dev/a".into(), "/dev/b c".into()]));
        list.add("small", NvValue::Int8(-1)).add("short", NvValue::Int16(-2)).add("int", NvValue::Int32(-3));
        list.add("long", NvValue::Int64(-4)).add("small-s", NvValue::Int8Array(vec![-1, 2]));
        list.add("yes", NvValue::Boolean).add("no", NvValue::BooleanValue(false));
        list.add("bytes", NvValue::ByteArray(vec![1])).add("list", NvList::new());
        list.add("half", NvValue::Double(0.5))
            .add("guid_other", 16u64)
            .add("none", NvValue::Uint64Array(vec![]));
        let (variables, left_out) = of(list);
        let want = [
            ("CLASS", "resource.fs.zfs.statechange"),
            ("SUBCLASS", "statechange"),
            ("EID", "7"),
            ("POOL_GUID", "0x0000000000000ABC"),
            ("VDEV_STATE", "5"),
            ("VDEV_STATE_STR", "FAULTED"),
            ("POOL_STATE", "0"),
            ("TIME", "1795218190 -42"),
            ("TIME_SECS", "1795218190"),
            ("TIME_NSECS", "42"),
            ("VDEV_SPARE_GUIDS", "0x0000000000000001 0xFFFFFFFFFFFFFFFF"),
            ("VDEV_SPARE_PATHS", "/dev/a /dev/b c"),
            ("SMALL", "255"),
            ("SHORT", "65534"),
            ("INT", "-3"),
            ("LONG", "-4"),
            ("SMALL_S", "-1 2"),
            ("YES", "1"),
            ("NO", "0"),
            ("BYTES", "_NOT_IMPLEMENTED_"),
            ("LIST", "_NOT_IMPLEMENTED_"),
            ("HALF", "0.5"),
            ("GUID_OTHER", "16"),
            ("NONE", ""),
        ];
        for (name, value) in want {
            let got = variables.get(&format!("ZEVENT_{name}")).map(|v| v.to_string_lossy().into_owned());
            assert_eq!(got.as_deref(), Some(value), "{name}");
        }
        let time = variables["ZEVENT_TIME_STRING"].to_string_lossy().into_owned();
        assert!(time.len() == 24 && time.starts_with("2026-11-2"), "{time}");
        // The fields above, the name of the state, and the time in text.
        assert_eq!((variables.len(), left_out), (want.len() + 1, Vec::new()));
    }

    #[test]
    fn variables_that_no_environment_can_have_are_left_out() {
        let mut list = NvList::new();
        list.add("long", "x".repeat(MAX).as_str()).add("1st", 1u64).add("", 1u64);
        list.add("many", NvValue::Uint64Array(vec![u64::MAX; 100_000]));
        list.add("zero", NvValue::String("a\0b".into())).add("fine", "x".repeat(MAX - 13).as_str());
        list.add("subclass", "forged").add("über", "x");
        let (variables, left_out) = of(list);
        assert_eq!(left_out, ["long", "1st", "", "many", "zero", "über"]);
        assert_eq!(variables["ZEVENT_FINE"].len(), MAX - 13);
        assert_eq!(variables["ZEVENT_SUBCLASS"], "statechange");
    }

    #[test]
    fn the_environment_has_own_variables_only() {
        let around = Surroundings::new(Path::new("/etc/zfs/zed.d"), None);
        let get = |name: &str| around.variables.get(name).and_then(|value| value.to_str());
        assert_eq!(get("ZED_ZEDLET_DIR"), Some("/etc/zfs/zed.d"));
        assert_eq!(get("ZED_PID"), Some(std::process::id().to_string().as_str()));
        assert_eq!((get("ZFS_VERSION"), get("IFS")), (Some("2.4.4"), Some(" \t\n")));
        assert!(get("PATH").unwrap().ends_with(PATH) && get("ZPOOL").unwrap().ends_with("/zpool"));
        assert_eq!(get("CARGO_MANIFEST_DIR"), None);
        let custom = Surroundings::new(Path::new("/z"), Some(&"/a:/b".into()));
        assert_eq!((&custom.variables["PATH"], &custom.variables["ZFS"]), (&"/a:/b".into(), &"zfs".into()));
    }

    #[test]
    fn floating_point_numbers_look_like_those_of_c() {
        for (n, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (1.0 / 3.0, "0.333333"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (-2.0, "-2"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(general(n), text);
        }
        assert_eq!(subclass("ereport.fs.zfs.io"), Some("io"));
        assert_eq!((subclass("a.b.c.d.e"), subclass("a.b.c")), (Some("d.e"), None));
    }
}
