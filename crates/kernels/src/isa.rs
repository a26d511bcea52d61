//! Which instructions this processor has: the proof that a faster level may be called.

#[cfg(target_arch = "x86_64")]
mod amx;

/// A level of vector instructions. Only [`Isa::all`] and [`Isa::detect`] make one, and they ask the
/// processor first, so holding a value is the proof that its instructions run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Level);

/// The levels, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with products of pairs of bfloat16 (AVX512_BF16).
    Avx512Bf16,
    /// AVX-512 with AMX tiles for bfloat16.
    Amx,
}

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 5] = [Level::Scalar, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];
}

impl Isa {
    /// The plain twin, on every machine.
    pub const SCALAR: Isa = Isa(Level::Scalar);

    /// The fastest level of this processor.
    pub fn detect() -> Isa {
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Isa(best_level()))
    }

    /// Every level that this processor has, slowest first.
    pub fn all() -> Vec<Isa> {
        let best = Isa::detect().0;
        Level::ALL.into_iter().filter(|level| *level <= best).map(Isa).collect()
    }

    /// The level it proves.
    pub fn level(self) -> Level {
        self.0
    }

    /// This level, or `ceiling` where that is lower: how a run is held to a slower level on purpose.
    pub fn at_most(self, ceiling: Level) -> Isa {
        Isa(self.0.min(ceiling))
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_level() -> Level {
    Level::Scalar
}

#[cfg(target_arch = "x86_64")]
fn best_level() -> Level {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let pairs = avx512 && is_x86_feature_detected!("avx512bf16");
    // Every processor with tiles multiplies pairs too, and the levels build on one another.
    if pairs && amx::granted() && amx::works() {
        Level::Amx
    } else if pairs {
        Level::Avx512Bf16
    } else if avx512 {
        Level::Avx512
    } else if avx2 {
        Level::Avx2
    } else {
        Level::Scalar
    }
}
