//! Rows of a split read once more from the raw files, as other models read them.
//!
//! Packed rows are those of one model: its columns, its vocabularies, its deviations. A model that was trained yesterday
//! has others, and to compare it with today's both must see the same raw rows, each through its own transforms. So the
//! files are decoded with the columns of all of them side by side, and every model gets its part.

use std::{ops::Range, sync::Arc};

use campanile_spec::{
    Batch,
    config::DataFiles,
    data::{Columns, DataSpec, SourceSpec, Split, SplitSpec},
};

use super::{Prepared, SpareRows, journal::Pass, pack::Segments, pipeline};
use crate::{
    dataset::{Dataset, row_at},
    decode::{Decoded, Decoder},
    error::DataError,
    rows::{RowBuffer, Schema},
    source::{Chunk, ChunkReader, Position, resolve},
    transforms::Transforms,
};

/// Rows of a batch.
const BATCH_ROWS: usize = 4096;

/// Chunks that are decoded between two looks at what they gave.
const CHUNKS_AT_ONCE: u64 = 16;

/// What is to be read once more.
#[derive(Debug, Clone, Copy)]
pub struct Reread<'a> {
    /// Where the rows are, how they are split, and who labels, weights, groups and segments them.
    pub data: &'a DataSpec,
    /// The files.
    pub files: &'a DataFiles,
    /// The same data prepared.
    pub prepared: &'a Prepared,
    /// The split.
    pub split: Split,
    /// At most so many rows, evenly spread over the split; 0 means all.
    pub rows: u64,
    /// Threads that decode.
    pub threads: usize,
    /// How each model reads the columns that it has. An id that its table has no row for is left out, as by a server.
    pub models: &'a [&'a Transforms],
}

impl Reread<'_> {
    /// Visits the rows in order, some at a time: a batch for each model, all of the same rows and labels. A row that the
    /// job's own columns or those of any model cannot take is bad, and goes the way of the job's bad rows.
    ///
    /// # Errors
    /// When the files cannot be read, lack a column, or `visit` fails.
    pub fn each<E: From<DataError>>(
        &self,
        mut visit: impl FnMut(&[Batch]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (decoder, parts) = self.decoder()?;
        let mut files = resolve(self.files, &self.data.split)?;
        if matches!(self.data.split, SplitSpec::ByFile) {
            files.retain(|file| file.split == self.split);
        }
        let threads = self.threads.max(1);
        let mut chunks = ChunkReader::new(&files, &self.data.source, &decoder, Position::default());
        let mut workers = vec![(); threads];
        let spare = SpareRows::default();
        let work = |_: &mut (), _: u64, chunk: &Chunk| {
            let mut decoded = spare.take(&decoder);
            chunk.decode(&decoder, &mut decoded);
            decoded
        };
        let mut segments =
            Segments::new(self.prepared.train.segments(), self.data.columns.segment.as_deref());
        let (mut pass, mut chosen) = (Pass::default(), Chosen::of(self, &decoder.schema));
        let mut batches = vec![Batch::default(); self.models.len()];
        loop {
            let limits = pipeline::RoundLimits {
                in_flight: 3 * threads,
                chunks: CHUNKS_AT_ONCE,
                first_chunk: pass.chunks,
            };
            let more = pipeline::round(&mut chunks, &mut workers, limits, work, |chunk, mut decoded| {
                segments.renumber(&mut decoded)?;
                chosen.take(&decoded, &decoder.schema);
                pass.account(chunk, (&decoded, &decoder), &files, self.data.bad_rows)?;
                spare.give(decoded);
                Ok(())
            })?;
            for rows in chosen.ready.drain(..) {
                parts.iter().zip(&mut batches).for_each(|(part, batch)| part.write(&rows, batch));
                visit(&batches)?;
            }
            if !more || chosen.is_done() {
                break;
            }
        }
        if chosen.growing.row_count > 0 {
            parts.iter().zip(&mut batches).for_each(|(part, batch)| part.write(&chosen.growing, batch));
            visit(&batches)?;
        }
        Ok(())
    }

    /// The decoder of all columns side by side, the job's own first, and the parts of the models.
    fn decoder(&self) -> Result<(Decoder, Vec<Part>), DataError> {
        let unsupported =
            |reason: &str| DataError::Unsupported { column: "all ids".into(), reason: reason.into() };
        if matches!(self.data.source, SourceSpec::Synthetic(_)) {
            return Err(unsupported("a synthetic world has no raw rows to read once more"));
        }
        let own = &self.prepared.transforms;
        let all: Vec<&Transforms> = std::iter::once(own).chain(self.models.iter().copied()).collect();
        let joined = Transforms::beside(&all).ok_or_else(|| {
            unsupported(
                "one of the models reads them as hexadecimal text, as in Criteo's files, or has other `missing_values`, and \
                 another does not",
            )
        })?;
        // A teacher's columns stay, though nobody is judged by them: which rows are bad, and which are held out, is as it was.
        let shared = Columns { dense: Vec::new(), sparse: Vec::new(), ..self.data.columns.clone() };
        let (mut dense, mut features) = (own.dense_count(), own.sparse_count());
        let mut parts = Vec::new();
        for model in self.models {
            let columns = with_columns(&shared, model);
            parts.push(Part {
                schema: Schema::new(&columns, model),
                dense: dense..dense + model.dense_count(),
                features: features..features + model.sparse_count(),
                width: joined.dense_count(),
            });
            dense += model.dense_count();
            features += model.sparse_count();
        }
        let data = DataSpec { columns: with_columns(&shared, &joined), ..self.data.clone() };
        let alone = Decoder::new(self.data, Arc::new(own.clone()), false)?;
        let decoder = Decoder::new(&data, Arc::new(joined), false)?;
        let decoder = decoder.served_from(own.sparse_count()).splitting_as(&alone);
        Ok((decoder, parts))
    }
}

/// Labels and the like of a job with the inputs of some transforms.
fn with_columns(shared: &Columns, transforms: &Transforms) -> Columns {
    let dense = (0..transforms.dense_count()).map(|column| transforms.dense_column(column).clone());
    let sparse = (0..transforms.sparse_count()).map(|column| transforms.sparse_column(column).clone());
    Columns { dense: dense.collect(), sparse: sparse.collect(), ..shared.clone() }
}

/// One model's columns among those of all.
struct Part {
    schema: Schema,
    dense: Range<usize>,
    features: Range<usize>,
    /// Dense columns of all.
    width: usize,
}

impl Part {
    fn write(&self, all: &RowBuffer, out: &mut Batch) {
        let dense = all.dense.chunks_exact(self.width.max(1)).flat_map(|row| &row[self.dense.clone()]);
        let rows = RowBuffer {
            dense: dense.copied().collect(),
            bags: all.bags[self.features.clone()].to_vec(),
            ..all.clone()
        };
        rows.write(&self.schema, out);
    }
}

/// The rows of the split that are looked at.
struct Chosen {
    /// Which of the decoded splits they are in.
    split: usize,
    /// Rows before the split's first one, where rows decide the split.
    before: u64,
    /// Rows of the split, and how many of them are chosen.
    all: u64,
    count: u64,
    /// Rows seen of the decoded split, and chosen of them.
    seen: u64,
    taken: u64,
    growing: RowBuffer,
    ready: Vec<RowBuffer>,
}

impl Chosen {
    fn of(reread: &Reread<'_>, schema: &Schema) -> Chosen {
        let Prepared { train, valid, test, .. } = reread.prepared;
        let rows = |split: &Option<Dataset>| split.as_ref().map_or(0, Dataset::row_count);
        let counts = [train.row_count(), rows(valid), rows(test)];
        let place = reread.split as usize;
        let (split, before) = match reread.data.split {
            SplitSpec::ByRow { .. } => (0, counts[..place].iter().sum()),
            _ => (place, 0),
        };
        let all = counts[place];
        let count = if reread.rows == 0 { all } else { all.min(reread.rows) };
        let growing = RowBuffer::new(schema);
        Chosen { split, before, all, count, seen: 0, taken: 0, growing, ready: Vec::new() }
    }

    fn is_done(&self) -> bool {
        self.taken == self.count
    }

    fn take(&mut self, decoded: &Decoded, schema: &Schema) {
        let rows = &decoded.splits[self.split];
        for row in 0..rows.row_count {
            let place = self.seen;
            self.seen += 1;
            if self.is_done()
                || place < self.before
                || place - self.before != row_at(self.taken, self.count, self.all)
            {
                continue;
            }
            self.growing.append(rows, row..row + 1, schema);
            self.taken += 1;
            if self.growing.row_count == BATCH_ROWS {
                self.ready.push(std::mem::replace(&mut self.growing, RowBuffer::new(schema)));
            }
        }
    }
}
