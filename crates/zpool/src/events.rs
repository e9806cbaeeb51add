//! `zpool events`: events of the pools since the daemon began.
//!
//! Differs from OpenZFS: events are kept for each pool; those of the latest pools that are gone are kept. `-c` forgets all of
//! them.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::event_clock;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::events::Reader;
use engine::spa::events::Event;
use nvpair::{NvList, NvValue};
use zcommon::names::check_new_pool;
use zcommon::vdev::{VdevAux, VdevState};

/// Columns that the payload is indented by, each level.
const INDENT: usize = 8;
/// Names of types of requests.
#[doc(alias = "zio_type_t")]
const ZIO_TYPES: [&str; 7] = ["NULL", "READ", "WRITE", "FREE", "CLAIM", "FLUSH", "TRIM"];
/// Interval of checks for new events.
const POLL: Duration = Duration::from_millis(20);

/// Print the events of pools.
#[derive(Debug, Args)]
pub struct Events {
    /// Print all fields of each event.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Follow mode: continue, and print new events.
    #[arg(short = 'f')]
    pub follow: bool,
    /// Clear all events.
    #[arg(short = 'c', conflicts_with_all = ["verbose", "scripted", "follow", "pool"])]
    pub clear: bool,
    /// The pool (default: all).
    pub pool: Option<String>,
}

impl Verb for Events {
    #[doc(alias = "zpool_do_events")]
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some(name) = self.pool.as_ref().filter(|name| check_new_pool(name).is_err()) {
            return Err(Failure::usage(format!("invalid pool name '{name}'")));
        }
        let registry = ctx.registry()?;
        if self.clear {
            let cleared: usize = registry.events().iter().map(|ring| ring.clear()).sum();
            writeln!(ctx.out, "cleared {cleared} events")?;
            return Ok(Exit::OK);
        }
        if !self.scripted {
            writeln!(ctx.out, "{:<30} CLASS", "TIME")?;
        }
        let mut reader = Reader::default();
        loop {
            for event in reader.news(&registry).events.iter().filter(|event| self.wants(event)) {
                self.print(&mut *ctx.out, event)?;
            }
            if !self.follow {
                return Ok(Exit::OK);
            }
            ctx.out.flush()?;
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Events {
    fn wants(&self, event: &Event) -> bool {
        self.pool.is_none() || event.payload.str("pool") == self.pool.as_deref()
    }

    fn print(&self, out: &mut dyn Write, event: &Event) -> io::Result<()> {
        let (seconds, nanos) = event.time;
        let gap = if self.scripted { '\t' } else { ' ' };
        writeln!(out, "{}.{nanos:09}{gap}{}", event_clock(seconds), event.class)?;
        if self.verbose {
            print_list(out, &event.payload, INDENT)?;
            writeln!(out)?;
        }
        Ok(())
    }
}

#[doc(alias = "zpool_do_events_nvprint")]
fn print_list(out: &mut dyn Write, list: &NvList, depth: usize) -> io::Result<()> {
    for pair in list.iter() {
        let name = pair.name.to_string_lossy();
        write!(out, "{:depth$}{name} = ", "")?;
        match &pair.value {
            NvValue::List(inner) => {
                writeln!(out, "(embedded nvlist)")?;
                print_list(out, inner, depth + INDENT)?;
                write!(out, "{:depth$}(end {name})", "")?;
            }
            NvValue::ListArray(inner) => {
                writeln!(out, "({} embedded nvlists)", inner.len())?;
                for (number, list) in inner.iter().enumerate() {
                    writeln!(out, "{:depth$}{name}[{number}] = (embedded nvlist)", "")?;
                    print_list(out, list, depth + INDENT)?;
                    writeln!(out, "{:depth$}(end {name}[{number}])", "")?;
                }
                write!(out, "{:depth$}(end {name})", "")?;
            }
            value => write!(out, "{}", shown(&name, value))?,
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A value as `zpool events -v` prints it: numbers in hexadecimal, states of vdevs by their name, too.
fn shown(name: &str, value: &NvValue) -> String {
    fn all<T>(values: &[T], form: impl Fn(&T) -> String) -> String {
        values.iter().map(|value| form(value) + " ").collect()
    }
    match value {
        NvValue::Boolean | NvValue::BooleanValue(true) => "1".to_owned(),
        NvValue::BooleanValue(false) => "0".to_owned(),
        NvValue::Uint64(n) if matches!(name, "vdev_state" | "vdev_laststate") => {
            let state = VdevState::from_number(*n).unwrap_or(VdevState::Unknown);
            format!("\"{}\" (0x{n:x})", state.name(VdevAux::None))
        }
        NvValue::Byte(n) | NvValue::Uint8(n) => format!("0x{n:x}"),
        NvValue::Int8(n) => format!("0x{n:x}"),
        NvValue::Int16(n) => format!("0x{n:x}"),
        NvValue::Uint16(n) => format!("0x{n:x}"),
        NvValue::Int32(n) => format!("0x{n:x}"),
        NvValue::Uint32(n) if name == "zio_type" => {
            let index = usize::try_from(*n).unwrap_or(usize::MAX);
            format!("0x{n:x} [{}]", ZIO_TYPES.get(index).unwrap_or(&"UNKNOWN"))
        }
        NvValue::Uint32(n) => format!("0x{n:x}"),
        NvValue::Int64(n) | NvValue::Hrtime(n) => format!("0x{n:x}"),
        NvValue::Uint64(n) => format!("0x{n:x}"),
        NvValue::Double(n) => format!("{n}"),
        NvValue::String(text) => format!("\"{text}\""),
        NvValue::ByteArray(values) | NvValue::Uint8Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Int8Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Int16Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Uint16Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Int32Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Uint32Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Int64Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::Uint64Array(values) => all(values, |n| format!("0x{n:x}")),
        NvValue::StringArray(values) => all(values, |text| format!("\"{text}\"")),
        NvValue::BooleanArray(values) => all(values, |n| u8::from(*n).to_string()),
        NvValue::List(_) | NvValue::ListArray(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `zpool events -v` of OpenZFS 2.3 lays such a payload out.
    #[test]
    fn payloads_are_laid_out_as_openzfs_does() {
        let mut detector = NvList::new();
        detector.add("version", NvValue::Uint8(0)).add("scheme", "zfs").add("pool", 0xabcu64);
        let mut list = NvList::new();
        list.add("class", "resource.fs.zfs.statechange").add("detector", detector);
        list.add("zio_type", NvValue::Uint32(2))
            .add("vdev_state", 5u64)
            .add("time", NvValue::Int64Array(vec![0x10, 0x2a]))
            .add("eid", 7u64);
        let mut out = Vec::new();
        print_list(&mut out, &list, INDENT).unwrap();
        let want = "        class = \"resource.fs.zfs.statechange\"\n        \
            detector = (embedded nvlist)\n                version = 0x0\n                scheme = \"zfs\"\n                \
            pool = 0xabc\n        (end detector)\n        zio_type = 0x2 [WRITE]\n        vdev_state = \"FAULTED\" (0x5)\n        \
            time = 0x10 0x2a \n        eid = 0x7\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
