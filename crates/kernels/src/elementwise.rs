//! Loops over one element at a time: gradient sums, ReLU's derivative, the cross layer's products.
//!
//! No element depends on another, so the one plain loop is compiled once for each level, the compiler vectorises
//! it, and all levels give the same bits by construction. They are bound by memory, not by arithmetic.
#![allow(unsafe_code)]

use crate::isa::{Isa, Level};

/// Compiles a plain loop for every level, behind one function that chooses.
macro_rules! for_every_level {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($argument:ident: $kind:ty),*) $body:block) => {
        $(#[$doc])*
        $visible fn $name(isa: Isa, $($argument: $kind),*) {
            #[inline(always)]
            fn plain($($argument: $kind),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $kind),*) {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($argument: $kind),*) {
                plain($($argument),*)
            }

            match isa.level() {
                // SAFETY: an `Isa` of this level proves that the processor has it.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Avx512Bf16 | Level::Amx => unsafe { avx512($($argument),*) },
                _ => plain($($argument),*),
            }
        }
    };
}

for_every_level! {
    /// `target += source`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add(target: &mut [f32], source: &[f32]) {
        assert_eq!(target.len(), source.len());
        for (target, source) in target.iter_mut().zip(source) {
            *target += source;
        }
    }
}

for_every_level! {
    /// `target *= factor`.
    pub fn scale(target: &mut [f32], factor: f32) {
        for target in target {
            *target *= factor;
        }
    }
}

for_every_level! {
    /// Zeroes the gradient wherever the activation is at or below zero: ReLU backwards. A NaN lets it through.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn relu_backward(gradient: &mut [f32], activation: &[f32]) {
        assert_eq!(gradient.len(), activation.len());
        for (gradient, activation) in gradient.iter_mut().zip(activation) {
            *gradient = if *activation <= 0.0 { 0.0 } else { *gradient };
        }
    }
}

for_every_level! {
    /// `target = a * b + c`, fused.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn multiply_add(target: &mut [f32], a: &[f32], b: &[f32], c: &[f32]) {
        let count = target.len();
        assert_eq!([a.len(), b.len(), c.len()], [count; 3]);
        for (((target, a), b), c) in target.iter_mut().zip(a).zip(b).zip(c) {
            *target = a.mul_add(*b, *c);
        }
    }
}

for_every_level! {
    /// `target += a * b`, fused.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add_product(target: &mut [f32], a: &[f32], b: &[f32]) {
        assert_eq!([a.len(), b.len()], [target.len(); 2]);
        for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
            *target = a.mul_add(*b, *target);
        }
    }
}

for_every_level! {
    /// `target = a * b`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn multiply(target: &mut [f32], a: &[f32], b: &[f32]) {
        assert_eq!([a.len(), b.len()], [target.len(); 2]);
        for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
            *target = a * b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Kind, any_kind, bits, values};
    use proptest::prelude::*;

    fn run(isa: Isa, seed: u64, kind: Kind, count: usize) -> Vec<Vec<u32>> {
        let [a, b, c, target] = [0, 1, 2, 3].map(|i| values(seed + i, kind, count));
        let results = [
            {
                let mut t = target.clone();
                add(isa, &mut t, &a);
                t
            },
            {
                let mut t = target.clone();
                scale(isa, &mut t, 0.3);
                t
            },
            {
                let mut t = target.clone();
                relu_backward(isa, &mut t, &a);
                t
            },
            {
                let mut t = target.clone();
                multiply_add(isa, &mut t, &a, &b, &c);
                t
            },
            {
                let mut t = target.clone();
                add_product(isa, &mut t, &a, &b);
                t
            },
            {
                let mut t = target.clone();
                multiply(isa, &mut t, &a, &b);
                t
            },
        ];
        results.iter().map(|result| bits(result)).collect()
    }

    proptest! {
        /// Every tail and strange values.
        #[test]
        fn every_level_gives_the_twins_bits(count in 0usize..140, seed in any::<u32>(), kind in any_kind()) {
            let want = run(Isa::SCALAR, seed.into(), kind, count);
            for isa in Isa::all() {
                prop_assert_eq!(&run(isa, seed.into(), kind, count), &want, "{:?}", isa);
            }
        }
    }

    #[test]
    fn the_loops_do_what_they_say() {
        let isa = Isa::detect();
        let mut target = [1.0, 2.0];
        add(isa, &mut target, &[10.0, 20.0]);
        assert_eq!(target, [11.0, 22.0]);
        scale(isa, &mut target, 2.0);
        assert_eq!(target, [22.0, 44.0]);
        relu_backward(isa, &mut target, &[0.0, 0.1]);
        assert_eq!(target, [0.0, 44.0]);
        add_product(isa, &mut target, &[2.0, 1.0], &[3.0, 1.0]);
        assert_eq!(target, [6.0, 45.0]);
        multiply(isa, &mut target, &[2.0, 3.0], &[5.0, 7.0]);
        assert_eq!(target, [10.0, 21.0]);
        multiply_add(isa, &mut target, &[2.0, 3.0], &[5.0, 7.0], &[1.0, -1.0]);
        assert_eq!(target, [11.0, 20.0]);
    }
}
