//! Keys of encrypted datasets: identified by numbers; an opened pool gets those of its model.

use std::sync::Arc;

use crypt::KeyFormat;
use engine::Kind;
use engine::dsl::crypto::RootKey;
use engine::dsl::write::crypto::NewKey;
use engine::spa::{Pool, Spa};
use stdx::rng::Rng;
use zpl::write::{Overrides, mount};

use crate::model::{Head, Model};

/// The key of that number, in the user's form.
fn material(number: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    Rng::new(number).fill(&mut bytes);
    bytes
}

/// The key of that number, for a dataset that becomes an encryption root.
pub fn new_key(number: u64) -> engine::Result<NewKey> {
    let key = RootKey::derive(KeyFormat::Raw, &material(number), None)?;
    Ok(NewKey { key, location: Some("prompt".into()) })
}

/// Loads the keys of all encryption roots of `model`; each must first be refused with another key.
pub fn unlock(pool: &Pool, model: &Model) -> Result<(), String> {
    let roots = model.heads.iter().filter_map(|(name, head)| head.key.map(|key| (name, key)));
    for (name, key) in roots {
        unlock_one(pool, name, key).map_err(|why| format!("the key of {name}: {why}"))?;
    }
    Ok(())
}

fn unlock_one(pool: &Pool, name: &str, key: u64) -> Result<(), String> {
    let said = |e: engine::Error| e.to_string();
    let (dir, keys) = (pool.dsl.dir(name).map_err(said)?, &pool.dsl.keys);
    let root = keys.root_of(&dir).map_err(said)?.ok_or("it is not encrypted")?;
    if root.name != name {
        return Err(format!("it belongs to {}", root.name));
    }
    if keys.is_loaded(&root) {
        return Ok(());
    }
    match keys.check(&root, &material(!key)) {
        Err(e) if e.kind() == Kind::KeyWrong => keys.load(&root, &material(key)).map_err(said),
        Err(e) => Err(format!("a wrong key: {e}")),
        Ok(_) => Err("a wrong key is taken".into()),
    }
}

/// Checks a pool without keys: encrypted datasets return the error for a missing key; the rest of the pool is
/// usable.
pub fn stay_locked(spa: &Arc<Spa>, model: &Model) -> Result<(), String> {
    for (name, head) in model.heads.iter().filter(|(_, head)| head.encrypted) {
        match open(spa, name, head) {
            Err(e) if e.kind() == Kind::KeyMissing => {}
            Err(e) => return Err(format!("{name} without its key: {e}")),
            Ok(()) => return Err(format!("{name} can be used without its key")),
        }
    }
    (0..3).try_for_each(|_| spa.sync()).map_err(|e| e.to_string())
}

fn open(spa: &Arc<Spa>, name: &str, head: &Head) -> engine::Result<()> {
    match head.tree.is_volume() {
        true => zvol::open(spa, name).map(|_| ()),
        false => mount(spa, name, Overrides::default()).map(|_| ()),
    }
}
