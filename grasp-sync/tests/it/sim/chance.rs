//! Randomness by seed.

/// A small generator (xorshift64*), not the engine's own.
#[derive(Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from `min` to `max`, both included.
    pub(crate) fn within(&mut self, min: u64, max: u64) -> u64 {
        min + self.next() % (max - min + 1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next() % n == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0, from.len() as u64 - 1) as usize]
    }

    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&self.next().to_be_bytes()));
        bytes
    }
}
