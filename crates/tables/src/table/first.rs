//! First values: what rows and their state hold before any step.

use bytemuck::cast_slice_mut;
use campanile_kernels::{
    half::{slice_to_bf16, slice_to_f16},
    random::{fill_normal, fill_uniform, first_values_key, from_element, row_key},
};
use campanile_spec::{
    model::{RowFormat, RowInit},
    optimizer::SparseOptimizer,
};

use super::Table;

impl Table {
    /// Sets every row and its state to their first values; 16-bit rows are rounded to the nearest.
    pub(super) fn fill_first_values(&mut self, seed: u64) {
        if let SparseOptimizer::Adagrad { initial, .. } | SparseOptimizer::RowwiseAdagrad { initial, .. } =
            self.optimizer
            && initial != 0.0
        {
            self.state_and_rows_mut().0.fill(initial);
        }
        let fill: fn(&mut [f32], u64, f32) = match self.spec.init {
            RowInit::Zeros => return,
            RowInit::Uniform { .. } => fill_uniform,
            RowInit::Normal { .. } => fill_normal,
        };
        let (RowInit::Uniform { bound: size } | RowInit::Normal { deviation: size }) = self.spec.init else {
            return;
        };
        let (dim, format, isa, start) = (self.dim(), self.spec.format, self.isa, self.rows.start);
        let first_column = self.columns.start;
        let table = first_values_key(seed, self.key);
        let rows = self.state_and_rows_mut().1;
        let key = |row: usize| from_element(row_key(table, start + row as u64), first_column);
        match format {
            RowFormat::F32 => {
                for (row, values) in cast_slice_mut::<u8, f32>(rows).chunks_exact_mut(dim).enumerate() {
                    fill(values, key(row), size);
                }
            }
            RowFormat::F16 | RowFormat::Bf16 => {
                let convert = if format == RowFormat::F16 { slice_to_f16 } else { slice_to_bf16 };
                let mut exact = vec![0.0; dim];
                for (row, values) in cast_slice_mut::<u8, u16>(rows).chunks_exact_mut(dim).enumerate() {
                    fill(&mut exact, key(row), size);
                    convert(isa, &exact, values);
                }
            }
        }
    }
}
