//! The engine's dense maths against the oracle, bit for bit: random models, batches, grains and optimizers, at
//! every level of instructions.

#[path = "equivalence/landed.rs"]
mod landed;
#[path = "equivalence/world.rs"]
mod world;

use campanile_kernels::Isa;
use campanile_model::{
    Network,
    loss::{self, Labels, TaskLoss},
    network::{Inputs, Outputs},
    optimizer::{self, Update},
};
use campanile_oracle::{Oracle, Step};
use campanile_spec::{
    Batch, CrossRank, DcnStructure, DenseOptimizer, Distil, Grains, Heads, LearningRate, ModelSpec,
    NetworkSpec, Precision, Schedule, SparseOptimizer, TowerModule, TowerSpec, TowerVariant, Towers,
    config::{DenseTraining, SparseTraining},
};
use proptest::prelude::*;
use world::{batch, model};

/// What the engine gives for a batch before the update.
struct Pass {
    logits: Vec<f32>,
    losses: Vec<TaskLoss>,
    gradient: Vec<f32>,
    pooled_gradient: Vec<f32>,
}

/// One pass over all grains: pairs of neighbours share a gradient, as a rank would do it.
fn pass(
    network: &Network,
    spec: &ModelSpec,
    weights: &[f32],
    batch: &Batch,
    pooled: &[f32],
    grains: Grains,
) -> Pass {
    let (samples, tasks, pooled_width) = (batch.sample_count, spec.tasks.len(), spec.pooled_width());
    let task_weights: Vec<f32> = spec.tasks.iter().map(|task| task.weight).collect();
    let labels = Labels { sample_count: samples, labels: &batch.labels, weights: &batch.weights };
    let mut workspace = network.workspace(samples);
    let mut all = Pass {
        logits: Vec::new(),
        losses: Vec::new(),
        gradient: Vec::new(),
        pooled_gradient: vec![f32::NAN; samples * pooled_width],
    };
    let (mut pairs, mut losses) = (Vec::new(), Vec::new());
    for grain in 0..grains.count() {
        let range = grains.samples(samples, grain);
        let cut = |width: usize| range.start * width..range.end * width;
        let inputs = Inputs {
            samples: range.len(),
            dense: &batch.dense[cut(spec.dense_count)],
            pooled: &pooled[cut(pooled_width)],
        };
        network.forward(&mut workspace, weights, inputs.samples, inputs.dense, inputs.pooled);
        let logits = workspace.logits(range.len()).to_vec();
        let mut logit_gradient = vec![f32::NAN; logits.len()];
        let scale = 1.0 / samples as f64;
        losses.push(loss::binary_cross_entropy(
            labels,
            range.clone(),
            &task_weights,
            scale,
            &logits,
            &mut logit_gradient,
        ));
        if grain.is_multiple_of(2) {
            pairs.push(vec![f32::NAN; network.parameter_count()]);
        }
        let gradient = pairs.last_mut().expect("a pair has begun");
        let outputs = Outputs { gradient, pooled: &mut all.pooled_gradient[cut(pooled_width)] };
        if grain.is_multiple_of(2) {
            network.backward_anew(&mut workspace, inputs, &logit_gradient, outputs);
        } else {
            network.backward(&mut workspace, inputs, &logit_gradient, outputs);
        }
        all.logits.extend(logits);
    }
    all.gradient = tree(pairs);
    all.losses = tree(losses);
    assert_eq!(all.losses.len(), tasks);
    all
}

fn tree<T: Copy + std::ops::Add<Output = T>>(mut nodes: Vec<Vec<T>>) -> Vec<T> {
    while nodes.len() > 1 {
        nodes = nodes
            .chunks(2)
            .map(|pair| pair[0].iter().zip(&pair[1]).map(|(a, b)| *a + *b).collect())
            .collect();
    }
    nodes.swap_remove(0)
}

/// Equal as numbers: zeros may differ in sign, which no sum that follows can see.
fn assert_same(what: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
    if let Some(i) = (0..found.len()).find(|&i| !same(found[i], wanted[i])) {
        panic!("{what}, element {i}: {:e} instead of {:e}", found[i], wanted[i]);
    }
}

fn sparse() -> SparseTraining {
    let learning_rate = LearningRate { base: 0.1, schedule: Schedule::Constant };
    let optimizer = SparseOptimizer::RowwiseAdagrad { epsilon: 1e-8, initial: 0.0 };
    SparseTraining { optimizer, learning_rate, l2: 0.0, row_norm_max: 0.0 }
}

/// Trains the oracle and the engine side by side and compares everything that both know.
fn check(spec: &ModelSpec, samples: usize, grains: Grains, dense: &DenseTraining, seed: u64) {
    let mut oracle = Oracle::new(spec, grains, &sparse(), dense);
    world::fill(&mut oracle, seed);
    for isa in Isa::all() {
        let mut oracle = oracle.clone();
        let mut network = Network::new(spec, isa).expect("a valid model");
        let names = |name: &str, shape: &[usize]| format!("{name} {shape:?}");
        let found: Vec<String> = network.parameters().iter().map(|p| names(&p.name, &p.shape)).collect();
        let wanted: Vec<String> = oracle.parameters.iter().map(|p| names(&p.name, &p.shape)).collect();
        assert_eq!(found, wanted);
        let mut weights = network.initial_parameters(seed);
        oracle.weights.values.clone_from(&weights);
        let mut state = optimizer::first_state(&dense.optimizer, weights.len());
        for step in 0..3 {
            let batch = batch(spec, samples, seed + step);
            network.prepare(&weights);
            let logits_before = oracle.predict(&batch);
            let Step { logits, gradient, pooled, pooled_gradient, task_losses, loss, .. } =
                oracle.train_step(&batch);
            let own = pass(&network, spec, &weights, &batch, &pooled, grains);
            assert_same("logits", &own.logits, &logits);
            assert_same("predictions", &own.logits, &logits_before);
            assert_same("gradient", &own.gradient, &gradient);
            assert_same("pooled gradient", &own.pooled_gradient, &pooled_gradient);
            if !loss.is_finite() {
                break; // Some random models diverge: both did, with the same logits.
            }
            let task_weights: Vec<f32> = spec.tasks.iter().map(|task| task.weight).collect();
            assert_eq!(own.losses.iter().map(|loss| loss.loss_sum).collect::<Vec<_>>(), task_losses);
            assert_eq!(loss::mean_loss(&own.losses, &task_weights, samples), loss);
            update((dense, spec), step, &mut weights, &mut state, &own.gradient);
            assert_same("weights", &weights, &oracle.weights.values);
        }
    }
}

/// Moves the weights in slices that no vector width divides.
fn update(
    (dense, spec): (&DenseTraining, &ModelSpec),
    step: u64,
    weights: &mut [f32],
    state: &mut [Vec<f32>],
    gradient: &[f32],
) {
    let segments = spec.weight_segments(gradient.len()).into_iter();
    let squares = segments.flat_map(|segment| optimizer::block_squares(&gradient[segment]));
    let clip = optimizer::clip_factor(dense.norm_max, squares);
    for (all, share) in spec.rate_shares(weights.len()) {
        let update = Update::new(dense, step, clip).at_share(share);
        for start in all.clone().step_by(37) {
            let range = start..all.end.min(start + 37);
            let mut slices: Vec<&mut [f32]> =
                state.iter_mut().map(|state| &mut state[range.clone()]).collect();
            update.apply(&mut weights[range.clone()], &mut slices, &gradient[range.clone()]);
        }
    }
}

fn widths(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..40, count)
}

/// Of two to five features the second is the item's and the others the user's; likewise the dense inputs.
fn two_tower((user, item, width, dense): (Vec<usize>, Vec<usize>, usize, bool)) -> NetworkSpec {
    let item_dense = if dense { vec![1, 4] } else { Vec::new() };
    NetworkSpec::TwoTower { item_features: vec!["feature1".into()], item_dense, user, item, width }
}

fn networks() -> impl Strategy<Value = NetworkSpec> {
    let rank = prop_oneof![Just(CrossRank::Full), (1usize..9).prop_map(CrossRank::Low)];
    let structure = prop_oneof![Just(DcnStructure::Stacked), Just(DcnStructure::Parallel)];
    prop_oneof![
        3 => (widths(1..4), widths(0..3)).prop_map(|(bottom, top)| NetworkSpec::Dlrm { bottom, top }),
        3 => (widths(0..3), 0usize..4, rank, structure, widths(0..3)).prop_map(
            |(bottom, cross_layers, cross_rank, structure, deep)| {
                NetworkSpec::Dcn { bottom, cross_layers, cross_rank, structure, deep }
            }
        ),
        1 => widths(0..3).prop_map(|hidden| NetworkSpec::Mlp { hidden }),
        2 => (widths(0..3), widths(0..3), 1usize..20, any::<bool>()).prop_map(two_tower),
        1 => Just(NetworkSpec::LogisticRegression),
        1 => Just(NetworkSpec::FactorizationMachine),
    ]
}

/// Features with dims that the network can take: for DLRM some of the interaction's own width.
fn models() -> impl Strategy<Value = ModelSpec> {
    let heads = prop_oneof![Just(Heads::Shared), Just(Heads::Separate)];
    (networks(), heads, 0usize..6, 1usize..4, prop::collection::vec((1usize..12, any::<bool>()), 2..6))
        .prop_map(|(network, heads, dense_count, tasks, dims)| {
            let dims: Vec<usize> = match &network {
                NetworkSpec::Dlrm { bottom, .. } => {
                    let own = bottom[bottom.len() - 1];
                    dims.iter().map(|&(dim, projected)| if projected { dim } else { own }).collect()
                }
                NetworkSpec::LogisticRegression => vec![tasks; dims.len()],
                NetworkSpec::FactorizationMachine => vec![tasks * (1 + dims[0].0); dims.len()],
                NetworkSpec::Dcn { .. } | NetworkSpec::Mlp { .. } | NetworkSpec::TwoTower { .. } => {
                    dims.iter().map(|dim| dim.0).collect()
                }
            };
            model(&dims, dense_count, tasks, network, heads)
        })
}

/// Towers over some models: features dealt at random, every kind of module.
fn towered(mut spec: ModelSpec, of_feature: &[usize], modules: &[(u8, usize, usize, usize)]) -> ModelSpec {
    let width = match &spec.network {
        NetworkSpec::Dlrm { bottom, .. } => Some(bottom[bottom.len() - 1]),
        NetworkSpec::Dcn { .. } | NetworkSpec::Mlp { .. } => None,
        NetworkSpec::TwoTower { .. }
        | NetworkSpec::LogisticRegression
        | NetworkSpec::FactorizationMachine => {
            return spec;
        }
    };
    let mut list = Vec::new();
    for (number, &(kind, a, b, own)) in modules.iter().enumerate() {
        let mine = |feature: &usize| of_feature[*feature] % modules.len() == number;
        let features: Vec<usize> = (0..spec.features.len()).filter(mine).collect();
        let Some(&first) = features.first() else { continue };
        let equal = features.iter().all(|&f| spec.table_of(f).dim == spec.table_of(first).dim);
        let width = width.unwrap_or(own);
        let rank = if b == 0 { CrossRank::Full } else { CrossRank::Low(b) };
        let module = match kind {
            0 => TowerModule::Identity,
            1 => TowerModule::Cross { layers: a + 1, rank, width },
            _ if equal => TowerModule::Ensemble { per_feature: a, mixed: b.max(usize::from(a == 0)), width },
            _ => TowerModule::Ensemble { per_feature: 0, mixed: 1 + b, width },
        };
        list.push(TowerSpec { name: format!("tower{number}"), features, module });
    }
    if list.len() == 1 {
        // A lone tower may give a DLRM one vector, which needs another one to meet.
        spec.dense_count = spec.dense_count.max(1);
    }
    // Modules learn more slowly where the first has an odd number of features.
    let module_rate = if list[0].features.len() % 2 == 1 { 0.3 } else { 1.0 };
    spec.towers = Towers { variant: TowerVariant::Towers, module_rate, list };
    spec
}

fn tower_models() -> impl Strategy<Value = ModelSpec> {
    let module = (0u8..4, 0usize..3, 0usize..3, 1usize..9);
    (models(), prop::collection::vec(0usize..6, 6), prop::collection::vec(module, 1..4))
        .prop_map(|(spec, of_feature, modules)| towered(spec, &of_feature, &modules))
}

fn dense_training() -> impl Strategy<Value = DenseTraining> {
    let optimizer = prop_oneof![
        Just(DenseOptimizer::Sgd { momentum: 0.0 }),
        Just(DenseOptimizer::Sgd { momentum: 0.9 }),
        Just(DenseOptimizer::Adagrad { epsilon: 1e-8, initial: 0.1 }),
        Just(DenseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        Just(DenseOptimizer::Adamw { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01 }),
    ];
    let choice = |value: f32| prop_oneof![Just(0.0f32), Just(value)];
    (optimizer, choice(0.01), choice(0.05)).prop_map(|(optimizer, l2, norm_max)| {
        let learning_rate = LearningRate { base: 0.05, schedule: Schedule::Constant };
        DenseTraining { optimizer, learning_rate, l2, norm_max }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_has_the_oracles_bits(
        spec in models(),
        dense in dense_training(),
        samples in 1usize..40,
        grains in 0u32..4,
        seed in 0u64..1000,
    ) {
        check(&spec, samples, Grains::new(1 << grains), &dense, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn towers_have_the_oracles_bits(
        spec in tower_models(),
        samples in 1usize..40,
        grains in 0u32..4,
        seed in 0u64..1000,
    ) {
        check(&spec, samples, Grains::new(1 << grains), &plain_sgd(), seed);
    }
}

fn plain_sgd() -> DenseTraining {
    let learning_rate = LearningRate { base: 0.05, schedule: Schedule::Constant };
    DenseTraining { optimizer: DenseOptimizer::Sgd { momentum: 0.0 }, learning_rate, l2: 0.0, norm_max: 0.0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Modules and the network above them, apart, have the weights and the bits of the whole.
    #[test]
    fn towers_apart_have_the_bits_of_the_whole(spec in tower_models(), seed in 0u64..1000) {
        let isa = Isa::detect();
        let (samples, pooled_width) = (11, spec.pooled_width());
        let mut parts = [
            Network::new(&spec, isa).unwrap(),
            Network::of_towers(&spec, isa).unwrap(),
            Network::above_towers(&spec, &Distil::default(), isa).unwrap(),
        ];
        let names = |network: &Network| network.parameters().iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        prop_assert_eq!(names(&parts[0]), [names(&parts[1]), names(&parts[2])].concat());
        let weights = parts[0].initial_parameters(seed);
        let modules = parts[1].parameter_count();
        let segments = spec.weight_segments(weights.len());
        prop_assert_eq!(segments[segments.len() - 1].clone(), modules..weights.len());
        let (lower, upper) = weights.split_at(modules);
        parts[0].prepare(&weights);
        parts[1].prepare(lower);
        parts[2].prepare(upper);
        let [whole, towers, above] = &parts;
        let dense = world::values(samples * spec.dense_count, seed);
        let pooled = world::values(samples * pooled_width, seed + 1);
        let inputs = |pooled| Inputs { samples, dense: &dense, pooled };
        let mut spaces = [whole.workspace(samples), towers.workspace(samples), above.workspace(samples)];
        whole.forward(&mut spaces[0], &weights, samples, &dense, &pooled);
        towers.forward(&mut spaces[1], lower, samples, &[], &pooled);
        let handed_on = spaces[1].logits(samples).to_vec();
        above.forward(&mut spaces[2], upper, samples, &dense, &handed_on);
        assert_same("logits", spaces[2].logits(samples), spaces[0].logits(samples));
        let logits = world::values(samples * spec.tasks.len(), seed + 2);
        let (mut all, mut all_pooled) = (vec![f32::NAN; weights.len()], vec![f32::NAN; pooled.len()]);
        let outputs = Outputs { gradient: &mut all, pooled: &mut all_pooled };
        whole.backward_anew(&mut spaces[0], inputs(&pooled), &logits, outputs);
        let (mut two, mut between) = (vec![f32::NAN; upper.len()], vec![f32::NAN; handed_on.len()]);
        let outputs = Outputs { gradient: &mut two, pooled: &mut between };
        above.backward_anew(&mut spaces[2], inputs(&handed_on), &logits, outputs);
        let (mut one, mut one_pooled) = (vec![f32::NAN; lower.len()], vec![f32::NAN; pooled.len()]);
        let outputs = Outputs { gradient: &mut one, pooled: &mut one_pooled };
        let lower_inputs = Inputs { samples, dense: &[], pooled: &pooled };
        towers.backward_anew(&mut spaces[1], lower_inputs, &between, outputs);
        assert_same("gradient", &[one, two].concat(), &all);
        assert_same("pooled gradient", &one_pooled, &all_pooled);
    }
}

/// All towers identity, whatever their order: the flat model's bits.
#[test]
fn identity_towers_are_the_flat_model() {
    let network = NetworkSpec::Dlrm { bottom: vec![9, 8], top: vec![12] };
    let flat = model(&[8, 8, 5, 8], 3, 1, network, Heads::Shared);
    let tower = |name: &str, features: &[usize]| TowerSpec {
        name: name.into(),
        features: features.to_vec(),
        module: TowerModule::Identity,
    };
    let list = vec![tower("b", &[1, 3]), tower("a", &[0, 2])];
    let towers = ModelSpec {
        towers: Towers { variant: TowerVariant::Towers, module_rate: 1.0, list },
        ..flat.clone()
    };
    let logits = |spec: &ModelSpec| {
        let mut built = Network::new(spec, Isa::detect()).unwrap();
        let weights = built.initial_parameters(3);
        built.prepare(&weights);
        let mut workspace = built.workspace(20);
        built.forward(&mut workspace, &weights, 20, &world::values(60, 1), &world::values(29 * 20, 2));
        workspace.logits(20).to_vec()
    };
    assert_eq!(logits(&flat), logits(&towers));
}

/// Sums longer than one block of 512 terms, forward and backward.
#[test]
fn wide_layers_have_the_oracles_bits() {
    let dlrm = NetworkSpec::Dlrm { bottom: vec![530, 17], top: vec![1030] };
    check(&model(&[17, 17, 5], 3, 1, dlrm, Heads::Shared), 9, Grains::new(2), &plain_sgd(), 1);
    let structure = DcnStructure::Stacked;
    let cross_rank = CrossRank::Low(7);
    let dcn = NetworkSpec::Dcn { bottom: vec![], cross_layers: 3, cross_rank, structure, deep: vec![600] };
    check(&model(&[300, 270], 3, 2, dcn, Heads::Separate), 5, Grains::new(1), &plain_sgd(), 2);
}

/// The logits of one sample do not depend on how many others are in the call.
#[test]
fn logits_do_not_depend_on_the_number_of_samples() {
    let network = NetworkSpec::Dlrm { bottom: vec![33, 16], top: vec![70, 21] };
    for precision in [Precision::F32, Precision::Bf16] {
        let spec = ModelSpec { precision, ..model(&[16, 16, 9], 5, 2, network.clone(), Heads::Separate) };
        let mut built = Network::new(&spec, Isa::detect()).unwrap();
        let weights = built.initial_parameters(3);
        built.prepare(&weights);
        let mut workspace = built.workspace(64);
        let (dense, pooled) = (world::values(5 * 64, 1), world::values(41 * 64, 2));
        built.forward(&mut workspace, &weights, 64, &dense, &pooled);
        let all = workspace.logits(64).to_vec();
        for samples in [1, 2, 5, 7, 13, 16, 31] {
            let (dense, pooled) = (&dense[..5 * samples], &pooled[..41 * samples]);
            built.forward(&mut workspace, &weights, samples, dense, pooled);
            assert_eq!(workspace.logits(samples), &all[..2 * samples], "{samples} samples, {precision:?}");
        }
    }
}

/// In bf16 each factor is off by at most 2^-9 of itself. As vectors, logits stay within 1 % of their length and
/// the weights' gradients, which average over samples, within 5 %. A single sample's gradient is further off
/// where a ReLU turns: the pooled gradients stay within 15 %.
#[test]
fn bf16_stays_close_to_f32() {
    let structure = DcnStructure::Stacked;
    let cross_rank = CrossRank::Low(8);
    for network in [
        NetworkSpec::Dlrm { bottom: vec![64, 16], top: vec![64, 32] },
        NetworkSpec::Dcn { bottom: vec![32, 16], cross_layers: 2, cross_rank, structure, deep: vec![64, 32] },
    ] {
        let spec = model(&[16, 16, 16, 16], 13, 1, network, Heads::Shared);
        let batch = batch(&spec, 64, 5);
        let mut oracle = Oracle::new(&spec, Grains::new(2), &sparse(), &plain_sgd());
        world::fill(&mut oracle, 7);
        let bf16 = ModelSpec { precision: Precision::Bf16, ..spec.clone() };
        let mut network = Network::new(&bf16, Isa::detect()).unwrap();
        let weights = network.initial_parameters(11);
        oracle.weights.values.clone_from(&weights);
        network.prepare(&weights);
        let step = oracle.train_step(&batch);
        let own = pass(&network, &bf16, &weights, &batch, &step.pooled, Grains::new(2));
        for (what, found, wanted, bound) in [
            ("logits", &own.logits, &step.logits, 0.01),
            ("gradient", &own.gradient, &step.gradient, 0.05),
            ("pooled gradient", &own.pooled_gradient, &step.pooled_gradient, 0.15),
        ] {
            let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
            let apart = length(&mut found.iter().zip(wanted).map(|(a, b)| a - b));
            let share = apart / length(&mut wanted.iter().copied());
            assert!(share > 0.0 && share < bound, "{what}: apart by {share} of its length");
        }
    }
}
