//! `-O`: the object at a path; `-r`: a file's bytes copied out.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use engine::Kind;
use engine::dsl::Dataset;
use zpl::{Filesystem, Inode};

use super::dump::{Dump, out};
use super::object;
use super::view::View;
use crate::options::parse_number;
use crate::target::{Session, Target};

/// Minimum verbosity of `-O`.
const LEAST: u32 = 3;
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The result of a path lookup: the object set, and each file from the root on with its path.
type Found = (View, Vec<(String, Inode)>);

/// zdb's exit code for a missing path: the errno of that error.
const ABSENT: Exit = Exit(2);

/// Finds the file at the session's path, and the files on the way; reports a missing path and returns `None`.
fn find(session: &Session, ctx: &mut Ctx) -> Result<Option<Found>, Failure> {
    let Target::Dataset(dataset) = &session.target else {
        let pool = &session.pool;
        let root = pool.dsl.dataset(&pool.name)?;
        return at(session, &root, ctx);
    };
    at(session, dataset, ctx)
}

fn at(session: &Session, dataset: &Dataset, ctx: &mut Ctx) -> Result<Option<Found>, Failure> {
    let path = session.rest.first().map(String::as_str).unwrap_or_default();
    let fs = Filesystem::open_committed(dataset)?;
    let mut trail = vec![(String::new(), fs.root()?)];
    let mut walked = format!("dataset={} path=", dataset.name);
    for part in path.split('/').filter(|p| !p.is_empty()) {
        walked += "/";
        walked += part;
        let Some((_, here)) = trail.last() else { break };
        match here.child(part.as_bytes()) {
            Ok(child) => trail.push((walked.clone(), child)),
            Err(e) if e.kind() == Kind::NotFound => {
                ctx.warn(format_args!("failed to lookup {walked}: No such file or directory"));
                return Ok(None);
            }
            Err(e) => return Err(Failure::failed(format!("failed to lookup {walked}: {e}"))),
        }
    }
    Ok(Some((View::file(dataset, &fs), trail)))
}

/// Prints the object with the verbosity of `-v`.
pub fn show(session: &Session, ctx: &mut Ctx) -> Outcome {
    let Some((mut view, trail)) = find(session, ctx)? else { return Ok(ABSENT) };
    let mut dump = Dump::new(session, ctx);
    dump.unlocked()?;
    dump.set_verbosity(LEAST + session.options.verbose);
    if dump.verbosity() > 6 {
        for (walked, passed) in trail.iter().skip(1) {
            let dnode = view.object(passed.number())?.dnode;
            let (kind, bonus) = (dnode.object_type.raw(), dnode.bonustype.raw());
            out!(dump, "obj={} {walked} type={kind} bonustype={bonus}\n", passed.number());
        }
    }
    let Some((_, inode)) = trail.last() else { return Ok(ABSENT) };
    let object = view.object(inode.number())?;
    object::print(&mut dump, &mut view, &object, &mut object::Rows::default())?;
    Ok(dump.exit)
}

/// The file that the session names, by its path or, with `-O`, by its object number; `None`: there is no such path.
fn named(session: &Session, ctx: &mut Ctx) -> Result<Option<Inode>, Failure> {
    if !session.options.has('O') {
        return Ok(find(session, ctx)?.and_then(|(_, mut trail)| trail.pop()).map(|(_, inode)| inode));
    }
    let word = session.rest.first().map(String::as_str).unwrap_or_default();
    let number = parse_number(word).ok_or_else(|| Failure::failed(format!("bad object number '{word}'")))?;
    let fs = match &session.target {
        Target::Dataset(dataset) => Filesystem::open_committed(dataset)?,
        _ => Filesystem::open_committed(&session.pool.dsl.dataset(&session.pool.name)?)?,
    };
    Ok(Some(fs.inode(number)?))
}

/// Copies the file's bytes; holes stay holes.
pub fn copy(session: &Session, ctx: &mut Ctx) -> Outcome {
    let Some(inode) = named(session, ctx)? else { return Ok(ABSENT) };
    let target = session.rest.get(1).cloned().unwrap_or_default();
    let mut dump = Dump::new(session, ctx);
    dump.unlocked()?;
    out!(dump, "Copying object {} to file {target}\n", inode.number());
    out!(dump, "Object {} is {} bytes\n", inode.number(), inode.attr().size);
    let cannot = |e: std::io::Error| Failure::cannot("write", &target, e);
    let mut file = File::create(&target).map_err(cannot)?;
    let (size, mut at) = (inode.attr().size, 0);
    let mut piece = vec![0; PIECE];
    while at < size {
        dump.poll()?;
        let want = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
        let Some(part) = piece.get_mut(..want) else { break };
        let Some(got) = dump.read(inode.read_at(at, part)) else { return Ok(Exit::FAILED) };
        if got == 0 {
            break;
        }
        let bytes = part.get(..got).unwrap_or_default();
        if bytes.iter().any(|&b| b != 0) {
            file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes)).map_err(cannot)?;
        }
        at += u64::try_from(got).unwrap_or(0);
    }
    file.set_len(size).map_err(cannot)?;
    Ok(dump.exit)
}
