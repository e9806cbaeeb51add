//! Whether a target is behind.

use serde_json::{Value, json};

use crate::host::{Failed, Host};
use crate::plan::{Stand, stands};
use crate::run::look;
use crate::time::now;
use crate::{Around, Job};

/// State of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It has everything, or is not older than allowed.
    Current,
    /// It lacks snapshots.
    Behind,
    /// A dataset of it can't be continued.
    Stuck,
}

impl State {
    /// The exit code of the status.
    pub fn code(self) -> u8 {
        match self {
            State::Current => 0,
            State::Behind => 3,
            State::Stuck => 4,
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Current => "current",
            State::Behind => "behind",
            State::Stuck => "stuck",
        }
    }
}

/// A dataset's state, its description, the number of snapshots it lacks, and the age in seconds of its newest
/// one.
struct Line {
    state: State,
    text: String,
    lacks: Option<usize>,
    age: Option<u64>,
}

impl Line {
    fn of(stand: &Stand, job: &Job, now: u64) -> Self {
        let plain = |state, text: &str| Self { state, text: text.to_owned(), lacks: None, age: None };
        match stand {
            Stand::Nothing => plain(State::Current, "no snapshots at the source"),
            Stand::Missing => plain(State::Behind, "not at the target"),
            Stand::Partial => plain(State::Behind, "partly received"),
            Stand::Stuck(problem) => plain(State::Stuck, problem),
            Stand::Common { creation, behind, .. } => {
                let age = now.saturating_sub(*creation);
                let is_behind = job.max_age.map_or(*behind > 0, |most| age > most);
                let state = if is_behind { State::Behind } else { State::Current };
                let text = format!("{behind} snapshots behind, newest {} old", span(age));
                Self { state, text, lacks: Some(*behind), age: Some(age) }
            }
        }
    }
}

/// Looks at both sides; returns the worst state, a text for people, and a document for scripts.
///
/// # Errors
/// The message of a side that can't be read.
pub fn status(job: &Job, around: &Around) -> Result<(State, String, Value), Failed> {
    let hosts = [Host::of(&job.source, around), Host::of(&job.target, around)];
    let (source, target) = look(job, &hosts)?;
    let (mut worst, mut text, mut all) = (State::Current, String::new(), Vec::new());
    let now = now();
    for (relative, stand) in stands(job, &source, target.as_ref()) {
        let line = Line::of(&stand, job, now);
        worst = worst.max(line.state);
        let name = format!("{}{relative}", job.target.dataset);
        text += &format!("{}\t{name}\t{}\n", line.state.word(), line.text);
        all.push(json!({
            "dataset": name, "state": line.state.word(), "text": line.text, "behind": line.lacks, "age": line.age,
        }));
    }
    let doc = json!({
        "job": job.name, "source": job.source.to_string(), "target": job.target.to_string(),
        "state": worst.word(), "datasets": all,
    });
    Ok((worst, text, doc))
}

/// `3 d 4 h`, `5 min 10 s`.
fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn behind_is_a_missing_snapshot_or_an_age() {
        let place = |name| Place::parse(name, None).unwrap();
        let job = Job::new("j", place("a"), place("b"));
        let aged = Job { max_age: Some(3600), ..job.clone() };
        let at = |creation, behind| Stand::Common { guid: 1, creation, behind };
        let state = |stand: &Stand, job: &Job| Line::of(stand, job, 100_000).state;
        assert_eq!(state(&at(0, 0), &job), State::Current);
        assert_eq!(state(&at(99_999, 1), &job), State::Behind);
        assert_eq!(state(&at(99_999, 1), &aged), State::Current);
        assert_eq!(state(&at(90_000, 0), &aged), State::Behind);
        assert_eq!(state(&Stand::Stuck("x".into()), &aged), State::Stuck);
        assert_eq!(Line::of(&at(0, 2), &job, 100_000).text, "2 snapshots behind, newest 1 d 3 h old");
    }
}
