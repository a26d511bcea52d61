//! DLRM's dot interaction: the dots of all pairs of a sample's vectors, which lie side by side.

use campanile_kernels::interact::{self, Vectors};

use super::{Backward, Forward, Read};
use crate::workspace::Place;

/// Pairs (1,0), (2,0), (2,1), (3,0) and so on.
#[derive(Debug)]
pub(crate) struct Interaction {
    pub shape: Vectors,
    pub vectors: Read,
    pub pairs: Place,
}

impl Interaction {
    pub fn forward(&self, pass: &mut Forward<'_>) {
        let Forward { isa, values, scratch, .. } = pass;
        values.write(self.pairs, |values, pairs| {
            interact::forward(
                *isa,
                &mut scratch.interact,
                self.shape,
                values.read(self.vectors.place),
                pairs,
            );
        });
    }

    pub fn backward(&self, pass: &mut Backward<'_>) {
        let Backward { isa, values, gradients, scratch, .. } = pass;
        let (vectors, store) = (values.read(self.vectors.place), self.vectors.store);
        gradients.write(self.vectors.place, |gradients, out| {
            let pairs = gradients.read(self.pairs);
            interact::backward(*isa, &mut scratch.interact, self.shape, vectors, pairs, store, out);
        });
    }

    pub fn forward_flops(&self) -> u64 {
        2 * (self.shape.pairs() * self.shape.width) as u64
    }
}
