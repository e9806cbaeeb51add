//! OpenZFS's messages to a user without the permission for a command.
//!
//! Source: the messages of libzfs and of the commands of OpenZFS 2.3.2, run without privileges.

use clikit::refused::{DENIED, mount, plain, quoted};
use clikit::verb::Failure;
use zfs::ZfsVerb;
use zpool::ZpoolVerb;

use crate::asked::Asked;
use crate::command::Command;

/// The refusal of a command, with the exit code that OpenZFS's command has where the kernel refuses it.
pub(crate) fn refusal(command: &Command) -> Failure {
    let failure = words(command);
    if is_minus_one(command) { failure.as_minus_one() } else { failure }
}

/// Whether OpenZFS's command returns the -1 of the failed system call. Others return 1: those that go over their operands with
/// `for_each_pool`, `zpool set` among them, and those that compare the result with 0.
fn is_minus_one(command: &Command) -> bool {
    match command {
        Command::Zpool(zpool) => matches!(
            &zpool.verb,
            ZpoolVerb::Attach(_)
                | ZpoolVerb::Replace(_)
                | ZpoolVerb::Detach(_)
                | ZpoolVerb::Reguid(_)
                | ZpoolVerb::Initialize(_)
                | ZpoolVerb::Trim(_)
                | ZpoolVerb::Ddtprune(_)
                | ZpoolVerb::Prefetch(_)
                | ZpoolVerb::Events(_)
        ),
        Command::Zfs(zfs) => matches!(
            &zfs.verb,
            ZfsVerb::Set(_)
                | ZfsVerb::LoadKey(_)
                | ZfsVerb::UnloadKey(_)
                | ZfsVerb::ChangeKey(_)
                | ZfsVerb::Userspace(_)
                | ZfsVerb::Groupspace(_)
                | ZfsVerb::Projectspace(_)
        ),
        _ => false,
    }
}

fn words(command: &Command) -> Failure {
    match command {
        Command::Zpool(zpool) => of_zpool(&zpool.verb),
        Command::Zfs(zfs) => of_zfs(&zfs.verb, Asked::by(command).names.first().map_or("", String::as_str)),
        Command::MountHelper(v) => mount(&v.dataset),
        _ => Failure::failed(DENIED),
    }
}

fn of_zpool(verb: &ZpoolVerb) -> Failure {
    let first = |names: &[String]| names.first().cloned().unwrap_or_default();
    match verb {
        ZpoolVerb::Create(v) => quoted("create", &v.pool),
        ZpoolVerb::Destroy(v) => quoted("destroy", &v.pool),
        ZpoolVerb::Add(v) => quoted("add to", &v.pool),
        ZpoolVerb::Attach(v) => plain("attach", &format!("{} to {}", v.new_device, v.device)),
        ZpoolVerb::Replace(v) => {
            plain("replace", &format!("{} with {}", v.device, v.new_device.as_ref().unwrap_or(&v.device)))
        }
        ZpoolVerb::Detach(v) => plain("detach", &v.device),
        ZpoolVerb::Split(v) => Failure::failed(format!("Unable to split {}: {DENIED}", v.pool)),
        ZpoolVerb::Export(v) => quoted("export", &first(&v.pools)),
        ZpoolVerb::Set(v) => quoted("set property for", &v.pool),
        ZpoolVerb::Checkpoint(v) if v.discard => quoted("discard checkpoint in", &first(&v.pools)),
        ZpoolVerb::Checkpoint(v) => quoted("checkpoint", &first(&v.pools)),
        ZpoolVerb::Initialize(v) => quoted("initialize", &first(&v.names)),
        ZpoolVerb::Trim(v) => quoted("trim", &first(&v.names)),
        ZpoolVerb::Ddtprune(v) => quoted("prune dedup table on", &first(&v.pools)),
        ZpoolVerb::Prefetch(v) => quoted("prefetch ddt in", &first(&v.pools)),
        ZpoolVerb::Reguid(v) => quoted("reguid", &v.pool),
        ZpoolVerb::Remove(v) if v.stop => Failure::failed(format!("cannot cancel removal: {DENIED}")),
        ZpoolVerb::Remove(v) => plain("remove", &first(&v.devices)),
        ZpoolVerb::Scrub(v) => plain("scrub", &first(&v.pools)),
        ZpoolVerb::Resilver(v) => plain("restart resilver on", &first(&v.pools)),
        ZpoolVerb::Upgrade(v) => quoted("upgrade", &first(&v.pools)),
        ZpoolVerb::Clear(v) => plain("clear errors for", v.device.as_ref().unwrap_or(&v.pool)),
        ZpoolVerb::Offline(v) => plain("offline", &first(&v.devices)),
        ZpoolVerb::Online(v) => plain("online", &first(&v.devices)),
        ZpoolVerb::Reopen(v) => quoted("reopen", &first(&v.pools)),
        ZpoolVerb::Events(_) => Failure::failed(format!("cannot clear events: {DENIED}")),
        ZpoolVerb::Import(_) => Failure::failed(format!("cannot discover pools: {DENIED}")),
        ZpoolVerb::Other(words) => without_module(words),
        _ => Failure::failed(DENIED),
    }
}

/// Verbs without a module.
fn without_module(words: &[std::ffi::OsString]) -> Failure {
    match words.first().and_then(|word| word.to_str()).unwrap_or_default() {
        "program" => Failure::failed("Permission denied. Channel programs must be run as root."),
        _ => Failure::failed(DENIED),
    }
}

fn of_zfs(verb: &ZfsVerb, name: &str) -> Failure {
    let dataset = name.split(['@', '#']).next().unwrap_or_default();
    let action = match verb {
        ZfsVerb::Create(_) => "create",
        ZfsVerb::Clone(v) => return quoted("create", &v.name),
        ZfsVerb::Destroy(_) if name.contains('@') => {
            return Failure::failed(format!("cannot destroy snapshots: {DENIED}"));
        }
        ZfsVerb::Destroy(_) => "destroy",
        ZfsVerb::Snapshot(_) => return Failure::failed(format!("cannot create snapshots : {DENIED}")),
        ZfsVerb::DiscardLog(_) => "discard the log of",
        ZfsVerb::Rename(_) => "rename",
        ZfsVerb::Promote(_) => "promote",
        ZfsVerb::Receive(_) => return Failure::failed(format!("cannot receive: {DENIED}")),
        ZfsVerb::Rollback(_) => return quoted("rollback", dataset),
        ZfsVerb::Set(_) => "set property for",
        ZfsVerb::Inherit(v) => return plain(&format!("inherit {} for", v.property), &format!("'{name}'")),
        ZfsVerb::Hold(_) => return Failure::failed(format!("cannot hold: {DENIED}")),
        ZfsVerb::Release(_) => return Failure::failed(format!("cannot release: {DENIED}")),
        ZfsVerb::Bookmark(v) => return quoted("create bookmark", &v.name),
        ZfsVerb::Send(v) => {
            let names = v.names();
            let name = names.last().map_or("", String::as_str);
            return Failure::failed(format!("warning: cannot send '{name}': {DENIED}"));
        }
        ZfsVerb::Allow(_) | ZfsVerb::Unallow(_) => "set permissions on",
        ZfsVerb::Mount(_) => return mount(name),
        ZfsVerb::Unmount(_) => "unmount",
        ZfsVerb::Share(_) => "share",
        ZfsVerb::Unshare(_) => "unshare",
        ZfsVerb::Upgrade(_) => "set property for",
        ZfsVerb::LoadKey(_) => return Failure::failed("Key load error: Permission denied."),
        ZfsVerb::UnloadKey(_) => return Failure::failed("Key unload error: Permission denied."),
        ZfsVerb::ChangeKey(_) => return Failure::failed("Key change error: Permission denied."),
        ZfsVerb::Userspace(_) | ZfsVerb::Groupspace(_) | ZfsVerb::Projectspace(_) => {
            return plain("get used/quota for", name);
        }
        ZfsVerb::Diff(_) => {
            return Failure::failed(format!(
                "cannot diff '{name}': {DENIED} (the permission 'diff' is needed)"
            ));
        }
        ZfsVerb::Other(words) => return without_module(words),
        _ => return Failure::failed(DENIED),
    };
    quoted(action, name)
}

#[cfg(test)]
mod tests {

    #[test]
    fn verbs_without_a_module_name_what_they_would_change() {
        let said = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(Into::into).collect();
            super::without_module(&words).message().unwrap_or_default()
        };
        let root = "Permission denied. Channel programs must be run as root.";
        assert_eq!(said(&["program", "tank", "x.lua"]), root);
        assert_eq!(said(&["zone", "a"]), "permission denied");
    }
}
