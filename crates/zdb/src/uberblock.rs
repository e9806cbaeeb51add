//! The text of an uberblock.

use std::fmt::Write;

use clikit::output::time::clock;
use ondisk::Uberblock;
use ondisk::uberblock::UBERBLOCK_MAGIC;

/// Every field, one per line; `level` is the number of `-u` options.
#[doc(alias = "dump_uberblock")]
pub fn text(ub: &Uberblock, level: u32) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\t{name} = {value}");
    };
    line("magic", format!("{UBERBLOCK_MAGIC:016x}"));
    line("version", ub.version.to_string());
    line("txg", ub.txg.to_string());
    line("guid_sum", ub.guid_sum.to_string());
    line("timestamp", format!("{} UTC = {}", ub.timestamp, clock(ub.timestamp)));
    line("bp", ub.rootbp.to_string());
    line("mmp_magic", format!("{:016x}", ub.mmp_magic));
    if ub.mmp_valid() {
        line("mmp_delay", ub.mmp_delay.to_string());
        if let Some(seq) = ub.mmp_seq() {
            line("mmp_seq", seq.to_string());
        }
        if let Some(fail) = ub.mmp_fail_intervals() {
            line("mmp_fail", fail.to_string());
        }
        if let Some(write) = ub.mmp_interval_ms() {
            line("mmp_write", write.to_string());
        }
        line("mmp_valid", format!("{:x}", ub.mmp_config & 0xff));
    }
    if level >= 4 {
        line("rootbp", ub.rootbp.to_string());
    }
    line("checkpoint_txg", ub.checkpoint_txg.to_string());
    let _ = writeln!(out, "\traidz_reflow state={} off={}", ub.reflow_state_raw(), ub.reflow_offset());
    out
}
