//! What a user reads when a model's shapes do not fit together, and the shapes and names that a model has.

use campanile_kernels::Isa;
use campanile_model::Network;
use campanile_spec::{
    CrossRank, DcnStructure, FeatureSpec, Heads, ModelSpec, NetworkSpec, Pooling, Precision, RowFormat,
    RowInit, TableId, TableSpec, TaskSpec,
};

fn model(dims: &[usize], dense_count: usize, tasks: &[&str], network: NetworkSpec) -> ModelSpec {
    let table = |(i, dim): (usize, &usize)| TableSpec {
        name: format!("table{i}"),
        row_count: 10,
        dim: *dim,
        format: RowFormat::F32,
        init: RowInit::Zeros,
    };
    let feature = |i: usize| FeatureSpec {
        name: format!("feature{i}"),
        table: TableId(i as u32),
        pooling: Pooling::Sum,
    };
    ModelSpec {
        dense_count,
        features: (0..dims.len()).map(feature).collect(),
        tables: dims.iter().enumerate().map(table).collect(),
        tasks: tasks.iter().map(|name| TaskSpec { name: name.to_string(), weight: 1.0 }).collect(),
        network,
        heads: Heads::Separate,
        precision: Precision::F32,
        towers: campanile_spec::Towers::default(),
        followers: Vec::new(),
    }
}

fn two_tower(item_features: &[&str], item_dense: &[usize]) -> NetworkSpec {
    NetworkSpec::TwoTower {
        item_features: item_features.iter().map(|name| name.to_string()).collect(),
        item_dense: item_dense.to_vec(),
        user: vec![6],
        item: vec![],
        width: 3,
    }
}

fn message(spec: &ModelSpec) -> String {
    Network::new(spec, Isa::SCALAR).expect_err("the model must be refused").to_string()
}

#[test]
fn every_misfit_is_named() {
    let dlrm = |bottom: &[usize]| NetworkSpec::Dlrm { bottom: bottom.to_vec(), top: vec![8] };
    let dcn = |rank| NetworkSpec::Dcn {
        bottom: vec![],
        cross_layers: 1,
        cross_rank: CrossRank::Low(rank),
        structure: DcnStructure::Stacked,
        deep: vec![],
    };
    let cases = [
        (model(&[4], 2, &[], dlrm(&[4])), "the model has no task: name at least one label"),
        (model(&[], 0, &["click"], dlrm(&[4])), "the model has neither dense inputs nor features"),
        (
            model(&[4, 4], 2, &["click"], dlrm(&[])),
            "2 dense inputs need a bottom MLP: give `bottom` at least one width, the interaction's",
        ),
        (
            model(&[4], 0, &["click"], dlrm(&[4])),
            "the dot interaction has 1 vector(s), it needs two: add features or take another model",
        ),
        (
            model(&[4, 4], 2, &["click"], dlrm(&[8, 0, 4])),
            "layer `bottom.1` has width 0: every width must be at least 1",
        ),
        (
            model(&[4, 4], 2, &["click"], dcn(0)),
            "layer `cross.0` has width 0: every width must be at least 1",
        ),
        (
            model(&[4, 4], 2, &["click", "click"], dlrm(&[4])),
            "the weight `head.click.0.weight` would exist twice: feature and task names must be unique",
        ),
        (
            model(&[1, 2], 2, &["click"], NetworkSpec::LogisticRegression),
            "feature `feature1`: table `table1` has rows of 2 floats, logistic regression needs 1, one weight for \
             each task",
        ),
        (
            model(&[4, 5], 2, &["click", "buy"], NetworkSpec::FactorizationMachine),
            "feature `feature1`: table `table1` has rows of 5 floats, a factorization machine needs the same for \
             all features: for each of 2 task(s) one weight and at least one factor",
        ),
        (
            model(&[4, 5], 1, &["click"], two_tower(&["feature0", "feature1"], &[0])),
            "the user's tower has no inputs: `item_features` and `item_dense` name those of the item, and all \
             others are the user's",
        ),
        (
            model(&[4, 5], 1, &["click"], two_tower(&[], &[])),
            "the item's tower has no inputs: `item_features` and `item_dense` name those of the item, and all \
             others are the user's",
        ),
    ];
    for (spec, wanted) in cases {
        assert_eq!(message(&spec), wanted);
    }
}

/// The names and shapes that checkpoints carry.
#[test]
fn weights_have_stable_names() {
    let mut spec =
        model(&[4, 3], 2, &["click", "buy"], NetworkSpec::Dlrm { bottom: vec![6, 4], top: vec![5] });
    let names = |spec: &ModelSpec| {
        let network = Network::new(spec, Isa::SCALAR).expect("a valid model");
        network.parameters().iter().map(|p| format!("{}{:?}", p.name, p.shape)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(&spec),
        "bottom.0.weight[6, 2] bottom.0.bias[6] bottom.1.weight[4, 6] bottom.1.bias[4] \
         project.feature1.weight[4, 3] \
         head.click.0.weight[5, 7] head.click.0.bias[5] head.click.1.weight[1, 5] head.click.1.bias[1] \
         head.buy.0.weight[5, 7] head.buy.0.bias[5] head.buy.1.weight[1, 5] head.buy.1.bias[1]"
    );
    spec.heads = Heads::Shared;
    spec.network = NetworkSpec::Dcn {
        bottom: vec![],
        cross_layers: 1,
        cross_rank: CrossRank::Low(3),
        structure: DcnStructure::Parallel,
        deep: vec![5],
    };
    assert_eq!(
        names(&spec),
        "cross.0.v[3, 9] cross.0.u[9, 3] cross.0.bias[9] \
         top.0.weight[5, 9] top.0.bias[5] top.1.weight[2, 14] top.1.bias[2]"
    );
    spec.network = NetworkSpec::Mlp { hidden: vec![] };
    assert_eq!(names(&spec), "top.0.weight[2, 9] top.0.bias[2]");
    spec.network = two_tower(&["feature1"], &[0]);
    assert_eq!(
        names(&spec),
        "user.0.weight[6, 5] user.0.bias[6] \
         user.vector.click.weight[3, 6] user.vector.click.bias[3] item.vector.click.weight[3, 4] item.vector.click.bias[3] \
         user.vector.buy.weight[3, 6] user.vector.buy.bias[3] item.vector.buy.weight[3, 4] item.vector.buy.bias[3]"
    );
}

/// Products, biases and dots, counted as the layers have them.
#[test]
fn flops_are_those_of_the_layers() {
    let spec = model(&[4, 4], 2, &["click"], NetworkSpec::Dlrm { bottom: vec![6, 4], top: vec![5] });
    let network = Network::new(&spec, Isa::SCALAR).expect("a valid model");
    let products = 2 * (2 * 6 + 6 * 4 + 7 * 5 + 5);
    assert_eq!(network.forward_gemm_flops_per_sample(), products);
    // Biases, and three dots of four products each.
    assert_eq!(network.forward_flops_per_sample(), products + (6 + 4 + 5 + 1) + 2 * 3 * 4);
}
