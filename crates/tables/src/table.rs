//! One rank's part of a table: rows, their optimizer state, lookup and update.
//!
//! State and rows lie in one slab, each row after row, so that a checkpoint writes slices as they are, a lookup
//! never drags state through the cache, and even the state of a small table is in huge pages. A part is a contiguous range of rows; all row numbers that come in or
//! go out are those of the whole table.
//!
//! Invariant: what a row holds depends on (seed, table name, row) and on the updates it took, never on which
//! part it lies in, on the number of blocks its gradients came in, or on the processor.

mod first;

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use campanile_kernels::{
    Isa,
    merge::{Merge, Occurrence, Plain, Weighted, Weighting},
    pool::{self, Place, Pool, RowOutside, Rows},
    update::{self, Gradient, RowsMut, Rule},
};
use campanile_spec::{
    batch::FeatureBags,
    model::{Pooling, RowFormat, TableSpec},
    optimizer::SparseOptimizer,
};

use crate::{
    checkpoint::TableLayout,
    cut::{Cut, RowStore},
    error::TableError,
    memory::{memory_available, memory_of_rows},
    slab::{OutOfMemory, Slab},
};

/// Rows start at a page, and so at the head of a cache line.
const ROWS_ALIGNMENT: u64 = 4096;

/// One table, or a contiguous range of its rows.
#[derive(Debug)]
pub struct Table {
    /// Rows as they were at the moment of a checkpoint that is still being written.
    pub cut: Option<Cut>,
    spec: TableSpec,
    key: u64,
    rows: Range<u64>,
    optimizer: SparseOptimizer,
    isa: Isa,
    /// State first, then rows from `rows_start` on.
    memory: Slab,
    state_bytes: usize,
    rows_start: usize,
}

/// Gradients of one feature for one run of samples.
#[derive(Debug, Clone, Copy)]
pub struct GradientBlock<'a> {
    /// The bags of those samples.
    pub bags: FeatureBags<'a>,
    /// How they were pooled.
    pub pooling: Pooling,
    /// Holds the gradient of each pooled vector.
    pub gradient: &'a [f32],
    /// Floats from one sample's gradient to the next.
    pub stride: usize,
    /// Where the feature's vector starts in a sample's gradient.
    pub offset: usize,
}

/// What is the same for all rows of one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateStep {
    /// The rate of this step.
    pub learning_rate: f32,
    /// The step, counted from 0.
    pub step: u64,
    /// L2 on touched rows; 0 for none.
    pub l2: f32,
    /// A merged row gradient is scaled down to this norm; 0 for no limit.
    pub row_norm_max: f32,
    /// Seeds stochastic rounding.
    pub seed: u64,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpdateReport {
    /// Rows named by the bags, repeats counted.
    pub ids_seen: u64,
    /// Different rows among them: those that moved.
    pub rows_touched: u64,
}

/// Memory of updates, kept from step to step; one serves any number of tables.
#[derive(Debug, Default)]
pub struct UpdateScratch {
    plain: Merge<Plain>,
    weighted: Merge<Weighted>,
    kernel: update::Scratch,
}

impl Table {
    /// The part `rows` of a table, with every row at its first value.
    ///
    /// # Errors
    /// When the description is not possible or the memory is not there.
    pub fn new(
        spec: &TableSpec,
        rows: Range<u64>,
        optimizer: &SparseOptimizer,
        seed: u64,
    ) -> Result<Table, TableError> {
        let mut table = Table::zeroed(spec, rows, optimizer)?;
        table.fill_first_values(seed);
        Ok(table)
    }

    /// The part `rows` of a table, all zeros: for a checkpoint that will fill it.
    ///
    /// # Errors
    /// When the description is not possible or the memory is not there.
    pub fn zeroed(
        spec: &TableSpec,
        rows: Range<u64>,
        optimizer: &SparseOptimizer,
    ) -> Result<Table, TableError> {
        check(spec, &rows)?;
        let count = rows.end - rows.start;
        let needed_bytes = memory_of_rows(spec, optimizer, count);
        let out_of_memory = |available_bytes| TableError::Memory {
            table: spec.name.clone(),
            row_count: count,
            dim: spec.dim,
            needed_bytes,
            available_bytes,
        };
        // The system hands out more than it has and kills later, so the free memory is asked for first.
        if let Some(available) = memory_available().filter(|available| *available < needed_bytes) {
            return Err(out_of_memory(available));
        }
        let state_bytes = count * optimizer.state_floats(spec.dim) as u64 * 4;
        let rows_start = state_bytes.next_multiple_of(ROWS_ALIGNMENT);
        let bytes = rows_start + (needed_bytes - state_bytes);
        let memory = usize::try_from(bytes).map_err(|_| OutOfMemory { bytes }).and_then(Slab::zeroed);
        let memory = memory.and_then(|mut slab| slab.touch().map(|()| slab));
        let memory = memory.map_err(|_| out_of_memory(memory_available().unwrap_or(0)))?;
        Ok(Table {
            cut: None,
            spec: spec.clone(),
            key: spec.key(),
            rows,
            optimizer: *optimizer,
            isa: Isa::detect(),
            memory,
            state_bytes: state_bytes as usize,
            rows_start: rows_start as usize,
        })
    }

    /// The same table held to a level of instructions, for tests and comparisons.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Table {
        self.isa = isa;
        self
    }

    /// The table's description.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// How its rows move.
    pub fn optimizer(&self) -> &SparseOptimizer {
        &self.optimizer
    }

    /// The rows that this part holds.
    pub fn rows(&self) -> Range<u64> {
        self.rows.clone()
    }

    /// Bytes of rows and state.
    pub fn memory_bytes(&self) -> u64 {
        memory_of_rows(&self.spec, &self.optimizer, self.rows.end - self.rows.start)
    }

    /// Pools every bag of a feature: sample `s` gets `out[s * stride + offset..][..dim]`.
    ///
    /// # Errors
    /// When a bag names a row that is not held here; `out` is then as before.
    ///
    /// # Panics
    /// If `out` is too small.
    pub fn pool(
        &self,
        pooling: Pooling,
        bags: &FeatureBags<'_>,
        out: &mut [f32],
        stride: usize,
        offset: usize,
    ) -> Result<(), TableError> {
        let how = match pooling {
            Pooling::Sum => Pool::Sum,
            Pooling::Mean => Pool::Mean,
            Pooling::Weighted => Pool::Weighted,
        };
        let rows = match self.spec.format {
            RowFormat::F32 => Rows::F32(cast_slice(self.all_row_bytes())),
            RowFormat::F16 => Rows::F16(cast_slice(self.all_row_bytes())),
            RowFormat::Bf16 => Rows::Bf16(cast_slice(self.all_row_bytes())),
        };
        let place = Place { stride, offset };
        pool::pool(self.isa, (rows, self.spec.dim), self.first_row(), kernel_bags(bags), how, (out, place))
            .map_err(|outside| self.row_outside(outside))
    }

    /// Merges the gradients of every row over all blocks, in their order, and moves each row exactly once.
    ///
    /// Blocks come by feature, then by run of samples: that is the order in which a row's gradients are added.
    /// How many blocks a run of samples is cut into changes no bit.
    ///
    /// # Errors
    /// When a bag names a row that is not held here; no row has moved then.
    ///
    /// # Panics
    /// If a block's gradients do not fit its bags.
    pub fn update(
        &mut self,
        blocks: &[GradientBlock<'_>],
        step: &UpdateStep,
        scratch: &mut UpdateScratch,
    ) -> Result<UpdateReport, TableError> {
        let weighted = blocks.iter().any(|block| weighting(block) != Weighting::One);
        let UpdateScratch { plain, weighted: with_weights, kernel } = scratch;
        if weighted {
            self.update_merged(blocks, step, with_weights, kernel)
        } else {
            self.update_merged(blocks, step, plain, kernel)
        }
    }

    fn update_merged<O: Occurrence>(
        &mut self,
        blocks: &[GradientBlock<'_>],
        step: &UpdateStep,
        merge: &mut Merge<O>,
        scratch: &mut update::Scratch,
    ) -> Result<UpdateReport, TableError> {
        let samples = |block: &GradientBlock<'_>| block.bags.offsets.len() - 1;
        let samples_max = blocks.iter().map(samples).max().unwrap_or(0);
        merge.begin(self.first_row(), self.row_count(), samples_max, blocks.len());
        for block in blocks {
            let pushed = merge.push(self.isa, kernel_bags(&block.bags), weighting(block));
            pushed.map_err(|outside| self.row_outside(outside))?;
        }
        merge.sort();
        self.keep_for_cut(merge.unique_rows());

        let gradients: Vec<Gradient<'_>> = blocks
            .iter()
            .map(|block| Gradient {
                values: block.gradient,
                place: Place { stride: block.stride, offset: block.offset },
                samples: samples(block),
            })
            .collect();
        let step = update::Step {
            rule: rule(&self.optimizer),
            learning_rate: step.learning_rate,
            step: step.step,
            l2: step.l2,
            norm_max: step.row_norm_max,
            seed: step.seed,
            table: self.key,
            first_row: self.rows.start,
        };
        let (isa, dim, format) = (self.isa, self.spec.dim, self.spec.format);
        let (state, rows) = self.state_and_rows_mut();
        let rows = match format {
            RowFormat::F32 => RowsMut::F32(cast_slice_mut(rows)),
            RowFormat::F16 => RowsMut::F16(cast_slice_mut(rows)),
            RowFormat::Bf16 => RowsMut::Bf16(cast_slice_mut(rows)),
        };
        update::update(isa, (rows, state, dim), merge, &gradients, &step, scratch);
        let ids_seen = merge.occurrences().len() as u64;
        Ok(UpdateReport { ids_seen, rows_touched: merge.unique_rows().len() as u64 })
    }

    /// Gives the rows that are about to move to a cut that still wants them as they are.
    fn keep_for_cut(&mut self, unique: impl Iterator<Item = u32>) {
        if let Some(cut) = &mut self.cut {
            let (state, rows) = self.memory.bytes().split_at(self.rows_start);
            cut.keep_rows(unique, rows, cast_slice(&state[..self.state_bytes]));
        }
    }

    /// The stored bytes of some rows.
    ///
    /// # Panics
    /// If they are not all held here.
    pub fn row_bytes(&self, rows: Range<u64>) -> &[u8] {
        let width = self.row_width();
        let held = self.held_places(&rows);
        &self.all_row_bytes()[held.start * width..held.end * width]
    }

    /// The optimizer state of some rows, row after row.
    ///
    /// # Panics
    /// If they are not all held here.
    pub fn state(&self, rows: Range<u64>) -> &[f32] {
        let width = self.optimizer.state_floats(self.spec.dim);
        let held = self.held_places(&rows);
        &cast_slice(&self.memory.bytes()[..self.state_bytes])[held.start * width..held.end * width]
    }

    /// Replaces some rows and their state.
    ///
    /// # Panics
    /// If the rows are not all held here, or the lengths are not theirs.
    pub fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]) {
        let held = self.held_places(&rows);
        let (width, floats) = (self.row_width(), self.optimizer.state_floats(self.spec.dim));
        let (all_state, all_rows) = self.state_and_rows_mut();
        all_rows[held.start * width..held.end * width].copy_from_slice(bytes);
        all_state[held.start * floats..held.end * floats].copy_from_slice(state);
    }

    fn all_row_bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.rows_start..]
    }

    fn state_and_rows_mut(&mut self) -> (&mut [f32], &mut [u8]) {
        let (state, rows) = self.memory.bytes_mut().split_at_mut(self.rows_start);
        (cast_slice_mut(&mut state[..self.state_bytes]), rows)
    }

    /// Where some rows lie among those held.
    fn held_places(&self, rows: &Range<u64>) -> Range<usize> {
        assert!(
            self.rows.start <= rows.start && rows.start <= rows.end && rows.end <= self.rows.end,
            "table `{}`: rows {rows:?} are not all among {:?}",
            self.spec.name,
            self.rows
        );
        (rows.start - self.rows.start) as usize..(rows.end - self.rows.start) as usize
    }

    fn row_width(&self) -> usize {
        self.spec.dim * self.spec.format.element_bytes()
    }

    fn row_count(&self) -> usize {
        (self.rows.end - self.rows.start) as usize
    }

    fn first_row(&self) -> u32 {
        self.rows.start as u32
    }

    fn row_outside(&self, outside: RowOutside) -> TableError {
        TableError::RowOutside {
            table: self.spec.name.clone(),
            row: u64::from(outside.row),
            start: self.rows.start,
            end: self.rows.end,
            row_count: self.spec.row_count,
        }
    }
}

impl RowStore for Table {
    fn layout(&self) -> TableLayout {
        TableLayout::new(&self.spec, &self.optimizer)
    }

    fn held(&self) -> Range<u64> {
        self.rows()
    }

    fn copy_rows(&self, rows: Range<u64>, bytes: &mut [u8], state: &mut [f32]) {
        bytes.copy_from_slice(self.row_bytes(rows.clone()));
        state.copy_from_slice(self.state(rows));
    }

    fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]) {
        Table::write_rows(self, rows, bytes, state);
    }

    fn cut(&mut self) -> &mut Option<Cut> {
        &mut self.cut
    }
}

fn check(spec: &TableSpec, rows: &Range<u64>) -> Result<(), TableError> {
    let error = |what: String| Err(TableError::Spec { table: spec.name.clone(), what });
    if spec.dim == 0 {
        return error("dim is 0; a row needs at least one float".into());
    }
    if spec.row_count > u64::from(u32::MAX) {
        return error(format!(
            "row_count {} is above {}, the most that a row number can name",
            spec.row_count,
            u32::MAX
        ));
    }
    assert!(
        rows.start <= rows.end && rows.end <= spec.row_count,
        "table `{}`: part {rows:?} of {} rows",
        spec.name,
        spec.row_count
    );
    Ok(())
}

fn kernel_bags<'a>(bags: &FeatureBags<'a>) -> pool::Bags<'a> {
    pool::Bags { offsets: bags.offsets, rows: bags.rows, weights: bags.weights }
}

/// What the gradient of a bag's vector is multiplied with on its way to a row.
fn weighting(block: &GradientBlock<'_>) -> Weighting {
    match block.pooling {
        Pooling::Sum => Weighting::One,
        Pooling::Mean => Weighting::OneOverCount,
        Pooling::Weighted if block.bags.weights.is_empty() => Weighting::One,
        Pooling::Weighted => Weighting::Given,
    }
}

fn rule(optimizer: &SparseOptimizer) -> Rule {
    match *optimizer {
        SparseOptimizer::Sgd => Rule::Sgd,
        SparseOptimizer::Adagrad { epsilon, .. } => Rule::Adagrad { epsilon },
        SparseOptimizer::RowwiseAdagrad { epsilon, .. } => Rule::RowwiseAdagrad { epsilon },
        SparseOptimizer::Adam { beta1, beta2, epsilon } => Rule::Adam { beta1, beta2, epsilon },
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon } => Rule::RowwiseAdam { beta1, beta2, epsilon },
        SparseOptimizer::Ftrl { beta, l1, l2 } => Rule::Ftrl { beta, l1, l2 },
    }
}

#[cfg(test)]
mod tests;
