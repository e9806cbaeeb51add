//! Prints how fast blocks are encrypted and decrypted, one thread, 128 KiB blocks:
//! `cargo run --release -p crypt --example crypt_speed`.

use std::time::{Duration, Instant};

use crypt::{BlockKind, BlockParams, ByteOrder, DatasetKey, Pbkdf2, Result, Suite, WrappingKey};

const BLOCK: usize = 128 << 10;
const RUN: Duration = Duration::from_millis(300);

/// GB/s of `work` on one block, the best of three runs.
fn rate(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = 0.0_f64;
    for _ in 0..3 {
        let (start, mut blocks) = (Instant::now(), 0_u32);
        while start.elapsed() < RUN {
            work()?;
            blocks += 1;
        }
        best = best.max(f64::from(blocks) * BLOCK as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    Ok(best)
}

fn main() -> Result<()> {
    println!("GB/s         encrypt  decrypt");
    for suite in Suite::ALL {
        let key = DatasetKey::new(suite, 1, 1, &vec![7; suite.key_len()], &[8; 64])?;
        let (order, salt, iv) = (ByteOrder::Little, [1; 8], [2; 12]);
        let mut block = vec![3; BLOCK];
        let encrypt = rate(|| key.encrypt(BlockKind::Data, order, &salt, &iv, &mut block).map(drop))?;
        let mac = key.encrypt(BlockKind::Data, order, &salt, &iv, &mut block)?;
        let (params, mut copy) = (BlockParams { salt, iv, mac }, block.clone());
        let decrypt = rate(|| {
            copy.copy_from_slice(&block);
            key.decrypt(BlockKind::Data, order, &params, &mut copy)
        })?;
        println!("{:12} {encrypt:7.2} {decrypt:8.2}", suite.name());
    }
    let key = DatasetKey::new(Suite::ON, 1, 1, &[7; 32], &[8; 64])?;
    let block = vec![3; BLOCK];
    let hmac = rate(|| key.verify_authenticated(&block, &[0; 16]).or(Ok(())))?;
    let indirect = rate(|| crypt::verify_indirect(ByteOrder::Little, &block, &[0; 16]).or(Ok(())))?;
    println!("hmac-sha512 {hmac:.2}, indirect block (both versions tried) {indirect:.2}");
    let start = Instant::now();
    WrappingKey::from_passphrase(b"password", Pbkdf2 { salt: 1, iters: 350_000 })?;
    println!("pbkdf2, 350,000 iterations: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
