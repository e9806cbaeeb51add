//! `zfs load-key`, `zfs unload-key`, `zfs change-key`, and the encryption of new datasets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::fetch;
use clikit::settings;
use clikit::target::Target;
use clikit::verb::strerror;
use clikit::verb::{Exit, Failure, Outcome, Verb, each};
use crypt::{KeyFormat, Suite};
use engine::dsl::props::PropValue;
use engine::dsl::write::{Cipher, Encryption, NewKey};
use engine::dsl::{Dir, EncryptionRoot, RootKey};
use engine::{Error, Kind};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use stdx::Secret;
use zcommon::props::ZfsProp;

/// Bytes of a key that are read.
const MAX_KEY: u64 = 4096;

/// Load keys of encrypted datasets.
#[derive(Debug, Args)]
pub struct LoadKey {
    /// Load all keys of all pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// Only check whether the key is correct.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Load the keys of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Use this location of the key instead of the property `keylocation`.
    #[arg(short = 'L', value_name = "KEYLOCATION")]
    pub location: Option<String>,
    /// Datasets.
    #[arg(value_name = "DATASET")]
    pub names: Vec<String>,
}

/// Unload keys of encrypted datasets.
#[derive(Debug, Args)]
pub struct UnloadKey {
    /// Unload all keys of all pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// Unload the keys of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Datasets.
    #[arg(value_name = "DATASET")]
    pub names: Vec<String>,
}

/// Change the key of a dataset.
#[derive(Debug, Args)]
pub struct ChangeKey {
    /// Load the current key first.
    #[arg(short = 'l')]
    pub load: bool,
    /// Inherit the parent's key.
    #[arg(short = 'i')]
    pub inherit: bool,
    /// Set keylocation, keyformat or pbkdf2iters; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// The dataset.
    pub name: String,
}

/// Encryption roots that a verb is about, each with its target, and whether a dataset that was named is not there.
fn roots(
    names: &[String],
    (all, recurse): (bool, bool),
    action: &str,
    ctx: &mut Ctx,
) -> Result<(Vec<(Target, EncryptionRoot)>, Exit), Failure> {
    let mut tops = Vec::new();
    let mut exit = Exit::OK;
    match (names, all) {
        ([], true) => {
            for pool in ctx.all_pools() {
                tops.push(Target::of(&pool.name(), ctx)?);
            }
        }
        (_, true) => return Err(Failure::usage("Cannot specify dataset with -a option")),
        ([], false) => return Err(Failure::usage("Missing dataset argument or -a option")),
        (names, false) => {
            exit = each(names, ctx, |name, ctx| {
                let target = Target::head_of(name, ctx)?;
                target.dir()?;
                tops.push(target);
                Ok(())
            })?;
        }
    }
    let mut found = Vec::new();
    for top in tops {
        let dirs: Vec<Dir> = if recurse || all { top.tree()? } else { vec![top.dir()?] };
        for dir in dirs {
            if let Some(root) = top.view.dsl.keys.root_of(&dir)? {
                let is_root = root.dir == dir.number;
                if is_root || !(recurse || all) {
                    found.push((Target { name: dir.name, ..top.clone() }, root));
                }
            } else if !(recurse || all) {
                ctx.warn(format!("Key {action} error: '{}' is not encrypted.", top.name));
                exit = Exit::MINUS_ONE;
            }
        }
    }
    Ok((found, exit))
}

/// An operation on some keys, and its report.
struct Round<'a> {
    /// All keys found: those already in the wanted state are skipped, and a line reports the number of the others.
    many: bool,
    /// The line is printed in any case.
    is_counted: bool,
    /// Whether a key that is loaded, or one that isn't, is done already.
    done_when_loaded: bool,
    /// `loaded`
    word: &'a str,
}

impl Round<'_> {
    fn run(
        &self,
        found: Vec<(Target, EncryptionRoot)>,
        ctx: &mut Ctx,
        mut one: impl FnMut(&Target, &EncryptionRoot, bool, &mut Ctx) -> Result<(), Failure>,
    ) -> Outcome {
        let (mut done, mut tried) = (0usize, 0usize);
        let mut exit = Exit::OK;
        for (target, root) in found {
            let loaded = target.view.dsl.keys.is_loaded(&root);
            if loaded == self.done_when_loaded && self.many {
                continue;
            }
            tried += 1;
            match one(&target, &root, loaded, ctx) {
                Ok(()) => done += 1,
                Err(failure) => {
                    ctx.warn(failure.message().unwrap_or_default());
                    exit = Exit::MINUS_ONE;
                }
            }
        }
        if self.is_counted || (self.many && tried != 0) {
            writeln!(ctx.out, "{done} / {tried} key(s) successfully {}", self.word)?;
        }
        Ok(exit)
    }
}

impl Verb for LoadKey {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let is_file = self.location.as_ref().is_some_and(|location| location != "prompt");
        if is_file && (self.all || self.recurse) {
            return Err(Failure::usage("alternate keylocation may only be 'prompt' with -r or -a"));
        }
        let (found, exit) = roots(&self.names, (self.all, self.recurse), "load", ctx)?;
        let word = if self.dry { "verified" } else { "loaded" };
        let many = self.recurse || self.all;
        let round = Round { many, is_counted: self.dry, done_when_loaded: true, word };
        let done = round.run(found, ctx, |target, root, loaded, ctx| self.one(target, root, loaded, ctx))?;
        Ok(done.worse(exit))
    }
}

impl LoadKey {
    /// All keys of one pool.
    pub fn all_of(pool: &str) -> Self {
        Self { all: false, dry: false, recurse: true, location: None, names: vec![pool.to_owned()] }
    }

    fn one(
        &self,
        target: &Target,
        root: &EncryptionRoot,
        loaded: bool,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let failed = |what: String| Failure::failed(format!("Key load error: {what}"));
        if root.name != target.name {
            return Err(failed(format!(
                "Keys must be loaded for encryption root of '{}' ({}).",
                target.name, root.name
            )));
        }
        if loaded && !self.dry {
            return Err(failed(format!("Key already loaded for '{}'.", target.name)));
        }
        let location = self.location.as_deref().unwrap_or(&root.location);
        let input = read_key(location, root.format, &target.name, false, ctx)?;
        let wrong = |e: Error| match e.kind() {
            Kind::KeyWrong => failed(format!("Incorrect key provided for '{}'.", target.name)),
            _ => failed(e.what().to_owned()),
        };
        if self.dry {
            target.view.dsl.keys.check(root, &input).map_err(wrong)?;
            return Ok(());
        }
        match target.pool.spa() {
            Ok(spa) => spa.dsl().load_key(&target.name, &input).map_err(wrong)?,
            Err(_) => target.view.dsl.keys.load(root, &input).map_err(wrong)?,
        }
        Ok(())
    }
}

/// Loads the key that a dataset needs, if it isn't there.
pub fn load_key_of(target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
    match target.view.dsl.keys.root_of(&target.dir()?)? {
        Some(root) if !target.view.dsl.keys.is_loaded(&root) => {
            let verb = LoadKey { all: false, dry: false, recurse: false, location: None, names: Vec::new() };
            verb.one(&Target { name: root.name.clone(), ..target.clone() }, &root, false, ctx)
        }
        _ => Ok(()),
    }
}

/// Forgets the key that is a dataset's own.
pub fn unload_key_of(target: &Target) -> Result<(), Failure> {
    match target.view.dsl.keys.root_of(&target.dir()?)? {
        Some(root) if root.name == target.name && target.view.dsl.keys.is_loaded(&root) => {
            unload(target, &root, true)
        }
        _ => Ok(()),
    }
}

impl Verb for UnloadKey {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let (found, exit) = roots(&self.names, (self.all, self.recurse), "unload", ctx)?;
        let many = self.recurse || self.all;
        let round = Round { many, is_counted: false, done_when_loaded: false, word: "unloaded" };
        Ok(round.run(found, ctx, |target, root, loaded, _| unload(target, root, loaded))?.worse(exit))
    }
}

fn unload(target: &Target, root: &EncryptionRoot, loaded: bool) -> Result<(), Failure> {
    let failed = |what: String| Failure::failed(format!("Key unload error: {what}"));
    if root.name != target.name {
        return Err(failed(format!(
            "Keys must be unloaded for encryption root of '{}' ({}).",
            target.name, root.name
        )));
    }
    if !loaded {
        return Err(failed(format!("Key already unloaded for '{}'.", target.name)));
    }
    target.pool.mounts.settle();
    let done = match target.pool.spa() {
        Ok(spa) => spa.dsl().unload_key(&target.name),
        // The pool is only read: its mounts alone use keys.
        Err(_) if needs_key(target, root)? => Err(Error::new(Kind::Busy, "the key is in use")),
        Err(_) => target.view.unload_key(root),
    };
    done.map_err(|e| match e.kind() {
        Kind::Busy => failed(format!("'{}' is busy.", target.name)),
        _ => failed(e.what().to_owned()),
    })
}

/// Whether a file system with this encryption root is mounted.
fn needs_key(target: &Target, root: &EncryptionRoot) -> Result<bool, Failure> {
    let dsl = &target.view.dsl;
    for (name, _) in target.pool.mounts.all() {
        let found = dsl.keys.root_of(&dsl.dataset(&name)?.dir()?)?;
        if found.is_some_and(|found| found.dir == root.dir) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Verb for ChangeKey {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let found = Target::head_of(&self.name, ctx).and_then(|target| target.dataset().map(|_| target));
        let target = found.map_err(|e| Failure::usage(e.message().unwrap_or_default()))?;
        let failed = |what: String| Failure::MinusOne(format!("Key change error: {what}"));
        let root = target.view.dsl.keys.root_of(&target.dir()?)?;
        let root = root.ok_or_else(|| failed("Dataset not encrypted.".to_owned()))?;
        let spa = target.pool.spa().map_err(|e| failed(e.what().to_owned()))?;
        if self.load && !target.view.dsl.keys.is_loaded(&root) {
            let input = read_key(&root.location, root.format, &root.name, false, ctx)?;
            spa.dsl().load_key(&root.name, &input).map_err(|e| failed(e.what().to_owned()))?;
        }
        if self.inherit {
            if !self.props.is_empty() {
                return Err(Failure::usage("'-o' and '-i' can't go together"));
            }
            spa.dsl().change_key(&self.name, None).map_err(|e| failed(e.what().to_owned()))?;
            ctx.log(&target.pool)?;
            return Ok(Exit::OK);
        }
        if !target.view.dsl.keys.is_loaded(&root) {
            return Err(failed("Key must be loaded.".to_owned()));
        }
        let is_root = root.name == self.name;
        let mut wishes = KeyWishes {
            format: is_root.then_some(root.format),
            location: is_root.then(|| root.location.clone()),
            iters: None,
        };
        for (name, value) in settings::split(&self.props).map_err(failed)? {
            let prop = ZfsProp::from_name(&name);
            let known =
                matches!(prop, Some(ZfsProp::Keyformat | ZfsProp::Keylocation | ZfsProp::Pbkdf2iters));
            let value = prop.filter(|_| known).and_then(|prop| wishes.parse(prop, &value).ok());
            value.ok_or_else(|| failed(format!("invalid property '{name}'")))?;
        }
        let key =
            wishes.key(&self.name, &*spa.pool.env.secrets, ctx).map_err(failed_with("Key change error"))?;
        spa.dsl().change_key(&self.name, Some(key)).map_err(|e| failed(e.what().to_owned()))?;
        ctx.log(&target.pool)?;
        Ok(Exit::OK)
    }
}

fn failed_with(lead: &'static str) -> impl Fn(String) -> Failure {
    move |what| Failure::MinusOne(format!("{lead}: {what}"))
}

/// Key options of a command.
#[derive(Debug, Clone, Default)]
struct KeyWishes {
    format: Option<KeyFormat>,
    location: Option<String>,
    iters: Option<u64>,
}

impl KeyWishes {
    fn parse(&mut self, prop: ZfsProp, value: &str) -> Result<(), String> {
        match prop {
            ZfsProp::Keyformat => {
                let number = prop.info().number_of(value).ok_or("invalid keyformat")?;
                self.format = Some(KeyFormat::from_id(number).map_err(|e| e.to_string())?);
            }
            ZfsProp::Keylocation => self.location = Some(value.to_owned()),
            _ => self.iters = Some(value.parse().map_err(|_| "invalid pbkdf2iters")?),
        }
        Ok(())
    }

    fn key(&self, name: &str, secrets: &dyn engine::env::Secrets, ctx: &mut Ctx) -> Result<NewKey, String> {
        let format = self.format.ok_or("Keyformat required for new encryption root.")?;
        let location = self.location.clone().unwrap_or_else(|| "prompt".to_owned());
        let input =
            read_key(&location, format, name, true, ctx).map_err(|e| e.message().unwrap_or_default())?;
        let key = RootKey::create(format, &input, self.iters, secrets).map_err(|e| e.what().to_owned())?;
        Ok(NewKey { key, location: Some(location) })
    }
}

/// Takes the properties of encryption out of `stored`, and reads the key that they ask for.
#[doc(alias = "zfs_crypto_create")]
pub fn encryption(
    stored: &mut Vec<(String, PropValue)>,
    name: &str,
    secrets: &dyn engine::env::Secrets,
    ctx: &mut Ctx,
) -> Result<Encryption, String> {
    let mut take = |wanted: &str| {
        let at = stored.iter().position(|(name, _)| name == wanted)?;
        Some(stored.remove(at).1)
    };
    let cipher = take("encryption").and_then(|value| value.number());
    let format = take("keyformat").and_then(|value| value.number());
    let location = take("keylocation").and_then(|value| value.text().map(str::to_owned));
    let iters = take("pbkdf2iters").and_then(|value| value.number());
    let cipher = match cipher {
        None => Cipher::Inherit,
        Some(2) => Cipher::Off,
        Some(1) => Cipher::Suite(Suite::from_id(8).map_err(|e| e.to_string())?),
        Some(id) => Cipher::Suite(Suite::from_id(id).map_err(|e| e.to_string())?),
    };
    if format.is_none() && location.is_none() && iters.is_none() {
        return Ok(Encryption { cipher, key: None });
    }
    let is_off = match cipher {
        Cipher::Inherit => !is_encrypted_above(name, ctx),
        cipher => cipher == Cipher::Off,
    };
    // A dataset that is not encrypted has the location "none", and the format "none" asks for the key above.
    let location = location.filter(|location| !is_off || location != "none");
    let format = format.filter(|format| is_off || *format != 0);
    if format.is_none() && location.is_none() && iters.is_none() {
        return Ok(Encryption { cipher, key: None });
    }
    if is_off {
        return Err("Encryption must be turned on to set encryption properties.".to_owned());
    }
    let format = format.map(KeyFormat::from_id).transpose().map_err(|e| e.to_string())?;
    let key = KeyWishes { format, location, iters }.key(name, secrets, ctx)?;
    Ok(Encryption { cipher, key: Some(key) })
}

/// Whether a new dataset inherits encryption. Parents that `create -p` makes inherit it, too.
fn is_encrypted_above(name: &str, ctx: &mut Ctx) -> bool {
    let mut below = name;
    while let Some((above, _)) = below.rsplit_once('/') {
        if let Some(target) = Target::of(above, ctx).ok().filter(Target::exists) {
            let root = target.dir().ok().map(|dir| target.view.dsl.keys.root_of(&dir));
            return root.is_some_and(|root| !matches!(root, Ok(None)));
        }
        below = above;
    }
    false
}

/// Reads a key from where it is kept, or from the client.
#[doc(alias = "get_key_material")]
fn read_key(
    location: &str,
    format: KeyFormat,
    name: &str,
    twice: bool,
    ctx: &mut Ctx,
) -> Result<Secret, Failure> {
    if let Some(path) = location.strip_prefix("file://") {
        // It may lie in a mount of this very process.
        return zfuse::mount_helper::read_secret(Path::new(path), MAX_KEY)
            .map_err(|e| Failure::failed(format!("Failed to open key material file: {}", strerror(&e))));
    }
    if fetch::is_remote(location) {
        let session = ctx.session()?;
        // A delegated user's request uses neither the owner's environment nor the owner's files.
        let env = if session.delegated.is_some() { &BTreeMap::new() } else { &session.env };
        return fetch::apart(location, env, &session.cwd).map_err(Failure::failed);
    }
    if location != "prompt" {
        return Err(Failure::failed(format!("Unsupported key location '{location}'.")));
    }
    let stdin = ctx.session()?.stdin.try_clone()?;
    let prompt = |word: &str| match twice {
        true => format!("{word} new {}:", words_of(format)),
        false => format!("{word} {} for '{name}':", words_of(format)),
    };
    let first = ask(&prompt("Enter"), &stdin, format, ctx)?;
    if twice && stdin.is_terminal() && ask(&prompt("Re-enter"), &stdin, format, ctx)? != first {
        return Err(Failure::failed("Provided keys do not match."));
    }
    Ok(first)
}

fn words_of(format: KeyFormat) -> &'static str {
    match format {
        KeyFormat::Passphrase => "passphrase",
        KeyFormat::Hex => "hex key",
        KeyFormat::Raw => "raw key",
    }
}

fn ask(prompt: &str, stdin: &File, format: KeyFormat, ctx: &mut Ctx) -> Result<Secret, Failure> {
    let terminal = stdin.is_terminal();
    if terminal && format == KeyFormat::Raw {
        return Err(Failure::failed("Cannot enter raw keys on the terminal"));
    }
    let (mut from, most) = (stdin, usize::try_from(MAX_KEY).unwrap_or(usize::MAX));
    if !terminal {
        // A raw key may have any bytes.
        let until = if format == KeyFormat::Raw { None } else { Some(b'\n') };
        return Ok(Secret::read(&mut from, until, most)?);
    }
    ctx.out.flush()?;
    write!(ctx.err, "{prompt} ")?;
    let saved = tcgetattr(stdin).map_err(std::io::Error::from)?;
    let mut silent = saved.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(stdin, OptionalActions::Flush, &silent).map_err(std::io::Error::from)?;
    let read = Secret::read(&mut from, Some(b'\n'), most);
    tcsetattr(stdin, OptionalActions::Flush, &saved).map_err(std::io::Error::from)?;
    writeln!(ctx.err)?;
    Ok(read?)
}
