use proptest::prelude::*;

use super::*;

/// The occurrences of some blocks, in order.
fn naive(blocks: &[Vec<Vec<u32>>], first_row: u32, sample_bits: u32) -> Vec<(u32, u32, f32)> {
    let mut all = Vec::new();
    for (block, bags) in blocks.iter().enumerate() {
        for (sample, bag) in bags.iter().enumerate() {
            for row in bag {
                all.push((
                    row - first_row,
                    ((block as u32) << sample_bits) + sample as u32,
                    1.0 / bag.len() as f32,
                ));
            }
        }
    }
    all.sort_by_key(|(row, _, _)| *row); // stable
    all
}

fn check<O: Occurrence>(merge: &mut Merge<O>, blocks: &[Vec<Vec<u32>>], first_row: u32, row_count: usize) {
    let samples_max = blocks.iter().map(Vec::len).max().unwrap_or(0);
    merge.begin(first_row, row_count, samples_max, blocks.len());
    for bags in blocks {
        let rows = bags.concat();
        let mut offsets = vec![3];
        offsets.extend(bags.iter().scan(3, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        }));
        let bags = Bags { offsets: &offsets, rows: &rows, weights: &[] };
        merge.push(Isa::detect(), bags, Weighting::OneOverCount).expect("rows of the table");
    }
    merge.sort();
    let want = naive(blocks, first_row, merge.sample_bits);
    let found: Vec<(u32, u32)> = merge.occurrences().iter().map(|o| (o.row(), o.vector())).collect();
    assert_eq!(found, want.iter().map(|(row, vector, _)| (*row, *vector)).collect::<Vec<_>>());
    if merge.occurrences().iter().any(|o| o.weight() != 1.0) {
        assert!(merge.occurrences().iter().zip(&want).all(|(o, (_, _, weight))| o.weight() == *weight));
    }
    for &(_, vector, _) in &want {
        let (block, sample) =
            (u64::from(vector) >> merge.sample_bits(), vector & ((1 << merge.sample_bits()) - 1));
        assert!((sample as usize) < blocks[block as usize].len());
    }
    let mut unique: Vec<u32> = want.iter().map(|(row, _, _)| *row).collect();
    unique.dedup();
    assert_eq!(merge.unique_rows(), unique);
    assert_eq!(*merge.starts().last().expect("an end"), want.len() as u32);
}

proptest! {
    #[test]
    fn occurrences_are_sorted_stably(
        row_count in prop_oneof![1_usize..4, 4_usize..300, 100_000_usize..5_000_000, Just(u32::MAX as usize - 10)],
        picks in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u32>(), 0..5), 0..40), 0..4),
        spread in 1_usize..50,
    ) {
        // Few different rows, so that they repeat; the last one among them.
        let row = |pick: u32| (row_count - 1 - pick as usize % spread * (row_count / spread).max(1) % row_count) as u32 + 10;
        let blocks: Vec<Vec<Vec<u32>>> = picks
            .iter()
            .map(|bags| bags.iter().map(|bag| bag.iter().map(|pick| row(*pick)).collect()).collect())
            .collect();
        let mut plain = Merge::<Plain>::default();
        let mut weighted = Merge::<Weighted>::default();
        // Twice over: what is left from the first round must not show.
        for _ in 0..2 {
            check(&mut plain, &blocks, 10, row_count);
            check(&mut weighted, &blocks, 10, row_count);
            check(&mut weighted, &blocks[..blocks.len() / 2], 10, row_count);
        }
    }
}

#[test]
fn a_row_outside_is_named() {
    let mut merge = Merge::<Plain>::default();
    for (rows, offsets, outside) in [([5, 6, 15], [0, 1, 2, 3], 15), ([5, 4, 6], [0, 2, 2, 3], 4)] {
        merge.begin(5, 10, 3, 1);
        let bags = Bags { offsets: &offsets, rows: &rows, weights: &[] };
        assert_eq!(merge.push(Isa::detect(), bags, Weighting::One), Err(RowOutside { row: outside }));
    }
}

#[test]
fn passes_fit_the_work() {
    assert_eq!(passes(1000, 0), 0);
    assert_eq!(passes(200_000, 8), 1);
    assert_eq!(passes(200_000, 20), 2);
    assert!((2..=4).contains(&passes(128, 20)));
    assert!((1_u32..=32).all(|bits| bits.div_ceil(passes(10, bits)) <= 11));
}
