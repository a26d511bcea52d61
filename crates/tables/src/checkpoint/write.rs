//! One rank's hand on the disk: a thread that takes pieces from a short queue and writes them in place.
//!
//! The queue is bounded and [`CheckpointWriter::offer`] never waits, so a slow disk costs the training nothing
//! but a longer checkpoint. Pieces are written at their final offsets, each with a running checksum, so several
//! ranks can fill one file and no file is read back.
//!
//! The first failure ends the thread, and the next call returns it.

use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use super::{
    CheckpointError, ColumnPart, FilePart, Result, TensorEntry, Written,
    directory::writing_dir,
    disk::Disk,
    finite,
    header::Header,
    layout::{RowPlace, TableLayout},
};
use crate::cut::RowRun;

/// The most pieces that wait for the disk: 16 MiB in all.
pub const QUEUE_PIECES_MAX: usize = 16;

/// Something to write.
#[derive(Debug)]
pub enum Piece {
    /// Rows of a table, as a cut gives them.
    Rows {
        /// The table.
        table: Arc<TableLayout>,
        /// The columns that the run has.
        columns: Range<usize>,
        /// The rows.
        run: RowRun,
    },
    /// Some neighbouring elements of a dense file.
    Dense {
        /// The file.
        file: Arc<DenseLayout>,
        /// Where they start, counted over all tensors of the file in order.
        first_element: u64,
        /// The elements.
        values: Vec<f32>,
    },
}

/// A file of dense tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseLayout {
    /// Which file.
    pub kind: DenseKind,
    /// Its tensors, whose names differ.
    pub tensors: Vec<TensorEntry>,
}

/// What the tensors of a dense file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenseKind {
    /// Weights: `dense.safetensors`.
    Weights,
    /// Their optimizer state: `dense_state.safetensors`.
    State,
}

/// A named dense tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, the last dimension running fastest.
    pub values: Vec<f32>,
}

/// What became of an offered piece.
#[derive(Debug)]
pub enum Offer {
    /// It will be written.
    Taken,
    /// The queue is full: offer it again after the next step.
    Full(Piece),
}

/// Writes one rank's part of a checkpoint in the background.
#[derive(Debug)]
pub struct CheckpointWriter {
    /// `None` when nothing more will come.
    queue: Option<SyncSender<Piece>>,
    /// Runs that are written: their memory serves again.
    spares: Receiver<RowRun>,
    /// `None` when its result has been taken.
    thread: Option<JoinHandle<Result<Written>>>,
}

impl CheckpointWriter {
    /// Starts the thread that writes into the directory which [`super::prepare`] has made.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin(dir: &Path, step: u64) -> Result<CheckpointWriter> {
        CheckpointWriter::begin_on(Disk::default(), dir, step)
    }

    pub(super) fn begin_on(disk: Disk, dir: &Path, step: u64) -> Result<CheckpointWriter> {
        let dir = writing_dir(dir, step);
        let (queue, pieces) = sync_channel(QUEUE_PIECES_MAX);
        let (spare, spares) = sync_channel(QUEUE_PIECES_MAX);
        let mut files = Files { disk, dir: dir.clone(), open: None, written: Written::default(), spare };
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || files.write_all(&pieces))
            .map_err(|source| CheckpointError::Write { path: dir, source })?;
        Ok(CheckpointWriter { queue: Some(queue), spares, thread: Some(thread) })
    }

    /// Hands a piece to the thread, unless the queue is full.
    ///
    /// # Errors
    /// What the thread met while it wrote this or an earlier piece.
    ///
    /// # Panics
    /// After [`CheckpointWriter::close`] or an error.
    pub fn offer(&mut self, piece: Piece) -> Result<Offer> {
        match self.queue().try_send(piece) {
            Ok(()) => Ok(Offer::Taken),
            Err(TrySendError::Full(piece)) => Ok(Offer::Full(piece)),
            Err(TrySendError::Disconnected(_)) => Err(self.failure()),
        }
    }

    /// Hands a piece to the thread, and waits while the queue is full.
    ///
    /// # Errors
    /// As [`CheckpointWriter::offer`].
    ///
    /// # Panics
    /// As [`CheckpointWriter::offer`].
    pub fn offer_waiting(&mut self, piece: Piece) -> Result<()> {
        match self.queue().send(piece) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure()),
        }
    }

    /// Memory for the next run: that of one already written, where there is one.
    pub fn spare(&mut self) -> RowRun {
        self.spares.try_recv().unwrap_or_default()
    }

    /// Says that nothing more comes.
    pub fn close(&mut self) {
        self.queue = None;
    }

    /// Whether [`CheckpointWriter::finish`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.queue.is_none() && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until all is written and would survive a power cut, and says what it is.
    ///
    /// # Errors
    /// What the thread met.
    pub fn finish(mut self) -> Result<Written> {
        self.close();
        self.join()
    }

    fn queue(&self) -> &SyncSender<Piece> {
        self.queue.as_ref().expect("a closed or failed checkpoint writer takes no piece")
    }

    fn failure(&mut self) -> CheckpointError {
        self.close();
        self.join().expect_err("the thread leaves an open queue only with an error")
    }

    fn join(&mut self) -> Result<Written> {
        let thread = self.thread.take().expect("the result of a checkpoint writer is taken once");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // Whoever drops an unfinished writer has given the checkpoint up: its outcome is of no interest,
            // only that nothing writes any more when the directory is removed.
            let _ = thread.join();
        }
    }
}

/// The files that the thread writes, one open at a time.
struct Files {
    disk: Disk,
    dir: PathBuf,
    open: Option<OpenFile>,
    written: Written,
    spare: SyncSender<RowRun>,
}

/// Neighbouring bytes in a whole row and in a part of it.
struct ByteRun {
    whole: usize,
    part: usize,
    bytes: usize,
}

struct OpenFile {
    name: String,
    path: PathBuf,
    file: File,
    parts: Vec<FilePart>,
}

impl Files {
    fn write_all(&mut self, pieces: &Receiver<Piece>) -> Result<Written> {
        while let Ok(piece) = pieces.recv() {
            match piece {
                Piece::Rows { table, columns, run } => {
                    self.write_run(&table, &columns, &run)?;
                    // When nobody takes spares, this one is simply freed.
                    let _ = self.spare.try_send(run);
                }
                Piece::Dense { file, first_element, values } => {
                    self.write_dense(&file, first_element, &values)?
                }
            }
        }
        self.close()?;
        Ok(std::mem::take(&mut self.written))
    }

    fn write_run(&mut self, table: &TableLayout, columns: &Range<usize>, run: &RowRun) -> Result<()> {
        let end = run.first_row + run.row_count;
        assert!(end <= table.row_count, "rows up to {end} of a table of {}", table.row_count);
        if table.row_count == 0 {
            return self.write_header(table, columns, 0).map(drop);
        }
        let (first_row, columns_held) = (run.first_row, columns.clone());
        finite::Rows { table, columns: columns_held, first_row, rows: &run.bytes, state: &run.state }
            .check(&self.dir)?;
        let mut row = run.first_row;
        while row < end {
            let file = row / table.rows_per_file;
            let rows = table.rows_of_file(file);
            let header_bytes = self.write_header(table, columns, row)?;
            let place = table.place(row, header_bytes);
            let from = (row - run.first_row) as usize;
            let to = (end.min(rows.end) - run.first_row) as usize;
            if columns.len() == table.dim {
                let (row_bytes, state_floats) = (table.row_bytes(), table.state_floats());
                let state = &run.state[from * state_floats..to * state_floats];
                self.append(place.state_offset, bytemuck::cast_slice(state))?;
                self.append(place.row_offset, &run.bytes[from * row_bytes..to * row_bytes])?;
            } else {
                self.write_columns(table, columns, &place, (run, from..to))?;
            }
            row = end.min(rows.end);
        }
        Ok(())
    }

    /// Writes some columns of rows, between those that others write. The checksum is that of the rows with zeros
    /// in place of the others' columns: such checksums add up (see `manifest::merge`).
    fn write_columns(
        &mut self,
        table: &TableLayout,
        columns: &Range<usize>,
        place: &RowPlace,
        (run, rows): (&RowRun, Range<usize>),
    ) -> Result<()> {
        let element = table.format.element_bytes();
        let state_width = table.state_floats() * size_of::<f32>();
        let state_part = table.state_floats_of(columns) * size_of::<f32>();
        let part = ColumnPart { start: columns.start, end: columns.end, of: table.dim };
        let state_runs: Vec<ByteRun> = table
            .state_runs(columns)
            .filter(|run| run.owned)
            .map(|run| ByteRun { whole: run.whole * 4, part: run.part * 4, bytes: run.floats * 4 })
            .collect();
        let state: &[u8] = bytemuck::cast_slice(&run.state);
        let state = &state[rows.start * state_part..rows.end * state_part];
        self.scatter(place.state_offset, (state, state_part), state_width, &state_runs, part)?;
        let row_part = columns.len() * element;
        let row_run = ByteRun { whole: columns.start * element, part: 0, bytes: row_part };
        let bytes = &run.bytes[rows.start * row_part..rows.end * row_part];
        self.scatter(place.row_offset, (bytes, row_part), table.row_bytes(), &[row_run], part)
    }

    fn scatter(
        &mut self,
        offset: u64,
        (bytes, part_width): (&[u8], usize),
        whole_width: usize,
        runs: &[ByteRun],
        columns: ColumnPart,
    ) -> Result<()> {
        if part_width == 0 {
            return Ok(());
        }
        let open = self.open.as_ref().expect("a file is open");
        let mut whole = vec![0; bytes.len() / part_width * whole_width];
        for (row, part) in bytes.chunks_exact(part_width).enumerate() {
            for run in runs {
                let from = &part[run.part..][..run.bytes];
                let at = row * whole_width + run.whole;
                whole[at..][..run.bytes].copy_from_slice(from);
                self.disk.write_at(&open.file, &open.path, from, offset + at as u64)?;
            }
        }
        self.note(offset, &whole, Some(columns));
        Ok(())
    }

    /// Opens the file of `row`, and writes its header if the row is the file's first: whoever holds that row's
    /// first column writes the header.
    fn write_header(&mut self, table: &TableLayout, columns: &Range<usize>, row: u64) -> Result<usize> {
        let file = row / table.rows_per_file;
        self.open(table.file_name(file))?;
        let header = table.header(file);
        if row == file * table.rows_per_file && columns.start == 0 {
            self.append(0, &header)?;
        }
        Ok(header.len())
    }

    /// Writes elements, and the header if they are the file's first.
    fn write_dense(&mut self, layout: &DenseLayout, first_element: u64, values: &[f32]) -> Result<()> {
        let (end, count) = (first_element + values.len() as u64, layout.element_count());
        assert!(end <= count, "elements up to {end} of a dense file of {count}");
        finite::check_dense(&self.dir, &layout.tensors, first_element, values)?;
        self.open(layout.kind.file_name().to_owned())?;
        let header = layout.header();
        if first_element == 0 {
            self.append(0, &header)?;
        }
        let offset = header.len() as u64 + first_element * size_of::<f32>() as u64;
        self.append(offset, bytemuck::cast_slice(values))?;
        match layout.kind {
            DenseKind::Weights => self.written.dense = layout.tensors.clone(),
            DenseKind::State => self.written.dense_state = layout.tensors.clone(),
        }
        Ok(())
    }

    fn open(&mut self, name: String) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.name == name) {
            return Ok(());
        }
        self.close()?;
        let path = self.dir.join(&name);
        let file = self.disk.open(&path)?;
        self.open = Some(OpenFile { name, path, file, parts: Vec::new() });
        Ok(())
    }

    fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let open = self.open.as_ref().expect("a file is open");
        self.disk.write_at(&open.file, &open.path, bytes, offset)?;
        self.note(offset, bytes, None);
        Ok(())
    }

    /// Adds bytes to the checksum of the part that they follow, or begins a part.
    fn note(&mut self, offset: u64, bytes: &[u8], columns: Option<ColumnPart>) {
        let open = self.open.as_mut().expect("a file is open");
        let length = bytes.len() as u64;
        let follows = |part: &&mut FilePart| part.offset + part.bytes == offset && part.columns == columns;
        match open.parts.iter_mut().find(follows) {
            Some(part) => {
                part.crc32c = crc32c::crc32c_append(part.crc32c, bytes);
                part.bytes += length;
            }
            None => open.parts.push(FilePart {
                file: open.name.clone(),
                offset,
                bytes: length,
                crc32c: crc32c::crc32c(bytes),
                columns,
            }),
        }
    }

    fn close(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            self.disk.sync(&open.file, &open.path)?;
            self.written.parts.extend(open.parts);
        }
        Ok(())
    }
}

impl DenseLayout {
    /// Elements of all tensors.
    pub fn element_count(&self) -> u64 {
        self.tensors.iter().map(TensorEntry::element_count).sum()
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.header().len() as u64 + self.element_count() * size_of::<f32>() as u64
    }

    fn header(&self) -> Vec<u8> {
        let header = self.tensors.iter().fold(Header::default(), |header, tensor| {
            let shape: Vec<u64> = tensor.shape.iter().map(|&size| size as u64).collect();
            header.tensor(&tensor.name, "F32", &shape, size_of::<f32>() as u64)
        });
        header.into_bytes()
    }
}

impl DenseKind {
    /// The name of its file.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            DenseKind::Weights => "dense.safetensors",
            DenseKind::State => "dense_state.safetensors",
        }
    }
}
