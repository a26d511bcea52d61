//! First values: what rows and their state hold before any step.

use campanile_kernels::{
    half::{slice_to_bf16, slice_to_f16},
    random::{fill_normal, fill_uniform, row_key},
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
            self.state.values_mut::<f32>().fill(initial);
        }
        let fill: fn(&mut [f32], u64, f32) = match self.spec.init {
            RowInit::Zeros => return,
            RowInit::Uniform { .. } => fill_uniform,
            RowInit::Normal { .. } => fill_normal,
        };
        let (RowInit::Uniform { bound: size } | RowInit::Normal { deviation: size }) = self.spec.init else {
            return;
        };
        let (dim, isa, start, table) = (self.spec.dim, self.isa, self.rows.start, self.key);
        let key = |row: usize| row_key(seed, table, start + row as u64);
        match self.spec.format {
            RowFormat::F32 => {
                for (row, values) in self.storage.values_mut::<f32>().chunks_exact_mut(dim).enumerate() {
                    fill(values, key(row), size);
                }
            }
            RowFormat::F16 | RowFormat::Bf16 => {
                let convert = if self.spec.format == RowFormat::F16 { slice_to_f16 } else { slice_to_bf16 };
                let mut exact = vec![0.0; dim];
                for (row, values) in self.storage.values_mut::<u16>().chunks_exact_mut(dim).enumerate() {
                    fill(&mut exact, key(row), size);
                    convert(isa, &exact, values);
                }
            }
        }
    }
}
