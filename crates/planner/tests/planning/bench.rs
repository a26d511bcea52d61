//! A topology, models and loads to plan with.

use campanile_planner::{DenseWork, Request, Splits, TableLoad, Wire};
use campanile_spec::{
    FeatureSpec, Heads, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat, RowInit, SparseOptimizer,
    TableId, TableSpec, TaskSpec,
    topology::{Compute, Link, ProductRates, RowRates, Topology},
};

/// Splitmix64: the tests' only source of chance.
pub struct Random(pub u64);

impl Random {
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Log-normal with median 1: the exponential of a sum of twelve evens less six.
    pub fn log_normal(&mut self, sigma: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| self.unit()).sum::<f64>() - 6.0;
        (sigma * normal).exp()
    }
}

pub fn topology(hosts: usize, ranks_per_host: usize, memory_mib_per_rank: u64) -> Topology {
    let row = |floats: usize| {
        let lines = (floats as f64 / 16.0).max(1.0);
        RowRates {
            floats,
            pool_near_ns: 2.0 + 2.0 * lines,
            pool_far_ns: 10.0 + 10.0 * lines,
            merge_ns: 8.0 + 3.0 * lines,
            update_near_ns: 10.0 + 5.0 * lines,
            update_far_ns: 30.0 + 15.0 * lines,
        }
    };
    let product = |width: usize, rate: f64| ProductRates {
        width,
        f32_flops_per_second: rate,
        bf16_flops_per_second: 2.0 * rate,
        dots_flops_per_second: 0.5 * rate,
        narrow_flops_per_second: 0.0,
    };
    Topology {
        hosts,
        ranks_per_host,
        memory_mib_per_rank,
        compute: Compute {
            cache_bytes: 1 << 20,
            copy_bytes_per_second: 8e9,
            judge_ns: 50.0,
            processors_per_rank: 1.0,
            read_column_ns: 0.0,
            read_id_ns: 0.0,
            row: [8, 16, 64, 128].map(row).into(),
            product: vec![product(64, 2e10), product(256, 4e10), product(1024, 6e10)],
            codec: Vec::new(),
        },
        in_host: Link {
            latency_seconds: 5e-6,
            bytes_per_second: 4e9,
            hidden_share: 1.0,
            message_seconds: 0.0,
        },
        cross_host: (hosts > 1).then_some(Link {
            latency_seconds: 5e-5,
            bytes_per_second: 1e9,
            hidden_share: 1.0,
            message_seconds: 0.0,
        }),
    }
}

pub fn table(name: &str, row_count: u64, dim: usize) -> TableSpec {
    TableSpec { name: name.into(), row_count, dim, format: RowFormat::F32, init: RowInit::Zeros }
}

/// A model with one feature for each table.
pub fn model(tables: Vec<TableSpec>) -> ModelSpec {
    let feature = |(place, table): (usize, &TableSpec)| FeatureSpec {
        name: table.name.clone(),
        table: TableId(place as u32),
        pooling: Pooling::Sum,
    };
    ModelSpec {
        dense_count: 13,
        features: tables.iter().enumerate().map(feature).collect(),
        tables,
        tasks: vec![TaskSpec { name: "click".into(), weight: 1.0 }],
        network: NetworkSpec::Dlrm { bottom: vec![512, 256], top: vec![512, 256] },
        heads: Heads::Shared,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

/// A load with so many ids per sample, rows drawn evenly.
pub fn load(table: &TableSpec, ids: f64) -> TableLoad {
    TableLoad::even(table, 1, ids)
}

pub const OPTIMIZER: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };

/// All that a request borrows.
#[derive(Debug)]
pub struct Case {
    pub model: ModelSpec,
    pub loads: Vec<TableLoad>,
    pub topology: Topology,
    pub dense: DenseWork,
    pub splits: Splits,
    pub batch_size: usize,
}

impl Case {
    pub fn new(tables: Vec<(TableSpec, f64)>, topology: Topology) -> Case {
        let loads = tables.iter().map(|(table, ids)| load(table, *ids)).collect();
        let dense = DenseWork {
            products: vec![(13, 512), (512, 256), (256, 16), (367, 512), (512, 256), (256, 1)],
            interaction_flops: 27 * 26 * 16,
            interaction_width: 16,
            gradient_sums: 0.0,
            chunks: 8,
            columns_read: 40,
            parameter_count: 500_000,
            floats_per_parameter: 5.0,
            fixed_bytes: 4 << 20,
        };
        let model = model(tables.into_iter().map(|(table, _)| table).collect());
        Case { model, loads, topology, dense, splits: Splits::Allowed, batch_size: 8192 }
    }

    pub fn request(&self) -> Request<'_> {
        Request {
            model: &self.model,
            optimizer: &OPTIMIZER,
            batch_size: self.batch_size,
            topology: &self.topology,
            loads: &self.loads,
            dense: &self.dense,
            wire: Wire::F32,
            splits: self.splits.clone(),
            may_copy: true,
            method: None,
        }
    }
}
