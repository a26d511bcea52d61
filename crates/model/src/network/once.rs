//! Which layers see the dense inputs and nothing else.
//!
//! A ranking request has one user and many candidates. Where all dense inputs are the user's, these layers give
//! every sample the same, so they run once.

use crate::{
    layer::Layer,
    workspace::{Place, Source},
};

/// What a layer sees, and who sees the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sees {
    /// Only the dense inputs, through whatever layers.
    pub dense_only: bool,
    /// It sees only the dense inputs, and a layer that sees more reads it.
    pub is_read_by_others: bool,
}

/// Looks at all layers, in the order of their running.
pub(super) fn sees(layers: &mut [Layer]) -> Vec<Sees> {
    let mut same: Vec<Place> = Vec::new();
    let mut sees = Vec::new();
    let mut others: Vec<Place> = Vec::new();
    for layer in layers.iter_mut() {
        let reads: Vec<Place> = layer.reads_mut().iter().map(|read| read.place).collect();
        let is_same = |place: &Place| {
            place.source == Source::Dense || same.iter().any(|written| contains(*written, *place))
        };
        let dense_only = reads.iter().all(is_same);
        if dense_only {
            same.push(layer.writes());
        } else {
            others.extend(reads);
        }
        sees.push(Sees { dense_only, is_read_by_others: false });
    }
    for (layer, sees) in layers.iter().zip(&mut sees) {
        let written = layer.writes();
        sees.is_read_by_others = sees.dense_only && others.iter().any(|read| read.overlaps(written));
    }
    sees
}

fn contains(outer: Place, inner: Place) -> bool {
    outer.source == inner.source
        && outer.start <= inner.start
        && inner.start + inner.width <= outer.start + outer.width
}
