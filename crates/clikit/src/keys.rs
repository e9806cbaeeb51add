//! Keys of encrypted datasets: from `--load-key`, from the dataset's `keylocation`, or from a prompt.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use engine::dsl::{Dir, EncryptionRoot};
use engine::spa::Pool;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use stdx::Secret;

use crate::ctx::Ctx;
use crate::fetch;
use crate::verb::Failure;

/// Maximum bytes of a key file; keys are 32 bytes, 64 hex digits or a passphrase of up to 512.
const MAX_KEY: usize = 4096;

/// One `--load-key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadKey {
    /// The encryption root (its children inherit the key).
    pub dataset: String,
    /// A file, or `None` for standard input.
    pub file: Option<PathBuf>,
}

/// Parses the value of `--load-key`.
///
/// # Errors
/// A message on a value of another form.
pub fn parse_load_key(text: &str) -> Result<LoadKey, String> {
    let (dataset, file) = text.split_once('=').ok_or("expected DATASET=FILE or DATASET=-")?;
    if dataset.is_empty() || file.is_empty() {
        return Err("expected DATASET=FILE or DATASET=-".to_owned());
    }
    let file = (file != "-").then(|| PathBuf::from(file));
    Ok(LoadKey { dataset: dataset.to_owned(), file })
}

/// Loads the keys of the command line's `--load-key` options.
pub fn load_given(pool: &Pool, keys: &[LoadKey]) -> Result<(), Failure> {
    for key in keys {
        let name = &key.dataset;
        let dir = pool.dsl.dir(name).map_err(|e| Failure::cannot("open", name, e.what()))?;
        let root = encryption_root(pool, &dir)?
            .ok_or_else(|| Failure::cannot("load key for", name, "dataset is not encrypted"))?;
        let input = match &key.file {
            Some(path) => read_file(path).map_err(|e| Failure::cannot("open key file", path.display(), e))?,
            None => io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| read_all(&mut File::from(fd)))
                .map_err(|e| Failure::failed(format!("cannot read key from standard input: {e}")))?,
        };
        load(pool, &root, &input)?;
    }
    Ok(())
}

/// Ensures that the dataset's key is loaded, for verbs that read its content: reads it from the file of its
/// `keylocation`, or prompts for it if a terminal is available. Only `zfs load-key` and kin load keys
/// of an imported pool: users without that permission may run other verbs, which must not undo `zfs unload-key`.
pub fn ensure(pool: &Pool, dir: &Dir, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some(root) = encryption_root(pool, dir)? else { return Ok(()) };
    if pool.dsl.keys.is_loaded(&root) {
        return Ok(());
    }
    if ctx.session.is_some() {
        return Err(Failure::cannot("open", &dir.name, "dataset key must be loaded"));
    }
    if let Some(path) = root.location.strip_prefix("file://").map(PathBuf::from) {
        let input = read_file(&path).map_err(|e| wanted(&root, &format!("{}: {e}", path.display())))?;
        return load(pool, &root, &input);
    }
    if fetch::is_remote(&root.location) {
        let input = fetch::get(&root.location, &fetch::Trust::of_environment());
        return load(pool, &root, &input.map_err(|e| wanted(&root, &e))?);
    }
    if !io::stdin().is_terminal() {
        return Err(wanted(&root, "there is no terminal to ask on"));
    }
    let input = prompt(ctx, &root).map_err(|e| wanted(&root, &e.to_string()))?;
    load(pool, &root, &input)
}

fn encryption_root(pool: &Pool, dir: &Dir) -> Result<Option<EncryptionRoot>, Failure> {
    Ok(pool.dsl.keys.root_of(dir)?)
}

fn load(pool: &Pool, root: &EncryptionRoot, input: &[u8]) -> Result<(), Failure> {
    let loaded = pool.dsl.keys.load(root, input);
    loaded.map_err(|e| Failure::failed(format!("Key load error: {} ('{}')", e.what(), root.name)))
}

fn wanted(root: &EncryptionRoot, why: &str) -> Failure {
    Failure::failed(format!(
        "the {} key of '{name}' is needed ({why}): give it with --load-key {name}=FILE",
        root.format.name(),
        name = root.name
    ))
}

fn read_file(path: &Path) -> io::Result<Secret> {
    read_all(&mut File::open(path)?)
}

fn read_all(from: &mut dyn Read) -> io::Result<Secret> {
    Secret::read(from, None, MAX_KEY)
}

/// Prompts for a key without echo.
fn prompt(ctx: &mut Ctx, root: &EncryptionRoot) -> io::Result<Secret> {
    ctx.out.flush()?;
    write!(ctx.err, "Enter {} for '{}': ", root.format.name(), root.name)?;
    ctx.err.flush()?;
    let stdin = io::stdin();
    let saved = tcgetattr(&stdin)?;
    let mut silent = saved.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    // The buffer of standard input would keep a copy of the key.
    let read = stdin
        .as_fd()
        .try_clone_to_owned()
        .and_then(|fd| Secret::read(&mut File::from(fd), Some(b'\n'), MAX_KEY));
    tcsetattr(&stdin, OptionalActions::Flush, &saved)?;
    writeln!(ctx.err)?;
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_their_dataset() {
        let file = parse_load_key("tank/raw=/k").unwrap();
        assert_eq!((file.dataset.as_str(), file.file), ("tank/raw", Some(PathBuf::from("/k"))));
        assert_eq!(parse_load_key("tank=-").unwrap().file, None);
        assert!(parse_load_key("tank").is_err() && parse_load_key("=x").is_err());
    }
}
