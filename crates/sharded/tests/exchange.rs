//! However many ranks share the tables, vectors and updated rows have the bits of one rank.

use std::collections::BTreeMap;

use campanile_comm::{Communicator, threads};
use campanile_kernels::{Isa, codec::Codec};
use campanile_sharded::{Exchange, Manner, ShardedError};
use campanile_spec::{
    Bags, FeatureSpec, Grains, Heads, ModelSpec, NetworkSpec, Placement, Plan, Pooling, Precision, Returns,
    RowFormat, RowInit, Shard, SparseOptimizer, TableId, TableSpec, TaskSpec,
};
use campanile_tables::{Table, UpdateStep};
use proptest::prelude::*;

const SAMPLES: usize = 37;
const OPTIMIZER: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.1 };

/// Features on tables of different dims and formats; some share a table, some tables can be cut by columns.
fn model() -> ModelSpec {
    let table = |name: &str, row_count, dim, format| TableSpec {
        name: name.into(),
        row_count,
        dim,
        format,
        init: RowInit::Uniform { bound: 0.5 },
    };
    let feature =
        |name: &str, table, pooling| FeatureSpec { name: name.into(), table: TableId(table), pooling };
    ModelSpec {
        dense_count: 0,
        features: vec![
            feature("user", 0, Pooling::Sum),
            feature("seen", 1, Pooling::Mean),
            feature("shown", 1, Pooling::Sum),
            feature("tags", 2, Pooling::Weighted),
            feature("country", 3, Pooling::Sum),
            feature("query", 4, Pooling::Mean),
            feature("title", 4, Pooling::Weighted),
            feature("image", 5, Pooling::Sum),
        ],
        tables: vec![
            table("user", 50, 4, RowFormat::F32),
            table("item", 20, 8, RowFormat::Bf16),
            table("tag", 10, 3, RowFormat::F32),
            table("country", 5, 1, RowFormat::F32),
            table("word", 30, 100, RowFormat::F32),
            table("image", 12, 65, RowFormat::F16),
        ],
        tasks: vec![TaskSpec { name: "click".into(), weight: 1.0 }],
        network: NetworkSpec::Mlp { hidden: vec![4] },
        heads: Heads::Shared,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

/// Bags of 0 to 4 rows with weights.
fn bags(model: &ModelSpec, round: u64) -> Bags {
    let mut random = random(round);
    let (mut offsets, mut rows, mut weights) = (vec![0], Vec::new(), Vec::new());
    for feature in 0..model.features.len() {
        for _ in 0..SAMPLES {
            for _ in 0..random() % 5 {
                rows.push((random() % model.table_of(feature).row_count) as u32);
                weights.push((random() % 1000) as f32 * 1e-3);
            }
            offsets.push(rows.len() as u32);
        }
    }
    Bags::new(model.features.len(), SAMPLES, offsets, rows, weights).unwrap()
}

/// What an exchange is asked to do.
#[derive(Debug, Clone, Copy)]
struct Case {
    ranks: usize,
    chunks: usize,
    forward: Codec,
    backward: Codec,
    optimizer: SparseOptimizer,
    row_norm_max: f32,
    /// 0 for whole tables; else the seed of a random plan.
    plan: u64,
}

impl Case {
    fn manner(&self) -> Manner {
        Manner {
            grains: Grains::new(8),
            chunks: self.chunks,
            forward: self.forward,
            backward: self.backward,
            isa: Isa::detect(),
        }
    }

    fn plan(&self, model: &ModelSpec) -> Plan {
        if self.plan == 0 {
            return Plan::balanced(model, self.ranks);
        }
        let mut random = random(self.plan);
        let mut below = |count: usize| (random() % count as u64) as usize;
        let placements = model.tables.iter().map(|table| {
            let first = below(self.ranks);
            // Some of the ranks, in any order, also more than the table has rows or column blocks.
            let some: Vec<usize> =
                (0..1 + below(self.ranks)).map(|rank| (first + rank) % self.ranks).collect();
            match below(7) {
                0 => Placement::whole(table, first),
                1 => Placement::whole(table, first).returning(Returns::Rows),
                2 => Placement::by_rows(table, &some),
                3 => Placement::by_columns(table, &some),
                4 => Placement::by_columns(table, &some).returning(Returns::Rows),
                5 => Placement::replicated(table, self.ranks),
                _ => {
                    let second = some.iter().map(|rank| (rank + 1) % self.ranks).collect();
                    Placement::grid(table, &[some, second])
                }
            }
        });
        let plan = Plan { rank_count: self.ranks, placements: placements.collect() };
        plan.check(model).unwrap_or_else(|error| panic!("{error}: {plan:?}"));
        plan
    }
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = 88_172_645_463_325_252u64 ^ (seed << 7);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Every row of every table, with its state, as numbers.
type Contents = BTreeMap<String, Vec<u32>>;

/// Puts a shard's rows and state where they belong in the whole table.
fn lay(contents: &mut Contents, shard: &Table) {
    let (spec, columns) = (shard.spec(), shard.columns());
    let element = spec.format.element_bytes();
    let rows =
        contents.entry(spec.name.clone()).or_insert(vec![u32::MAX; spec.row_count as usize * spec.dim]);
    for row in shard.rows() {
        let bytes = shard.row_bytes(row..row + 1);
        for (column, value) in columns.clone().zip(bytes.chunks_exact(element)) {
            let value = value.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            rows[row as usize * spec.dim + column] = value;
        }
    }
    // State that is one number for the row is the same on all; that of elements lies by columns.
    let floats = shard.optimizer().state_floats(columns.len());
    for row in shard.rows() {
        for (at, value) in shard.state(row..row + 1).iter().enumerate() {
            let element = at < floats / columns.len() * columns.len();
            let kind = if element { at / columns.len() } else { usize::MAX };
            let column = if element { columns.start + at % columns.len() } else { 0 };
            let key = format!("{} state {kind}", spec.name);
            let state = contents.entry(key).or_insert(vec![u32::MAX; spec.row_count as usize * spec.dim]);
            state[row as usize * spec.dim + column] = value.to_bits();
        }
    }
}

/// Three steps: all pooled vectors in sample order, and all tables.
fn run(case: Case) -> (Vec<u32>, Contents) {
    let model = model();
    let (plan, ranks) = (case.plan(&model), case.ranks);
    let parts = threads::run(ranks, |me| -> Result<_, ShardedError> {
        let shard = |(table, shard): (TableId, &Shard)| {
            let spec = &model.tables[table.0 as usize];
            Table::shard(spec, shard.rows.clone(), shard.columns.clone(), &case.optimizer, 3).unwrap()
        };
        let mut shards: Vec<Table> = plan.shards_of(me.rank()).map(shard).collect();
        let copied = model.tables.iter().zip(&plan.placements).filter(|(_, p)| p.replicated && ranks > 1);
        let mut mirrors: Vec<Table> = copied
            .map(|(spec, _)| Table::new(spec, 0..spec.row_count, &SparseOptimizer::Sgd, 3).unwrap())
            .collect();
        let mut exchange = Exchange::new(&model, &plan, me.rank(), case.manner());
        let mut pooled_bits = Vec::new();
        for step in 0..3 {
            let count = if step == 1 { 5 } else { SAMPLES };
            let samples = Grains::new(8).samples_of_rank(count, me.rank(), ranks);
            let bags = bags(&model, step).slice(samples);
            exchange.lookup(me, (&shards, &mirrors), Ok((&bags, count)))?;
            let (pooled, gradient) = exchange.pooled_and_gradient();
            pooled_bits.push(pooled.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
            for (g, p) in gradient.iter_mut().zip(pooled) {
                *g = 0.3 * p - 0.01;
            }
            let update =
                UpdateStep { learning_rate: 0.1, step, l2: 0.0, row_norm_max: case.row_norm_max, seed: 3 };
            exchange.push(me, (&mut shards, &mut mirrors), &update)?;
        }
        for mirror in &mirrors {
            for shard in shards.iter().filter(|shard| shard.spec().name == mirror.spec().name) {
                assert_eq!(shard.row_bytes(shard.rows()), mirror.row_bytes(shard.rows()), "a stale copy");
            }
        }
        Ok((pooled_bits, shards))
    });
    let parts = parts.unwrap();
    let pooled = (0..3).flat_map(|step| parts.iter().flat_map(move |part| part.0[step].clone())).collect();
    let mut contents = Contents::new();
    parts.iter().flat_map(|part| &part.1).for_each(|shard| lay(&mut contents, shard));
    (pooled, contents)
}

fn optimizers() -> [SparseOptimizer; 6] {
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    [
        OPTIMIZER,
        SparseOptimizer::Sgd,
        SparseOptimizer::Adagrad { epsilon, initial: 0.1 },
        SparseOptimizer::Adam { beta1, beta2, epsilon },
        SparseOptimizer::RowwiseAdam { beta1, beta2, epsilon },
        SparseOptimizer::Ftrl { beta: 1.0, l1: 0.01, l2: 0.0 },
    ]
}

const CODECS: [Codec; 4] = [Codec::F32, Codec::F16, Codec::Bf16, Codec::Int8];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn any_ranks_plan_and_chunks_give_the_bits_of_one_rank(
        ranks in prop::sample::select(vec![1usize, 2, 4, 8]),
        chunks in 1usize..5,
        (forward, backward) in (prop::sample::select(CODECS.to_vec()), prop::sample::select(CODECS.to_vec())),
        optimizer in prop::sample::select(optimizers().to_vec()),
        row_norm_max in prop::sample::select(vec![0.0f32, 0.05]),
        plan in 1u64..1_000_000,
    ) {
        let case = Case { ranks, chunks, forward, backward, optimizer, row_norm_max, plan };
        let one = run(Case { ranks: 1, plan: 0, chunks: 1, ..case });
        prop_assert!(one.0.iter().any(|bits| *bits != 0));
        let found = run(case);
        prop_assert_eq!(&found.0, &one.0, "vectors");
        for (name, values) in &one.1 {
            prop_assert_eq!(&found.1[name], values, "{}", name);
        }
    }
}

#[test]
fn codecs_change_what_arrives() {
    let case = Case {
        ranks: 2,
        chunks: 1,
        forward: Codec::F32,
        backward: Codec::F32,
        optimizer: OPTIMIZER,
        row_norm_max: 0.0,
        plan: 0,
    };
    let exact = run(case);
    for codec in &CODECS[1..] {
        assert_ne!(run(Case { forward: *codec, ..case }).0, exact.0, "{codec:?} forward");
        assert_ne!(run(Case { backward: *codec, ..case }).1, exact.1, "{codec:?} backward");
    }
}

#[test]
fn a_row_beyond_its_table_fails_on_all_ranks_with_its_name() {
    let model = model();
    let features = model.features.len();
    for place in [Placement::whole as fn(&TableSpec, usize) -> Placement, Placement::replicated] {
        let plan = Plan {
            rank_count: 2,
            placements: model
                .tables
                .iter()
                .map(|table| place(table, 1 + usize::from(place(table, 0).replicated)))
                .collect(),
        };
        let outcomes = threads::run(2, |me| -> Result<String, ShardedError> {
            let shard = |(table, shard): (TableId, &Shard)| {
                let spec = &model.tables[table.0 as usize];
                Table::shard(spec, shard.rows.clone(), shard.columns.clone(), &OPTIMIZER, 3).unwrap()
            };
            let tables: Vec<Table> = plan.shards_of(me.rank()).map(shard).collect();
            let rows = vec![if me.rank() == 1 { 777 } else { 0 }; features];
            let bags =
                Bags::new(features, 1, (0..=features as u32).collect(), rows, vec![1.0; features]).unwrap();
            let manner = Manner {
                grains: Grains::new(2),
                chunks: 1,
                forward: Codec::F32,
                backward: Codec::F32,
                isa: Isa::detect(),
            };
            let mut exchange = Exchange::new(&model, &plan, me.rank(), manner);
            Ok(exchange.lookup(me, (&tables, &[]), Ok((&bags, 2))).unwrap_err().to_string())
        });
        let outcomes = outcomes.unwrap();
        assert_eq!(outcomes[0], outcomes[1]);
        assert!(outcomes[0].contains("777") && outcomes[0].contains("table `"), "{}", outcomes[0]);
    }
}

#[test]
fn a_rank_without_a_batch_fails_all_with_its_words() {
    let model = model();
    let plan = Plan::balanced(&model, 2);
    let case = Case {
        ranks: 2,
        chunks: 1,
        forward: Codec::F32,
        backward: Codec::F32,
        optimizer: OPTIMIZER,
        row_norm_max: 0.0,
        plan: 0,
    };
    let outcomes = threads::run(2, |me| -> Result<String, ShardedError> {
        let samples = Grains::new(8).samples_of_rank(SAMPLES, me.rank(), 2);
        let bags = bags(&model, 0).slice(samples);
        let batch = if me.rank() == 1 { Err("rows.bin: cut short".to_owned()) } else { Ok((&bags, SAMPLES)) };
        let mut exchange = Exchange::new(&model, &plan, me.rank(), case.manner());
        Ok(exchange.lookup(me, (&[], &[]), batch).unwrap_err().to_string())
    });
    assert_eq!(outcomes.unwrap(), ["rank 1: rows.bin: cut short", "rank 1: rows.bin: cut short"]);
}
