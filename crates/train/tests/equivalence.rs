//! The engine, on any number of ranks, has the bits of the oracle: logits, dense weights, rows, optimizer state.

use campanile_comm::{Communicator, threads};
use campanile_kernels::Isa;
use campanile_oracle::Oracle;
use campanile_spec::{
    AdapterSpec, Bags, Batch, CrossRank, DcnStructure, DenseOptimizer, Distil, DistilMethod, FeatureSpec,
    Grains, Heads, LearningRate, ModelSpec, NetworkSpec, Placement, Plan, Pooling, Precision, Returns,
    RowFormat, RowInit, Schedule, Seating, SparseOptimizer, TableId, TableSpec, TaskSpec, TowerModule,
    TowerSpec, TowerVariant, Towers,
    config::{Corrections, DenseTraining, Evaluate, ExchangeFormat, Run, SparseTraining, WireFormat},
    data::{BadRows, Columns, DataSpec, SourceSpec, SplitSpec},
};
use campanile_tables::Table;
use campanile_train::{
    TrainError,
    loader::LocalBatch,
    rank::{RankState, Seat},
    step::{Carry, Turn, step},
};
use proptest::prelude::*;

const STEPS: u64 = 3;

/// All that a run is, in small numbers that proptest can shrink.
#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    batch_size: usize,
    dense_count: usize,
    tables: Vec<(u64, usize)>,
    /// Table and pooling of each feature.
    features: Vec<(usize, u8)>,
    network: u8,
    separate_heads: bool,
    tasks: usize,
    sparse: u8,
    dense: u8,
    l2: bool,
    clip: bool,
    last_batch: usize,
    exchange: ExchangeFormat,
    /// Seed of the placements; every table has its own kind.
    plan: u64,
    /// For networks that take them: how features are dealt to towers, and the kind of their modules; 0: no towers.
    towers: u64,
    chunks: usize,
    distil: Distil,
}

const WIRE: [WireFormat; 4] = [WireFormat::F32, WireFormat::F16, WireFormat::Bf16, WireFormat::Int8];

fn plan(case: &Case, model: &ModelSpec, ranks: usize) -> Plan {
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

fn case() -> impl Strategy<Value = Case> {
    let table = (1..40u64, prop::sample::select(vec![1usize, 3, 8, 16, 17, 40, 64]));
    (
        (any::<u64>(), 1..70usize, 1..6usize),
        prop::collection::vec(table, 1..5),
        prop::collection::vec((0..5usize, 0..3u8), 1..6),
        (0..9u8, any::<bool>(), 1..3usize),
        (0..6u8, 0..4u8, any::<bool>(), any::<bool>()),
        (1..70usize, 0..16usize, any::<u64>(), 1..5usize, prop_oneof![Just(0), any::<u64>()]),
        distil(),
    )
        .prop_map(
            |(size, tables, features, net, training, (last, wire, plan, chunks, towers), distil)| Case {
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
            },
        )
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
    Towers { variant: TowerVariant::Towers, list }
}

fn run_of(case: &Case) -> Run {
    let l2 = if case.l2 && case.sparse != 5 { 1e-3 } else { 0.0 };
    let dim = |dim: usize| match case.network {
        6 => case.tasks,
        7 => 4 * case.tasks,
        _ => dim,
    };
    let rate = |base| LearningRate { base, schedule: Schedule::Constant };
    Run {
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
        },
        sparse: SparseTraining {
            optimizer: match case.sparse {
                0 => SparseOptimizer::Sgd,
                1 => SparseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.1 },
                2 => SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 },
                3 => SparseOptimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
                4 => SparseOptimizer::RowwiseAdam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
                _ => SparseOptimizer::Ftrl { beta: 1.0, l1: 1e-4, l2: 1e-3 },
            },
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
        exchange: case.exchange,
        evaluate: Evaluate { every_steps: 0, samples_max: 0, window_steps: 1 },
        corrections: Corrections::Ignore,
    }
}

fn batch(case: &Case, model: &ModelSpec, number: u64) -> Batch {
    let samples = if number + 1 == STEPS { case.last_batch } else { case.batch_size };
    let mut state = case.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut offsets, mut rows, mut weights) = (vec![0], Vec::new(), Vec::new());
    for feature in 0..model.features.len() {
        for _ in 0..samples {
            for _ in 0..random(4) {
                rows.push(random(model.table_of(feature).row_count) as u32);
                weights.push(random(1000) as f32 * 1e-3);
            }
            offsets.push(rows.len() as u32);
        }
    }
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
    Batch {
        sample_count: samples,
        teacher_logits: taught(samples * model.tasks.len()).map(|_| said(random(1000))).collect(),
        teacher_delays: taught(samples)
            .map(|_| if random(9) == 0 { f32::NAN } else { random(200) as f32 * 0.1 })
            .collect(),
        segments: (0..samples).map(|_| random(4) as u32).collect(),
        dense: (0..samples * model.dense_count).map(|_| random(1000) as f32 * 2e-3 - 1.0).collect(),
        bags: Bags::new(model.features.len(), samples, offsets, rows, weights).unwrap(),
        labels,
        weights: (0..samples).map(|_| 0.5 + random(100) as f32 * 0.01).collect(),
        ..Batch::default()
    }
}

/// Everything that must be equal: logits of each step, dense weights, rows and state of every table.
#[derive(Debug, PartialEq)]
struct Outcome {
    logits: Vec<Vec<u32>>,
    weights: Vec<u32>,
    adapters: Vec<u32>,
    rows: Vec<Vec<u8>>,
    state: Vec<Vec<u32>>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Trains on some ranks by a plan; with more than one chunk, the ids of the next batch travel ahead.
fn engine(case: &Case, run: &Run, plan: &Plan, chunks: usize) -> Outcome {
    engine_seated(case, run, (plan, None), chunks)
}

/// The same, with the ways of towers if they are seated.
fn engine_seated(
    case: &Case,
    run: &Run,
    (plan, seating): (&Plan, Option<&Seating>),
    chunks: usize,
) -> Outcome {
    let (grains, ranks) = (run.grains(), plan.rank_count);
    let parts = threads::run(ranks, |me| -> Result<_, TrainError> {
        let seat = Seat { plan, rank: me.rank(), chunks, isa: Isa::detect() };
        let mut state = RankState::new(run, seat)?;
        if let Some(seating) = seating {
            state.sit_by_towers(me, seating)?;
        }
        let (mut logits, mut carry) = (Vec::new(), Carry::default());
        let local = |number: u64| {
            let batch = batch(case, &run.model, number);
            let samples = grains.samples_of_rank(batch.sample_count, me.rank(), ranks);
            let first = samples.start;
            LocalBatch { samples: batch.slice(samples), global_count: batch.sample_count, first, mark: None }
        };
        for number in 0..STEPS {
            let (now, next) = (local(number), local(number + 1));
            let ahead = chunks > 1 && number + 1 < STEPS;
            step(me, &mut state, &mut carry, Turn { number, batch: &now, next: ahead.then_some(Ok(&next)) })?;
            logits.push(bits(state.logits()));
        }
        state.settle(me, &mut carry)?;
        state.make_whole(me)?;
        let adapters = bits(state.adapter_parameters());
        Ok((logits, bits(&state.parameters), state.tables, adapters))
    });
    let parts = parts.unwrap();
    for part in &parts {
        assert_eq!(part.1, parts[0].1, "dense weights differ between ranks");
        assert_eq!(part.3, parts[0].3, "adapters differ between ranks");
    }
    let logits = (0..STEPS as usize).map(|s| parts.iter().flat_map(|p| p.0[s].clone()).collect()).collect();
    let (weights, adapters) = (parts[0].1.clone(), parts[0].3.clone());
    let mut rows: Vec<Vec<u8>> = Vec::new();
    let mut state: Vec<Vec<u32>> = Vec::new();
    for spec in &run.model.tables {
        let floats = run.sparse.optimizer.state_floats(spec.dim);
        rows.push(vec![0xff; spec.row_count as usize * spec.dim * spec.format.element_bytes()]);
        state.push(vec![u32::MAX; spec.row_count as usize * floats]);
    }
    for shard in parts.iter().flat_map(|part| &part.2) {
        let table = run.model.tables.iter().position(|spec| spec.name == shard.spec().name).unwrap();
        lay(shard, &mut rows[table], &mut state[table]);
    }
    Outcome { logits, weights, adapters, rows, state }
}

/// Puts a shard's rows and state where they belong in the whole table.
fn lay(shard: &Table, rows: &mut [u8], state: &mut [u32]) {
    let (dim, columns) = (shard.spec().dim, shard.columns());
    let (element, width) = (shard.spec().format.element_bytes(), columns.len());
    let (whole, part) = (shard.optimizer().state_floats(dim), shard.optimizer().state_floats(width));
    for row in shard.rows() {
        let to = (row as usize * dim + columns.start) * element;
        rows[to..][..width * element].copy_from_slice(shard.row_bytes(row..row + 1));
        let values = bits(shard.state(row..row + 1));
        let to = row as usize * whole;
        if width == dim {
            state[to..][..whole].copy_from_slice(&values);
            continue;
        }
        // Floats of elements lie by kind; what is left is one for the row.
        for kind in 0..part / width {
            let from = &values[kind * width..][..width];
            state[to + kind * dim + columns.start..][..width].copy_from_slice(from);
        }
        if part % width > 0 {
            state[to + whole - 1] = values[part - 1];
        }
    }
}

fn oracle(case: &Case, run: &Run) -> Outcome {
    let mut oracle = Oracle::student(&run.model, run.grains(), &run.sparse, &run.dense, &run.distil);
    oracle.exchange = run.exchange;
    let plan = Plan::balanced(&run.model, 1);
    let first = RankState::new(run, Seat { plan: &plan, rank: 0, chunks: 1, isa: Isa::SCALAR }).unwrap();
    oracle.weights.values.copy_from_slice(&first.parameters);
    let tasks = run.model.tasks.len();
    let adapters = first.adapter_parameters().chunks((first.adapter_parameters().len() / tasks).max(1));
    for (adapter, values) in oracle.adapters.iter_mut().zip(adapters) {
        adapter.values.copy_from_slice(values);
    }
    for (table, rows) in first.tables.iter().zip(&mut oracle.tables) {
        let values: Vec<f32> = table
            .row_bytes(table.rows())
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        for (row, value) in rows.iter_mut().zip(values.chunks(table.spec().dim)) {
            row.values.copy_from_slice(value);
        }
    }
    let logits =
        (0..STEPS).map(|number| bits(&oracle.train_step(&batch(case, &run.model, number)).logits)).collect();
    let bytes =
        |row: &campanile_oracle::Row| row.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    Outcome {
        logits,
        weights: bits(&oracle.weights.values),
        adapters: oracle.adapters.iter().flat_map(|adapter| bits(&adapter.values)).collect(),
        rows: oracle.tables.iter().map(|rows| rows.iter().flat_map(bytes).collect()).collect(),
        state: oracle
            .tables
            .iter()
            .map(|rows| rows.iter().flat_map(|row| bits(&row.state)).collect())
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_number_of_ranks_and_every_plan_has_the_bits_of_the_oracle(case in case()) {
        let run = run_of(&case);
        let want = oracle(&case, &run);
        for ranks in [1, 2, 4, 8] {
            for plan in [Plan::balanced(&run.model, ranks), plan(&case, &run.model, ranks)] {
                let found = engine(&case, &run, &plan, case.chunks);
                prop_assert_eq!(&found.logits, &want.logits, "logits on {} ranks", ranks);
                prop_assert_eq!(&found.weights, &want.weights, "dense weights on {} ranks", ranks);
                prop_assert_eq!(&found.adapters, &want.adapters, "adapters on {} ranks", ranks);
                prop_assert_eq!(&found.rows, &want.rows, "rows on {} ranks", ranks);
                prop_assert_eq!(&found.state, &want.state, "state on {} ranks", ranks);
            }
        }
    }

    /// There is no oracle for bfloat16 operands and 16-bit rows, but ranks must not matter there either.
    #[test]
    fn low_precision_does_not_see_the_number_of_ranks(case in case()) {
        let mut run = run_of(&case);
        run.model.precision = Precision::Bf16;
        for (table, format) in run.model.tables.iter_mut().zip([RowFormat::Bf16, RowFormat::F16].iter().cycle()) {
            table.format = *format;
        }
        let one = engine(&case, &run, &Plan::balanced(&run.model, 1), 1);
        for ranks in [2, 4, 8] {
            let plan = plan(&case, &run.model, ranks);
            prop_assert_eq!(&engine(&case, &run, &plan, case.chunks), &one, "{} ranks", ranks);
        }
    }
}

/// Groups and members: hosts and ranks of each, several hosts to a tower, several towers to a host.
const SHAPES: [(usize, usize); 13] =
    [(1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4), (8, 1), (1, 8), (4, 4), (2, 8), (8, 2), (16, 1)];

/// A run with towers for every shape: 16 features, each with its table, dealt to some towers.
fn seated_run(case: &Case, towers: usize, module: u8) -> (Case, Run) {
    let dims = [8usize, 8, 8, 8, 8, 40, 40, 40, 8, 8];
    let tables: Vec<(u64, usize)> = (0..16).map(|t| (5 + 3 * t as u64, dims[t % 10])).collect();
    let features = (0..16).map(|f| (f, (f % 3) as u8)).collect();
    let case = Case { tables, features, network: case.network % 6, towers: 0, ..case.clone() };
    let mut run = run_of(&case);
    run.grain_count = 16;
    let module = |features: &[usize]| {
        let equal = features.iter().all(|&f| dims[f % 10] == dims[features[0] % 10]);
        match module {
            0 => TowerModule::Identity,
            1 => TowerModule::Cross { layers: 1, rank: CrossRank::Low(3), width: 8 },
            2 if features[0].is_multiple_of(2) => TowerModule::Identity,
            _ if equal => TowerModule::Ensemble { per_feature: 1, mixed: 1, width: 8 },
            _ => TowerModule::Ensemble { per_feature: 0, mixed: 2, width: 8 },
        }
    };
    let list = (0..towers)
        .map(|tower| {
            let features: Vec<usize> = (0..16).filter(|f| f * 7 % 16 % towers == tower).collect();
            TowerSpec { name: format!("tower{tower}"), module: module(&features), features }
        })
        .collect();
    run.model.towers = Towers { variant: TowerVariant::Towers, list };
    (case, run)
}

fn compare(found: &Outcome, want: &Outcome, what: &str) {
    assert_eq!(found.logits, want.logits, "logits, {what}");
    assert_eq!(found.weights, want.weights, "dense weights, {what}");
    assert_eq!(found.adapters, want.adapters, "adapters, {what}");
    assert_eq!(found.rows, want.rows, "rows, {what}");
    assert_eq!(found.state, want.state, "state, {what}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// The ways of towers, in every shape, have the bits of the oracle, and without modules those of the flat model.
    #[test]
    fn the_ways_of_towers_have_the_bits_of_the_oracle(case in case(), module in 0u8..4) {
        for towers in [16, 8, 3] {
            let (case, mut run) = seated_run(&case, towers, module);
            let want = oracle(&case, &run);
            if module == 0 {
                let flat = Run { model: ModelSpec { towers: Towers::default(), ..run.model.clone() }, ..run.clone() };
                compare(&oracle(&case, &flat), &want, "the flat model");
                run.model.towers.variant = TowerVariant::Sptt;
            }
            for (groups, members) in SHAPES {
                let Ok(seating) = Seating::new(&run.model, groups * members, groups) else {
                    prop_assert!(groups > towers);
                    continue;
                };
                let plan = seating.plan(&run.model);
                let what = format!("{towers} towers in {groups} groups of {members}, module {module}");
                let chunks = case.chunks;
                compare(&engine_seated(&case, &run, (&plan, Some(&seating)), chunks), &want, &what);
                if members > 1 {
                    let (cut, chunks) = (cut_inside(&run.model, &seating), 5 - chunks);
                    let what = format!("{what}, cut");
                    compare(&engine_seated(&case, &run, (&cut, Some(&seating)), chunks), &want, &what);
                }
            }
        }
    }
}

/// A plan that cuts tables by rows and columns inside their groups.
fn cut_inside(model: &ModelSpec, seating: &Seating) -> Plan {
    let mut plan = seating.plan(model);
    for (table, placement) in plan.placements.iter_mut().enumerate() {
        let group = placement.shards[0].rank / seating.members;
        let ranks: Vec<usize> = (group * seating.members..(group + 1) * seating.members).collect();
        *placement = match table % 3 {
            0 => Placement::by_rows(&model.tables[table], &ranks),
            1 => Placement::by_columns(&model.tables[table], &ranks),
            _ => placement.clone().returning(Returns::Rows),
        };
    }
    assert!(seating.fits(model, &plan));
    plan
}

/// A rank that cannot read its batch, and an id beyond its table: all ranks learn of it, and none waits for ever.
#[test]
fn ranks_that_sit_by_towers_fail_together() {
    let (case, mut run) = seated_run(&small_case(), 8, 3);
    run.batch_size = 32;
    for (groups, members) in [(2, 2), (4, 2), (8, 1)] {
        let seating = Seating::new(&run.model, groups * members, groups).unwrap();
        let plan = seating.plan(&run.model);
        let failed = threads::run(groups * members, |me| -> Result<_, TrainError> {
            let seat = Seat { plan: &plan, rank: me.rank(), chunks: 1, isa: Isa::detect() };
            let mut state = RankState::new(&run, seat)?;
            state.sit_by_towers(me, &seating)?;
            let batch = batch(&case, &run.model, 0);
            let own = Grains::new(16).samples_of_rank(batch.sample_count, me.rank(), groups * members);
            let mut samples = batch.slice(own.clone());
            if me.rank() == 1 {
                let (offsets, mut rows, weights) = samples.bags.into_parts();
                rows.iter_mut().for_each(|row| *row = 1_000_000);
                samples.bags = Bags::new(16, own.len(), offsets, rows, weights).unwrap();
            }
            let local =
                LocalBatch { samples, global_count: batch.sample_count, first: own.start, mark: None };
            let turn = Turn { number: 0, batch: &local, next: None };
            let outcome = step(me, &mut state, &mut Carry::default(), turn);
            Ok(outcome.err().map(|error| error.to_string()))
        });
        for words in failed.unwrap() {
            let words = words.expect("every rank has failed");
            assert!(words.contains("rank") && words.contains("1000000"), "{words}");
        }
    }
}

fn small_case() -> Case {
    Case {
        seed: 5,
        batch_size: 32,
        dense_count: 2,
        tables: vec![(10, 8)],
        features: vec![(0, 0)],
        network: 0,
        separate_heads: false,
        tasks: 1,
        sparse: 2,
        dense: 1,
        l2: false,
        clip: true,
        last_batch: 32,
        exchange: ExchangeFormat { forward: WireFormat::F32, backward: WireFormat::F32 },
        plan: 1,
        towers: 0,
        chunks: 1,
        distil: Distil::default(),
    }
}
