//! However many ranks share the tables, vectors and updated rows have the bits of one rank.

use campanile_comm::{Communicator, threads};
use campanile_sharded::{Exchange, ShardedError};
use campanile_spec::{
    Bags, FeatureSpec, Grains, Heads, ModelSpec, NetworkSpec, Plan, Pooling, Precision, RowFormat, RowInit,
    SparseOptimizer, TableId, TableSpec, TaskSpec,
};
use campanile_tables::{Table, UpdateStep};

const SAMPLES: usize = 37;
const OPTIMIZER: SparseOptimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.1 };

/// Five features on four tables of different dims; two features share a table.
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
        ],
        tables: vec![
            table("user", 50, 4, RowFormat::F32),
            table("item", 20, 8, RowFormat::Bf16),
            table("tag", 10, 3, RowFormat::F32),
            table("country", 5, 1, RowFormat::F32),
        ],
        tasks: vec![TaskSpec { name: "click".into(), weight: 1.0 }],
        network: NetworkSpec::Mlp { hidden: vec![4] },
        heads: Heads::Shared,
        precision: Precision::F32,
    }
}

/// Bags of 0 to 4 rows with weights.
fn bags(model: &ModelSpec, round: u64) -> Bags {
    let mut state = 88_172_645_463_325_252u64 ^ (round << 7);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
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

/// Three steps on `ranks` ranks: all pooled vectors in sample order, and the bytes of all tables.
fn run(ranks: usize) -> (Vec<u32>, Vec<Vec<u8>>) {
    let model = model();
    let plan = Plan::balanced(&model, ranks);
    let parts = threads::run(ranks, |me| -> Result<_, ShardedError> {
        let tables = plan.shards_of(me.rank()).map(|(table, _)| {
            let spec = &model.tables[table.0 as usize];
            Table::new(spec, 0..spec.row_count, &OPTIMIZER, 3).unwrap()
        });
        let mut tables: Vec<Table> = tables.collect();
        let mut exchange = Exchange::new(&model, &plan, me.rank());
        let samples = Grains::new(8).samples_of_rank(SAMPLES, me.rank(), ranks);
        let mut pooled_bits = Vec::new();
        for step in 0..3 {
            exchange.lookup(me, &tables, &bags(&model, step).slice(samples.clone()))?;
            let (pooled, gradient) = exchange.pooled_and_gradient();
            pooled_bits.push(pooled.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
            for (g, p) in gradient.iter_mut().zip(pooled) {
                *g = 0.3 * p - 0.01;
            }
            let update = UpdateStep { learning_rate: 0.1, step, l2: 0.0, row_norm_max: 0.0, seed: 3 };
            exchange.push(me, &mut tables, &update)?;
        }
        let bytes: Vec<_> =
            tables.iter().map(|t| (t.spec().name.clone(), t.row_bytes(t.rows()).to_vec())).collect();
        Ok((pooled_bits, bytes))
    });
    let parts = parts.unwrap();
    let pooled = (0..3).flat_map(|step| parts.iter().flat_map(move |part| part.0[step].clone())).collect();
    let mut tables: Vec<_> = parts.into_iter().flat_map(|part| part.1).collect();
    tables.sort();
    (pooled, tables.into_iter().map(|table| table.1).collect())
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_one() {
    let one = run(1);
    assert!(one.0.iter().any(|bits| *bits != 0));
    for ranks in [2, 4, 8] {
        assert_eq!(run(ranks), one, "{ranks} ranks");
    }
}

#[test]
fn a_row_beyond_its_table_fails_on_all_ranks_with_its_name() {
    let model = model();
    let plan = Plan::balanced(&model, 2);
    let outcomes = threads::run(2, |me| -> Result<String, ShardedError> {
        let tables = plan.shards_of(me.rank()).map(|(table, _)| {
            let spec = &model.tables[table.0 as usize];
            Table::new(spec, 0..spec.row_count, &OPTIMIZER, 3).unwrap()
        });
        let tables: Vec<Table> = tables.collect();
        let rows = vec![if me.rank() == 1 { 777 } else { 0 }; model.features.len()];
        let bags = Bags::new(5, 1, (0..=5).collect(), rows, vec![1.0; 5]).unwrap();
        let error = Exchange::new(&model, &plan, me.rank()).lookup(me, &tables, &bags).unwrap_err();
        Ok(error.to_string())
    });
    let outcomes = outcomes.unwrap();
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].contains("777") && outcomes[0].contains("table `"), "{}", outcomes[0]);
}
