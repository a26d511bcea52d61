//! The towers' modules as ONNX nodes: the same formulas as `model::network::towers`.

use campanile_spec::{ModelSpec, TowerModule, TowerSpec};

use super::{
    graph::Graph,
    networks::{Inputs, cross, side_by_side},
};

/// A vector that the network above the towers reads.
pub(super) struct Vector {
    /// Whose it is: a feature, or a tower.
    pub name: String,
    /// The name of its value, `[batch, width]`; for a tower all its vectors side by side.
    pub value: String,
    /// Floats of each vector.
    pub width: usize,
}

/// The vectors of features that pass as they are, then what each module hands on, as one value a vector.
pub(super) fn vectors_above(graph: &mut Graph, spec: &ModelSpec, inputs: &Inputs) -> Vec<Vector> {
    let plain = |feature: usize| Vector {
        name: spec.features[feature].name.clone(),
        value: inputs.pooled[feature].clone(),
        width: spec.table_of(feature).dim,
    };
    let mut above: Vec<Vector> = spec.plain_features().into_iter().map(plain).collect();
    for tower in spec.tower_modules() {
        let width = tower.output_width(spec) / tower.vector_count();
        let value = module(graph, tower, inputs);
        above.push(Vector { name: tower.name.clone(), value, width });
    }
    above
}

/// One tower's module; the value of all that it hands on.
fn module(graph: &mut Graph, tower: &TowerSpec, inputs: &Inputs) -> String {
    let own: Vec<String> = tower.features.iter().map(|&feature| inputs.pooled[feature].clone()).collect();
    let weight = |name: &str| format!("tower.{}.{name}.weight", tower.name);
    let product =
        |graph: &mut Graph, x: &str, name: &str| graph.node("Gemm", &[x, &weight(name)], &[("transB", 1)]);
    match tower.module {
        TowerModule::Identity => side_by_side(graph, None, &own),
        TowerModule::Ensemble { per_feature, mixed, .. } => {
            let mut parts = Vec::new();
            if mixed > 0 {
                let x = side_by_side(graph, None, &own);
                parts.push(product(graph, &x, "mix"));
            }
            if per_feature > 0 {
                parts.extend(own.iter().map(|x| product(graph, x, "each")));
            }
            side_by_side(graph, None, &parts)
        }
        TowerModule::Cross { layers, rank, .. } => {
            let x = side_by_side(graph, None, &own);
            let crossed = cross(graph, &format!("tower.{}.cross", tower.name), &x, (layers, rank));
            product(graph, &crossed, "project")
        }
    }
}
