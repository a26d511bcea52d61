//! The interaction at every level against the scalar twin, and the twin against plain arithmetic.

use super::{Scratch, Vectors, backward, forward, pair};
use crate::Isa;
use crate::matrix::{Matrix, MatrixMut, Store};
use crate::values::{Kind, any_kind, bits, values};
use proptest::prelude::*;

/// Pairs, and gradients replaced and added, with the gaps between rows.
fn run(isa: Isa, shape: Vectors, samples: usize, seed: u64, kind: Kind) -> [Vec<u32>; 3] {
    let (from, to) = (shape.floats() + 3, shape.pairs() + 5);
    let vectors = values(seed, kind, samples * from);
    let gradient = values(seed + 1, kind, samples * to);
    let vectors = Matrix::new(&vectors, samples, shape.floats(), from);
    let gradient = Matrix::new(&gradient, samples, shape.pairs(), to);
    let scratch = &mut Scratch::default();
    let mut pairs = vec![7.0; samples * to];
    forward(isa, scratch, shape, vectors, MatrixMut::new(&mut pairs, samples, shape.pairs(), to));
    let mut replaced = vec![7.0; samples * from];
    let out = MatrixMut::new(&mut replaced, samples, shape.floats(), from);
    backward(isa, scratch, shape, vectors, gradient, Store::Replace, out);
    let mut added = values(seed + 2, kind, samples * from);
    let out = MatrixMut::new(&mut added, samples, shape.floats(), from);
    backward(isa, scratch, shape, vectors, gradient, Store::Add, out);
    [bits(&pairs), bits(&replaced), bits(&added)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Any number of vectors of any width, rows with gaps, strange values.
    #[test]
    fn every_level_gives_the_twins_bits(
        (count, width, samples) in (1usize..40, 1usize..70, 0usize..4), seed in any::<u32>(), kind in any_kind(),
    ) {
        let shape = Vectors { count, width };
        let want = run(Isa::SCALAR, shape, samples, seed.into(), kind);
        for isa in Isa::all() {
            prop_assert_eq!(&run(isa, shape, samples, seed.into(), kind), &want, "{:?}", isa);
        }
    }
}

#[test]
fn every_level_gives_the_twins_bits_on_the_shapes_of_models() {
    for (count, width) in [(27, 16), (27, 128), (2, 1), (1, 5), (3, 600), (530, 2)] {
        let shape = Vectors { count, width };
        let want = run(Isa::SCALAR, shape, 2, 9, Kind::Plain);
        for isa in Isa::all() {
            assert_eq!(run(isa, shape, 2, 9, Kind::Plain), want, "{isa:?} {shape:?}");
        }
    }
}

#[test]
fn pairs_stand_in_the_order_of_the_lower_triangle() {
    let mut places = Vec::new();
    for i in 1..5 {
        places.extend((0..i).map(|j| pair(i, j)));
    }
    assert_eq!(places, (0..10).collect::<Vec<_>>());
    assert_eq!(pair(1, 3), pair(3, 1));
}

/// The gradient of a sum of pairs, against differences of the sum itself.
#[test]
fn backward_is_the_derivative_of_forward() {
    let shape = Vectors { count: 4, width: 3 };
    let vectors = values(3, Kind::Plain, shape.floats());
    let weights = values(4, Kind::Plain, shape.pairs());
    let loss = |vectors: &[f32]| -> f64 {
        let mut pairs = vec![0.0; shape.pairs()];
        let to = MatrixMut::contiguous(&mut pairs, shape.pairs());
        forward(
            Isa::detect(),
            &mut Scratch::default(),
            shape,
            Matrix::contiguous(vectors, shape.floats()),
            to,
        );
        pairs.iter().zip(&weights).map(|(p, w)| f64::from(*p) * f64::from(*w)).sum()
    };
    let mut gradient = vec![0.0; shape.floats()];
    let (from, weights) = (Matrix::contiguous(&vectors, 12), Matrix::contiguous(&weights, 6));
    let to = MatrixMut::contiguous(&mut gradient, 12);
    backward(Isa::detect(), &mut Scratch::default(), shape, from, weights, Store::Replace, to);
    for (place, gradient) in gradient.iter().enumerate() {
        let moved = |by: f32| {
            let mut vectors = vectors.clone();
            vectors[place] += by;
            loss(&vectors)
        };
        let difference = (moved(0.25) - moved(-0.25)) / 0.5;
        assert!((difference - f64::from(*gradient)).abs() < 1e-5, "{place}: {difference} against {gradient}");
    }
}
