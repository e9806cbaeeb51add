//! Seeds for the targets, cut out of golden pools: `seeds FOLDER` fills FOLDER/TARGET/.

use std::fs;
use std::path::Path;

use engine::dmu::Object;
use testkit::golden;

/// Blocks of one kind are alike: a few of each do.
const EACH: usize = 24;

fn save(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    if bytes.iter().all(|&b| b == 0) || fs::read_dir(&folder)?.count() >= EACH * 8 {
        return Ok(());
    }
    fs::write(folder.join(name), bytes)
}

/// Targets that decode what an object of this kind holds.
fn targets(kind: &str) -> &'static [&'static str] {
    match kind {
        k if k.contains("directory") || k.contains("ZAP") || k.contains("zap") => &["zap", "zap_edit", "swap"],
        k if k.contains("space map") => &["space_map", "swap"],
        k if k.contains("bpobj") => &["blkptr", "bpobj"],
        k if k.contains("nvlist") => &["nvlist", "history"],
        k if k.contains("history") => &["history", "nvlist"],
        k if k.contains("dnode") => &["dnode", "swap"],
        k if k.contains("SA ") => &["zap", "zap_edit", "sa", "sa_edit"],
        _ => &["zap", "zap_edit"],
    }
}

fn object(folder: &Path, pool: &str, object: &Object) -> std::io::Result<()> {
    let name = format!("{pool}-{}-{}", object.objset.id, object.number);
    for target in ["objset", "bpobj", "space_map", "sa", "sa_edit", "indirect", "history", "bookmark", "key", "acl"] {
        save(folder, target, &format!("{name}-bonus"), object.dnode.bonus())?;
    }
    for blkid in 0..object.dnode.maxblkid.min(3) + 1 {
        let Ok(block) = object.block(blkid) else { continue };
        let block = &block[..block.len().min(16384)];
        for target in targets(object.dnode.object_type.name().unwrap_or_default()) {
            save(folder, target, &format!("{name}-{blkid}"), block)?;
        }
        for target in ["decompress", "ddt", "zil", "gang", "drr", "indirect"] {
            save(folder, target, &format!("{name}-{blkid}"), &block[..block.len().min(2048)])?;
        }
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "corpus".to_owned());
    let folder = Path::new(&folder);
    for golden in golden::all() {
        let Ok(pool) = golden.open() else { continue };
        if let Ok(config) = pool.config.encode_xdr() {
            save(folder, "nvlist", &format!("{}-xdr", golden.name), &config)?;
            save(folder, "label", &golden.name, &[&[1], config.as_slice()].concat())?;
        }
        if let Ok(config) = pool.config.encode_native() {
            save(folder, "nvlist", &format!("{}-native", golden.name), &config)?;
        }
        save(folder, "blkptr", &golden.name, &pool.uberblock.rootbp.to_bytes())?;
        save(folder, "label", &format!("{}-ub", golden.name), &[&[0], &pool.uberblock.to_bytes()[..]].concat())?;
        if let Some(meta) = pool.mos.special(engine::dmu::SpecialObject::Meta) {
            object(folder, &golden.name, &meta)?;
        }
        for each in pool.mos.objects().flatten().take(200) {
            object(folder, &golden.name, &each)?;
        }
    }
    for seed in 0..64 {
        save(folder, "whole_image", &format!("seed-{seed}"), &testkit::hostile::mutate::from_seed(seed))?;
        // The first byte chooses one of four streams.
        let choice = u8::try_from(seed % 4).unwrap_or(0);
        let bytes = [vec![choice], testkit::hostile::streams::changes(seed, 3)].concat();
        save(folder, "receive", &format!("seed-{seed}"), &bytes)?;
    }
    Ok(())
}
