//! Scored samples as rows of raw values, as an event log's impressions have them.
//!
//! ```text
//!   the model's columns ..., what is only noted ..., request | served.MODEL | served.MODEL.version | served.MODEL.TASK ...
//! ```
//!
//! A request has many candidates, and each becomes a row of its own; what was sent once for all stands in every row. The
//! score of the first task is `served.MODEL`; other tasks follow under their names.
//!
//! Which tensors `log.NAME` become columns is the operator's to say, not a client's: the columns of a model are always the
//! same. Rows are written one at a time, and what was sent once is kept once, so however many candidates there are, the
//! memory is that of the request; [`ROWS_BYTES_MAX`] is the most that one request may become on disk.

use std::sync::Arc;

use campanile_data::{Raw, logged};
use campanile_serve::{Input, Inputs, Snapshot};
use thiserror::Error;

use super::Record;
use crate::{
    features::{self, MATRICES, Matrix},
    protocol::{ProtocolError, Tensor},
};

/// The inputs of the model that scored a record, in the model's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawColumns {
    /// Number columns.
    dense: Vec<String>,
    /// Id columns, each with the column of its weights.
    sparse: Vec<(String, Option<String>)>,
    /// Tasks.
    tasks: Vec<String>,
}

/// The most bytes that what a request sent once for all may become in the rows of its candidates.
pub const ROWS_BYTES_MAX: u64 = 64 << 20;

/// The rows of a record, with the names of their cells; each is written when it is wanted.
pub struct Rows<'a> {
    record: &'a Record,
    /// What the cells are called.
    pub columns: Vec<String>,
    cells: Vec<Cells<'a>>,
}

/// What stands in a column.
enum Cells<'a> {
    /// The same in every row, as bytes.
    Same(Vec<u8>),
    /// Each sample's own.
    Own(Column<'a>),
}

/// Why a record has no rows of raw values.
#[derive(Debug, Error)]
pub enum RowsError {
    /// Values that are no longer raw.
    #[error(
        "request `{request}` has the input `{input}`, which is already transformed: only raw values can be trained on"
    )]
    Prepared {
        /// The request.
        request: String,
        /// The input.
        input: String,
    },
    /// Tensors that cannot be read.
    #[error("request `{request}`: {source}")]
    Tensor {
        /// The request.
        request: String,
        /// What is wrong.
        source: ProtocolError,
    },
    /// Tensors that do not fit the samples.
    #[error("request `{request}`: input `{input}` does not fit {samples} samples")]
    Shape {
        /// The request.
        request: String,
        /// The input.
        input: String,
        /// Samples that were scored.
        samples: usize,
    },
    /// More than a request may become.
    #[error(
        "request `{request}`: what it sends once for all would be {bytes} bytes in the rows of its {samples} candidates; \
         the limit is {ROWS_BYTES_MAX}"
    )]
    TooMany {
        /// The request.
        request: String,
        /// Bytes of all rows.
        bytes: u64,
        /// Its samples.
        samples: usize,
    },
}

impl RawColumns {
    /// Of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Arc<RawColumns> {
        let inputs: &Inputs = snapshot.inputs();
        let dense = (0..inputs.dense_count()).map(|column| inputs.name(Input::Dense(column)).to_owned());
        let sparse = (0..inputs.feature_count()).map(|feature| {
            let weights = inputs.transforms().weights_name(feature).map(str::to_owned);
            (inputs.name(Input::Sparse(feature)).to_owned(), weights)
        });
        let tasks = snapshot.tasks().map(str::to_owned).collect();
        Arc::new(RawColumns { dense: dense.collect(), sparse: sparse.collect(), tasks })
    }

    /// Names of the model's own columns, each once.
    fn names(&self) -> Vec<&str> {
        let sparse = self.sparse.iter().flat_map(|(name, weights)| [Some(name), weights.as_ref()]);
        let mut names: Vec<&str> = Vec::new();
        for name in self.dense.iter().map(Some).chain(sparse).flatten() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

/// The values of one column.
struct Column<'a> {
    /// All values, one sample after the other.
    raws: Vec<Raw<'a>>,
    /// Where a sample's values begin, and one end behind the last; for one sample if it stands for all.
    starts: Vec<usize>,
    /// Whether cells are lists.
    is_list: bool,
}

impl<'a> Column<'a> {
    /// As it is written: what stands for all samples becomes bytes here and no more.
    fn cells(self) -> Cells<'a> {
        if self.starts.len() != 2 {
            return Cells::Own(self);
        }
        let mut bytes = Vec::new();
        self.put(0, &mut bytes);
        Cells::Same(bytes)
    }

    fn put(&self, sample: usize, row: &mut Vec<u8>) {
        let place = if self.starts.len() == 2 { 0 } else { sample };
        let values = &self.raws[self.starts[place]..self.starts[place + 1]];
        match (self.is_list, values) {
            (false, [one]) => logged::put(row, *one),
            _ => logged::put_list(row, values.iter().copied()),
        }
    }
}

impl Record {
    /// Samples that were scored.
    pub fn sample_count(&self) -> usize {
        self.probabilities.len() / (self.task_count as usize).max(1)
    }

    /// A row for every sample, with the model's columns and those of `logged` that are not the model's.
    ///
    /// # Errors
    /// When the client sent values that are no longer raw, the tensors do not fit, or the rows would be too much.
    pub fn rows(&self, logged: &[String]) -> Result<Rows<'_>, RowsError> {
        let columns = &*self.columns;
        let own = columns.names();
        let noted: Vec<&String> = logged.iter().filter(|name| is_noted(&own, name)).collect();
        let missing = || {
            let mut bytes = Vec::new();
            logged::put(&mut bytes, Raw::Missing);
            Cells::Same(bytes)
        };
        let mut names: Vec<String> = own.iter().map(|name| (*name).to_owned()).collect();
        let mut cells = Vec::with_capacity(names.len() + noted.len());
        for name in &own {
            cells.push(self.column(name)?.map_or_else(missing, Column::cells));
        }
        for name in noted {
            let tensor = self.input(&format!("{}{name}", features::LOGGED_ONLY));
            let column = tensor.map(|tensor| self.shaped(tensor)).transpose()?;
            cells.push(column.map_or_else(missing, Column::cells));
            names.push(name.clone());
        }
        names.extend(["request".to_owned(), format!("served.{}", self.model)]);
        names.push(format!("served.{}.version", self.model));
        names.extend(columns.tasks.iter().skip(1).map(|task| format!("served.{}.{task}", self.model)));
        let same = cells.iter().map(|cells| match cells {
            Cells::Same(bytes) => bytes.len() as u64,
            Cells::Own(_) => 0,
        });
        let samples = self.sample_count();
        let bytes = same.sum::<u64>().saturating_mul(samples as u64);
        if bytes > ROWS_BYTES_MAX {
            return Err(RowsError::TooMany { request: self.id.clone(), bytes, samples });
        }
        Ok(Rows { record: self, columns: names, cells })
    }

    fn input(&self, name: &str) -> Option<&Tensor> {
        self.inputs.iter().find(|tensor| tensor.name() == name)
    }

    /// The values of a column of the model; `None` where the client sent none.
    fn column(&self, name: &str) -> Result<Option<Column<'_>>, RowsError> {
        let weighted = self.columns.sparse.iter().find(|(_, weights)| weights.as_deref() == Some(name));
        if let (Some((feature, _)), Some(weights)) = (weighted, self.input(name)) {
            // Weights lie as the ids of their feature do.
            let ids = self.column(feature)?;
            let raws = self.raws(weights)?;
            let starts = ids.map_or_else(|| vec![0, raws.len()], |ids| ids.starts);
            if starts.last() != Some(&raws.len()) {
                return Err(self.misfit(weights));
            }
            return Ok(Some(Column { raws, starts, is_list: true }));
        }
        if let Some(tensor) = self.input(name) {
            return self.shaped(tensor).map(Some);
        }
        let prepared = [format!("{name}.rows")];
        if let Some(input) = prepared.iter().find(|input| self.input(input).is_some()) {
            return Err(self.prepared(input));
        }
        self.of_matrix(name)
    }

    /// The values of a tensor of a column's own.
    fn shaped<'a>(&self, tensor: &'a Tensor) -> Result<Column<'a>, RowsError> {
        let raws = self.raws(tensor)?;
        if let Some(lengths) = self.input(&format!("{}.lengths", tensor.name())) {
            let lengths = lengths.integers().map_err(|source| self.unreadable(source))?;
            let mut starts = vec![0usize];
            for length in lengths {
                let before = starts[starts.len() - 1];
                let end = usize::try_from(length).ok().and_then(|length| before.checked_add(length));
                starts.push(end.filter(|&end| end <= raws.len()).ok_or_else(|| self.misfit(tensor))?);
            }
            return self.fitting(tensor, Column { raws, starts, is_list: true });
        }
        let (count, each) = match *tensor.shape() {
            [] => (1, 1),
            [count] => (count, 1),
            [count, each] => (count, each),
            _ => return Err(self.misfit(tensor)),
        };
        let starts = (0..=count).map(|sample| sample * each).collect();
        self.fitting(tensor, Column { raws, starts, is_list: each != 1 })
    }

    /// The values of a column inside one of the matrices that stand for all.
    fn of_matrix(&self, name: &str) -> Result<Option<Column<'_>>, RowsError> {
        for (input, kind) in MATRICES {
            let Some(tensor) = self.input(input) else { continue };
            let (is_dense, width) = match kind {
                Matrix::Dense | Matrix::PreparedDense => (true, self.columns.dense.len()),
                Matrix::Ids | Matrix::PreparedRows => (false, self.columns.sparse.len()),
            };
            let place = match is_dense {
                true => self.columns.dense.iter().position(|known| known == name),
                false => self.columns.sparse.iter().position(|(known, _)| known == name),
            };
            let Some(place) = place else { continue };
            if matches!(kind, Matrix::PreparedDense | Matrix::PreparedRows) {
                return Err(self.prepared(input));
            }
            let raws = self.raws(tensor)?.into_iter().skip(place).step_by(width).collect::<Vec<_>>();
            let starts = (0..=raws.len()).collect();
            return self.fitting(tensor, Column { raws, starts, is_list: false }).map(Some);
        }
        Ok(None)
    }

    /// A column that has values for every sample, or one for all.
    fn fitting<'a>(&self, tensor: &Tensor, column: Column<'a>) -> Result<Column<'a>, RowsError> {
        let given = column.starts.len() - 1;
        let fits = given == 1 || given == self.sample_count();
        if fits && column.starts[given] == column.raws.len() { Ok(column) } else { Err(self.misfit(tensor)) }
    }

    fn raws<'a>(&self, tensor: &'a Tensor) -> Result<Vec<Raw<'a>>, RowsError> {
        features::raws(tensor).map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: ProtocolError) -> RowsError {
        RowsError::Tensor { request: self.id.clone(), source }
    }

    fn prepared(&self, input: &str) -> RowsError {
        RowsError::Prepared { request: self.id.clone(), input: input.to_owned() }
    }

    fn misfit(&self, tensor: &Tensor) -> RowsError {
        let (request, input) = (self.id.clone(), tensor.name().to_owned());
        RowsError::Shape { request, input, samples: self.sample_count() }
    }
}

impl Rows<'_> {
    /// Writes the row of a sample behind what is there.
    pub fn put(&self, sample: usize, row: &mut Vec<u8>) {
        for cells in &self.cells {
            match cells {
                Cells::Same(bytes) => row.extend_from_slice(bytes),
                Cells::Own(column) => column.put(sample, row),
            }
        }
        let task_count = (self.record.task_count as usize).max(1);
        let scores = &self.record.probabilities[sample * task_count..(sample + 1) * task_count];
        logged::put(row, Raw::text(self.record.id.as_bytes()));
        logged::put(row, Raw::Float(f64::from(scores[0])));
        logged::put(row, Raw::Int(self.record.version as i64));
        scores[1..].iter().for_each(|score| logged::put(row, Raw::Float(f64::from(*score))));
    }
}

/// Whether a column is only noted; not one of the model's, nor one that every row has anyway.
fn is_noted(own: &[&str], column: &str) -> bool {
    let is_taken = own.contains(&column)
        || own.iter().any(|own| own.strip_prefix(features::LOGGED_ONLY) == Some(column));
    let is_ours = column == "request" || column.starts_with("served.");
    !is_taken && !is_ours
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::protocol::{Datatype, Limits};

    fn tensor(name: &str, datatype: Datatype, shape: &[i64], data: Vec<u8>) -> Tensor {
        Tensor::new(name.to_owned(), datatype, shape, Bytes::from(data), &Limits::default()).unwrap()
    }

    fn longs(name: &str, shape: &[i64], values: &[i64]) -> Tensor {
        tensor(name, Datatype::Int64, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn record(inputs: Vec<Tensor>) -> Record {
        let columns = RawColumns {
            dense: vec!["age".into(), "price".into()],
            sparse: vec![("user".into(), None), ("tags".into(), Some("tag_weights".into()))],
            tasks: vec!["click".into(), "buy".into()],
        };
        Record {
            time_us: 5,
            id: "r1".into(),
            model: "ranker".into(),
            version: 3,
            task_count: 2,
            probabilities: vec![0.5, 0.25, 0.75, 0.125],
            inputs,
            columns: Arc::new(columns),
        }
    }

    #[test]
    fn every_sample_has_a_row_whatever_the_form_of_the_request() {
        let record = record(vec![
            longs("dense", &[1, 2], &[30, 9]),
            longs("user", &[1], &[7]),
            longs("tags", &[3], &[1, 2, 3]),
            longs("tags.lengths", &[2], &[1, 2]),
            longs("tag_weights", &[3], &[4, 5, 6]),
            longs("log.history", &[2, 2], &[8, 9, 10, 11]),
            longs("log.other", &[1], &[1]),
        ]);
        let logged = ["history", "user", "request"].map(str::to_owned);
        let rows = record.rows(&logged).unwrap();
        let names = ["age", "price", "user", "tags", "tag_weights", "history", "request", "served.ranker"];
        assert_eq!(rows.columns[..8], names);
        assert_eq!(rows.columns[8..], ["served.ranker.version", "served.ranker.buy"]);
        let mut wanted = Vec::new();
        for value in [30, 9, 7] {
            logged::put(&mut wanted, Raw::Int(value));
        }
        logged::put_list(&mut wanted, [2, 3].map(Raw::Int));
        logged::put_list(&mut wanted, [5, 6].map(Raw::Int));
        logged::put_list(&mut wanted, [10, 11].map(Raw::Int));
        logged::put(&mut wanted, Raw::text(b"r1"));
        logged::put(&mut wanted, Raw::Float(0.75));
        logged::put(&mut wanted, Raw::Int(3));
        logged::put(&mut wanted, Raw::Float(0.125));
        let mut row = Vec::new();
        rows.put(1, &mut row);
        assert_eq!(row, wanted);
    }

    #[test]
    fn what_cannot_be_trained_on_is_told() {
        let said = |inputs| record(inputs).rows(&["x".to_owned()]).err().unwrap().to_string();
        assert!(said(vec![longs("user.rows", &[2], &[1, 2])]).contains("`user.rows`, which is already"));
        assert!(said(vec![longs("prepared_rows", &[1, 2], &[1, 2])]).contains("already transformed"));
        assert!(said(vec![longs("user", &[3], &[1, 2, 3])]).contains("does not fit 2 samples"));
        // Lengths that wrap around to the right sum.
        let lengths = longs("log.x.lengths", &[3], &[-1, -1, 5]);
        assert!(said(vec![longs("log.x", &[3], &[1, 2, 3]), lengths]).contains("does not fit 2 samples"));
    }

    /// A client chooses no column: whatever it sends, the rows of a model have the columns that the operator named.
    #[test]
    fn columns_are_the_operators_and_a_missing_one_is_a_missing_value() {
        let logged = ["seen".to_owned()];
        let columns = |inputs| record(inputs).rows(&logged).unwrap().columns;
        let bare = columns(vec![]);
        for number in 0..100 {
            assert_eq!(columns(vec![longs(&format!("log.{number}"), &[1], &[1])]), bare);
        }
        assert_eq!(columns(vec![longs("log.seen", &[2], &[1, 2])]), bare);
        assert!(bare.contains(&"seen".to_owned()));
        assert_eq!(bare.iter().filter(|name| *name == "request").count(), 1);
    }

    #[test]
    fn what_is_sent_once_is_kept_once_and_must_not_become_too_much() {
        let shared = |samples: usize| {
            let text = [&60_000u32.to_le_bytes()[..], &[b'x'; 60_000]].concat();
            let mut record = record(vec![tensor("log.seen", Datatype::Bytes, &[1, 17], text.repeat(17))]);
            record.probabilities = vec![0.5; 2 * samples];
            record
        };
        let logged = ["seen".to_owned()];
        let large = shared(60);
        let rows = large.rows(&logged).unwrap();
        let kept: usize = rows
            .cells
            .iter()
            .map(|cells| match cells {
                Cells::Same(bytes) => bytes.len(),
                Cells::Own(column) => column.raws.len(),
            })
            .sum();
        assert!(kept < 1_100_000, "{kept}");
        let mut row = Vec::new();
        rows.put(59, &mut row);
        assert!(row.len() > 1_000_000);
        let words = shared(8192).rows(&logged).err().unwrap().to_string();
        assert!(words.contains("8192 candidates; the limit is 67108864"), "{words}");
    }
}
