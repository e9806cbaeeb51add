//! Skein-512 (version 1.3) with 256-bit output, keyed: the MAC mode of the Skein paper.
//!
//! A chain of UBI invocations over Threefish-512: the key, the configuration, the message, the output
//! counter. The chaining value after key and configuration depends on the salt alone and is kept.

/// One Threefish block: eight little-endian words.
type Block = [u64; 8];

const BLOCK_BYTES: usize = 64;
/// The key-schedule parity constant (C240 of the paper).
const PARITY: u64 = 0x1BD1_1BDA_A9FC_1A22;
/// "SHA3", version 1: the head of the configuration block.
const SCHEMA: u64 = 0x1_3341_4853;
const OUTPUT_BITS: u64 = 256;

/// UBI type values, the top byte's low six bits of the tweak.
const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4;
const TYPE_MESSAGE: u64 = 48;
const TYPE_OUTPUT: u64 = 63;
const FLAG_FIRST: u64 = 1 << 62;
const FLAG_FINAL: u64 = 1 << 63;

/// A keyed hash, ready for a message.
#[derive(Clone, Copy)]
pub(crate) struct Skein512 {
    chain: Block,
}

/// The hash keyed with the pool's salt.
pub(crate) fn keyed(salt: &[u8; 32]) -> Skein512 {
    let chain = ubi([0; 8], salt, TYPE_KEY);
    let mut config = [0u8; 32];
    for (bytes, word) in config.as_chunks_mut::<8>().0.iter_mut().zip([SCHEMA, OUTPUT_BITS]) {
        *bytes = word.to_le_bytes();
    }
    Skein512 { chain: ubi(chain, &config, TYPE_CONFIG) }
}

impl Skein512 {
    /// The first 32 bytes of the output for `message`.
    pub(crate) fn digest(&self, message: &[u8]) -> [u8; 32] {
        let chain = ubi(self.chain, message, TYPE_MESSAGE);
        let output = ubi(chain, &[0; 8], TYPE_OUTPUT);
        let mut digest = [0; 32];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(output) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

/// Unique block iteration: absorbs `input` into `chain`; the last block is zero-padded, empty input is
/// one zero block of length 0.
fn ubi(mut chain: Block, input: &[u8], kind: u64) -> Block {
    let full = input.len().saturating_sub(1) / BLOCK_BYTES;
    let (body, last) = input.split_at_checked(full * BLOCK_BYTES).unwrap_or((input, &[]));
    let mut flags = kind << 56 | FLAG_FIRST;
    let mut position = 0u64;
    for bytes in body.as_chunks::<BLOCK_BYTES>().0 {
        position = position.wrapping_add(BLOCK_BYTES as u64);
        chain = absorb(&chain, [position, flags], bytes);
        flags &= !FLAG_FIRST;
    }
    let mut padded = [0; BLOCK_BYTES];
    for (to, from) in padded.iter_mut().zip(last) {
        *to = *from;
    }
    position = position.wrapping_add(last.len() as u64);
    absorb(&chain, [position, flags | FLAG_FINAL], &padded)
}

fn absorb(chain: &Block, tweak: [u64; 2], bytes: &[u8; BLOCK_BYTES]) -> Block {
    let mut message = [0; 8];
    for (word, bytes) in message.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let mut state = threefish(chain, tweak, message);
    for (word, plain) in state.iter_mut().zip(message) {
        *word ^= plain;
    }
    state
}

/// Rotations of the four mixes in each of eight rounds.
const ROTATIONS: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];

/// Threefish-512 encryption: 72 rounds, a subkey before each four and at the end.
fn threefish(key: &Block, tweak: [u64; 2], mut v: Block) -> Block {
    let parity = key.iter().fold(PARITY, |all, word| all ^ word);
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let keys = [k0, k1, k2, k3, k4, k5, k6, k7, parity];
    let tweaks = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    macro_rules! eight_rounds {
        ($($pair:literal)*) => { $(
            add_subkey(&mut v, &keys, &tweaks, 2 * $pair);
            four_rounds(&mut v, [ROTATIONS[0], ROTATIONS[1], ROTATIONS[2], ROTATIONS[3]]);
            add_subkey(&mut v, &keys, &tweaks, 2 * $pair + 1);
            four_rounds(&mut v, [ROTATIONS[4], ROTATIONS[5], ROTATIONS[6], ROTATIONS[7]]);
        )* };
    }
    eight_rounds!(0 1 2 3 4 5 6 7 8);
    add_subkey(&mut v, &keys, &tweaks, 18);
    v
}

#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "indexes are taken modulo the arrays' lengths; constant after inlining"
)]
fn add_subkey(v: &mut Block, keys: &[u64; 9], tweaks: &[u64; 3], number: usize) {
    for (i, word) in v.iter_mut().enumerate() {
        *word = word.wrapping_add(keys[(number + i) % 9]);
    }
    v[5] = v[5].wrapping_add(tweaks[number % 3]);
    v[6] = v[6].wrapping_add(tweaks[(number + 1) % 3]);
    v[7] = v[7].wrapping_add(number as u64);
}

#[inline(always)]
fn four_rounds(v: &mut Block, rotations: [[u32; 4]; 4]) {
    for [r0, r1, r2, r3] in rotations {
        let [a0, b0, a1, b1, a2, b2, a3, b3] = *v;
        let (a0, b0) = mix(a0, b0, r0);
        let (a1, b1) = mix(a1, b1, r1);
        let (a2, b2) = mix(a2, b2, r2);
        let (a3, b3) = mix(a3, b3, r3);
        *v = [a1, b0, a2, b3, a3, b2, a0, b1];
    }
}

#[inline(always)]
fn mix(a: u64, b: u64, rotation: u32) -> (u64, u64) {
    let sum = a.wrapping_add(b);
    (sum, b.rotate_left(rotation) ^ sum)
}
