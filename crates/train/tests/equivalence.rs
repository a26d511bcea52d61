//! The engine, on any number of ranks, has the bits of the oracle: logits, dense weights, rows, optimizer state.

#[path = "equivalence/case.rs"]
mod case;
#[path = "equivalence/schedules.rs"]
mod schedules;

use campanile_comm::{Communicator, threads};
use campanile_kernels::Isa;
use campanile_oracle::Oracle;
use campanile_spec::{
    Bags, CrossRank, Distil, Grains, ModelSpec, Placement, Plan, Precision, Returns, RowFormat, Seating,
    TowerModule, TowerSpec, TowerVariant, Towers,
    config::{ExchangeFormat, Run, WireFormat},
};
use campanile_tables::Table;
use campanile_train::{
    TrainError,
    loader::LocalBatch,
    rank::{RankState, Seat},
    step::{Carry, Turn, step},
};
use case::{Case, STEPS, batch, case, plan, run_of};
use proptest::prelude::*;

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
    for (place, spec) in run.model.tables.iter().enumerate() {
        let floats = run.optimizer_of(place).state_floats(spec.dim);
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
    let mut oracle = Oracle::student(&run.model, run.grains(), &run.sparse, &run.dense, &run.distil)
        .following(&run.follow);
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
    let case = Case { tables, features, network: case.network % 6, towers: 0, follow: None, ..case.clone() };
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
    run.model.towers = Towers { variant: TowerVariant::Towers, module_rate: 0.3, list };
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
            assert!(words.contains("rank 1: ") && words.contains("1000000"), "{words}");
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
        follow: None,
    }
}

/// A model of numbers alone has no tables to share out, and trains on any number of ranks all the same.
#[test]
fn a_model_without_ids_has_the_bits_of_the_oracle_on_any_number_of_ranks() {
    let case = Case { features: vec![], tables: vec![], network: 5, ..small_case() };
    let run = run_of(&case);
    let want = oracle(&case, &run);
    for ranks in [1, 2, 4, 8] {
        let found = engine(&case, &run, &Plan::balanced(&run.model, ranks), case.chunks);
        compare(&found, &want, &format!("{ranks} ranks"));
    }
}
