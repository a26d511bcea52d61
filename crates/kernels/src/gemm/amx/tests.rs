//! Packing and walking tiles, with the instructions emulated so that every machine can test them; and, where the
//! processor has them, the instructions themselves.

use super::layer::Tiles;
use super::{error_bound, kernel};
use crate::gemm::panels::Panels;
use crate::gemm::tile::loops_of;
use crate::gemm::{Activation, Linear, Operands, Scratch, Weights};
use crate::isa::{Isa, Level};
use crate::matrix::{Matrix, MatrixMut, Store};
use crate::values::{Kind, bits, values};
use proptest::prelude::*;

/// One layer's results: forward, data, weights, bias.
type Results = [Vec<f32>; 4];

struct Grain {
    x: Vec<f32>,
    dy: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
}

fn grain(rows: usize, inputs: usize, outputs: usize, seed: u64) -> Grain {
    let [x, dy, w, b] =
        [(0, rows * (inputs + 1)), (1, rows * (outputs + 2)), (2, inputs * outputs), (3, outputs)]
            .map(|(offset, count)| values(seed + offset, Kind::Plain, count));
    Grain { x, dy, w, b }
}

fn results(mut layer: Linear, rows: usize, grain: &Grain) -> Results {
    let (inputs, outputs) = (layer.inputs(), layer.outputs());
    let scratch = &mut Scratch::default();
    let x = Matrix::new(&grain.x, rows, inputs, inputs + 1);
    let dy = Matrix::new(&grain.dy, rows, outputs, outputs + 2);
    let (mut y, mut dx) = (vec![7.0; rows * (outputs + 2)], vec![7.0; rows * (inputs + 1)]);
    let (mut dw, mut db) = (vec![0.5; inputs * outputs], vec![0.25; outputs]);
    layer.pack(&grain.w);
    let to = MatrixMut::new(&mut y, rows, outputs, outputs + 2);
    layer.forward(scratch, x, Some(&grain.b), Activation::Relu, to);
    let to = MatrixMut::new(&mut dx, rows, inputs, inputs + 1);
    layer.backward_data(scratch, dy, Some(x), Store::Add, to);
    layer.backward_weights(scratch, dy, x, &mut dw, Some(&mut db));
    [y, dx, dw, db]
}

fn of_twin((rows, inputs, outputs): (usize, usize, usize), grain: &Grain) -> Results {
    results(Linear::new(Isa::SCALAR, Operands::Bf16, inputs, outputs), rows, grain)
}

/// The layer that AMX would have, on emulated instructions.
fn of_tiles(isa: Isa, (rows, inputs, outputs): (usize, usize, usize), grain: &Grain) -> Results {
    let panels = Panels::new(isa, Operands::Bf16).expect("a level with tile loops");
    // SAFETY: plain Rust runs everywhere.
    let tiles = unsafe { Tiles::new(&kernel::EMULATED, panels, inputs, outputs) };
    let weights = Weights::Tiles(tiles);
    results(Linear { operands: Operands::Bf16, inputs, outputs, packed: false, weights }, rows, grain)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The emulated instructions add one product at a time, so the results are the twin's bits.
    #[test]
    fn packing_and_walking_keep_the_twins_bits(
        shape in (1usize..80, 1usize..80, 1usize..80), seed in any::<u32>(),
    ) {
        let grain = grain(shape.0, shape.1, shape.2, seed.into());
        let want = of_twin(shape, &grain).map(|floats| bits(&floats));
        for isa in Isa::all().into_iter().filter(|isa| loops_of(*isa).is_some()) {
            let found = of_tiles(isa, shape, &grain).map(|floats| bits(&floats));
            prop_assert_eq!(&found, &want, "{:?}", isa);
        }
    }
}

#[test]
fn long_sums_are_cut_into_the_twins_blocks() {
    for shape in [(3, 1100, 40), (33, 40, 1057), (1050, 33, 34)] {
        let grain = grain(shape.0, shape.1, shape.2, 8);
        let want = of_twin(shape, &grain).map(|floats| bits(&floats));
        for isa in Isa::all().into_iter().filter(|isa| loops_of(*isa).is_some()) {
            assert_eq!(of_tiles(isa, shape, &grain).map(|floats| bits(&floats)), want);
        }
    }
}

/// The instructions themselves, where the processor has them: all results of the layer that users get stay within
/// their bound of the twin's, and the gaps between rows are left alone. Biases do not go through tiles, and are
/// equal.
fn the_instructions_match(shape: (usize, usize, usize), seed: u64) {
    let (rows, inputs, outputs) = shape;
    let grain = grain(rows, inputs, outputs, seed);
    let want = of_twin(shape, &grain);
    // With operands without signs, every result is the sum of its terms' magnitudes.
    let [x, dy, w, b] =
        [&grain.x, &grain.dy, &grain.w, &grain.b].map(|floats| floats.iter().map(|v| v.abs()));
    let absolute = Grain { x: x.collect(), dy: dy.collect(), w: w.collect(), b: b.collect() };
    let magnitudes = of_twin(shape, &absolute);
    let terms = [inputs, outputs, rows].map(|terms| terms + 1); // the bias, or what the result is added to
    for isa in Isa::all().into_iter().filter(|isa| isa.level() == Level::Amx) {
        let found = results(Linear::new(isa, Operands::Bf16, inputs, outputs), rows, &grain);
        for (which, terms) in terms.into_iter().enumerate() {
            for (place, value) in found[which].iter().enumerate() {
                let error = (value - want[which][place]).abs();
                let bound = error_bound(terms, magnitudes[which][place]);
                assert!(
                    error <= bound,
                    "{shape:?}, result {which}, place {place}: {error:e} above {bound:e}"
                );
            }
        }
        assert_eq!(bits(&found[3]), bits(&want[3]), "{shape:?}, biases");
    }
}

/// Widths of layers that use tiles.
const WIDE: std::ops::Range<usize> = Weights::TILES_MIN..100;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_instructions_stay_within_their_bound(
        shape in (1usize..80, WIDE, WIDE), seed in any::<u32>(),
    ) {
        the_instructions_match(shape, seed.into());
    }
}

#[test]
fn the_instructions_stay_within_their_bound_over_long_sums() {
    for shape in [(70, 300, 100), (3, 1100, 40), (33, 40, 1057), (1050, 33, 34)] {
        the_instructions_match(shape, 11);
    }
}

/// The bound allows what rounding can do, and no more than a small part of the sum.
#[test]
fn the_bound_is_tight_enough_to_notice_a_wrong_term() {
    assert!(error_bound(512, 512.0) < 0.04);
    assert!(error_bound(1, 0.0) > 0.0);
}
