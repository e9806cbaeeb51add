//! Runs the sections in zdb's order.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};

use super::metaslabs::Space;
use super::options::{Options, USAGE, help};
use super::target::{Session, Target};
use super::{
    blocks, brt, ddt, fragmentation, io_stats, label, livelists, metaslabs, objects, pool, read_block,
    simulate,
};

/// Prints the reason and the synopsis.
fn usage(ctx: &mut Ctx, why: &str) -> Outcome {
    if !why.is_empty() {
        ctx.warn(why);
    }
    ctx.warn(USAGE.trim_end());
    Ok(Exit::USAGE)
}

/// Runs a command line.
pub fn run(words: &[String], ctx: &mut Ctx) -> Outcome {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(why) => return usage(ctx, &why),
    };
    if options.help {
        write!(ctx.out, "{}", help())?;
        return Ok(Exit::OK);
    }
    let Some(first) = options.operands.first() else {
        return match prints_cache_file(&options) {
            true => pool::cache_file(options.cache_file.as_deref(), ctx),
            false => usage(ctx, ""),
        };
    };
    let operands = options.operands.len();
    if options.has('E') {
        return if operands == 1 { read_block::embedded(first, ctx) } else { usage(ctx, "") };
    }
    if options.has('l') {
        return label::run(&options, first, ctx);
    }
    let copies = options.has('r');
    let is_wrong = (options.has('R') && operands < 2)
        || (options.has('O') && !copies && operands != 2)
        || (copies && operands != 3);
    if is_wrong {
        return usage(ctx, "");
    }
    let id = first.trim_end_matches('/').split_once('/').map(|(_, id)| id);
    if options.has('N') && id.is_some_and(|id| !is_numeric(id)) {
        writeln!(ctx.out, "Supply a numeric objset ID with -N")?;
        return Ok(Exit::USAGE);
    }
    on_pool(options, ctx)
}

/// Whether the command is about the cache file, not about a pool.
pub(super) fn prints_cache_file(options: &Options) -> bool {
    options.operands.is_empty() && options.has('C') && !options.has('e')
}

/// Whether this can be an object set's number: hexadecimal digits.
#[doc(alias = "zdb_numeric")]
fn is_numeric(text: &str) -> bool {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    !text.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Reports options that are accepted and have no effect here.
fn tell_ignored(options: &Options, ctx: &mut Ctx) {
    for (name, _) in &options.tunables {
        ctx.warn(format!("zdb -o: {name} is a variable of libzpool and has no effect here"));
    }
}

fn on_pool(options: Options, ctx: &mut Ctx) -> Outcome {
    tell_ignored(&options, ctx);
    let session = Session::open(options, ctx)?;
    for note in &session.pool.notes {
        ctx.warn(note);
    }
    if session.options.has('O') && !session.options.has('r') {
        return objects::run_lookup(&session, ctx);
    }
    if session.options.has('r') {
        return objects::run_copy(&session, ctx);
    }
    if session.options.has('B') {
        let objset = session.options.operands.first().and_then(|name| name.split_once('/'));
        let Some((_, objset)) = objset else { return usage(ctx, "") };
        return objects::run_backup(&session, objset, ctx);
    }
    if session.options.has('R') {
        return read_block::run(&session, ctx);
    }
    match &session.target {
        Target::Bookmark(name) => objects::run_bookmark(&session, name, ctx),
        Target::Dataset(_) => objects::run_objset(&session, ctx),
        Target::Pool if session.options.has('d') && !session.rest.is_empty() => {
            objects::run_objset(&session, ctx)
        }
        Target::Pool => whole_pool(&session, ctx),
    }
}

/// Runs all selected sections in order; the most severe exit code counts.
fn whole_pool(session: &Session, ctx: &mut Ctx) -> Outcome {
    let wants = |letters: &[char]| letters.iter().any(|&letter| session.options.has(letter));
    if wants(&['y']) && !session.options.all {
        livelists::run(session, ctx)?;
    }
    let mut exit = Exit::OK;
    let mut also = |outcome: Outcome, ctx: &mut Ctx| -> Result<(), Failure> {
        match outcome {
            Ok(one) => exit = Exit(exit.0.max(one.0)),
            Err(Failure::Failed(why)) => {
                ctx.warn(why);
                exit = Exit(exit.0.max(Exit::FAILED.0));
            }
            Err(other) => return Err(other),
        }
        Ok(())
    };
    if wants(&['S']) {
        return simulate::run(session, ctx);
    }
    if wants(&['C']) {
        also(pool::config(session, ctx), ctx)?;
    }
    if wants(&['u']) {
        also(pool::uberblock(session, ctx), ctx)?;
    }
    if wants(&['D']) {
        also(ddt::run(session, ctx), ctx)?;
    }
    if wants(&['T']) {
        also(brt::run(session, ctx), ctx)?;
    }
    let maps = wants(&['m']) || session.level('d') > 2;
    let space = (maps || wants(&['M'])).then(|| Space::load(session, ctx));
    if let Some(space) = space.as_ref().filter(|_| maps) {
        also(metaslabs::run(session, space, ctx), ctx)?;
    }
    if let Some(space) = space.as_ref().filter(|_| wants(&['M'])) {
        also(fragmentation::run(session, space, ctx), ctx)?;
    }
    if let Some(space) = space.as_ref().filter(|_| maps) {
        also(metaslabs::run_logs(session, space, ctx), ctx)?;
    }
    if wants(&['d', 'i']) {
        also(objects::run_pool(session, ctx), ctx)?;
    }
    if wants(&['b', 'c']) {
        also(blocks::run_blocks(session, ctx), ctx)?;
    }
    if wants(&['s']) {
        also(io_stats::run(session, ctx), ctx)?;
    }
    if wants(&['h']) {
        also(pool::run_history(session, ctx), ctx)?;
    }
    if !session.options.has('k') {
        also(pool::checkpoint(session, ctx), ctx)?;
        if session.level('m') > 3 {
            also(metaslabs::run_checkpoint(session, ctx), ctx)?;
        }
    }
    Ok(exit)
}
