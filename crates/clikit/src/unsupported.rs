//! OpenZFS's verbs that this program does not implement yet: the message says that the verb exists but is not
//! supported, instead of suggesting a misspelling. Faults of the pools and datasets that it names are reported first.

use std::ffi::OsString;

use crate::ctx::Ctx;
use crate::session::Home;
use crate::unsupported_usage::{self, Form, Line};
use crate::verb::{Failure, Outcome};

/// Every verb of OpenZFS 2.4's `zpool`, with a description. A verb with its own module is never looked up here.
pub const ZPOOL_VERBS: &[(&str, &str)] = &[
    ("add", "adding vdevs to a pool"),
    ("attach", "attaching a device"),
    ("checkpoint", "taking or discarding a pool checkpoint"),
    ("clear", "clearing device errors"),
    ("create", "creating a pool"),
    ("ddtprune", "pruning the dedup table"),
    ("destroy", "destroying a pool"),
    ("detach", "detaching a device"),
    ("events", "the event log"),
    ("export", "exporting a pool"),
    ("get", "pool properties"),
    ("history", "the pool's history"),
    ("import", "importing a pool"),
    ("initialize", "writing to all unallocated space"),
    ("labelclear", "clearing labels"),
    ("list", "listing pools"),
    ("offline", "taking a device offline"),
    ("online", "bringing a device online"),
    ("prefetch", "loading metadata into the cache"),
    ("reguid", "giving a pool a new guid"),
    ("remove", "removing a device"),
    ("reopen", "reopening devices"),
    ("replace", "replacing a device"),
    ("resilver", "starting a resilver"),
    ("scrub", "scrubbing; `aquifer verify` checks every block of a pool that is not imported"),
    ("set", "setting pool properties"),
    ("split", "splitting a mirrored pool"),
    ("status", "pool status"),
    ("sync", "syncing a pool"),
    ("trim", "trimming free space"),
    ("upgrade", "upgrading a pool"),
    ("wait", "waiting for an activity"),
];

/// Every verb of OpenZFS 2.4's `zfs`, with a description.
pub const ZFS_VERBS: &[(&str, &str)] = &[
    ("allow", "delegated permissions"),
    ("bookmark", "creating a bookmark"),
    ("change-key", "changing an encryption key"),
    ("clone", "cloning a snapshot"),
    ("create", "creating a dataset"),
    ("destroy", "destroying a dataset"),
    ("diff", "comparing snapshots"),
    ("get", "dataset properties"),
    ("groupspace", "space used by group"),
    ("hold", "holding a snapshot"),
    ("holds", "listing holds"),
    ("inherit", "clearing a property"),
    ("jail", "FreeBSD jails"),
    ("list", "listing datasets"),
    ("load-key", "keeping an encryption key loaded; offline verbs take --load-key"),
    ("mount", "mounting; `aquifer mount` mounts a pool that is not imported"),
    ("program", "channel programs"),
    ("project", "project ids of files"),
    ("projectspace", "space used by project"),
    ("promote", "promoting a clone"),
    ("receive", "receiving a stream"),
    ("recv", "receiving a stream"),
    ("redact", "creating a redaction bookmark"),
    ("release", "releasing a hold"),
    ("rename", "renaming a dataset"),
    ("rollback", "rolling back to a snapshot"),
    ("send", "sending a stream"),
    ("set", "setting dataset properties"),
    ("share", "sharing over NFS or SMB"),
    ("snap", "creating a snapshot"),
    ("snapshot", "creating a snapshot"),
    ("umount", "unmounting"),
    ("unallow", "delegated permissions"),
    ("unjail", "FreeBSD jails"),
    ("unload-key", "unloading an encryption key"),
    ("unmount", "unmounting"),
    ("unshare", "unsharing"),
    ("unzone", "Linux containers"),
    ("upgrade", "upgrading a file system"),
    ("userspace", "space used by user"),
    ("wait", "waiting for an activity"),
    ("zone", "Linux containers"),
];

/// Every verb of OpenZFS 2.4's `zstream` without a module, with a description.
pub const ZSTREAM_VERBS: &[(&str, &str)] = &[];

/// A short description of a verb of OpenZFS.
pub fn what(command: &str, verb: &str) -> Option<&'static str> {
    let table = if command == "zpool" { ZPOOL_VERBS } else { ZFS_VERBS };
    table.iter().find(|(name, _)| *name == verb).map(|(_, what)| *what)
}

/// The process in which a verb without a module runs: the daemon knows whether its pool exists; wrong usage is
/// reported here.
pub fn home(command: &str, words: &[OsString]) -> Home {
    match read(command, words) {
        Some((_, Ok(line))) if !line.arguments.is_empty() => Home::Daemon,
        _ => Home::Here,
    }
}

/// Parses the command line of a verb with a known usage.
fn read(command: &str, words: &[OsString]) -> Option<(&'static Form, Result<Line, Failure>)> {
    let (verb, rest) = words.split_first()?;
    let form = unsupported_usage::find(command, verb.to_str()?)?;
    Some((form, form.read(rest)))
}

/// The answer to a verb without a module: unsupported, or unknown. Errors in its arguments are reported first.
pub fn refuse(command: &str, table: &[(&str, &str)], words: &[OsString], ctx: &mut Ctx) -> Outcome {
    let verb = words.first().map(|w| w.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((name, what)) = table.iter().find(|(name, _)| *name == verb) else {
        return Err(Failure::usage(format!("unrecognized command '{verb}'")));
    };
    if let Some((form, line)) = read(command, words) {
        check(form, &line?, ctx)?;
    }
    Err(Failure::failed(format!("{command} {name}: not supported yet: {what}")))
}

/// Checks the names in a line.
///
/// # Errors
/// The fault of a name.
fn check(form: &Form, line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    match form.command {
        "zpool" => check_pool(line, ctx),
        _ => check_dataset(form, line, ctx),
    }
}

fn check_pool(line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some(name) = line.arguments.first() else { return Ok(()) };
    if ctx.pool(name).is_none() {
        return Err(ctx.no_pool(name));
    }
    Ok(())
}

fn check_dataset(form: &Form, line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some(name) = line.arguments.first() else { return Ok(()) };
    match form.verb {
        "program" if ctx.pool(name).is_none() => Err(match ctx.is_coming(name) {
            true => ctx.no_pool(name),
            false => Failure::failed(format!("cannot open pool '{name}'")),
        }),
        _ => Ok(()),
    }
}
