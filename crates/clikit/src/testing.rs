//! Runs verbs inside tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use clap::Args;

use crate::ctx::Ctx;
use crate::verb::{Exit, Verb};

/// The result of a command line.
#[derive(Debug)]
pub struct Run {
    /// Its exit code.
    pub exit: Exit,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Ok(mut text) = self.0.lock() {
            text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        self.0.lock().map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }
}

/// Runs `command` and captures both streams.
pub fn captured(command: impl FnOnce(&mut Ctx) -> Exit) -> Run {
    let (out, err) = (Shared::default(), Shared::default());
    let mut ctx = Ctx::with_streams(Box::new(out.clone()), Box::new(err.clone()));
    let exit = command(&mut ctx);
    Run { exit, out: out.text(), err: err.text() }
}

/// Parses a command line as the verb `V`, whose name is the first word, and runs it.
pub fn run<V: Verb + Args>(argv: &[&str]) -> Run {
    let tree = V::augment_args(clap::Command::new("verb"));
    captured(|ctx| {
        let verb = tree.try_get_matches_from(argv).and_then(|matches| V::from_arg_matches(&matches));
        let outcome = match verb {
            Ok(verb) => verb.run(ctx),
            Err(e) => {
                ctx.warn(e);
                return Exit::USAGE;
            }
        };
        outcome.unwrap_or_else(|failure| {
            failure.message().into_iter().for_each(|message| ctx.warn(message));
            failure.exit()
        })
    })
}
