//! Linear layers at every level of this processor against the scalar twin: the same bits.

use super::{Activation, BLOCK, Linear, Operands, Scratch, round_to_bf16};
use crate::half;
use crate::isa::{Isa, Level};
use crate::matrix::{Matrix, MatrixMut, Store};
use crate::values::{Kind, any_kind, bits, values};
use proptest::prelude::*;

/// One layer and one grain of samples. The gaps are floats between the rows of each matrix.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    gap: usize,
    seed: u64,
    kind: Kind,
    operands: Operands,
}

/// Everything the three products write, with the gaps, which must stay as they were.
#[derive(Debug, PartialEq)]
struct Results {
    forward: Vec<u32>,
    relu: Vec<u32>,
    data: Vec<u32>,
    masked_sum: Vec<u32>,
    weights: Vec<u32>,
    bias: Vec<u32>,
}

fn run(isa: Isa, case: Case) -> Results {
    let Case { rows, inputs, outputs, gap, seed, kind, operands } = case;
    let (x_stride, y_stride) = (inputs + gap, outputs + 2 * gap);
    let x = values(seed, kind, rows * x_stride);
    let dy = values(seed + 1, kind, rows * y_stride);
    let w = values(seed + 2, kind, inputs * outputs);
    let b = values(seed + 3, kind, outputs);
    let (x, dy) = (Matrix::new(&x, rows, inputs, x_stride), Matrix::new(&dy, rows, outputs, y_stride));
    let mut layer = Linear::new(isa, operands, inputs, outputs);
    layer.pack(&w);
    let scratch = &mut Scratch::default();

    let mut forward = vec![7.0; rows * y_stride];
    let y = MatrixMut::new(&mut forward, rows, outputs, y_stride);
    layer.forward(scratch, x, None, Activation::Identity, y);
    let mut relu = vec![7.0; rows * y_stride];
    let y = MatrixMut::new(&mut relu, rows, outputs, y_stride);
    layer.forward(scratch, x, Some(&b), Activation::Relu, y);

    let mut data = vec![7.0; rows * x_stride];
    let dx = MatrixMut::new(&mut data, rows, inputs, x_stride);
    layer.backward_data(scratch, dy, None, Store::Replace, dx);
    let mut masked_sum = values(seed + 4, kind, rows * x_stride);
    let dx = MatrixMut::new(&mut masked_sum, rows, inputs, x_stride);
    layer.backward_data(scratch, dy, Some(x), Store::Add, dx);

    let mut weights = values(seed + 5, kind, inputs * outputs);
    let mut bias = values(seed + 6, kind, outputs);
    layer.backward_weights(scratch, dy, x, &mut weights, Some(&mut bias));
    let (mut new_weights, mut new_bias) = (vec![f32::NAN; inputs * outputs], vec![f32::NAN; outputs]);
    layer.backward_weights_anew(scratch, dy, x, &mut new_weights, Some(&mut new_bias));
    weights.extend(new_weights);
    bias.extend(new_bias);
    Results {
        forward: bits(&forward),
        relu: bits(&relu),
        data: bits(&data),
        masked_sum: bits(&masked_sum),
        weights: bits(&weights),
        bias: bits(&bias),
    }
}

fn every_level_matches(case: Case) {
    let want = run(Isa::SCALAR, case);
    for isa in levels(case.operands, case.kind) {
        assert_eq!(run(isa, case), want, "{isa:?} {case:?}");
    }
}

/// The levels that promise the twin's bits: AMX does so for `f32` operands only, and products of bfloat16 pairs take
/// denormals for zero.
fn levels(operands: Operands, kind: Kind) -> Vec<Isa> {
    let promises = |isa: &Isa| match (operands, kind) {
        (Operands::F32, _) => true,
        (Operands::Bf16, Kind::Tiny) => isa.level() < Level::Avx512Bf16,
        (Operands::Bf16, _) => isa.level() < Level::Amx,
    };
    Isa::all().into_iter().filter(promises).collect()
}

fn any_operands() -> impl Strategy<Value = Operands> {
    prop_oneof![Just(Operands::F32), Just(Operands::Bf16)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every tail of rows, inputs and outputs; rows with gaps; NaN, infinities, denormals and signed zeros.
    #[test]
    fn every_level_gives_the_twins_bits(
        (rows, inputs, outputs) in (1usize..70, 1usize..70, 1usize..70), gap in 0usize..4,
        seed in any::<u32>(), kind in any_kind(), operands in any_operands(),
    ) {
        every_level_matches(Case { rows, inputs, outputs, gap, seed: seed.into(), kind, operands });
    }

    /// How many rows a call has does not matter: one call gives the bits of one call per row.
    #[test]
    fn rows_do_not_know_each_other(
        (rows, inputs, outputs) in (2usize..30, 1usize..40, 1usize..60), seed in any::<u32>(),
    ) {
        let x = values(seed.into(), Kind::Plain, rows * inputs);
        let w = values(u64::from(seed) + 1, Kind::Plain, inputs * outputs);
        for isa in levels(Operands::Bf16, Kind::Plain) {
            let mut layer = Linear::new(isa, Operands::Bf16, inputs, outputs);
            layer.pack(&w);
            let forward = |x: &[f32]| {
                let mut y = vec![0.0; x.len() / inputs * outputs];
                let to = MatrixMut::contiguous(&mut y, outputs);
                let x = Matrix::contiguous(x, inputs);
                layer.forward(&mut Scratch::default(), x, None, Activation::Identity, to);
                y
            };
            let apart: Vec<f32> = x.chunks(inputs).flat_map(forward).collect();
            prop_assert_eq!(bits(&forward(&x)), bits(&apart), "{:?}", isa);
        }
    }
}

/// The widths of real models, and sums longer than one block.
#[test]
fn every_level_gives_the_twins_bits_on_the_shapes_of_models() {
    let shapes =
        [(16, 13, 512), (5, 367, 64), (3, 479, 130), (9, 256, 1), (2, 1, 1), (3, 1100, 33), (4, 40, 1025)];
    for (rows, inputs, outputs) in shapes {
        for operands in [Operands::F32, Operands::Bf16] {
            every_level_matches(Case { rows, inputs, outputs, gap: 1, seed: 5, kind: Kind::Plain, operands });
        }
    }
    // Narrow and wide, with enough samples that the gradient of the weights is computed turned.
    for (rows, inputs, outputs) in [(130, 13, 77), (100, 20, 81), (97, 1, 5)] {
        for operands in [Operands::F32, Operands::Bf16] {
            every_level_matches(Case { rows, inputs, outputs, gap: 1, seed: 7, kind: Kind::Plain, operands });
        }
    }
    // The gradient of the weights sums over samples, so its blocks are blocks of rows.
    let (rows, inputs, outputs) = (2 * BLOCK + 3, 9, 7);
    for operands in [Operands::F32, Operands::Bf16] {
        every_level_matches(Case { rows, inputs, outputs, gap: 0, seed: 6, kind: Kind::Plain, operands });
    }
}

/// Products of pairs: an odd number of terms, the order inside a pair, and denormals, which count as zero.
#[test]
fn pairs_of_bfloat16_add_one_product_after_the_other() {
    let sum = |isa: Isa, x: &[f32], w: &[f32]| {
        let mut layer = Linear::new(isa, Operands::Bf16, x.len(), 1);
        layer.pack(w);
        let mut y = [7.0];
        let to = MatrixMut::contiguous(&mut y, 1);
        layer.forward(
            &mut Scratch::default(),
            Matrix::contiguous(x, x.len()),
            None,
            Activation::Identity,
            to,
        );
        y[0]
    };
    for isa in Isa::all().into_iter().filter(|isa| isa.level() == Level::Avx512Bf16) {
        // 2^25 + 1 is 2^25, so the order shows.
        let large = 2f32.powi(25);
        assert_eq!(sum(isa, &[large, 1.0, -large], &[1.0; 3]), 0.0);
        assert_eq!(sum(isa, &[1.0, large, -large], &[1.0; 3]), 0.0);
        assert_eq!(sum(isa, &[large, -large, 1.0], &[1.0; 3]), 1.0);
        let tiny = f32::MIN_POSITIVE / 2.0;
        assert_eq!(sum(isa, &[tiny, tiny], &[1.0; 2]), 0.0);
        assert_eq!(sum(Isa::SCALAR, &[tiny, tiny], &[1.0; 2]), f32::MIN_POSITIVE);
    }
}

/// The twin itself against sums in `f64`.
#[test]
fn the_twin_is_a_matrix_product() {
    let (rows, inputs, outputs) = (4, 700, 5);
    let x = values(1, Kind::Plain, rows * inputs);
    let w = values(2, Kind::Plain, inputs * outputs);
    let b = values(3, Kind::Plain, outputs);
    let mut layer = Linear::new(Isa::SCALAR, Operands::F32, inputs, outputs);
    layer.pack(&w);
    let mut y = vec![0.0; rows * outputs];
    let to = MatrixMut::contiguous(&mut y, outputs);
    layer.forward(&mut Scratch::default(), Matrix::contiguous(&x, inputs), Some(&b), Activation::Relu, to);
    for (r, o) in (0..rows).flat_map(|r| (0..outputs).map(move |o| (r, o))) {
        let terms = (0..inputs).map(|k| f64::from(x[r * inputs + k]) * f64::from(w[o * inputs + k]));
        let size: f64 = terms.clone().map(f64::abs).sum();
        let want = (terms.sum::<f64>() + f64::from(b[o])).max(0.0);
        let error = (f64::from(y[r * outputs + o]) - want).abs();
        assert!(error <= 1e-5 * size, "row {r}, output {o}: {error:e} off {want}");
    }
}

/// One step of a layer with known gradients, small enough to check by hand.
#[test]
fn a_layer_small_enough_to_check_by_hand() {
    for isa in Isa::all() {
        let mut layer = Linear::new(isa, Operands::F32, 2, 1);
        layer.pack(&[3.0, -4.0]);
        let scratch = &mut Scratch::default();
        let x = Matrix::contiguous(&[1.0, 2.0, 0.0, 1.0], 2);
        let mut y = [0.0; 2];
        layer.forward(scratch, x, Some(&[7.0]), Activation::Relu, MatrixMut::contiguous(&mut y, 1));
        assert_eq!(y, [2.0, 3.0]);
        let dy = Matrix::contiguous(&[10.0, 100.0], 1);
        let mut dx = [0.0; 4];
        layer.backward_data(scratch, dy, Some(x), Store::Replace, MatrixMut::contiguous(&mut dx, 2));
        assert_eq!(dx, [30.0, -40.0, 0.0, -400.0]);
        let (mut dw, mut db) = ([1.0, 1.0], [0.5]);
        layer.backward_weights(scratch, dy, x, &mut dw, Some(&mut db));
        assert_eq!((dw, db), ([11.0, 121.0], [110.5]));
    }
}

/// No rows: empty sums are zero and nothing breaks.
#[test]
fn a_grain_without_samples_has_a_gradient_of_zero() {
    for isa in Isa::all() {
        let mut layer = Linear::new(isa, Operands::F32, 3, 2);
        layer.pack(&[1.0; 6]);
        let scratch = &mut Scratch::default();
        let (mut dw, mut db) = ([1.0; 6], [1.0; 2]);
        let (dy, x) = (Matrix::new(&[], 0, 2, 2), Matrix::new(&[], 0, 3, 3));
        layer.forward(scratch, x, None, Activation::Relu, MatrixMut::new(&mut [], 0, 2, 2));
        layer.backward_data(scratch, dy, None, Store::Add, MatrixMut::new(&mut [], 0, 3, 3));
        layer.backward_weights(scratch, dy, x, &mut dw, Some(&mut db));
        assert_eq!((dw, db), ([1.0; 6], [1.0; 2]));
        layer.backward_weights_anew(scratch, dy, x, &mut dw, Some(&mut db));
        assert_eq!((dw, db), ([0.0; 6], [0.0; 2]));
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    let ulp = 2f32.powi(-7);
    assert_eq!(round_to_bf16(1.0 + ulp / 2.0), 1.0);
    assert_eq!(round_to_bf16(1.0 + ulp / 2.0 + 2f32.powi(-20)), 1.0 + ulp);
    assert_eq!(round_to_bf16(1.0 + 1.5 * ulp), 1.0 + 2.0 * ulp);
    assert_eq!(round_to_bf16(f32::MAX), f32::INFINITY);
    assert_eq!(round_to_bf16(-f32::INFINITY), -f32::INFINITY);
    assert!(round_to_bf16(f32::from_bits(0x7f80_0001)).is_nan());
    assert_eq!(round_to_bf16(-0.0).to_bits(), (-0.0f32).to_bits());
    for kind in [Kind::Plain, Kind::Tiny, Kind::Strange] {
        for value in values(21, kind, 2000) {
            let there_and_back = half::f32_from_bf16(half::bf16_nearest(value));
            assert_eq!(round_to_bf16(value).to_bits(), there_and_back.to_bits(), "{value:e}");
        }
    }
}

#[test]
fn a_wrong_shape_is_refused() {
    let mut layer = Linear::new(Isa::detect(), Operands::F32, 3, 2);
    let x = [0.0; 6];
    let unpacked = std::panic::catch_unwind(|| {
        let to = &mut [0.0; 4];
        let x = Matrix::contiguous(&x, 3);
        layer.forward(&mut Scratch::default(), x, None, Activation::Relu, MatrixMut::contiguous(to, 2));
    });
    assert!(unpacked.is_err());
    layer.pack(&[0.0; 6]);
    let narrow = std::panic::catch_unwind(|| {
        let to = &mut [0.0; 6];
        let x = Matrix::contiguous(&x, 2);
        layer.forward(&mut Scratch::default(), x, None, Activation::Relu, MatrixMut::contiguous(to, 2));
    });
    assert!(narrow.is_err());
}
