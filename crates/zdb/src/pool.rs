//! Pool-wide structures: `-C` the configuration, `-u` the uberblock, `-h` the history, and the checkpoint.

use std::io::Write;
use std::path::Path;

use clikit::ctx::Ctx;
use clikit::output::history::{HistoryFormat, record};
use clikit::users::Names;
use clikit::verb::{Exit, Failure, Outcome};
use daemon::imported::DEFAULT_CACHE;
use daemon::paths::RunPaths;
use engine::spa::history::history;
use engine::spa::packed_nvlist;
use nvpair::NvList;
use ondisk::names::mos;

use super::import_config;
use super::target::Session;
use super::uberblock;

/// Maximum size of a cache file.
const MAX_CACHE: u64 = 64 << 20;

/// `-C` without a pool: the cache file, by default that of the daemon, and without one OpenZFS's.
pub fn cache_file(path: Option<&Path>, ctx: &mut Ctx) -> Outcome {
    let own = RunPaths::of_process().cache();
    let path = match path {
        Some(path) => path,
        None if ctx.session.is_some() || own.exists() => &own,
        None => Path::new(DEFAULT_CACHE),
    };
    let cannot = |why: String| Failure::failed(format!("cannot open '{}': {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| cannot(e.to_string()))?.len();
    if size > MAX_CACHE {
        return Err(cannot(format!("{size} bytes are too many for a cache file")));
    }
    let bytes = std::fs::read(path).map_err(|e| cannot(e.to_string()))?;
    let list = NvList::decode(&bytes).map_err(|e| cannot(e.to_string()))?;
    write!(ctx.out, "{}", list.dump(0))?;
    Ok(Exit::OK)
}

/// `-C`: the configuration in the MOS; `-CC` also the one that an import would use.
pub fn config(session: &Session, ctx: &mut Ctx) -> Outcome {
    let pool = &session.pool;
    if session.level('C') > 1 {
        import_config::print(session, ctx)?;
    }
    let number = pool.directory()?.need(mos::CONFIG)?;
    let list = packed_nvlist(&pool.mos.object(number)?)?;
    writeln!(ctx.out, "\nMOS Configuration:")?;
    write!(ctx.out, "{}", list.dump(8))?;
    Ok(Exit::OK)
}

/// `-u`.
pub fn uberblock(session: &Session, ctx: &mut Ctx) -> Outcome {
    let text = uberblock::text(&session.pool.uberblock, session.level('u'));
    writeln!(ctx.out, "\nUberblock:\n{text}")?;
    Ok(Exit::OK)
}

/// The uberblock of the pool's checkpoint, if any; shown after everything else.
pub fn checkpoint(session: &Session, ctx: &mut Ctx) -> Outcome {
    if let Some(ub) = session.pool.checkpoint_uberblock()? {
        let text = uberblock::text(&ub, session.level('u'));
        writeln!(ctx.out, "\nCheckpointed uberblock found:\n{text}")?;
    }
    Ok(Exit::OK)
}

/// `-h`; `-hh` every field of every record.
pub fn run_history(session: &Session, ctx: &mut Ctx) -> Outcome {
    let format = HistoryFormat { internal: true, long: false };
    let history = history(&session.pool)?;
    writeln!(ctx.out, "\nHistory:")?;
    for rec in &history.records {
        write!(ctx.out, "{}", event(rec, format))?;
        if session.level('h') > 1 {
            write!(ctx.out, "{}", rec.dump(2))?;
        }
    }
    for e in &history.damage {
        ctx.warn(format!("history: {e}"));
    }
    Ok(if history.damage.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// A record in zdb's format: without its duration, with numbered events named, and without an empty line after the
/// input of a call.
fn event(rec: &NvList, format: HistoryFormat) -> String {
    let mut rec = rec.clone();
    rec.remove("elapsed_ns");
    let text = record(&rec, format, &Names::default()).unwrap_or_default();
    let command = rec.contains("history command");
    if rec.contains("history internal event") && !command {
        return format!(" {text}");
    }
    if rec.contains("ioctl") && !command {
        return text.strip_suffix("\n\n").map(|body| format!("{body}\n")).unwrap_or(text);
    }
    text
}
