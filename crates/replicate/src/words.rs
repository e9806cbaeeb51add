//! A step as words: the command lines of both sides, a sentence, and fields for scripts.

use serde_json::{Value, json};

use crate::Job;
use crate::plan::{Act, Base, Step};

/// Describes a step in a sentence.
pub(crate) fn said(job: &Job, step: &Step) -> String {
    let (from, to, relative) = (&job.source.dataset, &job.target.dataset, &step.dataset);
    match &step.act {
        Act::Resume { .. } => format!("continue the receive of {to}{relative}"),
        Act::Rollback { to: name } => format!("roll back {to}{relative}@{name}"),
        Act::Send { base: Base::Nothing, to: name, .. } => {
            format!("send {from}{relative}@{name} to {to}{relative}")
        }
        Act::Send { base: Base::On(base), to: name, .. } => {
            format!("send {from}{relative}@{name} since {base} to {to}{relative}")
        }
    }
}

/// Fields of a step: `dataset` (its name relative to the roots), `action` (`send`, `resume` or `rollback`), `source` (the
/// snapshot that is sent), `base` (`@NAME`, `#NAME` or the whole name of an origin), `target` (the dataset, or the snapshot
/// of a rollback), `text` (the sentence). Those that a step lacks are null.
pub(crate) fn fields(job: &Job, step: &Step) -> Value {
    let mut target = format!("{}{}", job.target.dataset, step.dataset);
    let (mut source, mut since) = (None, None);
    let action = match &step.act {
        Act::Resume { .. } => "resume",
        Act::Rollback { to } => {
            target = format!("{target}@{to}");
            "rollback"
        }
        Act::Send { base, to, .. } => {
            source = Some(format!("{}{}@{to}", job.source.dataset, step.dataset));
            since = match base {
                Base::Nothing => None,
                Base::On(base) => Some(base.clone()),
            };
            "send"
        }
    };
    json!({
        "dataset": step.dataset, "action": action, "source": source, "base": since, "target": target,
        "text": said(job, step),
    })
}

/// The words of `zfs` that send a step's stream; `None` for a step without one. `sealed`: the target encrypts the dataset.
pub(crate) fn send(job: &Job, step: &Step, sealed: bool) -> Option<Vec<String>> {
    let mut words = vec!["send".to_owned()];
    match &step.act {
        Act::Rollback { .. } => return None,
        Act::Resume { token, .. } => words.extend(["-t".to_owned(), token.clone()]),
        Act::Send { base, to, raw, .. } => {
            let forms = match (raw, sealed) {
                (true, _) => "-w",
                (false, true) => "-Lc",
                (false, false) => "-Lec",
            };
            words.push(forms.to_owned());
            words.extend(job.props.then(|| "-p".to_owned()));
            if let Base::On(base) = base {
                words.extend(["-i".to_owned(), base.clone()]);
            }
            words.push(format!("{}{}@{to}", job.source.dataset, step.dataset));
        }
    }
    Some(words)
}

/// The words of `zfs` that receive a step's stream. `rolled_back`: this run has taken the target back to the stream's base. A
/// mount may have changed it since, by making the directory of a mount point, or by an upgrade; `-F` discards that.
pub(crate) fn receive(job: &Job, step: &Step, rolled_back: bool) -> Vec<String> {
    let mut words: Vec<String> = ["receive", "-s", "-u"].map(str::to_owned).into();
    words.extend(rolled_back.then(|| "-F".to_owned()));
    // A new dataset may have been cut off before it got its settings.
    let creates = matches!(&step.act, Act::Send { creates: true, .. } | Act::Resume { creates: true, .. });
    if creates && !job.writable {
        words.extend(["-o".to_owned(), "readonly=on".to_owned()]);
    }
    if let Act::Send { origin, .. } = &step.act {
        if let Some(origin) = origin {
            words.extend(["-o".to_owned(), format!("origin={origin}")]);
        }
        if job.props {
            words.extend(["-x".to_owned(), "mountpoint".to_owned()]);
        }
    }
    words.push(format!("{}{}", job.target.dataset, step.dataset));
    words
}
