//! A golden pool with changes that the input tells, checksums made right: everything is done with it.
#![no_main]

use std::sync::OnceLock;

use engine::env::Env;
use testkit::golden::{self, Golden};
use testkit::hostile::{exercise, forge::Forge, mutate};

static POOL: OnceLock<(Env, Golden)> = OnceLock::new();

fn pool() -> &'static (Env, Golden) {
    POOL.get_or_init(|| {
        let name = std::env::var("AQUIFER_FUZZ_POOL").unwrap_or_else(|_| "quotas".to_owned());
        let golden = golden::get(&name).expect("the golden pool is needed");
        (Env::system(64 << 20).expect("threads"), golden)
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (env, golden) = pool();
    let Ok(mut forge) = Forge::new(golden, env) else { return };
    mutate::apply(&mut forge, bytes);
    if let Ok(source) = forge.finish() {
        exercise::everything(env, &source);
    }
});
