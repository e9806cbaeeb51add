//! Runs command lines inside tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use crate::ctx::Ctx;
use crate::multicall;
use crate::verb::Exit;

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
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Runs a command line and captures both streams.
pub fn captured(argv: &[&str]) -> Run {
    let (out, err) = (Shared::default(), Shared::default());
    let mut ctx = Ctx::with_streams(Box::new(out.clone()), Box::new(err.clone()));
    let exit = multicall::run(argv.iter().map(Into::into).collect(), &mut ctx);
    Run { exit, out: out.text(), err: err.text() }
}
