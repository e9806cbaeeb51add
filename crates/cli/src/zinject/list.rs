//! How `zinject` prints handlers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};
use daemon::Imported;
use engine::inject::{ALWAYS, Action, BlockFault, Handler, IoType};

use super::words::{ERRORS, IOS};

/// `zinject -h`.
pub(super) const USAGE: &str = "\
usage:

	zinject
	zinject -c <id|all>
	zinject -d device [-e errno] [-L <nvlist|uber|pad1|pad2>] [-F]
		[-T <read|write|free|claim|flush|trim|probe|all>] [-f frequency] [-aq] pool
	zinject -d device -A <degrade|fault> pool
	zinject -d device -D latency:lanes [-T <read|write>] [-f frequency] pool
	zinject -P <import|export> -s seconds pool
	zinject -b objset:object:level:start[-end] [-e errno] [-f frequency] [-aq] pool
	zinject <-t type> [-C dvas] [-e errno] [-l level] [-r range] [-f frequency] [-amq] <object>
	zinject -a

	'errno' of a device: nxio (the default), io, dtl, corrupt (with -T read and -f) or noop;
	of data: checksum (the default), io, decompress or decrypt.
	'type' with a path: data, dnode; with a pool: mos, mosdir, metaslab, config, bpobj, spacemap, errlog.
	'frequency' is a percentage between 0.0001 and 100.
";

/// The names of a table by value.
fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("-", |(name, _)| name)
}

/// The percentage of a frequency.
fn percent(frequency: u64) -> f64 {
    let frequency = if frequency == 0 { ALWAYS } else { frequency };
    #[expect(clippy::cast_precision_loss, reason = "at most ALWAYS")]
    let percent = frequency as f64 / ALWAYS as f64 * 100.0;
    percent
}

/// Prints all handlers of pools.
#[doc(alias = "print_all_handlers")]
pub(super) fn all(pools: &[Arc<Imported>], ctx: &mut Ctx) -> Outcome {
    let mut known: Vec<(String, Arc<Handler>)> = Vec::new();
    for pool in pools {
        let handlers = pool.spa().map(|spa| spa.injections().list()).unwrap_or_default();
        known.extend(handlers.into_iter().map(|handler| (pool.name(), handler)));
    }
    known.sort_by_key(|(_, handler)| handler.id);
    let delays = super::pool_delay::table(&ctx.registry()?.delays.list());
    if known.is_empty() && delays.is_empty() {
        writeln!(ctx.out, "No handlers registered.\nRun 'zinject -h' for usage information.")?;
    }
    write!(ctx.out, "{}{delays}", table(&known))?;
    Ok(Exit::OK)
}

/// A table of each kind of handler, each followed by an empty line except the last kind that exists.
fn table(known: &[(String, Arc<Handler>)]) -> String {
    let mut text = String::new();
    for part in [devices, delays, blocks] {
        let rows = part(known);
        if !rows.is_empty() {
            let _ = writeln!(text, "{rows}");
        }
    }
    text
}

fn rows(
    known: &[(String, Arc<Handler>)],
    head: [String; 2],
    row: impl Fn(&str, &Handler) -> Option<String>,
) -> String {
    let lines: Vec<String> = known.iter().filter_map(|(pool, handler)| row(pool, handler)).collect();
    if lines.is_empty() {
        String::new()
    } else {
        head.into_iter().chain(lines).map(|line| line + "\n").collect()
    }
}

#[doc(alias = "print_device_handler")]
fn devices(known: &[(String, Arc<Handler>)]) -> String {
    let head = [
        format!(
            "{:>3}  {:<15}  {:<16}  {:<5}  {:<10}  {:<9}  {:<6}  {:<6}",
            "ID", "POOL", "GUID", "TYPE", "ERROR", "FREQ", "MATCH", "INJECT"
        ),
        "---  ---------------  ----------------  -----  ----------  ---------  ------  ------".to_owned(),
    ];
    rows(known, head, |pool, handler| {
        let (error, io) = match &handler.action {
            Action::Device { error, io } => (*error, *io),
            Action::Label { error, .. } => (*error, IoType::All),
            _ => return None,
        };
        let [matched, injected] = handler.counts();
        Some(format!(
            "{:>3}  {pool:<15}  {:x}  {:<5}  {:<10}  {:8.4}%  {matched:>6}  {injected:>6}",
            handler.id,
            handler.guid,
            name_of(&IOS, &io),
            name_of(&ERRORS, &error),
            percent(handler.frequency),
        ))
    })
}

#[doc(alias = "print_delay_handler")]
fn delays(known: &[(String, Arc<Handler>)]) -> String {
    let head = [
        format!(
            "{:>3}  {:<15}  {:<16}  {:<10}  {:<5}  {:<9}  {:<6}  {:<6}",
            "ID", "POOL", "GUID", "DELAY (ms)", "LANES", "FREQ", "MATCH", "INJECT"
        ),
        "---  ---------------  ----------------  ----------  -----  ---------  ------  ------".to_owned(),
    ];
    rows(known, head, |pool, handler| {
        let Action::Delay { latency, lanes, .. } = &handler.action else { return None };
        let [matched, injected] = handler.counts();
        Some(format!(
            "{:>3}  {pool:<15}  {:x}  {:>10}  {lanes:>5}  {:8.4}%  {matched:>6}  {injected:>6}",
            handler.id,
            handler.guid,
            latency.as_millis(),
            percent(handler.frequency),
        ))
    })
}

/// The range of blocks in OpenZFS's words.
fn range(fault: &BlockFault) -> String {
    match (fault.start, fault.end) {
        (0, u64::MAX) => "all".to_owned(),
        (start, end) => format!("[{start}, {end}]"),
    }
}

#[doc(alias = "print_data_handler")]
fn blocks(known: &[(String, Arc<Handler>)]) -> String {
    let head = [
        format!(
            "{:>3}  {:<15}  {:<6}  {:<6}  {:<8}  {:>3}  {:<4}  {:<15}  {:<6}  {:<15}",
            "ID", "POOL", "OBJSET", "OBJECT", "TYPE", "LVL", "DVAs", "RANGE", "MATCH", "INJECT"
        ),
        "---  ---------------  ------  ------  --------  ---  ----  ---------------  ------  ------"
            .to_owned(),
    ];
    rows(known, head, |pool, handler| {
        let Action::Block(fault) = &handler.action else { return None };
        let [matched, injected] = handler.counts();
        let kind = fault.kind.map_or(0, |kind| kind.raw());
        let kind = if kind == 0 { "-".to_owned() } else { kind.to_string() };
        Some(format!(
            "{:>3}  {pool:<15}  {:<6}  {:<6}  {kind:<8}  {:<3}  0x{:02x}  {:<15}  {matched:>6}  {injected:>6}",
            handler.id,
            fault.objset,
            fault.object,
            fault.level,
            fault.dvas,
            range(fault),
        ))
    })
}

/// The description of a new handler.
#[doc(alias = "register_handler")]
pub(super) fn added(handler: &Handler, pool: &str) -> String {
    let mut text = format!("Added handler {} with the following properties:\n  pool: {pool}\n", handler.id);
    let rest = match &handler.action {
        Action::Block(fault) => {
            let kind = fault.kind.map_or(0, |kind| kind.raw());
            let range = range(fault).replace(']', ")");
            format!(
                "objset: {}\nobject: {}\n  type: {kind}\n level: {}\n range: {range}\n  dvas: 0x{:x}\n",
                fault.objset, fault.object, fault.level, fault.dvas
            )
        }
        _ => format!("  vdev: {:x}\n", handler.guid),
    };
    text.push_str(&rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::inject::FaultError;
    use std::time::Duration;

    #[test]
    fn tables_are_those_of_openzfs() {
        let make = |guid, action| ("tank".to_owned(), Handler::new(guid, action, 500_000, 1));
        let (error, io) = (FaultError::Io, IoType::Write);
        let fault = BlockFault {
            objset: 54,
            object: 2,
            kind: None,
            level: 0,
            start: 0,
            end: u64::MAX,
            dvas: 3,
            error: FaultError::Checksum,
        };
        let known = [
            make(0xabcd_ef01_2345_6789, Action::Device { error, io }),
            make(1, Action::Delay { latency: Duration::from_millis(50), lanes: 2, io: IoType::All }),
            make(0, Action::Block(fault)),
        ];
        let ids: Vec<_> = known.iter().map(|(_, handler)| format!("{:>3}", handler.id)).collect();
        let want = format!(
            " ID  POOL             GUID              TYPE   ERROR       FREQ       MATCH   INJECT
---  ---------------  ----------------  -----  ----------  ---------  ------  ------
{}  tank             abcdef0123456789  write  io           50.0000%       0       0

 ID  POOL             GUID              DELAY (ms)  LANES  FREQ       MATCH   INJECT
---  ---------------  ----------------  ----------  -----  ---------  ------  ------
{}  tank             1          50      2   50.0000%       0       0

 ID  POOL             OBJSET  OBJECT  TYPE      LVL  DVAs  RANGE            MATCH   INJECT         
---  ---------------  ------  ------  --------  ---  ----  ---------------  ------  ------
{}  tank             54      2       -         0    0x03  all                   0       0

",
            ids[0], ids[1], ids[2]
        );
        assert_eq!(table(&known), want);
    }
}
