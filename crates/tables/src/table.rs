//! One rank's part of a table: rows, their optimizer state, lookup and update.
//!
//! State and rows lie in one slab, each row after row, so that a checkpoint writes slices as they are, a lookup
//! never drags state through the cache, and even the state of a small table is in huge pages. A part is a range of
//! rows and of columns; all row numbers that come in or go out are those of the whole table.
//!
//! Invariant: what a row holds depends on (seed, table name, row) and on the updates it took, never on which
//! part it lies in, on the number of blocks its gradients came in, or on the processor.

mod first;
mod moves;

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use campanile_kernels::{
    Isa,
    merge::{Merge, Occurrence, Plain, Weighted, Weighting},
    pool::{self, Place, Pool, RowOutside, Rows},
    update::{self, Gradient, Merged, RowsMut},
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

/// One table, or a range of its rows and columns.
#[derive(Debug)]
pub struct Table {
    /// Rows as they were at the moment of a checkpoint that is still being written.
    pub cut: Option<Cut>,
    spec: TableSpec,
    key: u64,
    rows: Range<u64>,
    columns: Range<usize>,
    optimizer: SparseOptimizer,
    /// The rate of its rows, where it is not that of all tables.
    own_rate: Option<f32>,
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

impl GradientBlock<'_> {
    fn samples(&self) -> usize {
        self.bags.offsets.len() - 1
    }
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
    last_weighted: bool,
}

impl UpdateScratch {
    /// Appends the rows that the last [`Table::update`] moved, rising, in the numbering of the whole table.
    pub fn touched(&self, table: &Table, out: &mut Vec<u32>) {
        let first = table.first_row();
        let rows = if self.last_weighted { self.weighted.unique_rows() } else { self.plain.unique_rows() };
        out.extend(rows.iter().map(|row| first + row));
    }
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
        Table::shard(spec, rows, 0..spec.dim, optimizer, seed)
    }

    /// Some rows and columns of a table, every row at its first value.
    ///
    /// # Errors
    /// When the description is not possible or the memory is not there.
    pub fn shard(
        spec: &TableSpec,
        rows: Range<u64>,
        columns: Range<usize>,
        optimizer: &SparseOptimizer,
        seed: u64,
    ) -> Result<Table, TableError> {
        let mut table = Table::zeroed(spec, rows, columns, optimizer)?;
        table.fill_first_values(seed);
        Ok(table)
    }

    /// Some rows and columns of a table, all zeros: for a checkpoint that will fill them.
    ///
    /// # Errors
    /// When the description is not possible or the memory is not there.
    pub fn zeroed(
        spec: &TableSpec,
        rows: Range<u64>,
        columns: Range<usize>,
        optimizer: &SparseOptimizer,
    ) -> Result<Table, TableError> {
        check(spec, &rows, &columns)?;
        let (count, dim) = (rows.end - rows.start, columns.len());
        let needed_bytes = memory_of_rows(spec.format, dim, optimizer, count);
        let out_of_memory = |available_bytes| TableError::Memory {
            table: spec.name.clone(),
            row_count: count,
            dim,
            needed_bytes,
            available_bytes,
        };
        // The system hands out more than it has and kills later, so the free memory is asked for first.
        if let Some(available) = memory_available().filter(|available| *available < needed_bytes) {
            return Err(out_of_memory(available));
        }
        let state_bytes = count * optimizer.state_floats(dim) as u64 * 4;
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
            columns,
            optimizer: *optimizer,
            own_rate: None,
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

    /// The same table, whose rows move at a rate of their own, without L2 and without a limit to their norm, whatever an
    /// [`UpdateStep`] says of these.
    #[must_use]
    pub fn with_own_rate(mut self, rate: f32) -> Table {
        self.own_rate = Some(rate);
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

    /// The columns that this part holds.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Bytes of rows and state.
    pub fn memory_bytes(&self) -> u64 {
        let count = self.rows.end - self.rows.start;
        memory_of_rows(self.spec.format, self.dim(), &self.optimizer, count)
    }

    /// Copies the stored bytes of some rows, one after the other.
    ///
    /// # Errors
    /// When a row is not held here.
    ///
    /// # Panics
    /// If `out` does not have the rows' length.
    pub fn copy_out(&self, rows: &[u32], out: &mut [u8]) -> Result<(), TableError> {
        let width = self.row_width();
        assert_eq!(out.len(), rows.len() * width, "{} rows of {width} bytes", rows.len());
        let (first, count) = (self.first_row(), self.row_count());
        if let Some(row) = rows.iter().find(|row| row.wrapping_sub(first) as usize >= count) {
            return Err(self.row_outside(RowOutside { row: *row }));
        }
        pool::copy_rows(self.all_row_bytes(), rows.iter().map(|row| (row - first) as usize), out, width);
        Ok(())
    }

    /// Overwrites the stored bytes of some rows; their state stays.
    ///
    /// # Panics
    /// If a row is not held here, or `bytes` does not have the rows' length.
    pub fn copy_in(&mut self, rows: &[u32], bytes: &[u8]) {
        let (width, first) = (self.row_width(), self.first_row());
        assert_eq!(bytes.len(), rows.len() * width, "{} rows of {width} bytes", rows.len());
        let all = self.state_and_rows_mut().1;
        for (row, bytes) in rows.iter().zip(bytes.chunks_exact(width)) {
            all[(row - first) as usize * width..][..width].copy_from_slice(bytes);
        }
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
        pool::pool(self.isa, (rows, self.dim()), self.first_row(), kernel_bags(bags), how, (out, place))
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
        scratch.last_weighted = weighted;
        let UpdateScratch { plain, weighted: with_weights, kernel, .. } = scratch;
        if weighted {
            self.update_merged(blocks, step, with_weights, kernel)
        } else {
            self.update_merged(blocks, step, plain, kernel)
        }
    }

    /// Whether an update needs sums over whole rows, of which this part holds only some columns: then
    /// [`Table::merge`], [`Table::limit`] and [`Table::apply`] take the place of [`Table::update`].
    pub fn needs_sums(&self, step: &UpdateStep) -> bool {
        let is_limited = step.row_norm_max > 0.0 && self.own_rate.is_none();
        self.dim() < self.spec.dim && (is_limited || self.is_rowwise())
    }

    /// The first turn of an update by columns: adds up every row's gradients and lays them out.
    ///
    /// # Errors
    /// As [`Table::update`].
    ///
    /// # Panics
    /// As [`Table::update`].
    pub fn merge(
        &mut self,
        blocks: &[GradientBlock<'_>],
        scratch: &mut UpdateScratch,
        merged: &mut Merged,
    ) -> Result<UpdateReport, TableError> {
        let merge = &mut scratch.weighted;
        self.sort(blocks, merge)?;
        merged.merge(self.isa, self.dim(), merge, &gradients(blocks));
        self.keep_for_cut(merge.unique_rows());
        Ok(report(merge))
    }

    /// The second turn: limits the norm of every merged gradient, given the sums of squares over whole rows, and
    /// adds the pull of L2.
    pub fn limit(&mut self, merged: &mut Merged, step: &UpdateStep, squares: &[f32]) {
        let (isa, step) = (self.isa, self.kernel_step(step));
        merged.limit(isa, &self.state_and_kernel_rows().1, &step, squares);
    }

    /// The last turn: moves every touched row, given the means of squares over whole rows.
    pub fn apply(&mut self, merged: &Merged, step: &UpdateStep, means: &[f32]) {
        let (isa, step) = (self.isa, self.kernel_step(step));
        let (state, rows) = self.state_and_kernel_rows();
        merged.apply(isa, (rows, state), &step, means);
    }

    fn update_merged<O: Occurrence>(
        &mut self,
        blocks: &[GradientBlock<'_>],
        step: &UpdateStep,
        merge: &mut Merge<O>,
        scratch: &mut update::Scratch,
    ) -> Result<UpdateReport, TableError> {
        self.sort(blocks, merge)?;
        self.keep_for_cut(merge.unique_rows());
        let (isa, dim, step) = (self.isa, self.dim(), self.kernel_step(step));
        let (state, rows) = self.state_and_kernel_rows();
        update::update(isa, (rows, state, dim), merge, &gradients(blocks), &step, scratch);
        Ok(report(merge))
    }

    /// Finds where each row occurs in the blocks.
    fn sort<O: Occurrence>(
        &self,
        blocks: &[GradientBlock<'_>],
        merge: &mut Merge<O>,
    ) -> Result<(), TableError> {
        let samples_max = blocks.iter().map(GradientBlock::samples).max().unwrap_or(0);
        merge.begin(self.first_row(), self.row_count(), samples_max, blocks.len());
        for block in blocks {
            let pushed = merge.push(self.isa, kernel_bags(&block.bags), weighting(block));
            pushed.map_err(|outside| self.row_outside(outside))?;
        }
        merge.sort();
        Ok(())
    }

    fn state_and_kernel_rows(&mut self) -> (&mut [f32], RowsMut<'_>) {
        let format = self.spec.format;
        let (state, rows) = self.state_and_rows_mut();
        let rows = match format {
            RowFormat::F32 => RowsMut::F32(cast_slice_mut(rows)),
            RowFormat::F16 => RowsMut::F16(cast_slice_mut(rows)),
            RowFormat::Bf16 => RowsMut::Bf16(cast_slice_mut(rows)),
        };
        (state, rows)
    }

    /// Gives the rows that are about to move to a cut that still wants them as they are.
    fn keep_for_cut(&mut self, unique: &[u32]) {
        if let Some(cut) = &mut self.cut {
            let (state, rows) = self.memory.bytes().split_at(self.rows_start);
            cut.keep_rows(unique.iter().copied(), rows, cast_slice(&state[..self.state_bytes]));
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
        let width = self.optimizer.state_floats(self.dim());
        let held = self.held_places(&rows);
        &cast_slice(&self.memory.bytes()[..self.state_bytes])[held.start * width..held.end * width]
    }

    /// Replaces some rows and their state.
    ///
    /// # Panics
    /// If the rows are not all held here, or the lengths are not theirs.
    pub fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]) {
        let held = self.held_places(&rows);
        let (width, floats) = (self.row_width(), self.optimizer.state_floats(self.dim()));
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

    fn dim(&self) -> usize {
        self.columns.len()
    }

    fn row_width(&self) -> usize {
        self.dim() * self.spec.format.element_bytes()
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

    fn columns(&self) -> Range<usize> {
        Table::columns(self)
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

fn check(spec: &TableSpec, rows: &Range<u64>, columns: &Range<usize>) -> Result<(), TableError> {
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
    assert!(
        columns.start < columns.end && columns.end <= spec.dim,
        "table `{}`: columns {columns:?} of {}",
        spec.name,
        spec.dim
    );
    Ok(())
}

fn kernel_bags<'a>(bags: &FeatureBags<'a>) -> pool::Bags<'a> {
    pool::Bags { offsets: bags.offsets, rows: bags.rows, weights: bags.weights }
}

fn gradients<'a>(blocks: &[GradientBlock<'a>]) -> Vec<Gradient<'a>> {
    let gradient = |block: &GradientBlock<'a>| Gradient {
        values: block.gradient,
        place: Place { stride: block.stride, offset: block.offset },
        samples: block.samples(),
    };
    blocks.iter().map(gradient).collect()
}

fn report<O: Occurrence>(merge: &Merge<O>) -> UpdateReport {
    UpdateReport {
        ids_seen: merge.occurrences().len() as u64,
        rows_touched: merge.unique_rows().len() as u64,
    }
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

#[cfg(test)]
mod tests;
