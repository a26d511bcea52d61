//! The clusters and models of examples/simulate.

use campanile_spec::{cluster::Cluster, workload::Workload};

macro_rules! example {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../examples/simulate/", $path, ".toml")))
    };
}

pub const CLUSTERS: [(&str, &str); 5] = [
    example!("clusters/v100"),
    example!("clusters/a100"),
    example!("clusters/h100"),
    example!("clusters/cpu_10gbe"),
    example!("clusters/cpu_100gbe"),
];

pub const MODELS: [(&str, &str); 5] = [
    example!("models/dlrm_criteo"),
    example!("models/dcn_criteo"),
    example!("models/neo_a"),
    example!("models/neo_f"),
    example!("models/neo_i"),
];

pub fn cluster(name: &str) -> Cluster {
    let (path, text) = CLUSTERS.iter().find(|(path, _)| path.ends_with(name)).unwrap();
    Cluster::parse(text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn model(name: &str) -> Workload {
    let (path, text) = MODELS.iter().find(|(path, _)| path.ends_with(name)).unwrap();
    Workload::parse(text).unwrap_or_else(|error| panic!("{path}: {error}"))
}
