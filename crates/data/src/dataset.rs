//! A split of prepared data, and readers that give any run of its positions as a batch.
//!
//! A reader keeps the blocks it used last, so reading on is copying; a reader per thread, none is shared.

mod order;
mod spread;

use std::{collections::BTreeMap, fs::File, ops::Range, sync::Arc};

use campanile_spec::{Bags, Batch, data::Split};

use crate::{
    error::DataError,
    packed::{PackedFile, block::Block},
    rows::{BagStore, NO_LABEL, NO_ROW, Schema},
    teacher::{TeacherFile, TeacherReader},
    world::World,
};
pub(crate) use order::WINDOW_BLOCKS;
use order::{Order, Run};
pub(crate) use spread::row_at;

/// The rows of one split; cheap to copy.
#[derive(Debug, Clone)]
pub struct Dataset {
    kind: Kind,
    teacher: Option<Arc<TeacherFile>>,
    segments: Arc<[String]>,
    /// Only so many of the rows, evenly spread over all.
    spread: Option<u64>,
}

#[derive(Debug, Clone)]
enum Kind {
    Empty,
    Packed { file: Arc<PackedFile>, rows: Range<u64>, shuffle_seed: Option<u64> },
    World { world: Arc<World>, split: Split, labels: Vec<usize> },
}

impl Dataset {
    /// No rows: what a job has that trains on a stream alone.
    pub fn none() -> Dataset {
        Dataset::of(Kind::Empty)
    }

    /// Rows `rows` of a packed file, shuffled anew each epoch when a seed is given.
    pub(crate) fn packed(file: Arc<PackedFile>, rows: Range<u64>, shuffle_seed: Option<u64>) -> Dataset {
        Dataset::of(Kind::Packed { file, rows, shuffle_seed })
    }

    /// A split of a synthetic world, with the labels at `labels` of the world's own, in this order.
    pub(crate) fn world(world: Arc<World>, split: Split, labels: Vec<usize>) -> Dataset {
        Dataset::of(Kind::World { world, split, labels })
    }

    fn of(kind: Kind) -> Dataset {
        Dataset { kind, teacher: None, segments: Arc::default(), spread: None }
    }

    /// Names of the segments in the order of their numbers; none where segments are numbers to begin with.
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// The same rows with names for their segments.
    pub(crate) fn with_segments(self, segments: &Arc<[String]>) -> Dataset {
        Dataset { segments: Arc::clone(segments), ..self }
    }

    /// Floats of the teacher's embedding that its batches have; 0 for none.
    pub fn embedding_floats(&self) -> usize {
        self.teacher.as_ref().map_or(0, |teacher| teacher.embedding)
    }

    /// The same rows with a teacher's words on them.
    pub(crate) fn with_teacher(mut self, teacher: TeacherFile) -> Dataset {
        self.teacher = Some(Arc::new(teacher));
        self
    }

    /// At most so many of the rows, evenly spread over all of them; 0 means all. A teacher's words stay behind.
    #[must_use]
    pub fn evenly(&self, rows: u64) -> Dataset {
        if rows == 0 || rows >= self.row_count() {
            return self.clone();
        }
        Dataset { teacher: None, spread: Some(rows), ..self.clone() }
    }

    /// How many rows.
    pub fn row_count(&self) -> u64 {
        self.spread.unwrap_or_else(|| self.all_rows())
    }

    fn all_rows(&self) -> u64 {
        match &self.kind {
            Kind::Empty => 0,
            Kind::Packed { rows, .. } => rows.end - rows.start,
            Kind::World { world, split, .. } => world.sample_count(*split),
        }
    }

    /// Rows of a full block of the packed file; 1 where there is none.
    pub(crate) fn block_rows(&self) -> u64 {
        match &self.kind {
            Kind::Packed { file, .. } => file.header().block_rows as u64,
            Kind::Empty | Kind::World { .. } => 1,
        }
    }

    /// The synthetic world behind the rows, if there is one.
    pub fn synthetic(&self) -> Option<&World> {
        match &self.kind {
            Kind::Empty | Kind::Packed { .. } => None,
            Kind::World { world, .. } => Some(world),
        }
    }

    /// A reader of its own for the calling thread.
    ///
    /// # Errors
    /// When the packed file cannot be opened.
    pub fn reader(&self) -> Result<Reader, DataError> {
        let packed = match &self.kind {
            Kind::Packed { file, .. } => Some(PackedReader::new(file.handle()?)),
            Kind::Empty | Kind::World { .. } => None,
        };
        let teacher = self.teacher.as_ref().map(TeacherReader::new).transpose()?;
        Ok(Reader { dataset: self.clone(), packed, teacher })
    }
}

/// Gives the rows of a [`Dataset`] as batches.
#[derive(Debug)]
pub struct Reader {
    dataset: Dataset,
    packed: Option<PackedReader>,
    teacher: Option<TeacherReader>,
}

/// Keeps the columns of some tasks, in the order asked for; where the world says nothing, nothing changes.
fn keep_tasks(values: &mut Vec<f32>, tasks: &[usize], sample_count: usize) {
    let is_all = values.len() == tasks.len() * sample_count && tasks.iter().copied().eq(0..tasks.len());
    if values.is_empty() || is_all {
        return;
    }
    let column = |&task: &usize| &values[task * sample_count..][..sample_count];
    *values = tasks.iter().flat_map(column).copied().collect();
}

impl Reader {
    /// Writes the rows at `positions` of the epoch's order to `out`, whose buffers are used again.
    ///
    /// # Errors
    /// When the positions are not there, or the packed file cannot be read or is damaged.
    pub fn read(&mut self, epoch: u64, positions: Range<u64>, out: &mut Batch) -> Result<(), DataError> {
        let rows = self.dataset.row_count();
        if positions.start > positions.end || positions.end > rows {
            return Err(DataError::OutOfRange { start: positions.start, end: positions.end, rows });
        }
        match self.dataset.spread {
            Some(count) => self.read_spread(epoch, positions, count, out),
            None => self.read_runs(epoch, std::slice::from_ref(&positions), out),
        }
    }

    /// Writes the rows at some runs of positions, in rising order; synthetic rows are made of one run at a time.
    fn read_runs(&mut self, epoch: u64, positions: &[Range<u64>], out: &mut Batch) -> Result<(), DataError> {
        match (&self.dataset.kind, &mut self.packed) {
            (Kind::Empty, _) => *out = Batch::default(),
            (Kind::World { world, split, labels }, _) => {
                let [positions] = positions else {
                    unreachable!("{} runs of a synthetic world", positions.len())
                };
                world.read(*split, epoch, positions.clone(), out);
                for values in [&mut out.labels, &mut out.true_probabilities, &mut out.teacher_logits] {
                    keep_tasks(values, labels, out.sample_count);
                }
                if let Some(teacher) = &mut self.teacher {
                    teacher.fill(positions.clone(), out)?;
                }
            }
            (Kind::Packed { file, rows, shuffle_seed }, Some(reader)) => {
                reader.load(file, rows, shuffle_seed.map(|seed| (seed, epoch)), positions)?;
                reader.gather(&file.header().schema, out);
                if let Some(teacher) = &mut self.teacher {
                    teacher.fill(reader.rows(rows.start, file.header().block_rows as u64), out)?;
                }
            }
            (Kind::Packed { .. }, None) => unreachable!("a packed dataset's reader is made with its file"),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct PackedReader {
    file: File,
    /// The epoch's order, and the (seed, epoch) that it was made for.
    order: Option<(Option<(u64, u64)>, Order)>,
    loaded: Vec<Loaded>,
    /// Which loaded block serves which samples of the batch, in order.
    parts: Vec<Part>,
}

/// A block in memory.
#[derive(Debug)]
struct Loaded {
    run: Run,
    block: Block,
}

#[derive(Debug, Clone)]
struct Part {
    loaded: usize,
    /// Rows of the block.
    rows: Range<usize>,
}

/// The samples of a batch that one block serves: a run of rows.
#[derive(Clone, Copy)]
enum Picked {
    Run(usize, usize),
}

impl PackedReader {
    fn new(file: File) -> PackedReader {
        PackedReader { file, order: None, loaded: Vec::new(), parts: Vec::new() }
    }

    /// Has every block in memory that the positions need.
    fn load(
        &mut self,
        file: &PackedFile,
        rows: &Range<u64>,
        shuffle: Option<(u64, u64)>,
        positions: &[Range<u64>],
    ) -> Result<(), DataError> {
        if self.order.as_ref().is_none_or(|(made_for, _)| *made_for != shuffle) {
            let order = Order::new(rows.clone(), file.header().block_rows as u64, shuffle);
            self.order = Some((shuffle, order));
        }
        let Some((_, order)) = &self.order else { unreachable!("the order was just made") };
        let stretches: Vec<_> = positions.iter().flat_map(|run| order.stretches(run.clone())).collect();
        // Blocks that this batch or the next ones need move to the front; the others are filled anew.
        let reached = positions.first().map_or(0, |run| run.start)..positions.last().map_or(0, |run| run.end);
        let runs = order.runs(reached);
        let wanted = |loaded: &Loaded| runs.contains(&loaded.run);
        self.loaded.sort_by_key(|loaded| !wanted(loaded));
        let mut kept = self.loaded.iter().filter(|loaded| wanted(loaded)).count();
        self.parts.clear();
        // A shuffled batch asks for a block at every row.
        let mut places: BTreeMap<u64, usize> =
            self.loaded[..kept].iter().enumerate().map(|(place, loaded)| (loaded.run.block, place)).collect();
        for stretch in stretches {
            let index = match places.get(&stretch.run.block).copied() {
                Some(index) => index,
                None => {
                    if self.loaded.len() == kept {
                        self.loaded.push(Loaded { run: stretch.run.clone(), block: Block::default() });
                    }
                    let loaded = &mut self.loaded[kept];
                    // Until it is complete it must not be taken for the block it replaces.
                    loaded.run = Run { block: u64::MAX, rows: 0..0 };
                    file.load(&self.file, stretch.run.block, &mut loaded.block)?;
                    loaded.run = stretch.run.clone();
                    kept += 1;
                    places.insert(stretch.run.block, kept - 1);
                    kept - 1
                }
            };
            let first = stretch.run.rows.start as usize;
            let rows = first + stretch.places.start..first + stretch.places.end;
            self.parts.push(Part { loaded: index, rows });
        }
        // A small batch after a large one does not hold on to the large one's memory.
        self.loaded.truncate(kept.max(2));
        Ok(())
    }

    /// Visits what serves the batch, in its order, with a column of its block. A column is looked up once for each block: a
    /// shuffled batch comes to a block again and again.
    fn each_part<'a, T: Copy>(&'a self, column: impl Fn(&'a Block) -> T, mut visit: impl FnMut(T, Picked)) {
        let mut columns: Vec<Option<T>> = vec![None; self.loaded.len()];
        for part in &self.parts {
            let found = columns[part.loaded].get_or_insert_with(|| column(&self.loaded[part.loaded].block));
            visit(*found, Picked::Run(part.rows.start, part.rows.end));
        }
    }

    /// The loaded rows, counted from the first of the split.
    fn rows(&self, first: u64, block_rows: u64) -> impl Iterator<Item = u64> {
        self.parts.iter().flat_map(move |part| {
            let run = &self.loaded[part.loaded].run;
            part.rows.clone().map(move |row| run.block * block_rows + row as u64 - first)
        })
    }

    /// Copies the loaded rows into the batch.
    fn gather(&self, schema: &Schema, out: &mut Batch) {
        out.sample_count = self.parts.iter().map(|part| part.rows.len()).sum();
        let width = schema.dense.len();
        out.dense.clear();
        self.each_part(Block::dense, |dense, Picked::Run(start, end)| {
            out.dense.extend_from_slice(&dense[start * width..end * width]);
        });
        out.labels.clear();
        for task in 0..schema.tasks.len() {
            let label = |label: u8| if label == NO_LABEL { f32::NAN } else { f32::from(label) };
            self.each_part(
                |block| block.labels(task),
                |labels, picked| gather_mapped(labels, picked, label, &mut out.labels),
            );
        }
        self.gather_optional(schema.sample_weight, Block::weights, &mut out.weights);
        self.gather_optional(schema.time, Block::times, &mut out.times);
        self.gather_optional(schema.group, Block::groups, &mut out.groups);
        self.gather_optional(schema.segment, Block::segments, &mut out.segments);
        out.true_probabilities.clear();
        out.teacher_logits.clear();
        for task in 0..schema.teacher.len() {
            if schema.has_teacher(task) {
                self.each_part(
                    |block| block.teacher(task),
                    |logits, picked| gather_mapped(logits, picked, |logit| logit, &mut out.teacher_logits),
                );
            } else {
                out.teacher_logits.resize((task + 1) * out.sample_count, f32::NAN);
            }
        }
        self.gather_optional(schema.teacher_delay, Block::teacher_delays, &mut out.teacher_delays);
        self.gather_bags(schema, out);
    }

    fn gather_optional<T: Copy>(&self, there: bool, column: impl Fn(&Block) -> &[T], out: &mut Vec<T>) {
        out.clear();
        if there {
            self.each_part(column, |values, picked| gather_mapped(values, picked, |value| value, out));
        }
    }

    fn gather_bags(&self, schema: &Schema, out: &mut Batch) {
        let weighted = schema.features.iter().any(|feature| feature.weighted);
        let (mut offsets, mut rows, mut weights) = std::mem::take(&mut out.bags).into_parts();
        offsets.clear();
        rows.clear();
        weights.clear();
        offsets.push(0);
        for (index, feature) in schema.features.iter().enumerate() {
            let column = |block| BagSlices::of(block, index);
            let mut bags = GrowingBags { offsets: &mut offsets, rows: &mut rows, weights: &mut weights };
            match feature.bags {
                BagStore::One => self.each_part(column, |column, picked| bags.push_ones(&column, picked)),
                BagStore::OneOrNone => {
                    self.each_part(column, |column, picked| bags.push_ones_or_none(&column, picked));
                }
                BagStore::List => self.each_part(column, |column, picked| bags.push_lists(&column, picked)),
            }
            if weighted && !feature.weighted {
                weights.resize(rows.len(), 1.0);
            }
        }
        out.bags = Bags::new(schema.features.len(), out.sample_count, offsets, rows, weights).unwrap_or_else(
            |error| unreachable!("a block passed its checksum, its bags do not fit: {error}"),
        );
    }
}

/// A feature's columns in one block.
#[derive(Clone, Copy)]
struct BagSlices<'a> {
    offsets: &'a [u32],
    rows: &'a [u32],
    weights: &'a [f32],
}

impl BagSlices<'_> {
    fn of(block: &Block, feature: usize) -> BagSlices<'_> {
        let (offsets, rows) = (block.bag_offsets(feature), block.bag_rows(feature));
        BagSlices { offsets, rows, weights: block.bag_weights(feature) }
    }
}

/// The arrays of [`Bags`], growing feature by feature.
struct GrowingBags<'a> {
    offsets: &'a mut Vec<u32>,
    rows: &'a mut Vec<u32>,
    weights: &'a mut Vec<f32>,
}

impl GrowingBags<'_> {
    fn push_ones(&mut self, column: &BagSlices<'_>, picked: Picked) {
        let start = self.rows.len() as u32;
        gather_mapped(column.rows, picked, |row| row, self.rows);
        self.offsets.extend(start + 1..=self.rows.len() as u32);
        if !column.weights.is_empty() {
            gather_mapped(column.weights, picked, |weight| weight, self.weights);
        }
    }

    fn push_ones_or_none(&mut self, column: &BagSlices<'_>, picked: Picked) {
        picked.each(|row| {
            if column.rows[row] != NO_ROW {
                self.rows.push(column.rows[row]);
                if let Some(&weight) = column.weights.get(row) {
                    self.weights.push(weight);
                }
            }
            self.offsets.push(self.rows.len() as u32);
        });
    }

    fn push_lists(&mut self, column: &BagSlices<'_>, picked: Picked) {
        let Picked::Run(start, end) = picked;
        let (base, first) = (self.rows.len() as u32, column.offsets[start]);
        let ids = first as usize..column.offsets[end] as usize;
        self.offsets.extend(column.offsets[start + 1..=end].iter().map(|offset| offset - first + base));
        self.rows.extend_from_slice(&column.rows[ids.clone()]);
        if !column.weights.is_empty() {
            self.weights.extend_from_slice(&column.weights[ids]);
        }
    }
}

impl Picked {
    fn each(self, visit: impl FnMut(usize)) {
        let Picked::Run(start, end) = self;
        (start..end).for_each(visit);
    }
}

#[inline]
fn gather_mapped<T: Copy, U>(values: &[T], picked: Picked, map: impl Fn(T) -> U, out: &mut Vec<U>) {
    let Picked::Run(start, end) = picked;
    out.extend(values[start..end].iter().map(|&value| map(value)));
}
