//! The towers' modules, in plain loops: which vectors the rest of the network sees.

use campanile_spec::{ModelSpec, TowerModule, config::ExchangeFormat};

use crate::{
    matrix::Matrix,
    oracle::{Op, POOLED, Tail, Tape},
    sums::add_products,
};

/// The vectors above the towers, with their names: those of features that pass as they are, then each module's.
pub(crate) fn vectors_above(
    spec: &ModelSpec,
    exchange: ExchangeFormat,
    tape: &mut Tape,
) -> Vec<(usize, String)> {
    let offsets = spec.pooled_offsets();
    let vector = |tape: &mut Tape, f: usize| tape.push(Op::Columns(POOLED, offsets[f]..offsets[f + 1]));
    let mut above: Vec<(usize, String)> = Vec::new();
    for f in spec.plain_features() {
        above.push((vector(tape, f), spec.features[f].name.clone()));
    }
    for tower in spec.tower_modules() {
        let own = tower.features.iter().map(|&f| vector(tape, f)).collect();
        let x = tape.push(Op::Beside(own));
        let (weight, count) = (format!("tower.{}", tower.name), tower.features.len());
        let (parts, width) = match tower.module {
            TowerModule::Identity => unreachable!("its features pass as they are"),
            TowerModule::Ensemble { per_feature, mixed, width } => {
                let mut parts = Vec::new();
                if mixed > 0 {
                    parts.push(tape.linear(&format!("{weight}.mix"), "weight", x, mixed * width, Tail::Bare));
                }
                if per_feature > 0 {
                    parts.push(each(tape, format!("{weight}.each.weight"), x, count, per_feature * width));
                }
                (parts, width)
            }
            TowerModule::Cross { layers, rank, width } => {
                let crossed = tape.cross_layers(&format!("{weight}.cross"), x, layers, rank);
                let out =
                    tape.linear(&format!("{weight}.project"), "weight", crossed, count * width, Tail::Bare);
                (vec![out], width)
            }
        };
        let out = tape.push(Op::Beside(parts));
        for number in 0..tower.vector_count() {
            let columns = number * width..(number + 1) * width;
            above.push((tape.push(Op::Columns(out, columns)), format!("{}.{number}", tower.name)));
        }
    }
    if spec.has_tower_modules() {
        above.iter_mut().for_each(|(vector, _)| *vector = tape.push(Op::Travel(*vector, exchange)));
    }
    above
}

/// `x_f Wᵀ` of `count` vectors side by side, each of `outputs` floats then.
fn each(tape: &mut Tape, name: String, x: usize, count: usize, outputs: usize) -> usize {
    let inputs = tape.nodes[x].1.width / count;
    let weight = tape.parameter(name, vec![outputs, inputs]);
    let (w, value) = (&tape.weights[weight..], &tape.nodes[x].1);
    let y = Matrix::from(value.samples, count * outputs, |n, place| {
        let (f, o) = (place / outputs, place % outputs);
        add_products(0.0, inputs, |k| (value.row(n)[f * inputs + k], w[o * inputs + k]))
    });
    tape.nodes.push((Op::Each(x, count, weight), y));
    tape.nodes.len() - 1
}

/// Feature by feature: the sum over its samples for the matrix, and its vector's gradient.
pub(crate) fn each_backward(
    tape: &Tape,
    (x, count, weight): (usize, usize, usize),
    dy: &Matrix,
    before: &mut [Matrix],
    gradient: &mut [f32],
) {
    let value = &tape.nodes[x].1;
    let (inputs, outputs) = (value.width / count, dy.width / count);
    for (place, sum) in gradient[weight..][..outputs * inputs].iter_mut().enumerate() {
        let (o, i) = (place / inputs, place % inputs);
        *sum = (0..count).fold(*sum, |sum, f| {
            add_products(sum, dy.samples, |n| (dy.row(n)[f * outputs + o], value.row(n)[f * inputs + i]))
        });
    }
    let w = &tape.weights[weight..];
    before[x].change(|n, place, g| {
        let (f, i) = (place / inputs, place % inputs);
        add_products(g, outputs, |o| (dy.row(n)[f * outputs + o], w[o * inputs + i]))
    });
}
