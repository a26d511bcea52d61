//! Pooled vectors that are written where the network reads them give the bits of those that are handed in.

use campanile_kernels::Isa;
use campanile_model::{
    Network,
    network::{Dense, Landing},
};
use campanile_spec::{CrossRank, DcnStructure, Heads, ModelSpec, NetworkSpec};

use crate::{model, world};

const SAMPLES: usize = 20;

/// The logits of a pass as usual and of one with landed vectors, if the network has a landing.
fn both(spec: &ModelSpec, dense: Dense<'_>, pooled: &[f32]) -> Option<(Vec<f32>, Vec<f32>)> {
    let mut built = Network::new(spec, Isa::detect()).unwrap();
    let weights = built.initial_parameters(3);
    built.prepare(&weights);
    let width = pooled.len() / SAMPLES;
    let mut workspace = built.workspace(SAMPLES + 3);
    match dense {
        Dense::Each(dense) => built.forward(&mut workspace, &weights, SAMPLES, dense, pooled),
        Dense::Once(dense) => built.forward_with_dense_once(&mut workspace, &weights, SAMPLES, dense, pooled),
    }
    let handed_in = workspace.logits(SAMPLES).to_vec();
    let mut workspace = built.workspace(SAMPLES + 3);
    let Landing { floats, stride, offset } = built.landing(&mut workspace)?;
    for (sample, vectors) in pooled.chunks_exact(width).enumerate() {
        floats[sample * stride + offset..][..width].copy_from_slice(vectors);
    }
    built.forward_landed(&mut workspace, &weights, SAMPLES, dense);
    Some((handed_in, workspace.logits(SAMPLES).to_vec()))
}

#[test]
fn landed_vectors_give_the_same_bits() {
    let (structure, cross_rank) = (DcnStructure::Stacked, CrossRank::Low(7));
    let networks = [
        NetworkSpec::Dlrm { bottom: vec![9, 8], top: vec![12] },
        NetworkSpec::Dcn { bottom: vec![9], cross_layers: 2, cross_rank, structure, deep: vec![11] },
        NetworkSpec::Mlp { hidden: vec![14] },
    ];
    for network in networks {
        let spec = model(&[8, 8, 8], 3, 1, network, Heads::Shared);
        let (dense, pooled) = (world::values(3 * SAMPLES, 1), world::values(24 * SAMPLES, 2));
        for dense in [Dense::Each(&dense), Dense::Once(&dense[..3])] {
            let (handed_in, landed) =
                both(&spec, dense, &pooled).expect("nothing but a copy reads the vectors");
            assert_eq!(handed_in, landed, "{:?}, {dense:?}", spec.network);
        }
    }
}

/// A vector of another width is projected, so it cannot be written where it is read.
#[test]
fn a_network_that_changes_its_vectors_has_no_landing() {
    let network = NetworkSpec::Dlrm { bottom: vec![9, 8], top: vec![12] };
    let spec = model(&[8, 5, 8], 3, 1, network, Heads::Shared);
    assert!(both(&spec, Dense::Each(&[0.5; 3 * SAMPLES]), &[0.25; 21 * SAMPLES]).is_none());
}
