//! Between the pooled vectors and the network: the towers' modules.
//!
//! ```text
//!   pooled   [ f0 | f1 | f2 | f3 | f4 ]           towers {f0, f3} and {f2, f4}; f1 is in an identity tower
//!   tower a  [ f0 | f3 ] ──► [ a0 | a1 ]          copied together, unless they lie side by side already
//!   tower b  [ f2 | f4 ] ──► [ b0 | b1 ]
//!   above    f1, a0, a1, b0, b1                   what the layers above see
//! ```
//!
//! The modules come first in the flat weights, tower by tower, so that those of one tower are one run.

use campanile_kernels::codec::Codec;
use campanile_spec::{ModelSpec, TowerModule, TowerSpec};

use super::dcn::cross_layers;
use crate::{
    Journey, ModelError,
    graph::{Graph, Tail},
    parameters::First,
    workspace::Place,
};

/// A vector that the layers above the towers see.
#[derive(Debug, Clone)]
pub(super) struct Vector {
    /// Whose it is: a feature, or a tower with a number.
    pub name: String,
    pub place: Place,
}

/// Names the modules' layers; without modules the vectors above are the pooled ones.
pub(super) fn build(
    spec: &ModelSpec,
    graph: &mut Graph,
    journey: Journey,
) -> Result<Vec<Vector>, ModelError> {
    let (offsets, pooled) = (spec.pooled_offsets(), graph.pooled());
    let place = |feature: usize| pooled.columns(offsets[feature], offsets[feature + 1] - offsets[feature]);
    let mut vectors: Vec<Vector> = spec
        .plain_features()
        .into_iter()
        .map(|feature| Vector { name: spec.features[feature].name.clone(), place: place(feature) })
        .collect();
    for tower in spec.tower_modules() {
        let inputs: Vec<Vector> = tower
            .features
            .iter()
            .map(|&feature| Vector { name: String::new(), place: place(feature) })
            .collect();
        let handed_on = module(graph, tower, &inputs, tower.output_width(spec))?;
        vectors.extend(cut(tower, handed_on));
    }
    if spec.has_tower_modules() && journey != Journey::default() {
        vectors = carry(graph, &vectors, journey);
    }
    Ok(vectors)
}

/// The vectors above the towers where others have computed them: they are the pooled ones then.
pub(super) fn given(spec: &ModelSpec, graph: &Graph, widths: &[usize]) -> Vec<Vector> {
    let plain = spec.plain_features().into_iter().map(|feature| spec.features[feature].name.clone());
    let handed_on = |tower: &TowerSpec| {
        let name = tower.name.clone();
        (0..tower.vector_count()).map(move |vector| format!("{name}.{vector}"))
    };
    let names = plain.chain(spec.tower_modules().flat_map(handed_on));
    let mut start = 0;
    let vector = |(name, width): (String, &usize)| {
        start += width;
        Vector { name, place: graph.pooled().columns(start - width, *width) }
    };
    names.zip(widths).map(vector).collect()
}

/// One tower's module; returns what it hands on.
pub(super) fn module(
    graph: &mut Graph,
    tower: &TowerSpec,
    inputs: &[Vector],
    output_width: usize,
) -> Result<Place, ModelError> {
    let (name, x) = (&tower.name, gather(graph, inputs));
    let y = graph.buffer(output_width);
    match tower.module {
        TowerModule::Identity => graph.copy(x, y),
        TowerModule::Ensemble { mixed, width, .. } => {
            let mix = mixed * width;
            if mix > 0 {
                let weight = format!("tower.{name}.mix");
                graph.linear((&weight, "weight"), x, y.columns(0, mix), Tail::Bare)?;
            }
            if output_width > mix {
                let weight = format!("tower.{name}.each.weight");
                graph.each(weight, x, y.columns(mix, output_width - mix), inputs.len())?;
            }
        }
        TowerModule::Cross { layers, rank, .. } => {
            let crossed = cross_layers(graph, x, &format!("tower.{name}.cross"), (layers, rank))?;
            let widths = inputs.iter().map(|input| input.place.width).collect();
            let first = First::OfVectors { inputs: widths, width: output_width / inputs.len().max(1) };
            let names = (&*format!("tower.{name}.project"), "weight");
            graph.linear_from(names, crossed, y, Tail::Bare, first)?;
        }
    }
    Ok(y)
}

/// The tower's vectors side by side, where they are if they are so already.
fn gather(graph: &mut Graph, inputs: &[Vector]) -> Place {
    match run_from(inputs) {
        (run, count) if count == inputs.len() => run,
        _ => {
            let x = graph.buffer(width_of(inputs));
            copy(graph, inputs, x);
            x
        }
    }
}

fn cut(tower: &TowerSpec, handed_on: Place) -> impl Iterator<Item = Vector> {
    let count = tower.vector_count();
    let width = handed_on.width / count.max(1);
    (0..count).map(move |vector| Vector {
        name: format!("{}.{vector}", tower.name),
        place: handed_on.columns(vector * width, width),
    })
}

/// All vectors in one buffer, rounded as their journey does.
fn carry(graph: &mut Graph, vectors: &[Vector], journey: Journey) -> Vec<Vector> {
    debug_assert!(journey.forward != Codec::F32 || journey.backward != Codec::F32);
    let to = graph.buffer(width_of(vectors));
    let mut start = 0;
    let mut carried = Vec::new();
    for vector in vectors {
        let (name, place) = (vector.name.clone(), to.columns(start, vector.place.width));
        graph.carry(vector.place, place, (journey, place.width));
        start += place.width;
        carried.push(Vector { name, place });
    }
    carried
}

/// Floats of all vectors together.
pub(super) fn width_of(vectors: &[Vector]) -> usize {
    vectors.iter().map(|vector| vector.place.width).sum()
}

/// Copies vectors side by side.
pub(super) fn copy(graph: &mut Graph, vectors: &[Vector], to: Place) {
    let (mut next, mut start) = (0, 0);
    while next < vectors.len() {
        let (run, count) = run_from(&vectors[next..]);
        graph.copy(run, to.columns(start, run.width));
        next += count;
        start += run.width;
    }
}

/// The longest run of vectors that lie side by side, from the first on, and how many they are.
pub(super) fn run_from(vectors: &[Vector]) -> (Place, usize) {
    let mut run = vectors[0].place;
    let mut count = 1;
    while let Some(next) = vectors.get(count).map(|vector| vector.place)
        && next.source == run.source
        && next.start == run.start + run.width
    {
        run.width += next.width;
        count += 1;
    }
    (run, count)
}
