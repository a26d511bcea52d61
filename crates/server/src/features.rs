//! From tensors to a request that can be scored.
//!
//! A model's inputs are its raw columns, by name. They come as a user would have them:
//!
//! ```text
//!   age      FP32  [64]            one value a sample
//!   country  BYTES [1]             one for all samples: the user's side, computed once
//!   tags     INT64 [64, 3]         three ids a sample
//!   history  INT64 [170]           all ids of all samples, one bag after the other ...
//!   history.lengths INT32 [64]     ... and how many each sample has
//!   country.rows UINT32 [1]        rows of the table, already looked up: no transform
//! ```
//!
//! A tensor `log.NAME` is not for the model: it is only noted, as the column NAME, for those who train on the log.
//!
//! Four matrices stand for all columns at once: `dense` and `ids` (raw), `prepared_dense` and `prepared_rows`; a
//! column of such a name goes before them. A missing value is NaN (`null` in JSON) or an empty string.

use std::collections::BTreeMap;

use campanile_data::Raw;
use campanile_serve::{Input, Inputs, Request, RequestError, Side, Snapshot};
use thiserror::Error;

use crate::protocol::{Datatype, Limits, ProtocolError, Tensor, at_most};

/// Says how many ids each sample has.
const LENGTHS: &str = ".lengths";
/// Rows instead of ids.
const ROWS: &str = ".rows";
/// What is noted and not scored.
pub(crate) const LOGGED_ONLY: &str = "log.";
/// All columns at once: name, and what it holds.
pub(crate) const MATRICES: &[(&str, Matrix)] = &[
    ("dense", Matrix::Dense),
    ("ids", Matrix::Ids),
    ("prepared_dense", Matrix::PreparedDense),
    ("prepared_rows", Matrix::PreparedRows),
];

/// What a matrix holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matrix {
    Dense,
    Ids,
    PreparedDense,
    PreparedRows,
}

/// Why tensors are no request of this model.
#[derive(Debug, Error)]
pub enum FeatureError {
    /// The tensors themselves.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// What they say about the model's inputs.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The first lengths of two inputs do not go together.
    #[error(
        "input `{input}` is for {found} samples, but `{other}` for {wanted}; give one value for all, or one for each"
    )]
    Samples {
        /// The odd one.
        input: String,
        /// Its samples.
        found: usize,
        /// The one that said how many there are.
        other: String,
        /// How many.
        wanted: usize,
    },
    /// A shape that an input of this kind cannot have.
    #[error("input `{input}` has shape {found:?}; it must be {wanted}")]
    Shape {
        /// The input.
        input: String,
        /// What came.
        found: Vec<usize>,
        /// What may come.
        wanted: String,
    },
    /// Lengths without the ids that they count.
    #[error("input `{input}` counts the ids of `{column}`, which is not there")]
    LengthsAlone {
        /// The lengths.
        input: String,
        /// The column.
        column: String,
    },
}

/// What one tensor is to the model.
#[derive(Debug, Clone, Copy)]
enum Role {
    Column(Input),
    Rows(usize),
    Matrix(Matrix),
}

/// Fills a request for the snapshot.
///
/// # Errors
/// With what the client must change; the request must be begun anew then.
pub fn fill(
    request: &mut Request,
    snapshot: &Snapshot,
    tensors: &[Tensor],
    limits: &Limits,
) -> Result<(), FeatureError> {
    let inputs = snapshot.inputs();
    let mut lengths = BTreeMap::new();
    let mut columns = Vec::with_capacity(tensors.len());
    let is_for_model = |tensor: &&Tensor| logged_only(inputs, tensor.name()).is_none();
    for tensor in tensors.iter().filter(is_for_model) {
        match role(inputs, tensor.name()) {
            Ok(role) => columns.push((role, tensor)),
            Err(unknown) => match tensor.name().strip_suffix(LENGTHS) {
                Some(column) if inputs.find(column).is_ok() => {
                    lengths.insert(column, tensor);
                }
                _ => return Err(unknown.into()),
            },
        }
    }
    for (column, tensor) in &lengths {
        if !columns.iter().any(|(_, ids)| column_of(ids.name()) == *column) {
            let input = tensor.name().to_owned();
            return Err(FeatureError::LengthsAlone { input, column: (*column).to_owned() });
        }
    }
    let samples = sample_count(&columns, &lengths)?;
    tensors
        .iter()
        .filter(|tensor| !is_for_model(tensor))
        .try_for_each(|tensor| check_noted(tensor, samples))?;
    at_most("samples of the request", samples, limits.samples_max)?;
    request.begin(inputs, samples)?;
    let mut filler = Filler { request, inputs, samples, lengths };
    // Weights are counted against ids, so they come last.
    let is_weights = |role: &Role| matches!(role, Role::Column(Input::Weights(_)));
    for (role, tensor) in columns.iter().filter(|(role, _)| !is_weights(role)) {
        filler.take(*role, tensor)?;
    }
    for (role, tensor) in columns.iter().filter(|(role, _)| is_weights(role)) {
        filler.take(*role, tensor)?;
    }
    filler.request.finish()?;
    Ok(())
}

/// The column as which a tensor is only noted; `None` for one that the model reads.
pub(crate) fn logged_only<'a>(inputs: &Inputs, name: &'a str) -> Option<&'a str> {
    let column = name.strip_prefix(LOGGED_ONLY)?;
    role(inputs, name).is_err().then_some(column)
}

/// Refuses what could not be noted sample by sample, while the client can still put it right.
fn check_noted(tensor: &Tensor, samples: usize) -> Result<(), FeatureError> {
    match *tensor.shape() {
        [count] | [count, _] if count == samples || count == 1 => Ok(()),
        _ => Err(shape_error(tensor, format!("[{samples}] or [{samples}, ids], or one for all"))),
    }
}

/// What a tensor of this name is to the model.
fn role(inputs: &Inputs, name: &str) -> Result<Role, RequestError> {
    let unknown = match inputs.find(name) {
        Ok(input) => return Ok(Role::Column(input)),
        Err(unknown) => unknown,
    };
    if let Some(Ok(Input::Sparse(feature))) = name.strip_suffix(ROWS).map(|column| inputs.find(column)) {
        return Ok(Role::Rows(feature));
    }
    let matrix = MATRICES.iter().find(|(known, _)| *known == name);
    matrix.map(|(_, matrix)| Role::Matrix(*matrix)).ok_or(unknown)
}

fn column_of(name: &str) -> &str {
    name.strip_suffix(ROWS).unwrap_or(name)
}

/// How many samples the request has: what all inputs that do not stand for one alone agree on.
fn sample_count(
    columns: &[(Role, &Tensor)],
    lengths: &BTreeMap<&str, &Tensor>,
) -> Result<usize, FeatureError> {
    let mut agreed: Option<(&str, usize)> = None;
    for (role, tensor) in columns {
        // What lies one bag after the other says nothing about samples; its lengths do.
        let counted = match role {
            Role::Column(Input::Weights(_)) => continue,
            _ => lengths.get(column_of(tensor.name())).unwrap_or(tensor),
        };
        let found = counted.shape().first().copied().unwrap_or(1);
        match agreed {
            None | Some((_, 1)) => agreed = Some((counted.name(), found)),
            Some((_, wanted)) if found == wanted || found == 1 => {}
            Some((other, wanted)) => {
                let (input, other) = (counted.name().to_owned(), other.to_owned());
                return Err(FeatureError::Samples { input, found, other, wanted });
            }
        }
    }
    Ok(agreed.map_or(0, |(_, samples)| samples))
}

/// Puts tensors into a request.
struct Filler<'a> {
    request: &'a mut Request,
    inputs: &'a Inputs,
    samples: usize,
    lengths: BTreeMap<&'a str, &'a Tensor>,
}

impl Filler<'_> {
    fn take(&mut self, role: Role, tensor: &Tensor) -> Result<(), FeatureError> {
        match role {
            Role::Column(Input::Dense(column)) => {
                self.flat(tensor, 1)?;
                let side = self.side(tensor);
                with_raws(tensor, |raws| Ok(self.request.raw_dense(column, side, raws.iter().copied())?))
            }
            // One element a sample is a cell as a file has it, which training would cut into ids.
            Role::Column(Input::Sparse(feature)) if self.is_cells(tensor) => {
                let side = self.side(tensor);
                with_raws(tensor, |raws| Ok(self.request.raw_cells(feature, side, raws.iter().copied())?))
            }
            Role::Column(Input::Sparse(feature)) => {
                let (side, lengths) = self.bags(tensor)?;
                with_raws(tensor, |raws| {
                    Ok(self.request.raw_ids(feature, side, &lengths, raws.iter().copied())?)
                })
            }
            Role::Column(Input::Weights(feature)) => Ok(self.request.weights(feature, &tensor.floats()?)?),
            Role::Rows(feature) => {
                let (side, lengths) = self.bags(tensor)?;
                Ok(self.request.rows(feature, side, &lengths, &rows(tensor)?)?)
            }
            Role::Matrix(matrix) => self.take_matrix(matrix, tensor),
        }
    }

    /// All columns of a kind, `[sample][column]`.
    fn take_matrix(&mut self, matrix: Matrix, tensor: &Tensor) -> Result<(), FeatureError> {
        let is_dense = matches!(matrix, Matrix::Dense | Matrix::PreparedDense);
        let width = if is_dense { self.inputs.dense_count() } else { self.inputs.feature_count() };
        self.flat(tensor, width)?;
        let side = self.side(tensor);
        let given = tensor.shape().first().copied().unwrap_or(1);
        let ones = vec![1; given];
        match matrix {
            Matrix::Dense => with_raws(tensor, |raws| {
                (0..width).try_for_each(|column| {
                    let values = raws[column.min(raws.len())..].iter().step_by(width).copied();
                    Ok(self.request.raw_dense(column, side, values)?)
                })
            }),
            Matrix::Ids => with_raws(tensor, |raws| {
                (0..width).try_for_each(|column| {
                    let cells = (0..given).map(|sample| raws[sample * width + column]);
                    Ok(self.request.raw_cells(column, side, cells)?)
                })
            }),
            Matrix::PreparedDense => {
                let values = tensor.floats()?;
                let mut column_values = Vec::with_capacity(given);
                (0..width).try_for_each(|column| {
                    column_values.clear();
                    column_values.extend((0..given).map(|sample| values[sample * width + column]));
                    Ok(self.request.dense(column, side, &column_values)?)
                })
            }
            Matrix::PreparedRows => {
                let rows = rows(tensor)?;
                let mut column_rows = Vec::with_capacity(given);
                (0..width).try_for_each(|column| {
                    column_rows.clear();
                    column_rows.extend((0..given).map(|sample| rows[sample * width + column]));
                    Ok(self.request.rows(column, side, &ones, &column_rows)?)
                })
            }
        }
    }

    /// For whom the tensor is given.
    fn side(&self, counted: &Tensor) -> Side {
        match counted.shape().first() {
            Some(1) | None if self.samples > 1 => Side::Once,
            _ => Side::Each,
        }
    }

    /// Refuses all shapes but `[samples]` (for one column) and `[samples, width]`.
    fn flat(&self, tensor: &Tensor, width: usize) -> Result<(), FeatureError> {
        let fits = match tensor.shape() {
            [_] => width == 1,
            [_, columns] => *columns == width,
            _ => false,
        };
        let wanted =
            if width == 1 { "[samples] or [samples, 1]".to_owned() } else { format!("[samples, {width}]") };
        if fits { Ok(()) } else { Err(shape_error(tensor, wanted)) }
    }

    /// Whether a tensor of ids has one element a sample and no lengths.
    fn is_cells(&self, tensor: &Tensor) -> bool {
        matches!(tensor.shape(), [_] | [_, 1]) && !self.lengths.contains_key(tensor.name())
    }

    /// For whom bags are given, and how many ids each has.
    fn bags(&self, tensor: &Tensor) -> Result<(Side, Vec<u32>), FeatureError> {
        if let Some(lengths) = self.lengths.get(column_of(tensor.name())) {
            self.flat(lengths, 1)?;
            if tensor.shape().len() != 1 {
                return Err(shape_error(
                    tensor,
                    "[ids of all samples], since lengths come with it".to_owned(),
                ));
            }
            return Ok((self.side(lengths), rows(lengths)?));
        }
        let (count, each) = match *tensor.shape() {
            [count] => (count, 1),
            [count, each] => (count, each),
            _ => return Err(shape_error(tensor, "[samples] or [samples, ids]".to_owned())),
        };
        Ok((self.side(tensor), vec![each as u32; count]))
    }
}

fn shape_error(tensor: &Tensor, wanted: String) -> FeatureError {
    FeatureError::Shape { input: tensor.name().to_owned(), found: tensor.shape().to_vec(), wanted }
}

/// Whole numbers that fit 32 bits.
fn rows(tensor: &Tensor) -> Result<Vec<u32>, FeatureError> {
    if tensor.datatype() == Datatype::Uint32 {
        return Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect());
    }
    let values = tensor.integers()?;
    // A look at all of them and then a plain conversion is several times faster than checking while collecting.
    if let Some(place) = values.iter().position(|value| u32::try_from(*value).is_err()) {
        let problem = format!("element {place} is {}; it must be from 0 to {}", values[place], u32::MAX);
        return Err(ProtocolError::Element { input: tensor.name().to_owned(), problem }.into());
    }
    Ok(values.into_iter().map(|value| value as u32).collect())
}

/// Gives the elements as raw values.
fn with_raws(
    tensor: &Tensor,
    then: impl FnOnce(&[Raw<'_>]) -> Result<(), FeatureError>,
) -> Result<(), FeatureError> {
    then(&raws(tensor)?)
}

/// The elements as raw values.
pub(crate) fn raws(tensor: &Tensor) -> Result<Vec<Raw<'_>>, ProtocolError> {
    Ok(match tensor.datatype() {
        Datatype::Bytes => tensor.strings()?.into_iter().map(Raw::text).collect(),
        Datatype::Fp16 => halves(tensor).map(Raw::from_f16).map(or_missing).collect(),
        Datatype::Bf16 => halves(tensor).map(Raw::from_bf16).map(or_missing).collect(),
        // An id beyond the numbers with a sign is the id that a file has.
        Datatype::Uint64 => {
            let words = tensor.data().as_chunks::<8>().0.iter();
            words.map(|bytes| Raw::unsigned(u64::from_le_bytes(*bytes))).collect()
        }
        Datatype::Fp32 | Datatype::Fp64 => {
            tensor.doubles()?.into_iter().map(Raw::Float).map(or_missing).collect()
        }
        _ => tensor.integers()?.into_iter().map(Raw::Int).collect(),
    })
}

/// Nan says that a value is missing.
fn or_missing(raw: Raw<'_>) -> Raw<'_> {
    match raw {
        Raw::Float(value) if value.is_nan() => Raw::Missing,
        other => other,
    }
}

fn halves(tensor: &Tensor) -> impl Iterator<Item = u16> {
    tensor.data().as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn large_ids_and_floats_of_16_bits_are_what_they_are_in_files() {
        let tensor = |datatype, data: Vec<u8>| {
            Tensor::new("x".to_owned(), datatype, &[2], Bytes::from(data), &Limits::default()).unwrap()
        };
        let words = [u64::MAX, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(raws(&tensor(Datatype::Uint64, words)).unwrap(), [Raw::Unsigned(u64::MAX), Raw::Int(7)]);
        let halves = |bits: [u16; 2]| bits.iter().flat_map(|half| half.to_le_bytes()).collect();
        let half = tensor(Datatype::Fp16, halves([0x7e00, 0x399a]));
        assert_eq!(raws(&half).unwrap(), [Raw::Missing, Raw::Float(0.7)]);
        assert_eq!(
            raws(&tensor(Datatype::Bf16, halves([0x4000, 0x3f33]))).unwrap(),
            [Raw::Float(2.0), Raw::Float(0.7)]
        );
    }
}
