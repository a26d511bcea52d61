//! Seeded floats for the kernel tests, and their bits.

use proptest::prelude::*;

/// What a test's floats are like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Between -2 and 2.
    Plain,
    /// Denormals and their products' neighbourhood.
    Tiny,
    /// Any, with NaN, infinities and signed zeros among them.
    Strange,
}

/// `count` floats that depend on the seed alone.
pub(crate) fn values(seed: u64, kind: Kind, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| one(kind, next())).collect()
}

fn one(kind: Kind, random: u64) -> f32 {
    let plain = (random >> 40) as f32 / (1u64 << 22) as f32 - 2.0;
    match (kind, random % 64) {
        (Kind::Plain, _) => plain,
        (Kind::Tiny, 0..16) => plain * f32::MIN_POSITIVE,
        (Kind::Tiny, 16..20) => 0.0 * plain,
        (Kind::Tiny, _) => plain * 1e-21,
        (Kind::Strange, 0) => f32::NAN,
        (Kind::Strange, 1) => f32::INFINITY * plain.signum(),
        (Kind::Strange, 2..6) => 0.0 * plain,
        (Kind::Strange, 6..12) => plain * 1e37,
        (Kind::Strange, _) => plain,
    }
}

/// The bits of each float, all NaN alike: which of two NaN an instruction returns is its own affair.
pub(crate) fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

/// Any kind.
pub(crate) fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Plain), Just(Kind::Tiny), Just(Kind::Strange)]
}
