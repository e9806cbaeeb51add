//! `zinject -P`: delays of the next import or export of a pool.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use daemon::pool_delays::{PoolCommand, PoolDelay};

use super::Zinject;

/// A year: more is a typing error.
const MAX_SECONDS: u64 = 365 * 86_400;

/// The commands by name.
const COMMANDS: [(&str, PoolCommand); 2] = [("import", PoolCommand::Import), ("export", PoolCommand::Export)];

fn word(command: PoolCommand) -> &'static str {
    COMMANDS.iter().find(|(_, known)| *known == command).map_or("-", |(word, _)| word)
}

impl Zinject {
    /// Adds a delay of the next import or export of a pool.
    pub(super) fn on_pool(&self, command: &str, ctx: &mut Ctx) -> Outcome {
        let invalid = || Failure::usage(format!("invalid command '{command}': must be 'import' or 'export'"));
        let command = super::words::find(&COMMANDS, command).ok_or_else(invalid)?;
        let others =
            [&self.bookmark, &self.range, &self.kind, &self.level, &self.device, &self.frequency, &self.dvas];
        if others.iter().any(|other| other.is_some()) {
            return Err(Failure::usage("import|export delay (-P) incompatible with other options"));
        }
        let needs = "import|export delay (-P) injection requires a duration (-s) and a single pool name";
        let pool = self.only(needs)?.to_owned();
        let seconds = self.seconds.as_deref().ok_or_else(|| Failure::usage(needs))?;
        let number = seconds.parse::<u64>().ok().filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
        let invalid =
            || Failure::usage(format!("invalid duration '{seconds}': must be a positive number of seconds"));
        let duration = Duration::from_secs(number.ok_or_else(invalid)?);
        let refused = |why: &str| Failure::failed(format!("failed to add handler: {why}"));
        match (command, ctx.pool(&pool).is_some()) {
            (PoolCommand::Import, true) => return Err(refused("pool already imported")),
            (PoolCommand::Export, false) => return Err(refused("No such file or directory")),
            _ => {}
        }
        let exists = || refused("a handler already exists");
        let delay = ctx.registry()?.delays.add(&pool, command, duration).ok_or_else(exists)?;
        match self.quiet {
            true => writeln!(ctx.out, "{}", delay.id)?,
            false => writeln!(
                ctx.out,
                "Added handler {} with the following properties:\n  pool: {pool}\n time: {} seconds",
                delay.id,
                duration.as_secs()
            )?,
        }
        Ok(Exit::OK)
    }
}

/// Removes all delays.
pub(super) fn cancel_all(ctx: &Ctx) -> Result<(), Failure> {
    let registry = ctx.registry()?;
    registry.delays.list().iter().for_each(|delay| {
        registry.delays.cancel(delay.id);
    });
    Ok(())
}

/// The table of delays with an empty line after it; empty without delays.
#[doc(alias = "print_pool_delay_handler")]
pub(super) fn table(delays: &[PoolDelay]) -> String {
    if delays.is_empty() {
        return String::new();
    }
    let mut text = format!("{:>3}  {:<19}  {:<11}  COMMAND\n", "ID", "POOL", "DELAY (sec)");
    text.push_str("---  -------------------  -----------  -------\n");
    for delay in delays {
        let (seconds, command) = (delay.duration.as_secs(), word(delay.command));
        let _ = writeln!(text, "{:>3}  {:<19}  {seconds:<11}  {command}", delay.id, delay.pool);
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_openzfs() {
        let delay = |id, command| PoolDelay {
            id,
            pool: "tank".to_owned(),
            command,
            duration: Duration::from_secs(12),
        };
        let want = " ID  POOL                 DELAY (sec)  COMMAND
---  -------------------  -----------  -------
  1  tank                 12           import
  2  tank                 12           export

";
        assert_eq!(table(&[delay(1, PoolCommand::Import), delay(2, PoolCommand::Export)]), want);
        assert_eq!(table(&[]), "");
    }
}
