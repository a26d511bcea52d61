//! A teacher's embedding: its last hidden vector, made short by a projection that nobody trains.
//!
//! ```text
//!   e = P h,   P: floats x hidden, each element +1 or -1 over the root of the hidden width, by a hash of
//!              (seed, hidden width, floats, row, column)
//! ```
//!
//! Lengths and angles survive such a projection within about one over the root of the floats (Johnson and Lindenstrauss),
//! and the size of an element of `e` is that of an element of `h` whatever the width. As it is fixed, embeddings of two
//! snapshots differ by what the snapshots have learnt and by nothing else.

use campanile_kernels::random::{chain, element_bits, row_key};

use crate::{Scores, Snapshot, SnapshotError};

/// Keeps the projection apart from what else is drawn from a seed.
const PURPOSE: u64 = 0x656d_6265_6464_696e;

/// A fixed projection of hidden vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Projection {
    inputs: usize,
    floats: usize,
    /// `[float][input]`.
    matrix: Vec<f32>,
}

impl Projection {
    /// The projection of a seed, from so many inputs to so many floats.
    pub fn new(seed: u64, inputs: usize, floats: usize) -> Projection {
        let key = chain(chain(chain(PURPOSE, seed), inputs as u64), floats as u64);
        let size = (1.0 / (inputs.max(1) as f64).sqrt()) as f32;
        let row = |float: usize| {
            let key = row_key(key, float as u64);
            (0..inputs).map(move |input| if element_bits(key, input) & 1 == 0 { size } else { -size })
        };
        Projection { inputs, floats, matrix: (0..floats).flat_map(row).collect() }
    }

    /// That of a teacher, by the seed of its run.
    ///
    /// # Errors
    /// When the teacher has no hidden vector.
    pub fn of(teacher: &Snapshot, floats: usize) -> Result<Projection, SnapshotError> {
        match teacher.hidden_width() {
            0 => Err(SnapshotError::NoHidden { model: teacher.version().model.clone() }),
            inputs => Ok(Projection::new(teacher.job().run.seed, inputs, floats)),
        }
    }

    /// Floats of an embedding.
    pub fn floats(&self) -> usize {
        self.floats
    }

    /// Writes the embeddings `[sample][float]` of all hidden vectors of the scores.
    ///
    /// # Panics
    /// If the scores were kept without hidden vectors, or are another model's.
    pub fn write(&self, scores: &Scores, out: &mut Vec<f32>) {
        let samples = scores.logits.len() / scores.task_count.max(1);
        assert_eq!(scores.hidden.len(), samples * self.inputs, "hidden vectors of {samples} samples");
        out.clear();
        for hidden in scores.hidden.chunks_exact(self.inputs) {
            out.extend(self.matrix.chunks_exact(self.inputs).map(|row| {
                row.iter().zip(hidden).fold(0.0, |sum: f32, (sign, value)| sign.mul_add(*value, sum))
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(projection: &Projection, hidden: Vec<f32>) -> Vec<f32> {
        let logits = vec![0.0; hidden.len() / projection.inputs];
        let scores = Scores { task_count: 1, logits, hidden, ..Scores::default() };
        let mut out = Vec::new();
        projection.write(&scores, &mut out);
        out
    }

    #[test]
    fn it_depends_on_seed_width_and_floats_only() {
        let known = Projection::new(7, 3, 4);
        assert_eq!(known, Projection::new(7, 3, 4));
        assert_ne!(known.matrix, Projection::new(8, 3, 4).matrix);
        // Words of all times must agree, so these signs must never change.
        let signs: String = known.matrix.iter().map(|v| if *v > 0.0 { '+' } else { '-' }).collect();
        assert_eq!(signs, "-+--++++-++-");
        assert_eq!(project(&known, vec![1.0, 0.0, 0.0, 0.0, 2.0, 0.0]).len(), 8);
    }

    /// An element is as large as those of the hidden vector for every width, and distances survive roughly.
    #[test]
    fn sizes_and_distances_survive() {
        let mean_square = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32;
        for width in [8, 64, 1000] {
            let projection = Projection::new(3, width, 64);
            for sample in 0..20u64 {
                let hidden: Vec<f32> =
                    (0..width).map(|i| element_bits(sample, i) as f32 / u32::MAX as f32 - 0.3).collect();
                let ratio = mean_square(&project(&projection, hidden.clone())) / mean_square(&hidden);
                assert!((0.4..1.8).contains(&ratio), "width {width}: {ratio}");
            }
        }
    }
}
