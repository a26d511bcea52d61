//! The dense weights as one flat vector, and their first values.
//!
//! Layers only keep ranges into the vector, so that reducing gradients, updating, clipping and checkpointing
//! are loops over one slice. The order is that in which a network names its layers, from the input upwards;
//! names and shapes are those that a PyTorch user expects (`bottom.0.weight` is `[out, in]`).

use std::ops::Range;

use campanile_kernels::random;

use crate::ModelError;

/// One dense weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// For example `bottom.0.weight`; unique.
    pub name: String,
    /// `[out, in]` or `[out]`.
    pub shape: Vec<usize>,
    /// Its place in the flat vector.
    pub range: Range<usize>,
    /// Its first value.
    pub first: First,
}

/// A weight's first value.
#[derive(Debug, Clone, PartialEq)]
pub enum First {
    /// All zeros.
    Zeros,
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        deviation: f32,
    },
    /// A matrix that makes a vector of each of several: normal, and larger where a vector is made of its own than of others, so
    /// that every vector can be told apart from the first step on.
    OfVectors {
        /// Floats of each vector that goes in.
        inputs: Vec<usize>,
        /// Floats of each that comes out.
        width: usize,
    },
}

/// What other vectors have in a first projection, beside an ordinary first value.
const OF_OTHERS: f64 = 0.3;

/// The weights in the order of their making.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    parameters: Vec<Parameter>,
}

impl Layout {
    /// Adds a weight behind the others.
    pub(crate) fn add(
        &mut self,
        name: String,
        shape: &[usize],
        first: First,
    ) -> Result<Range<usize>, ModelError> {
        if self.parameters.iter().any(|p| p.name == name) {
            return Err(ModelError::Duplicate { name });
        }
        let start = self.parameters.last().map_or(0, |p| p.range.end);
        let range = start..start + shape.iter().product::<usize>();
        self.parameters.push(Parameter { name, shape: shape.to_vec(), range: range.clone(), first });
        Ok(range)
    }

    pub(crate) fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }
}

/// The first values of all weights: each is a function of the seed, the weight's name and the element only.
pub(crate) fn first_values(parameters: &[Parameter], seed: u64) -> Vec<f32> {
    let count = parameters.last().map_or(0, |p| p.range.end);
    let mut values = vec![0.0; count];
    for parameter in parameters {
        let key = random::chain(random::chain(DENSE_STREAM, seed), name_key(&parameter.name));
        let own = &mut values[parameter.range.clone()];
        match &parameter.first {
            First::Zeros => {}
            First::Normal { deviation } => random::fill_normal(own, key, *deviation),
            First::OfVectors { inputs, width } => {
                random::fill_normal(own, key, 1.0);
                scale_by_vector(own, inputs, *width);
            }
        }
    }
    values
}

/// Variance `2/(in+out)` of a vector's own floats, and of all floats for those of others, of which a part is left.
fn scale_by_vector(matrix: &mut [f32], inputs: &[usize], width: usize) {
    let spread = |inputs: usize, outputs: usize| (2.0 / (inputs + outputs) as f64).sqrt();
    let all: usize = inputs.iter().sum();
    let of_others = (OF_OTHERS * spread(all, inputs.len() * width)) as f32;
    for (row, values) in matrix.chunks_exact_mut(all).enumerate() {
        let own = row / width;
        let mut start = 0;
        for (vector, &floats) in inputs.iter().enumerate() {
            let factor = if vector == own { spread(floats, width) as f32 } else { of_others };
            values[start..start + floats].iter_mut().for_each(|value| *value *= factor);
            start += floats;
        }
    }
}

/// Keeps the dense weights' random numbers apart from the rows' ("dense" in ASCII).
const DENSE_STREAM: u64 = 0x64_65_6e_73_65;

/// FNV-1a.
fn name_key(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_depend_on_seed_and_name_only() {
        let mut layout = Layout::default();
        let normal = First::Normal { deviation: 0.5 };
        layout.add("a".into(), &[30, 40], normal.clone()).unwrap();
        layout.add("b".into(), &[7], First::Zeros).unwrap();
        layout.add("c".into(), &[30, 40], normal.clone()).unwrap();
        let all = layout.into_parameters();
        let values = first_values(&all, 1);
        let (a, b, c) = (&values[..1200], &values[1200..1207], &values[1207..]);
        assert!(b.iter().all(|v| *v == 0.0));
        assert_ne!(a, c);
        assert_ne!(values, first_values(&all, 2));
        let mean = a.iter().sum::<f32>() / 1200.0;
        let deviation = (a.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 1200.0).sqrt();
        assert!(mean.abs() < 0.06 && (deviation - 0.5).abs() < 0.05, "mean {mean}, deviation {deviation}");
        let mut alone = Layout::default();
        alone.add("c".into(), &[30, 40], normal).unwrap();
        assert_eq!(first_values(&alone.into_parameters(), 1), c);
    }

    #[test]
    fn a_projection_begins_with_each_vectors_own_floats() {
        let (inputs, width) = (vec![16, 48], 24);
        let mut layout = Layout::default();
        layout.add("p".into(), &[48, 64], First::OfVectors { inputs, width }).unwrap();
        let values = first_values(&layout.into_parameters(), 1);
        let deviation = |rows: Range<usize>, columns: Range<usize>| {
            let of_row = |row: usize| values[row * 64 + columns.start..row * 64 + columns.end].iter();
            let squares: f32 = rows.clone().flat_map(of_row).map(|value| value * value).sum();
            (squares / (rows.len() * columns.len()) as f32).sqrt()
        };
        let others = 0.3 * (2.0f32 / (64 + 48) as f32).sqrt();
        let wanted = [(0..24, 0..16, (2.0f32 / 40.0).sqrt()), (24..48, 16..64, (2.0f32 / 72.0).sqrt())];
        let wanted = wanted.into_iter().chain([(0..24, 16..64, others), (24..48, 0..16, others)]);
        for (rows, columns, wanted) in wanted {
            let found = deviation(rows.clone(), columns.clone());
            assert!((found / wanted - 1.0).abs() < 0.12, "{rows:?} {columns:?}: {found}, wanted {wanted}");
        }
    }

    #[test]
    fn a_name_exists_once() {
        let mut layout = Layout::default();
        layout.add("a".into(), &[1], First::Zeros).unwrap();
        let error = layout.add("a".into(), &[1], First::Zeros).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the weight `a` would exist twice: feature and task names must be unique"
        );
    }
}
