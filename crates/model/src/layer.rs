//! The kinds of layers, forward beside backward.
//!
//! A layer is a plain value that names the places it reads and writes and its ranges in the flat weights. It
//! keeps no activations: those are in the workspace, so that one layer serves many threads.

use campanile_kernels::{Isa, matrix::Store};

use crate::workspace::{Gradients, Place, Scratch, Values};

pub(crate) mod copy;
pub(crate) mod cross;
pub(crate) mod each;
pub(crate) mod factorization;
pub(crate) mod interaction;
pub(crate) mod linear;
pub(crate) mod scaled;

pub(crate) use copy::Copy;
pub(crate) use cross::Cross;
pub(crate) use each::Each;
pub(crate) use factorization::Factorization;
pub(crate) use interaction::Interaction;
pub(crate) use linear::Linear;
pub(crate) use scaled::Scaled;

/// One layer.
#[derive(Debug)]
pub(crate) enum Layer {
    Copy(Copy),
    Scaled(Scaled),
    Linear(Linear),
    Each(Each),
    Interaction(Interaction),
    Cross(Cross),
    Factorization(Factorization),
}

/// What a layer reads and writes on the way forward.
pub(crate) struct Forward<'a> {
    pub isa: Isa,
    pub parameters: &'a [f32],
    pub values: Values<'a>,
    pub scratch: &'a mut Scratch,
}

/// What a layer reads and writes on the way back. Gradients of weights go to `gradient`, as `store` says.
pub(crate) struct Backward<'a> {
    pub isa: Isa,
    pub values: Values<'a>,
    pub gradients: Gradients<'a>,
    pub gradient: &'a mut [f32],
    pub store: Store,
    pub scratch: &'a mut Scratch,
}

/// A place that a layer reads, and how its gradient is stored there: the graph decides, for it knows who
/// else reads the place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub place: Place,
    pub store: Store,
}

impl Read {
    pub fn new(place: Place) -> Read {
        Read { place, store: Store::Replace }
    }
}

impl Layer {
    pub fn forward(&self, pass: &mut Forward<'_>) {
        match self {
            Layer::Copy(layer) => layer.forward(pass),
            Layer::Scaled(layer) => layer.forward(pass),
            Layer::Linear(layer) => layer.forward(pass),
            Layer::Each(layer) => layer.forward(pass),
            Layer::Interaction(layer) => layer.forward(pass),
            Layer::Cross(layer) => layer.forward(pass),
            Layer::Factorization(layer) => layer.forward(pass),
        }
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        match self {
            Layer::Copy(layer) => layer.backward(pass),
            Layer::Scaled(layer) => layer.backward(pass),
            Layer::Linear(layer) => layer.backward(pass),
            Layer::Each(layer) => layer.backward(pass),
            Layer::Interaction(layer) => layer.backward(pass),
            Layer::Cross(layer) => layer.backward(pass),
            Layer::Factorization(layer) => layer.backward(pass),
        }
    }

    /// The places that it reads, in the order in which its backward pass writes their gradients.
    pub fn reads_mut(&mut self) -> Vec<&mut Read> {
        match self {
            Layer::Copy(layer) => vec![&mut layer.from],
            Layer::Scaled(layer) => vec![&mut layer.from],
            Layer::Linear(layer) => vec![&mut layer.x],
            Layer::Each(layer) => vec![&mut layer.x],
            Layer::Interaction(layer) => vec![&mut layer.vectors],
            Layer::Cross(layer) => vec![&mut layer.u, &mut layer.x0, &mut layer.x],
            Layer::Factorization(layer) => layer.linear.iter_mut().chain([&mut layer.rows]).collect(),
        }
    }

    /// The place that it writes.
    pub fn writes(&self) -> Place {
        match self {
            Layer::Copy(layer) => layer.to,
            Layer::Scaled(layer) => layer.to,
            Layer::Linear(layer) => layer.y,
            Layer::Each(layer) => layer.y,
            Layer::Interaction(layer) => layer.pairs,
            Layer::Cross(layer) => layer.y,
            Layer::Factorization(layer) => layer.logits,
        }
    }

    /// Floating-point operations per sample in matrix products, and in everything else, forward.
    pub fn forward_flops(&self) -> (u64, u64) {
        match self {
            Layer::Copy(_) | Layer::Scaled(_) => (0, 0),
            Layer::Linear(layer) => layer.forward_flops(),
            Layer::Each(layer) => (layer.forward_flops(), 0),
            Layer::Interaction(layer) => (0, layer.forward_flops()),
            Layer::Cross(layer) => (0, 2 * layer.y.width as u64),
            Layer::Factorization(layer) => (0, 4 * layer.rows.place.width as u64),
        }
    }
}
