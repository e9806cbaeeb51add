//! `-O`: the object at a path; `-r`: a file's bytes copied out.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use engine::Kind;
use zpl::{Filesystem, Inode};

use super::dump::{Dump, out};
use super::object;
use super::view::View;
use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome};
use crate::zdb::target::{Session, Target};

/// What `-O` shows at least.
const LEAST: u32 = 3;
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// The file at the session's path; `Err` holds what zdb says.
fn find(session: &Session) -> Result<(View, Inode), Failure> {
    let Target::Dataset(dataset) = &session.target else {
        let pool = &session.pool;
        let root = pool.dsl.dataset(&pool.name)?;
        return at(session, &root);
    };
    at(session, dataset)
}

fn at(session: &Session, dataset: &engine::dsl::Dataset) -> Result<(View, Inode), Failure> {
    let path = session.rest.first().map(String::as_str).unwrap_or_default();
    let fs = Filesystem::open_committed(dataset)?;
    let mut here = fs.root()?;
    let mut walked = format!("dataset={} path=/", dataset.name);
    for part in path.split('/').filter(|p| !p.is_empty()) {
        walked += part;
        let found = here.child(part.as_bytes());
        here = found.map_err(|e| {
            let why = if e.kind() == Kind::NotFound {
                "No such file or directory".to_owned()
            } else {
                e.to_string()
            };
            Failure::failed(format!("failed to lookup {walked}: {why}"))
        })?;
        walked += "/";
    }
    Ok((View::file(dataset, &fs), here))
}

/// Prints the object as verbosely as `-v` says.
pub fn show(session: &Session, ctx: &mut Ctx) -> Outcome {
    let (mut view, inode) = find(session)?;
    let mut dump = Dump::new(session, ctx);
    dump.set_verbosity(LEAST + session.options.verbose);
    let object = view.object(inode.number())?;
    object::print(&mut dump, &mut view, &object, &mut object::Rows::default())?;
    Ok(dump.exit)
}

/// Copies the file's bytes; holes stay holes.
pub fn copy(session: &Session, ctx: &mut Ctx) -> Outcome {
    let (_, inode) = find(session)?;
    let target = session.rest.get(1).cloned().unwrap_or_default();
    let mut dump = Dump::new(session, ctx);
    out!(dump, "Copying object {} to file {target}\n", inode.number());
    out!(dump, "Object {} is {} bytes\n", inode.number(), inode.attr().size);
    let cannot = |e: std::io::Error| Failure::cannot("write", &target, e);
    let mut file = File::create(&target).map_err(cannot)?;
    let object = Arc::new(inode.clone());
    let (size, mut at) = (inode.attr().size, 0);
    let mut piece = vec![0; PIECE];
    while at < size {
        dump.poll()?;
        let want = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
        let Some(part) = piece.get_mut(..want) else { break };
        let Some(got) = dump.read(object.read_at(at, part)) else { return Ok(Exit::FAILED) };
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
