//! A stream under way: the engine writes it on a thread of its own; this one prints how far it is, and stops it when the
//! user wants that.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clikit::ctx::Ctx;
use clikit::output::time;
use clikit::verb::Failure;
use engine::dsl::Dataset;
use engine::send::{Meter, SendOptions, send_with};
use engine::{Error, Kind};
use stdx::wake::Watch;
use zcommon::units::{nicebytes, nicenum};

use crate::stream_out::StreamOut;

/// Time limit for the reader of a delegated user to take the next piece.
const PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(50);

/// Output while a stream is written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Report {
    /// Lines each second at all.
    pub progress: bool,
    /// Tabs and plain numbers.
    pub parsable: bool,
    /// From 2 on blocks are reported, too.
    pub verbosity: u8,
}

/// Where all streams of a command go.
pub(super) struct Output {
    to: To,
}

enum To {
    Descriptor(StreamOut),
    Memory(Arc<Mutex<Vec<u8>>>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Descriptor(out) => out.write(bytes),
            To::Memory(all) => {
                all.lock().map_err(|_| io::Error::other("lock"))?.extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Descriptor(out) => out.flush(),
            To::Memory(_) => Ok(()),
        }
    }
}

impl Output {
    /// The command's standard output.
    pub(super) fn of(ctx: &mut Ctx) -> Result<Self, Failure> {
        ctx.out.flush()?;
        let is_delegated = ctx.session.as_ref().is_some_and(|session| session.delegated.is_some());
        let to = match &ctx.raw_out {
            Some(out) => {
                let patience = is_delegated.then_some(PATIENCE);
                To::Descriptor(StreamOut::new(out.try_clone()?, ctx.interrupt.flag(), patience))
            }
            None => To::Memory(Arc::default()),
        };
        Ok(Self { to })
    }

    /// Writes the kept output to `ctx.out`.
    pub(super) fn finish(mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        self.flush()?;
        if let To::Memory(all) = &self.to
            && let Ok(all) = all.lock()
        {
            ctx.out.write_all(&all)?;
        }
        Ok(())
    }
}

/// Writes a stream of `dataset`.
pub(super) fn run(
    dataset: &Dataset,
    options: &SendOptions,
    out: &mut Output,
    report: Report,
    ctx: &mut Ctx,
) -> engine::Result<()> {
    let meter = Meter::default();
    watched(&meter, &dataset.name, report, ctx, |meter| send_with(dataset, options, out, meter))
}

/// Runs `work`, which counts with a meter, and watches it.
pub(crate) fn watched<T: Send>(
    meter: &Meter,
    name: &str,
    report: Report,
    ctx: &mut Ctx,
    work: impl FnOnce(&Meter) -> engine::Result<T> + Send,
) -> engine::Result<T> {
    // Work that waits for this command must not wait for the stream.
    ctx.let_sync();
    thread::scope(|scope| {
        let (wake, watch) = Watch::new();
        let working = scope.spawn(move || {
            let _wake = wake;
            work(meter)
        });
        if report.progress && !report.parsable {
            let blocks = if report.verbosity >= 2 { "   BLOCKS    " } else { "" };
            let _ = writeln!(ctx.err, "TIME        SENT   {blocks}SNAPSHOT {name}");
        }
        let mut last = Instant::now();
        while watch.goes_on(TICK) {
            if ctx.interrupt.is_set() {
                meter.stop();
            }
            if report.progress && last.elapsed() >= Duration::from_secs(1) {
                last += Duration::from_secs(1);
                // A closed standard error stops nothing.
                let _ = writeln!(ctx.err, "{}", line(meter, name, report));
                let _ = ctx.err.flush();
            }
        }
        let gone = || Error::new(Kind::Io, "the thread that writes the stream ended");
        working.join().map_err(|_| gone())?
    })
}

fn line(meter: &Meter, name: &str, report: Report) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (clock, bytes, blocks) = (time::time_of_day(now), meter.bytes(), meter.blocks());
    match (report.verbosity >= 2, report.parsable) {
        (true, true) => format!("{clock}\t{bytes}\t{blocks}\t{name}"),
        (true, false) => format!("{clock}   {:>5}    {blocks:>8}    {name}", nicenum(bytes).to_string()),
        (false, true) => format!("{clock}\t{bytes}\t{name}"),
        (false, false) => format!("{clock}   {:>5}   {name}", nicebytes(bytes).to_string()),
    }
}

/// The failure of a stream: the output so far stays; a closed reader is not reported.
pub(super) fn failure(e: &Error, name: &str, reason: impl Fn(&Error) -> String) -> Failure {
    match e.kind() {
        Kind::Interrupted => Failure::Interrupted,
        _ if e.what().contains("Broken pipe") => Failure::Output(io::ErrorKind::BrokenPipe.into()),
        _ => Failure::failed(format!("warning: cannot send '{name}': {}", reason(e))),
    }
}
