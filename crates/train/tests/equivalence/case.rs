//! Random runs in small numbers: model, data, plan and training of a case.

use campanile_spec::{
    AdapterSpec, Bags, Batch, CrossRank, DcnStructure, DenseOptimizer, Distil, DistilMethod, FeatureSpec,
    Follow, Heads, LearningRate, ModelSpec, NetworkSpec, Placement, Plan, Pooling, Precision, Returns,
    RowFormat, RowInit, Schedule, SparseOptimizer, TableId, TableSpec, TaskSpec, TowerModule, TowerSpec,
    TowerVariant, Towers,
    config::{Corrections, DenseTraining, Evaluate, ExchangeFormat, Run, SparseTraining, WireFormat},
    data::{BadRows, Columns, DataSpec, SourceSpec, SplitSpec},
};
use proptest::prelude::*;

pub const STEPS: u64 = 3;

/// All that a run is, in small numbers that proptest can shrink.
#[derive(Debug, Clone)]
pub struct Case {
    pub seed: u64,
    pub batch_size: usize,
    pub dense_count: usize,
    pub tables: Vec<(u64, usize)>,
    /// Table and pooling of each feature.
    pub features: Vec<(usize, u8)>,
    pub network: u8,
    pub separate_heads: bool,
    pub tasks: usize,
    pub sparse: u8,
    pub dense: u8,
    pub l2: bool,
    pub clip: bool,
    pub last_batch: usize,
    pub exchange: ExchangeFormat,
    /// Seed of the placements; every table has its own kind.
    pub plan: u64,
    /// For networks that take them: how features are dealt to towers, and the kind of their modules; 0: no towers.
    pub towers: u64,
    pub chunks: usize,
    pub distil: Distil,
    /// How many of the first features are followed by, if any, and floats and optimizer of their tables.
    pub follow: Option<(usize, usize, u8)>,
}

const WIRE: [WireFormat; 4] = [WireFormat::F32, WireFormat::F16, WireFormat::Bf16, WireFormat::Int8];

pub fn plan(case: &Case, model: &ModelSpec, ranks: usize) -> Plan {
    let mut state = case.plan;
    let mut below = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    let mut place = |table: &TableSpec| {
        let (first, count) = (below(ranks), 1 + below(ranks));
        let some: Vec<usize> = (0..count).map(|rank| (first + rank) % ranks).collect();
        let others = some.iter().map(|rank| (rank + 1) % ranks).collect();
        match below(7) {
            0 => Placement::whole(table, first),
            1 => Placement::whole(table, first).returning(Returns::Rows),
            2 | 3 => Placement::by_rows(table, &some),
            4 => Placement::by_columns(table, &some),
            5 => Placement::replicated(table, ranks),
            _ => Placement::grid(table, &[some, others]),
        }
    };
    Plan { rank_count: ranks, placements: model.tables.iter().map(&mut place).collect() }
}

fn distil() -> impl Strategy<Value = Distil> {
    let methods = [DistilMethod::None, DistilMethod::OneHead, DistilMethod::Auxiliary, DistilMethod::Adapter];
    let optimizers = [
        DenseOptimizer::Sgd { momentum: 0.0 },
        DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.0 },
        DenseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    ];
    let numbers = prop::sample::select(vec![0.0f32, 0.3, 1.0, 5.0]);
    let adapter = (
        prop::sample::select(vec![0usize, 3]),
        0..4usize,
        any::<bool>(),
        prop::sample::select(optimizers.to_vec()),
    );
    (prop::sample::select(methods.to_vec()), prop::array::uniform5(numbers), adapter).prop_map(
        |(
            method,
            [weight, label_scale, gradient_scale, fade_seconds, v],
            (hidden, segments, freshness, optimizer),
        )| {
            let adapter =
                AdapterSpec { weight: v, hidden, segments, freshness, optimizer, learning_rate: 0.1 };
            Distil { method, weight, label_scale, gradient_scale, fade_seconds, adapter }
        },
    )
}

pub fn case() -> impl Strategy<Value = Case> {
    let table = (1..40u64, prop::sample::select(vec![1usize, 3, 8, 16, 17, 40, 64]));
    (
        (any::<u64>(), 1..70usize, 0..6usize),
        prop::collection::vec(table, 1..5),
        prop::collection::vec((0..5usize, 0..3u8), 0..6),
        (0..9u8, any::<bool>(), 1..3usize),
        (0..6u8, 0..4u8, any::<bool>(), any::<bool>()),
        (1..70usize, 0..16usize, any::<u64>(), 1..5usize, prop_oneof![Just(0), any::<u64>()]),
        (distil(), prop::option::of((1..4usize, prop::sample::select(vec![1usize, 5, 40]), 0..5u8))),
    )
        .prop_map(
            |(
                size,
                tables,
                features,
                net,
                training,
                (last, wire, plan, chunks, towers),
                (distil, follow),
            )| {
                Case {
                    seed: size.0,
                    batch_size: size.1,
                    dense_count: size.2,
                    features: features.into_iter().map(|(t, p)| (t % tables.len(), p)).collect(),
                    tables,
                    network: net.0,
                    separate_heads: net.1,
                    tasks: net.2,
                    sparse: training.0,
                    dense: training.1,
                    l2: training.2,
                    clip: training.3,
                    last_batch: last.min(size.1),
                    exchange: ExchangeFormat { forward: WIRE[wire / 4], backward: WIRE[wire % 4] },
                    plan,
                    towers,
                    chunks,
                    // Models without shared layers have no place for a head.
                    distil: if matches!(net.0, 6 | 7) && distil.extra_heads() > 0 {
                        Distil { method: DistilMethod::OneHead, ..distil }
                    } else {
                        distil
                    },
                    // Nor have they one for another vector; and what follows has no place in a tower.
                    follow: follow.filter(|_| !matches!(net.0, 6 | 7) && towers == 0),
                }
                .possible()
            },
        )
}

impl Case {
    /// A model without numbers or without ids needs a network that does with the other.
    fn possible(self) -> Case {
        if self.features.is_empty() {
            let (network, dense_count) = (5, self.dense_count.max(1));
            return Case { tables: Vec::new(), follow: None, network, dense_count, ..self };
        }
        // A DLRM of ids alone needs two vectors for a dot, which towers may leave it without.
        let needs_numbers = !(2..=5).contains(&self.network);
        Case { dense_count: self.dense_count.max(usize::from(needs_numbers)), ..self }
    }
}

fn network(case: &Case) -> NetworkSpec {
    let dcn = |cross_rank, structure| NetworkSpec::Dcn {
        bottom: vec![7, 5],
        cross_layers: 2,
        cross_rank,
        structure,
        deep: vec![9, 6],
    };
    match case.network {
        0 | 1 => NetworkSpec::Dlrm { bottom: vec![9, 8], top: vec![11, 7] },
        2 => dcn(CrossRank::Full, DcnStructure::Stacked),
        3 => dcn(CrossRank::Low(3), DcnStructure::Stacked),
        4 => dcn(CrossRank::Low(2), DcnStructure::Parallel),
        5 => NetworkSpec::Mlp { hidden: vec![13, 6] },
        8 => NetworkSpec::TwoTower {
            item_features: vec!["f0".into()],
            item_dense: vec![],
            user: vec![9, 5],
            item: vec![6],
            width: 4,
        },
        6 => NetworkSpec::LogisticRegression,
        _ => NetworkSpec::FactorizationMachine,
    }
}

/// Two towers, the features dealt by the bits of a seed.
fn towers(case: &Case, dim: impl Fn(usize) -> usize) -> Towers {
    if case.towers == 0 || case.network > 5 {
        return Towers::default();
    }
    let bit = |place: usize| case.towers >> place & 1 == 1;
    let mut list = Vec::new();
    for side in [false, true] {
        let features: Vec<usize> = (0..case.features.len()).filter(|&f| bit(f) == side).collect();
        let Some(&first) = features.first() else { continue };
        let dim_of = |feature: usize| dim(case.tables[case.features[feature].0].1);
        let equal = features.iter().all(|&feature| dim_of(feature) == dim_of(first));
        let kinds = (case.towers >> (if side { 20 } else { 30 })) % 4;
        let rank = if bit(40) { CrossRank::Full } else { CrossRank::Low(2) };
        let module = match kinds {
            0 => TowerModule::Identity,
            1 => TowerModule::Cross { layers: 2, rank, width: 8 },
            2 if equal => TowerModule::Ensemble { per_feature: 2, mixed: 1, width: 8 },
            _ => TowerModule::Ensemble { per_feature: 0, mixed: 2, width: 8 },
        };
        list.push(TowerSpec { name: format!("tower{side}"), features, module });
    }
    let module_rate = if bit(41) { 0.3 } else { 1.0 };
    Towers { variant: TowerVariant::Towers, module_rate, list }
}

pub fn run_of(case: &Case) -> Run {
    let l2 = if case.l2 && case.sparse != 5 { 1e-3 } else { 0.0 };
    let dim = |dim: usize| match case.network {
        6 => case.tasks,
        7 => 4 * case.tasks,
        _ => dim,
    };
    let schedule = match case.seed >> 8 & 3 {
        0 => Schedule::Cosine { warmup_steps: 1, total_steps: 4, end_factor: 0.1 },
        1 => Schedule::WarmupPolynomial {
            warmup_steps: 2,
            decay_start: 1,
            decay_steps: 3,
            power: 1.5,
            end_factor: 0.05,
        },
        _ => Schedule::Constant,
    };
    let rate = |base| LearningRate { base, schedule };
    let optimizer = |kind: u8| match kind {
        0 => SparseOptimizer::Sgd,
        1 => SparseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.1 },
        2 => SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
        3 => SparseOptimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        4 => SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        _ => SparseOptimizer::Ftrl { beta: 1.0, l1: 1e-4, l2: 1e-3 },
    };
    let mut run = Run {
        seed: case.seed,
        batch_size: case.batch_size,
        grain_count: 8,
        epochs: 1,
        steps_max: 0,
        data: DataSpec {
            source: SourceSpec::Parquet,
            columns: Columns::default(),
            split: SplitSpec::ByFile,
            bad_rows: BadRows::Fail,
            shuffle: false,
            unknown_share: 0.0,
        },
        model: ModelSpec {
            dense_count: case.dense_count,
            features: (0..case.features.len())
                .map(|f| FeatureSpec {
                    name: format!("f{f}"),
                    table: TableId(case.features[f].0 as u32),
                    pooling: [Pooling::Sum, Pooling::Mean, Pooling::Weighted][case.features[f].1 as usize],
                })
                .collect(),
            tables: (0..case.tables.len())
                .map(|t| TableSpec {
                    name: format!("t{t}"),
                    row_count: case.tables[t].0,
                    dim: dim(case.tables[t].1),
                    format: RowFormat::F32,
                    init: RowInit::Uniform { bound: 0.3 },
                })
                .collect(),
            tasks: (0..case.tasks)
                .map(|t| TaskSpec { name: format!("task{t}"), weight: 1.0 + t as f32 * 0.25 })
                .collect(),
            network: network(case),
            heads: if case.separate_heads { Heads::Separate } else { Heads::Shared },
            precision: Precision::F32,
            towers: towers(case, dim),
            followers: Vec::new(),
        },
        sparse: SparseTraining {
            optimizer: optimizer(case.sparse),
            learning_rate: rate(0.05),
            l2,
            row_norm_max: if case.clip { 1e-3 } else { 0.0 },
        },
        dense: DenseTraining {
            optimizer: match case.dense {
                0 => DenseOptimizer::Sgd { momentum: 0.9 },
                1 => DenseOptimizer::Adagrad { epsilon: 1e-10, initial: 0.0 },
                2 => DenseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
                _ => DenseOptimizer::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01 },
            },
            learning_rate: rate(0.02),
            l2: if case.l2 { 1e-4 } else { 0.0 },
            norm_max: if case.clip { 0.1 } else { 0.0 },
        },
        distil: case.distil,
        follow: Follow::default(),
        exchange: case.exchange,
        evaluate: Evaluate { every_steps: 0, samples_max: 0, window_steps: 1 },
        corrections: Corrections::Ignore,
        only: None,
    };
    if let Some((features, floats, kind)) = case.follow {
        let count = features.min(case.features.len());
        run.follow = Follow {
            features: (0..count).map(|f| format!("f{f}")).collect(),
            floats,
            optimizer: optimizer(kind),
            learning_rate: 0.4,
            format: RowFormat::F32,
        };
        (0..count).for_each(|f| run.model.add_follower(f, &run.follow));
    }
    run
}

pub fn batch(case: &Case, model: &ModelSpec, number: u64) -> Batch {
    // Half of the data sets are smaller than a batch.
    let is_partial = number + 1 == STEPS || case.seed >> 10 & 1 == 1;
    let samples = if is_partial { case.last_batch } else { case.batch_size };
    let mut state = case.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut offsets, mut rows, mut weights) = (vec![0], Vec::new(), Vec::new());
    for feature in 0..model.data_features() {
        // What a teacher is followed by has one id, or none.
        let ids = if model.followers.contains(&feature) { 2 } else { 4 };
        for _ in 0..samples {
            for _ in 0..random(ids) {
                rows.push(random(model.table_of(feature).row_count) as u32);
                weights.push(random(1000) as f32 * 1e-3);
            }
            offsets.push(rows.len() as u32);
        }
    }
    let mut bags = Bags::new(model.data_features(), samples, offsets, rows, weights).unwrap();
    bags.repeat(&model.followers);
    let labels = (0..samples * model.tasks.len())
        .map(|_| match random(10) {
            0 => f32::NAN,
            n if n < 4 => 1.0,
            _ => 0.0,
        })
        .collect();
    // Some batches have no teacher at all, and some samples of the others have not.
    let is_taught = !number.is_multiple_of(3) || case.seed.is_multiple_of(2);
    let taught = |count: usize| if is_taught { 0..count } else { 0..0 };
    let said = |value: u64| if value < 100 { f32::NAN } else { value as f32 * 8e-3 - 6.0 };
    let floats = case.follow.map_or(0, |(_, floats, _)| floats);
    let mut teacher_embeddings = Vec::new();
    for _ in taught(samples) {
        let spoke = random(4) > 0;
        let mut float = || if spoke { random(1000) as f32 * 4e-3 - 2.0 } else { f32::NAN };
        teacher_embeddings.extend((0..floats).map(|_| float()));
    }
    Batch {
        sample_count: samples,
        teacher_embeddings,
        teacher_logits: taught(samples * model.tasks.len()).map(|_| said(random(1000))).collect(),
        teacher_delays: taught(samples)
            .map(|_| if random(9) == 0 { f32::NAN } else { random(200) as f32 * 0.1 })
            .collect(),
        segments: (0..samples).map(|_| random(4) as u32).collect(),
        dense: (0..samples * model.dense_count).map(|_| random(1000) as f32 * 2e-3 - 1.0).collect(),
        bags,
        labels,
        weights: (0..samples).map(|_| 0.5 + random(100) as f32 * 0.01).collect(),
        ..Batch::default()
    }
}
