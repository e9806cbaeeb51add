//! Verbs that are not supported yet: faults of the pools, devices and datasets that they name are reported
//! first.

use crate::ctx::Ctx;
use crate::unsupported_usage::{Form, Line};
use crate::verb::Failure;

/// Checks the names in a line.
///
/// # Errors
/// The fault of a name.
pub fn check(form: &Form, line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    match form.command {
        "zpool" => check_pool(line, ctx),
        _ => check_dataset(form, line, ctx),
    }
}

fn check_pool(line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some(name) = line.arguments.first() else { return Ok(()) };
    if ctx.pool(name).is_none() {
        let what = format!("cannot open '{name}': no such pool");
        return Err(Failure::failed(what));
    }
    Ok(())
}

fn check_dataset(form: &Form, line: &Line, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some(name) = line.arguments.first() else { return Ok(()) };
    match form.verb {
        "program" if ctx.pool(name).is_none() => Err(Failure::failed(format!("cannot open pool '{name}'"))),
        _ => Ok(()),
    }
}
