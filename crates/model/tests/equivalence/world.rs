//! Small seeded models and batches for the equivalence tests.

use campanile_oracle::Oracle;
use campanile_spec::{
    Bags, Batch, FeatureSpec, Heads, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit, TableId,
    TableSpec, TaskSpec,
};

const ROWS: usize = 7;

/// Seeded values in [-1, 1).
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// One feature and table for each dim, with all ways of pooling.
pub fn model(
    dims: &[usize],
    dense_count: usize,
    tasks: usize,
    network: NetworkSpec,
    heads: Heads,
) -> ModelSpec {
    let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Weighted];
    let table = |(i, dim): (usize, &usize)| TableSpec {
        name: format!("table{i}"),
        row_count: ROWS as u64,
        dim: *dim,
        format: RowFormat::F32,
        init: RowInit::Zeros,
    };
    let feature = |i: usize| FeatureSpec {
        name: format!("feature{i}"),
        table: TableId(i as u32),
        pooling: poolings[i % poolings.len()],
    };
    ModelSpec {
        dense_count,
        features: (0..dims.len()).map(feature).collect(),
        tables: dims.iter().enumerate().map(table).collect(),
        tasks: (0..tasks)
            .map(|t| TaskSpec { name: format!("task{t}"), weight: 1.0 + t as f32 * 0.3 })
            .collect(),
        network,
        heads,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

/// Bags of 0 to 3 rows; some labels absent; sample weights with every odd seed.
pub fn batch(spec: &ModelSpec, samples: usize, seed: u64) -> Batch {
    let random = values(8 * samples * (spec.features.len() + spec.tasks.len() + 1), seed + 77);
    let below = |i: usize, limit: usize| ((random[i] + 1.0) * 0.5 * limit as f32) as usize % limit;
    let (mut offsets, mut rows) = (vec![0], Vec::new());
    for bag in 0..spec.features.len() * samples {
        rows.extend((0..below(4 * bag, 4)).map(|place| below(4 * bag + 1 + place, ROWS) as u32));
        offsets.push(rows.len() as u32);
    }
    let row_weights = values(rows.len(), seed + 3);
    let label = |i: usize| match below(random.len() - 1 - i, 5) {
        0 => f32::NAN,
        1 | 2 => 1.0,
        _ => 0.0,
    };
    let weights = values(samples, seed + 4).iter().map(|weight| 1.0 + weight).collect();
    Batch {
        sample_count: samples,
        dense: values(samples * spec.dense_count, seed + 5),
        bags: Bags::new(spec.features.len(), samples, offsets, rows, row_weights).expect("valid bags"),
        labels: (0..samples * spec.tasks.len()).map(label).collect(),
        weights: if seed.is_multiple_of(2) { Vec::new() } else { weights },
        ..Batch::default()
    }
}

/// Gives every row seeded values.
pub fn fill(oracle: &mut Oracle, seed: u64) {
    for (t, table) in oracle.tables.iter_mut().enumerate() {
        for (r, row) in table.iter_mut().enumerate() {
            row.values = values(row.values.len(), seed * 1000 + (t * ROWS + r) as u64);
        }
    }
}
