//! Classifies a command line.

use std::ffi::OsString;

use crate::asked::{Asked, Deed};
use crate::command::Command;
use zfs::{Zfs, ZfsVerb};
use zpool::{Zpool, ZpoolVerb};

impl Asked {
    /// Classifies a command.
    pub fn by(command: &Command) -> Self {
        let plain = |deed| Self { deed, names: Vec::new(), repeats: false, reads: false };
        match command {
            Command::Zpool(zpool) => {
                let (deed, words) = of_zpool(zpool);
                // Some verbs take an interval and a count after the names.
                let (numbers, names): (Vec<_>, Vec<_>) =
                    words.into_iter().partition(|word| word.parse::<f64>().is_ok());
                let follows = matches!(&zpool.verb, ZpoolVerb::Events(v) if v.follow);
                let repeats = deed == Deed::Look && (!numbers.is_empty() || follows);
                Self { deed, names, repeats, reads: false }
            }
            Command::Zfs(zfs) => {
                let (deed, names) = of_zfs(zfs);
                Self {
                    deed,
                    names,
                    repeats: false,
                    reads: matches!(&zfs.verb, ZfsVerb::Receive(v) if !v.abort),
                }
            }
            Command::MountHelper(v) => Self { names: vec![v.dataset.clone()], ..plain(Deed::Change) },
            Command::Dedup(v) => Self { names: v.names.clone(), ..plain(Deed::Change) },
            Command::Advise(v) => Self { names: vec![v.name.clone()], ..plain(Deed::Change) },
            Command::Zinject(v) => Self { names: v.names.clone(), ..plain(Deed::Change) },
            // The cache file of each daemon.
            Command::Zdb(_) => plain(Deed::Look),
            // These concern a single process.
            _ => plain(Deed::Change),
        }
    }
}

fn one(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

fn of_zpool(zpool: &Zpool) -> (Deed, Vec<String>) {
    use Deed::{Bring, Change, Look};
    match &zpool.verb {
        ZpoolVerb::List(v) => (Look, v.pools.clone()),
        ZpoolVerb::Status(v) => (Look, v.pools.clone()),
        ZpoolVerb::Iostat(v) => (Look, v.pools.clone()),
        ZpoolVerb::Get(v) => (Look, v.pools.clone()),
        ZpoolVerb::History(v) => (Look, v.pools.clone()),
        ZpoolVerb::Events(v) => (if v.clear { Change } else { Look }, v.pool.iter().cloned().collect()),
        ZpoolVerb::Import(v) => {
            let name = v.new_name.as_ref().or(v.pool.as_ref());
            (Bring(name.filter(|name| name.parse::<u64>().is_err()).cloned()), Vec::new())
        }
        ZpoolVerb::Create(v) => (Bring((!v.dry).then(|| v.pool.clone())), Vec::new()),
        ZpoolVerb::Labelclear(_) => (Bring(None), Vec::new()),
        ZpoolVerb::Destroy(v) => (Change, one(&v.pool)),
        ZpoolVerb::Add(v) => (Change, one(&v.pool)),
        ZpoolVerb::Attach(v) => (Change, one(&v.pool)),
        ZpoolVerb::Replace(v) => (Change, one(&v.pool)),
        ZpoolVerb::Detach(v) => (Change, one(&v.pool)),
        ZpoolVerb::Split(v) => (Change, one(&v.pool)),
        ZpoolVerb::Export(v) => (Change, v.pools.clone()),
        ZpoolVerb::Set(v) => (Change, one(&v.pool)),
        ZpoolVerb::Sync(v) => (Change, v.pools.clone()),
        ZpoolVerb::Reguid(v) => (Change, one(&v.pool)),
        ZpoolVerb::Freeze(v) => (Change, one(&v.pool)),
        ZpoolVerb::Remove(v) => (Change, v.pool.iter().cloned().collect()),
        ZpoolVerb::Scrub(v) => (Change, v.pools.clone()),
        ZpoolVerb::Checkpoint(v) => (Change, v.pools.clone()),
        ZpoolVerb::Initialize(v) => (Change, v.names.iter().take(1).cloned().collect()),
        ZpoolVerb::Trim(v) => (Change, v.names.iter().take(1).cloned().collect()),
        ZpoolVerb::Ddtprune(v) => (Change, v.pools.clone()),
        ZpoolVerb::Prefetch(v) => (Change, v.pools.clone()),
        ZpoolVerb::Resilver(v) => (Change, v.pools.clone()),
        ZpoolVerb::Upgrade(v) => (Change, v.pools.clone()),
        ZpoolVerb::Wait(v) => (Change, one(&v.pool)),
        ZpoolVerb::Clear(v) => (Change, one(&v.pool)),
        ZpoolVerb::Offline(v) => (Change, one(&v.pool)),
        ZpoolVerb::Online(v) => (Change, one(&v.pool)),
        ZpoolVerb::Reopen(v) => (Change, v.pools.clone()),
        ZpoolVerb::Other(words) => (Change, other(words)),
        ZpoolVerb::Version(_) => (Change, Vec::new()),
    }
}

fn of_zfs(zfs: &Zfs) -> (Deed, Vec<String>) {
    use Deed::{Change, Look};
    match &zfs.verb {
        ZfsVerb::List(v) => (Look, v.names.clone()),
        ZfsVerb::Get(v) => (Look, v.names.clone()),
        ZfsVerb::Holds(v) => (Look, v.names.clone()),
        ZfsVerb::Mount(v) if !v.all && v.names.is_empty() => (Look, Vec::new()),
        ZfsVerb::Upgrade(v) if !v.all && v.names.is_empty() => (Look, Vec::new()),
        ZfsVerb::Mount(v) => (Change, v.names.clone()),
        ZfsVerb::Upgrade(v) => (Change, v.names.clone()),
        ZfsVerb::Userspace(v) => (Change, one(&v.options.space.name)),
        ZfsVerb::Groupspace(v) => (Change, one(&v.options.space.name)),
        ZfsVerb::Projectspace(v) => (Change, one(&v.options.name)),
        ZfsVerb::Diff(v) => {
            let names = std::iter::once(&v.from).chain(&v.to);
            (Change, names.filter(|name| !name.starts_with('@')).cloned().collect())
        }
        ZfsVerb::Create(v) => (Change, one(&v.name)),
        ZfsVerb::Destroy(v) => (Change, one(&v.name)),
        ZfsVerb::Snapshot(v) => (Change, v.names.clone()),
        ZfsVerb::Unmount(v) => (Change, v.names.clone()),
        ZfsVerb::Rollback(v) => (Change, one(&v.snapshot)),
        ZfsVerb::Receive(v) => (Change, one(&v.name)),
        ZfsVerb::Clone(v) => (Change, vec![v.snapshot.clone(), v.name.clone()]),
        ZfsVerb::Promote(v) => (Change, one(&v.name)),
        ZfsVerb::DiscardLog(v) => (Change, one(&v.name)),
        ZfsVerb::Rename(v) => (Change, vec![v.old.clone(), v.new.clone()]),
        ZfsVerb::Set(v) => (Change, v.words.iter().filter(|word| !word.contains('=')).cloned().collect()),
        ZfsVerb::Inherit(v) => (Change, v.names.clone()),
        ZfsVerb::Hold(v) => (Change, v.names.clone()),
        ZfsVerb::Release(v) => (Change, v.names.clone()),
        ZfsVerb::Bookmark(v) => (Change, vec![v.source.clone(), v.name.clone()]),
        ZfsVerb::Redact(v) => (Change, v.names()),
        ZfsVerb::Send(v) => (Change, v.names()),
        ZfsVerb::LoadKey(v) => (Change, v.names.clone()),
        ZfsVerb::UnloadKey(v) => (Change, v.names.clone()),
        ZfsVerb::ChangeKey(v) => (Change, one(&v.name)),
        ZfsVerb::Allow(v) => (Change, v.words.last().cloned().into_iter().collect()),
        ZfsVerb::Unallow(v) => (Change, v.words.last().cloned().into_iter().collect()),
        ZfsVerb::Wait(v) => (Change, one(&v.name)),
        ZfsVerb::Share(v) => (Change, v.datasets().to_vec()),
        ZfsVerb::Unshare(v) => (Change, v.datasets().to_vec()),
        ZfsVerb::Other(words) => (Change, other(words)),
        ZfsVerb::Project(_) | ZfsVerb::Rewrite(_) | ZfsVerb::Version(_) => (Change, Vec::new()),
    }
}

/// The arguments of a verb without a module.
pub(crate) fn other(words: &[OsString]) -> Vec<String> {
    let words = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    words.filter(|word| !word.starts_with('-')).collect()
}
