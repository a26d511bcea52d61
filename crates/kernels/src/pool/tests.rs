use proptest::prelude::*;

use super::*;
use crate::half::{f16_nearest, f32_from_bf16, f32_from_f16};

/// The definition, element by element.
fn naive(row: impl Fn(u32, usize) -> f32, dim: usize, bags: &Jagged, how: Pool) -> Vec<f32> {
    let mut out = Vec::new();
    for pair in bags.offsets.windows(2) {
        let positions = (pair[0] - bags.offsets[0]) as usize..(pair[1] - bags.offsets[0]) as usize;
        for element in 0..dim {
            let mut sum = 0.0;
            for position in positions.clone() {
                let value = row(bags.rows[position], element);
                sum += if how == Pool::Weighted { bags.weights[position] * value } else { value };
            }
            out.push(if how == Pool::Mean && positions.len() > 1 {
                sum / positions.len() as f32
            } else {
                sum
            });
        }
    }
    out
}

#[derive(Debug, Clone)]
struct Jagged {
    offsets: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl Jagged {
    fn bags(&self) -> Bags<'_> {
        Bags { offsets: &self.offsets, rows: &self.rows, weights: &self.weights }
    }
}

/// Bags over rows `first..first + count`, among them empty ones, single rows, repeats, and the last row.
fn jagged(first: u32, count: u32) -> impl Strategy<Value = Jagged> {
    let bag = prop_oneof![Just(0..1_usize), Just(1..2), Just(2..40)].prop_flat_map(move |lengths| {
        prop::collection::vec(prop_oneof![first..first + count, Just(first + count - 1)], lengths)
    });
    (prop::collection::vec(bag, 0..12), 0_u32..1000).prop_map(|(bags, base)| {
        let rows: Vec<u32> = bags.concat();
        let weights = (0..rows.len()).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let ends = bags.iter().scan(base, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        });
        Jagged { offsets: std::iter::once(base).chain(ends).collect(), rows, weights }
    })
}

fn value(row: u32, element: usize) -> f32 {
    // Of very different sizes, so that another order of addition shows.
    let bits = crate::random::element_bits(crate::random::row_key(1, u64::from(row)), element);
    (bits as f32 / 2e9 - 1.0) * [1e-3, 1.0, 1e3][bits as usize % 3]
}

proptest! {
    #[test]
    fn every_level_and_format_matches_the_definition(
        dim in 1_usize..=70,
        bags in jagged(100, 9),
        how in prop::sample::select(vec![Pool::Sum, Pool::Mean, Pool::Weighted]),
        (offset, gap) in (0_usize..5, 0_usize..5),
    ) {
        let (first, count) = (100, 9);
        let exact: Vec<f32> = (0..count).flat_map(|r| (0..dim).map(move |e| value(first + r, e))).collect();
        let f16: Vec<u16> = exact.iter().map(|v| f16_nearest(*v)).collect();
        let bf16: Vec<u16> = exact.iter().map(|v| crate::half::bf16_nearest(*v)).collect();
        let place = Place { stride: offset + dim + gap, offset };
        let at = |row: u32, element: usize| (row - first) as usize * dim + element;
        for (rows, want) in [
            (Rows::F32(&exact), naive(|r, e| exact[at(r, e)], dim, &bags, how)),
            (Rows::F16(&f16), naive(|r, e| f32_from_f16(f16[at(r, e)]), dim, &bags, how)),
            (Rows::Bf16(&bf16), naive(|r, e| f32_from_bf16(bf16[at(r, e)]), dim, &bags, how)),
        ] {
            for isa in Isa::all() {
                let samples = bags.offsets.len() - 1;
                let mut out = vec![f32::NAN; samples * place.stride];
                prop_assert_eq!(pool(isa, (rows, dim), first, bags.bags(), how, (&mut out, place)), Ok(()));
                for sample in 0..samples {
                    let line = &out[sample * place.stride..][..place.stride];
                    let (found, want) = (&line[offset..offset + dim], &want[sample * dim..][..dim]);
                    let same = found.iter().zip(want).all(|(f, w)| f.to_bits() == w.to_bits());
                    prop_assert!(same, "{isa:?}: {found:?} is not {want:?}");
                    prop_assert!(line[..offset].iter().chain(&line[offset + dim..]).all(|v| v.is_nan()));
                }
            }
        }
    }
}

#[test]
fn weights_may_be_left_out() {
    let table = [1.0, 2.0, 10.0, 20.0];
    let bags = Bags { offsets: &[0, 2], rows: &[0, 1], weights: &[] };
    let mut out = [0.0; 2];
    let place = Place { stride: 2, offset: 0 };
    pool(Isa::detect(), (Rows::F32(&table), 2), 0, bags, Pool::Weighted, (&mut out, place))
        .expect("rows 0 and 1");
    assert_eq!(out, [11.0, 22.0]);
}

#[test]
fn a_row_outside_is_named_and_nothing_is_written() {
    let table = [0.0; 30];
    for isa in Isa::all() {
        for (row, first) in [(13, 10), (9, 10), (u32::MAX, 10), (3, 0)] {
            let rows = [first, first + 2, row, first + 1];
            let bags = Bags { offsets: &[5, 6, 9], rows: &rows, weights: &[] };
            let mut out = [7.0; 20];
            let place = Place { stride: 10, offset: 0 };
            let result = pool(isa, (Rows::F32(&table), 10), first, bags, Pool::Sum, (&mut out, place));
            assert_eq!(result, Err(RowOutside { row }));
            assert_eq!(out, [7.0; 20]);
        }
    }
}

#[test]
#[should_panic(expected = "do not fit in 19 floats")]
fn a_short_output_is_refused() {
    let bags = Bags { offsets: &[0, 0, 0], rows: &[], weights: &[] };
    let place = Place { stride: 10, offset: 0 };
    let _ = pool(Isa::detect(), (Rows::F32(&[0.0; 10]), 10), 0, bags, Pool::Sum, (&mut [0.0; 19], place));
}
