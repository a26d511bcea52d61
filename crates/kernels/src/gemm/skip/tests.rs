//! One row with zeros against the scalar twin, which leaves nothing out: the same bits.

use super::*;
use crate::gemm::tile::loops_for;
use crate::gemm::{Activation, Linear, Scratch, scalar};
use crate::isa::{Isa, Level};
use crate::matrix::{Matrix, MatrixMut, Store};
use crate::values::{Kind, any_kind, bits, values};
use proptest::prelude::*;

/// `values`, of which about `share` of 8 are zeros of both signs.
fn with_zeros(seed: u64, kind: Kind, count: usize, share: u32) -> Vec<f32> {
    let signs = values(seed + 100, Kind::Plain, count);
    let chances = values(seed + 101, Kind::Plain, count);
    let chosen = values(seed, kind, count).into_iter().zip(signs.into_iter().zip(chances));
    let is_zero = |chance: f32| (chance + 2.0) * 2.0 < share as f32;
    chosen.map(|(value, (sign, chance))| if is_zero(chance) { 0.0 * sign } else { value }).collect()
}

fn forward(
    isa: Isa,
    operands: Operands,
    (x, inputs): (&[f32], usize),
    w: &[f32],
    bias: Option<&[f32]>,
    activation: Activation,
) -> Vec<u32> {
    let (rows, outputs) = (x.len() / inputs, w.len() / inputs);
    let mut layer = Linear::new(isa, operands, inputs, outputs);
    layer.pack(w);
    // Room for a neighbour, which must not be written.
    let mut y = vec![7.0; rows * outputs + 1];
    let to = MatrixMut::new(&mut y, rows, outputs, outputs);
    layer.forward(&mut Scratch::default(), Matrix::contiguous(x, inputs), bias, activation, to);
    bits(&y)
}

/// Every level that promises the twin's bits gives them. See `gemm::tests`.
fn every_level_matches(x: &[f32], w: &[f32], bias: Option<&[f32]>, tiny: bool) {
    for (operands, activation) in [
        (Operands::F32, Activation::Identity),
        (Operands::F32, Activation::Relu),
        (Operands::Bf16, Activation::Identity),
    ] {
        let want = forward(Isa::SCALAR, operands, (x, x.len()), w, bias, activation);
        let unsure = if tiny { Level::Avx512Bf16 } else { Level::Amx };
        let promises = |isa: &Isa| operands == Operands::F32 || isa.level() < unsure;
        for isa in Isa::all().into_iter().filter(promises) {
            let got = forward(isa, operands, (x, x.len()), w, bias, activation);
            assert_eq!(got, want, "{isa:?} {operands:?} {activation:?}: {x:?} {w:?}");
        }
    }
}

/// The product along the list alone, at every level that has it: what it wrote and whether it was sure.
fn listed(x: &[f32], w: &[f32]) -> Vec<(Vec<f32>, bool)> {
    let outputs = w.len() / x.len();
    let mut results = Vec::new();
    for isa in Isa::all() {
        let Some(loops) = loops_for(isa, Operands::F32) else { continue };
        let layout = loops.panels(Operands::F32, outputs);
        let mut right = vec![0.0; layout.cuts.total() * layout.unit * x.len()];
        let mut y = vec![7.0; outputs];
        // SAFETY: `isa` proves the level of its loops.
        let sure = unsafe {
            (loops.pack.from_columns)(layout, Matrix::contiguous(w, x.len()), &mut right);
            let to = MatrixMut::contiguous(&mut y, outputs);
            let x = Matrix::contiguous(x, x.len());
            multiply(loops, &mut Present::default(), x, &right, Ending::plain(Store::Replace), to)
        };
        results.push((y, sure));
    }
    results
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any share of zeros, from none to all; every tail of inputs and outputs; NaN, infinities and denormals in the row, the
    /// weights or both.
    #[test]
    fn every_level_gives_the_twins_bits(
        (inputs, outputs) in (1usize..90, 1usize..300), share in 0u32..=8, seed in any::<u32>(),
        kind in any_kind(), weights in any_kind(), has_bias in any::<bool>(),
    ) {
        let seed = u64::from(seed);
        let x = with_zeros(seed, kind, inputs, share);
        let w = values(seed + 1, weights, inputs * outputs);
        let bias = with_zeros(seed + 2, kind, outputs, 4);
        every_level_matches(&x, &w, has_bias.then_some(&bias), Kind::Tiny == kind || Kind::Tiny == weights);
    }

    /// A row alone has the bits of the same row among others, which may leave out less or nothing; products of bfloat16 pairs
    /// too, whose denormals are not the twin's.
    #[test]
    fn a_row_alone_has_the_bits_of_a_row_among_others(
        rows in 2usize..11, (inputs, outputs) in (1usize..90, 1usize..120), share in 0u32..=8,
        blank in 0usize..90, seed in any::<u32>(), kind in any_kind(), weights in any_kind(),
    ) {
        let mut x = with_zeros(seed.into(), kind, rows * inputs, share);
        // Some columns are zero in all rows.
        x.chunks_mut(inputs).for_each(|row| row[blank.min(inputs)..].fill(-0.0));
        let w = values(u64::from(seed) + 1, weights, inputs * outputs);
        let all = Isa::all().into_iter().flat_map(|isa| [(isa, Operands::F32), (isa, Operands::Bf16)]);
        for (isa, operands) in all {
            let together = forward(isa, operands, (&x, inputs), &w, None, Activation::Relu);
            let alone = x.chunks(inputs).flat_map(|x| {
                let mut y = forward(isa, operands, (x, inputs), &w, None, Activation::Relu);
                y.truncate(outputs);
                y
            });
            let alone: Vec<u32> = alone.collect();
            prop_assert_eq!(&together[..rows * outputs], &alone, "{:?} {:?}", isa, operands);
        }
    }

    /// Sums of several blocks.
    #[test]
    fn blocks_are_added_in_order(
        (inputs, outputs) in (500usize..1600, 1usize..60), share in 0u32..=8, seed in any::<u32>(),
    ) {
        let x = with_zeros(seed.into(), Kind::Plain, inputs, share);
        let w = values(u64::from(seed) + 1, Kind::Plain, inputs * outputs);
        every_level_matches(&x, &w, None, false);
        for (y, sure) in listed(&x, &w) {
            let mut want = vec![0.0; outputs];
            let to = MatrixMut::contiguous(&mut want, outputs);
            scalar::forward(Matrix::contiguous(&x, inputs), &w, None, Activation::Identity, to);
            prop_assert!(sure, "ordinary numbers are summed along the list");
            prop_assert_eq!(bits(&y), bits(&want));
        }
    }
}

/// The widths of real models.
#[test]
fn every_level_gives_the_twins_bits_on_the_shapes_of_models() {
    for (inputs, outputs) in
        [(13, 512), (512, 256), (256, 64), (367, 512), (256, 1), (479, 1024), (1024, 1024)]
    {
        let x = with_zeros(3, Kind::Plain, inputs, 4);
        let w = values(4, Kind::Plain, inputs * outputs);
        every_level_matches(&x, &w, None, false);
        listed(&x, &w).iter().for_each(|(_, sure)| assert!(sure));
    }
}

/// A row of zeros, a block of zeros before or after others, and one term alone.
#[test]
fn empty_lists_and_blocks_are_zero() {
    let w = values(1, Kind::Plain, 1200 * 20);
    let ones = |places: &[usize]| {
        let mut x = vec![-0.0; 1200];
        places.iter().for_each(|place| x[*place] = 1.5);
        x
    };
    for places in [&[][..], &[0], &[1199], &[511], &[512], &[0, 1023], &[600, 601]] {
        let x = ones(places);
        every_level_matches(&x, &w, None, false);
        for (y, sure) in listed(&x, &w) {
            assert!(sure);
            assert!(!places.is_empty() || bits(&y) == vec![0; 20], "a sum of nothing is +0");
        }
    }
}

/// A sum that underflows to -0 becomes +0 if +0 is added to it: then the zeros of the row can be seen.
#[test]
fn a_sum_that_ends_at_minus_zero_is_made_again_of_all_terms() {
    let (tiny, negative) = (1e-30, -1e-30f32);
    assert_eq!(f32::mul_add(tiny, negative, 0.0).to_bits(), (-0.0f32).to_bits());
    for (x, w) in [
        ([tiny, 0.0, 0.0], [negative, 1.0, -1.0]),
        ([tiny, 0.0, 0.0], [negative, -1.0, -1.0]),
        ([tiny, 0.0, -0.0], [negative, -1.0, -1.0]),
        ([0.0, tiny, -0.0], [1.0, negative, 1.0]),
        ([0.0, 0.0, tiny], [1.0, 1.0, negative]),
    ] {
        every_level_matches(&x, &w, None, true);
        every_level_matches(&x, &w, Some(&[-0.0]), true);
        listed(&x, &w).iter().for_each(|(_, sure)| assert!(!sure, "{x:?} {w:?}"));
    }
    // Later terms hide the sign again.
    let (x, w) = ([tiny, 0.0, 2.0], [negative, 1.0, 3.0]);
    every_level_matches(&x, &w, None, true);
    listed(&x, &w).iter().for_each(|(y, sure)| assert!(*sure && y[0] == 6.0));
    // The sum of a later block.
    let mut x = vec![0.0; BLOCK + 2];
    x[BLOCK] = tiny;
    let mut w = vec![1.0; BLOCK + 2];
    w[BLOCK] = negative;
    every_level_matches(&x, &w, None, true);
    listed(&x, &w).iter().for_each(|(_, sure)| assert!(!sure));
}

/// Zero times infinity is NaN, so weights that are not finite are all multiplied, until finite ones are packed.
#[test]
fn weights_that_are_not_finite_are_not_left_out() {
    for strange in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX] {
        for place in [0, 17, 39] {
            let x = [0.0, 1.0];
            let mut w = vec![1.0; 40];
            w[place] = strange;
            every_level_matches(&x, &w, None, false);
        }
    }
    for (isa, operands) in
        Isa::all().into_iter().flat_map(|isa| [(isa, Operands::F32), (isa, Operands::Bf16)])
    {
        let mut layer = Linear::new(isa, operands, 2, 1);
        let mut score = |w: &[f32]| {
            let mut y = [7.0];
            layer.pack(w);
            let (x, to) = (Matrix::contiguous(&[0.0, 1.0], 2), MatrixMut::contiguous(&mut y, 1));
            layer.forward(&mut Scratch::default(), x, None, Activation::Identity, to);
            y[0]
        };
        assert_eq!(score(&[3.0, 2.0]), 2.0);
        assert!(score(&[f32::INFINITY, 2.0]).is_nan());
        assert_eq!(score(&[3.0, 2.0]), 2.0);
    }
}

/// What the list holds at every level, and its end for who looks ahead.
#[test]
fn the_list_has_places_and_values_by_block() {
    for loops in Isa::all().into_iter().filter_map(|isa| loops_for(isa, Operands::F32)) {
        let mut row = vec![0.0; BLOCK + 3];
        (row[2], row[5], row[7], row[BLOCK + 1]) = (1.0, -0.0, f32::NAN, -2.0);
        let mut present = Present::default();
        // SAFETY: the processor has every level of `Isa::all`.
        unsafe { present.list(loops, Matrix::contiguous(&row, row.len())) };
        assert_eq!(present.ends, [2, 3]);
        assert_eq!(present.places[..7], [2, 7, BLOCK as u32 + 1, 2, 7, BLOCK as u32 + 1, 2]);
        assert_eq!((present.values[0], present.values[1].is_nan(), present.values[2]), (1.0, true, -2.0));
        // A shorter row after it.
        // SAFETY: as above.
        unsafe { present.list(loops, Matrix::contiguous(&[0.0, 4.0], 2)) };
        assert_eq!((present.ends.as_slice(), &present.places[..2]), (&[1][..], &[1, 1][..]));
        // Two rows: what is zero in both is left out.
        // SAFETY: as above.
        unsafe { present.list(loops, Matrix::contiguous(&[0.0, 4.0, 0.0, -0.0, 0.0, 5.0], 3)) };
        assert_eq!((present.ends.as_slice(), &present.places[..2]), (&[2][..], &[1, 2][..]));
        let rows = present.values.chunks(present.stride).map(|row| row[..2].to_vec());
        assert_eq!(rows.take(2).collect::<Vec<_>>(), [[4.0, 0.0], [0.0, 5.0]]);
    }
}
