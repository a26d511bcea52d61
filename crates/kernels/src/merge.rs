//! Merging: where in a batch does each row occur, in which order?
//!
//! The backward pass must add up all gradients of a row before the optimizer sees them, in the order of the
//! batch. A stable sort of the occurrences by row gives exactly that: equal rows end up side by side, in the
//! order in which they came. It is a radix sort, lowest digit first, over only as many bits as the table's
//! row numbers have, with as many passes as are cheapest for the number of occurrences.
//!
//! All memory is kept from call to call; after the largest batch has been seen nothing is allocated.

use crate::{
    isa::Isa,
    pool::{Bags, RowOutside},
};

/// One occurrence of a row in a batch.
pub trait Occurrence: Copy + Default {
    /// Whether every weight is one.
    const PLAIN: bool;
    /// The row, counted from the first of the table's part.
    fn row(self) -> u32;
    /// The gradient vector that reaches it: block and sample, see [`Merge::sample_bits`].
    fn vector(self) -> u32;
    /// What the vector is multiplied with.
    fn weight(self) -> f32;
    /// An occurrence.
    fn new(row: u32, vector: u32, weight: f32) -> Self;
}

/// An occurrence whose weight is one: 8 bytes to sort.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Plain {
    row: u32,
    vector: u32,
}

/// An occurrence with a weight: 12 bytes to sort.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Weighted {
    row: u32,
    vector: u32,
    weight: f32,
}

impl Occurrence for Plain {
    const PLAIN: bool = true;
    #[inline(always)]
    fn row(self) -> u32 {
        self.row
    }
    #[inline(always)]
    fn vector(self) -> u32 {
        self.vector
    }
    #[inline(always)]
    fn weight(self) -> f32 {
        1.0
    }
    #[inline(always)]
    fn new(row: u32, vector: u32, _weight: f32) -> Plain {
        Plain { row, vector }
    }
}

impl Occurrence for Weighted {
    const PLAIN: bool = false;
    #[inline(always)]
    fn row(self) -> u32 {
        self.row
    }
    #[inline(always)]
    fn vector(self) -> u32 {
        self.vector
    }
    #[inline(always)]
    fn weight(self) -> f32 {
        self.weight
    }
    #[inline(always)]
    fn new(row: u32, vector: u32, weight: f32) -> Weighted {
        Weighted { row, vector, weight }
    }
}

/// The weight of a row's occurrence in the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// All one.
    One,
    /// One over the number of rows in the bag.
    OneOverCount,
    /// The weights of the bags; all one when they have none.
    Given,
}

/// The occurrences of rows in a batch: filled block by block, then sorted.
#[derive(Debug, Default)]
pub struct Merge<O> {
    first_row: u32,
    row_count: usize,
    /// Low bits of a vector's number that hold the sample; the block stands above them.
    sample_bits: u32,
    /// Samples of each block pushed so far.
    samples: Vec<usize>,
    sorted: bool,
    occurrences: Vec<O>,
    spare: Vec<O>,
    digit_counts: Vec<u32>,
    /// Where each unique row starts in `occurrences`, and one past the last.
    starts: Vec<u32>,
    /// The unique rows, rising.
    unique: Vec<u32>,
}

impl<O: Occurrence> Merge<O> {
    /// Starts anew for a table that holds `row_count` rows from `first_row` on, and blocks of at most
    /// `samples_max` samples.
    ///
    /// # Panics
    /// If `block_count` blocks of `samples_max` samples cannot be numbered in 32 bits.
    pub fn begin(&mut self, first_row: u32, row_count: usize, samples_max: usize, block_count: usize) {
        self.sample_bits = usize::BITS - samples_max.saturating_sub(1).leading_zeros();
        assert!(
            (block_count as u64) << self.sample_bits <= 1 << 32,
            "{block_count} blocks of {samples_max} samples are too many for one update"
        );
        (self.first_row, self.row_count) = (first_row, row_count);
        self.sorted = false;
        self.samples.clear();
        self.occurrences.clear();
    }

    /// Adds the occurrences of the next block, in the order of its bags.
    ///
    /// # Errors
    /// When a bag names a row outside the table's part; the merge must then begin anew.
    ///
    /// # Panics
    /// If the bags' arrays do not fit together or have more samples than was said at the beginning.
    pub fn push(&mut self, isa: Isa, bags: Bags<'_>, weighting: Weighting) -> Result<(), RowOutside> {
        let one_row_each = bags.check(isa);
        assert!(bags.count() <= 1 << self.sample_bits, "{} samples in a block", bags.count());
        let block = ((self.samples.len() as u64) << self.sample_bits) as u32;
        let (first_row, row_count) = (self.first_row, self.row_count);
        let base = bags.offsets[0];
        let mut largest = 0;
        let local = |row: u32| row.wrapping_sub(first_row);
        self.occurrences.reserve(bags.rows.len());
        if one_row_each {
            let weights = if weighting == Weighting::Given { bags.weights } else { &[] };
            self.occurrences.extend(bags.rows.iter().enumerate().map(|(sample, &row)| {
                largest = local(row).max(largest);
                O::new(local(row), block + sample as u32, weights.get(sample).copied().unwrap_or(1.0))
            }));
        } else {
            for (sample, pair) in bags.offsets.windows(2).enumerate() {
                let range = (pair[0] - base) as usize..(pair[1] - base) as usize;
                let one = if weighting == Weighting::OneOverCount { 1.0 / range.len() as f32 } else { 1.0 };
                let given = weighting == Weighting::Given && !bags.weights.is_empty();
                let weights = if given { &bags.weights[range.clone()] } else { &[] };
                self.occurrences.extend(bags.rows[range].iter().enumerate().map(|(position, &row)| {
                    largest = local(row).max(largest);
                    O::new(local(row), block + sample as u32, weights.get(position).copied().unwrap_or(one))
                }));
            }
        }
        self.samples.push(bags.count());
        if !bags.rows.is_empty() && largest as usize >= row_count {
            let outside = |row: &&u32| local(**row) as usize >= row_count;
            return Err(RowOutside {
                row: *bags.rows.iter().find(outside).expect("the largest row is outside"),
            });
        }
        Ok(())
    }

    /// Sorts the occurrences by row, stably, and finds where each row starts.
    pub fn sort(&mut self) {
        let count = self.occurrences.len();
        let bits = usize::BITS - self.row_count.saturating_sub(1).leading_zeros();
        let passes = passes(count, bits);
        let digit_bits = if passes == 0 { 0 } else { bits.div_ceil(passes) };
        self.count_digits(passes, digit_bits);
        self.spare.resize(count.max(self.spare.len()), O::default());
        for pass in 0..passes {
            let places = &mut self.digit_counts[(pass as usize) << digit_bits..][..1 << digit_bits];
            let mut sum = 0;
            for place in places.iter_mut() {
                sum += std::mem::replace(place, sum);
            }
            let (shift, mask) = (pass * digit_bits, (1 << digit_bits) - 1);
            let spare = &mut self.spare[..count];
            for &occurrence in &self.occurrences {
                let place = &mut places[((occurrence.row() >> shift) & mask) as usize];
                spare[*place as usize] = occurrence;
                *place += 1;
            }
            self.spare.truncate(count);
            std::mem::swap(&mut self.occurrences, &mut self.spare);
        }
        self.find_starts();
        self.sorted = true;
    }

    /// Counts how often each digit of each pass occurs, in one walk.
    fn count_digits(&mut self, passes: u32, digit_bits: u32) {
        self.digit_counts.clear();
        self.digit_counts.resize((passes as usize) << digit_bits, 0);
        let mask = (1_u32 << digit_bits) - 1;
        match passes {
            0 => {}
            1 => {
                for occurrence in &self.occurrences {
                    self.digit_counts[(occurrence.row() & mask) as usize] += 1;
                }
            }
            // The most common number, without a loop inside the loop.
            2 => {
                let (low, high) = self.digit_counts.split_at_mut(1 << digit_bits);
                for occurrence in &self.occurrences {
                    low[(occurrence.row() & mask) as usize] += 1;
                    high[((occurrence.row() >> digit_bits) & mask) as usize] += 1;
                }
            }
            _ => {
                for occurrence in &self.occurrences {
                    for pass in 0..passes {
                        let digit = (occurrence.row() >> (pass * digit_bits)) & mask;
                        self.digit_counts[((pass as usize) << digit_bits) + digit as usize] += 1;
                    }
                }
            }
        }
    }

    fn find_starts(&mut self) {
        let count = self.occurrences.len();
        self.starts.resize(count + 1, 0);
        self.unique.resize(count, 0);
        // Writing every position and moving on only at a new row needs no branch that could be guessed wrong.
        let (mut unique, mut previous) = (0, self.occurrences.first().map_or(0, |first| !first.row()));
        let (starts, rows) = (&mut self.starts[..count], &mut self.unique[..count]);
        for (position, occurrence) in self.occurrences.iter().enumerate() {
            let row = occurrence.row();
            (starts[unique], rows[unique]) = (position as u32, row);
            unique += usize::from(row != previous);
            previous = row;
        }
        self.starts.truncate(unique);
        self.starts.push(count as u32);
        self.unique.truncate(unique);
    }

    /// All occurrences, sorted.
    pub fn occurrences(&self) -> &[O] {
        assert!(self.sorted, "a merge is read before it is sorted");
        &self.occurrences
    }

    /// Where each unique row starts among the occurrences, in rising order of rows, and one past the last.
    pub fn starts(&self) -> &[u32] {
        assert!(self.sorted, "a merge is read before it is sorted");
        &self.starts
    }

    /// The unique rows, rising, counted from the first of the table's part.
    pub fn unique_rows(&self) -> &[u32] {
        assert!(self.sorted, "a merge is read before it is sorted");
        &self.unique
    }

    /// How many low bits of [`Occurrence::vector`] are the sample; those above are the block.
    pub fn sample_bits(&self) -> u32 {
        self.sample_bits
    }

    /// How many rows the table's part has: every row in the merge is below it.
    pub fn row_count(&self) -> usize {
        self.row_count
    }

    /// How many blocks were pushed.
    pub fn block_count(&self) -> usize {
        self.samples.len()
    }

    /// How many samples a block has.
    pub fn samples(&self, block: usize) -> usize {
        self.samples[block]
    }
}

/// The cheapest number of passes for `count` occurrences of row numbers of `bits` bits: a pass costs about
/// four times as much per occurrence as per possible digit.
fn passes(count: usize, bits: u32) -> u32 {
    const DIGIT_BITS_MAX: u32 = 11;
    if bits == 0 {
        return 0;
    }
    let cost = |passes: &u32| u64::from(*passes) * (4 * count as u64 + (1 << bits.div_ceil(*passes)));
    (bits.div_ceil(DIGIT_BITS_MAX)..=bits.div_ceil(4)).min_by_key(cost).unwrap_or(1)
}

#[cfg(test)]
mod tests;
