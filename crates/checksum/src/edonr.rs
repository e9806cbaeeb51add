//! Edon-R-512 as ZFS keys it: the salt is stretched to one block, which goes before the data.
//!
//! Edon-R chains a double pipe of sixteen words through eight applications of a quasigroup operation
//! `x * y` per 128-byte block; ZFS's variant feeds block and old pipe forward (the "tweak" that its
//! authors published after the SHA-3 contest). Padding is 0x80, zeros, and the length in bits as a
//! little-endian word; the digest is the second half of the pipe.
//!
//! Differs from OpenZFS: input needn't come in multiples of the block size.

/// Eight words: half of the pipe, or of a block.
type Half = [u64; 8];

const BLOCK_BYTES: usize = 128;

/// A state that has absorbed whole blocks only.
#[derive(Clone, Copy)]
pub(crate) struct Edonr512 {
    low: Half,
    high: Half,
    absorbed: u64,
}

/// The state after the expanded salt: H(salt) followed by H(H(salt)).
pub(crate) fn salted(salt: &[u8; 32]) -> Edonr512 {
    let first = Edonr512::new().digest_wide(salt);
    let second = Edonr512::new().digest_wide(&first);
    let mut state = Edonr512::new();
    let mut block = [0; BLOCK_BYTES];
    for (to, from) in block.iter_mut().zip(first.iter().chain(&second)) {
        *to = *from;
    }
    state.absorb(&block);
    state
}

impl Edonr512 {
    /// The initial pipe: bytes 0x80, 0x81, … 0xff, read as big-endian words.
    fn new() -> Self {
        let word = |i: usize| 0x8081_8283_8485_8687u64 + 0x0808_0808_0808_0808 * i as u64;
        Self { low: std::array::from_fn(word), high: std::array::from_fn(|i| word(i + 8)), absorbed: 0 }
    }

    /// The first 32 bytes of the digest of everything absorbed, then `data`.
    pub(crate) fn digest(&self, data: &[u8]) -> [u8; 32] {
        let wide = self.digest_wide(data);
        let mut cut = [0; 32];
        for (to, from) in cut.iter_mut().zip(wide) {
            *to = from;
        }
        cut
    }

    fn digest_wide(&self, data: &[u8]) -> [u8; 64] {
        let mut state = *self;
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            state.absorb(block);
        }
        state.finish(rest);
        let mut digest = [0; 64];
        for (to, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(state.high) {
            *to = word.to_le_bytes();
        }
        digest
    }

    /// Absorbs the last partial block with its padding: one block, or two when the length doesn't fit.
    fn finish(&mut self, rest: &[u8]) {
        let bits = self.absorbed.wrapping_add(rest.len() as u64).wrapping_mul(8);
        let mut padded = [0; 2 * BLOCK_BYTES];
        for (to, from) in padded.iter_mut().zip(rest.iter().chain(&[0x80])) {
            *to = *from;
        }
        let blocks = if rest.len() < BLOCK_BYTES - 8 { 1 } else { 2 };
        let length_at = blocks * BLOCK_BYTES - 8;
        for (to, from) in padded.iter_mut().skip(length_at).zip(bits.to_le_bytes()) {
            *to = from;
        }
        for block in padded.as_chunks::<BLOCK_BYTES>().0.iter().take(blocks) {
            self.absorb(block);
        }
    }

    fn absorb(&mut self, block: &[u8; BLOCK_BYTES]) {
        let (low, high) = halves(block);
        let a = star(reversed(high), low);
        let b = star(a, high);
        let a = star(self.high, a);
        let b = star(a, b);
        let a = star(a, self.low);
        let b = star(b, a);
        let a = star(reversed(low), a);
        let b = star(a, b);
        feed_forward(&mut self.low, a, high);
        feed_forward(&mut self.high, b, low);
        self.absorbed = self.absorbed.wrapping_add(BLOCK_BYTES as u64);
    }
}

#[inline(always)]
fn feed_forward(pipe: &mut Half, product: Half, message: Half) {
    for ((word, product), message) in pipe.iter_mut().zip(product).zip(message) {
        *word ^= product ^ message;
    }
}

#[inline(always)]
fn halves(block: &[u8; BLOCK_BYTES]) -> (Half, Half) {
    let mut words = block.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let mut half = || std::array::from_fn(|_| words.next().unwrap_or(0));
    (half(), half())
}

#[inline(always)]
fn reversed([a, b, c, d, e, f, g, h]: Half) -> Half {
    [h, g, f, e, d, c, b, a]
}

/// The quasigroup operation of order 2^512: each side through its Latin square, then mixed three by three.
#[inline(always)]
fn star(x: Half, y: Half) -> Half {
    let [s0, s1, s2, s3, s4, s5, s6, s7] = left(x);
    let [t0, t1, t2, t3, t4, t5, t6, t7] = right(y);
    // Pairs that two words share.
    let (s04, s17, s23, s56) = (s0 ^ s4, s1 ^ s7, s2 ^ s3, s5 ^ s6);
    let (t01, t25, t34, t67) = (t0 ^ t1, t2 ^ t5, t3 ^ t4, t6 ^ t7);
    [
        (s04 ^ s1).wrapping_add(t01 ^ t5),
        (s04 ^ s7).wrapping_add(t67 ^ t2),
        (s17 ^ s6).wrapping_add(t01 ^ t3),
        (s23 ^ s4).wrapping_add(t34 ^ t0),
        (s17 ^ s0).wrapping_add(t25 ^ t1),
        (s56 ^ s3).wrapping_add(t34 ^ t6),
        (s56 ^ s2).wrapping_add(t25 ^ t7),
        (s23 ^ s5).wrapping_add(t67 ^ t4),
    ]
}

/// Latin square of the left operand: sums of five words, rotated.
#[inline(always)]
fn left(x: Half) -> Half {
    let add = u64::wrapping_add;
    let (x04, x17, x23, x56) = (add(x[0], x[4]), add(x[1], x[7]), add(x[2], x[3]), add(x[5], x[6]));
    let (x0147, x2356) = (add(x04, x17), add(x23, x56));
    [
        add(add(x0147, x[2]), 0xaaaa_aaaa_aaaa_aaaa),
        add(x0147, x[3]).rotate_left(5),
        add(x0147, x[6]).rotate_left(15),
        add(x2356, x[7]).rotate_left(22),
        add(x2356, x[1]).rotate_left(31),
        add(add(x04, x23), x[5]).rotate_left(40),
        add(add(x17, x56), x[0]).rotate_left(50),
        add(x2356, x[4]).rotate_left(59),
    ]
}

/// Latin square of the right operand.
#[inline(always)]
fn right(y: Half) -> Half {
    let add = u64::wrapping_add;
    let (y01, y25, y34, y67) = (add(y[0], y[1]), add(y[2], y[5]), add(y[3], y[4]), add(y[6], y[7]));
    let (y0125, y0134, y3467, y2567) = (add(y01, y25), add(y01, y34), add(y34, y67), add(y25, y67));
    [
        add(add(y0125, y[7]), 0x5555_5555_5555_5555),
        add(y0134, y[6]).rotate_left(10),
        add(y0125, y[3]).rotate_left(19),
        add(y3467, y[2]).rotate_left(29),
        add(y0134, y[5]).rotate_left(36),
        add(y2567, y[4]).rotate_left(44),
        add(y2567, y[1]).rotate_left(48),
        add(y3467, y[0]).rotate_left(55),
    ]
}
