//! Output of a run: lines and a bar on standard error, a document for scripts.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::host::Failed;

/// Between lines of progress where there is no terminal.
const INTERVAL: Duration = Duration::from_secs(10);

/// Receives the reports of a run.
pub struct Report {
    quiet: bool,
    bar: Option<ProgressBar>,
    total: u64,
    done: u64,
    began: Instant,
    last: Instant,
    /// Bytes that the steps were expected to send.
    expected: u64,
    steps: Vec<Value>,
    problems: Vec<Value>,
    verified: Vec<Value>,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Report").field("done", &self.done).finish_non_exhaustive()
    }
}

impl Report {
    /// A report on standard error; with `quiet` only problems are reported.
    pub fn new(quiet: bool) -> Self {
        let (began, last) = (Instant::now(), Instant::now());
        let (steps, problems, verified) = (Vec::new(), Vec::new(), Vec::new());
        Self { quiet, bar: None, total: 0, done: 0, began, last, expected: 0, steps, problems, verified }
    }

    /// The whole plan has so many bytes, as far as that is known.
    pub(crate) fn begin(&mut self, total: u64) {
        (self.total, self.done, self.began) = (total, 0, Instant::now());
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let form = "{bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta} left  {msg}";
        let Ok(style) = ProgressStyle::with_template(form) else { return };
        let bar = ProgressBar::new(total).with_style(style);
        bar.set_draw_target(ProgressDrawTarget::stderr());
        self.bar = Some(bar);
    }

    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// A line, unless the report is quiet.
    pub(crate) fn line(&mut self, text: &str) {
        if !self.quiet {
            self.write(text);
        }
    }

    fn write(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| drop(writeln!(std::io::stderr(), "{text}"))),
            None => drop(writeln!(std::io::stderr(), "{text}")),
        }
    }

    /// A step of the plan begins.
    pub(crate) fn step(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => self.line(text),
        }
    }

    /// A step has sent so many bytes; `expected` is the plan's number.
    pub(crate) fn stepped(&mut self, step: Value, sent: u64, expected: u64) {
        // The bar stays true to the plan, whatever a stream really had.
        self.total = self.total.saturating_sub(expected).saturating_add(sent);
        self.done = self.done.saturating_add(sent);
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(self.done);
        }
        self.note(step, sent, expected);
    }

    /// A step of a plan that is only shown.
    pub(crate) fn planned(&mut self, step: Value, expected: u64) {
        self.note(step, 0, expected);
    }

    fn note(&mut self, mut step: Value, sent: u64, expected: u64) {
        if let Some(step) = step.as_object_mut() {
            step.insert("bytes".into(), sent.into());
            step.insert("expected".into(), expected.into());
        }
        self.expected = self.expected.saturating_add(expected);
        self.steps.push(step);
    }

    /// Both sides' snapshots were compared: `None` is equality.
    pub(crate) fn compared(
        &mut self,
        names: &[String; 2],
        raw: bool,
        found: Result<&Option<String>, &Failed>,
    ) {
        let [source, target] = names;
        let how = if raw { "raw" } else { "content" };
        let mut doc = json!({ "source": source, "target": target, "how": how, "equal": Value::Null });
        if let Some(doc) = doc.as_object_mut() {
            match found {
                Ok(difference) => {
                    doc.insert("equal".into(), difference.is_none().into());
                    doc.insert("difference".into(), json!(difference));
                }
                Err(e) => drop(doc.insert("error".into(), json!(e.text))),
            }
        }
        self.verified.push(doc);
    }

    /// The step at hand has come so far.
    pub(crate) fn progress(&mut self, sent: u64) {
        let done = self.done.saturating_add(sent);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if !self.quiet && self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            let rate = done as f64 / self.began.elapsed().as_secs_f64().max(0.001);
            let left = match rate > 0.0 {
                true => format!("{:.0} s left", self.total.saturating_sub(done) as f64 / rate),
                false => "stalled".to_owned(),
            };
            let text = format!("{} of {}, {}/s, {left}", size(done), size(self.total), size(rate as u64));
            self.line(&text);
        }
    }

    /// Something that has to be looked after.
    pub(crate) fn problem(&mut self, dataset: &str, text: &str) {
        self.problems.push(json!({ "dataset": dataset, "problem": text }));
        self.write(&format!("{dataset}: {text}"));
    }

    /// Everything so far, for scripts.
    pub fn json(&self) -> Value {
        json!({
            "steps": self.steps, "problems": self.problems, "verified": self.verified, "bytes": self.done,
            "expected": self.expected,
        })
    }
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
