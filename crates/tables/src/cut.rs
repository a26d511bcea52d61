//! A consistent cut of a table that goes on changing.
//!
//! A checkpoint shows every row as it was at one step, but copying a table to freeze it would double the
//! memory and stop the training. Instead a [`Cut`] is begun at that step and a sweep takes the rows piece by
//! piece, a little between two steps. A row that is about to change before the sweep has come to it leaves its
//! old value, the *pre-image*, with the cut:
//!
//! ```text
//!   rows       0 ──────────── swept ─────────────────────── row_count
//!   on change  free to change │ the first change of a row keeps its pre-image
//!   sweep                     └─► next piece = rows as they are now, pre-images laid over them
//! ```
//!
//! Pre-images lie in one log per piece, so a piece that is taken frees them all at once, and no hash table
//! stands in the way of the update: one bit per row says whether it was kept.
//!
//! Invariant: the pieces of a cut, put together, are the table at the moment of [`Cut::begin`], in any
//! interleaving of changes and sweeps. Everything happens on the rank's own thread: there is no race to lose.
//! Writing the pieces to disk is [`crate::checkpoint`]'s.

use std::ops::Range;

use crate::checkpoint::TableLayout;

/// What a table shows to a checkpoint. Rows are counted in the whole table, not in the part that is held.
pub trait RowStore {
    /// What the whole table looks like.
    fn layout(&self) -> TableLayout;

    /// The rows held here.
    fn held(&self) -> Range<u64>;

    /// Copies rows and their state as they are now; `bytes` and `state` have the length of `rows`.
    fn copy_rows(&self, rows: Range<u64>, bytes: &mut [u8], state: &mut [f32]);

    /// Overwrites rows and their state.
    fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]);

    /// The cut under way, which every change of a row consults.
    fn cut(&mut self) -> &mut Option<Cut>;

    /// Begins a cut at the table's present state; one that was under way is dropped.
    fn begin_cut(&mut self) {
        let held = self.held();
        let cut = Cut::begin(&self.layout(), held.end - held.start);
        *self.cut() = Some(cut);
    }

    /// Takes the next piece of the cut; `None` when there is no cut or it has given all its pieces, which ends
    /// it.
    fn sweep(&mut self) -> Option<RowRun> {
        let mut cut = self.cut().take()?;
        let first = self.held().start;
        let run = cut.sweep(|rows, bytes, state| {
            self.copy_rows(first + rows.start..first + rows.end, bytes, state);
        })?;
        *self.cut() = Some(cut);
        Some(RowRun { first_row: first + run.first_row, ..run })
    }
}

/// Consecutive rows with their state, as they were when the cut began.
#[derive(Debug, Clone, PartialEq)]
pub struct RowRun {
    /// The first row.
    pub first_row: u64,
    /// How many.
    pub row_count: u64,
    /// The rows in the table's format, one after the other.
    pub bytes: Vec<u8>,
    /// Their optimizer state.
    pub state: Vec<f32>,
}

/// A cut of one table. Rows are counted from the first that is held.
#[derive(Debug)]
pub struct Cut {
    row_count: u64,
    row_bytes: usize,
    state_floats: usize,
    piece_rows: u64,
    piece_next: u64,
    /// One bit per row: its pre-image lies in the log of its piece.
    kept: Vec<u64>,
    logs: Vec<PreImages>,
    kept_bytes: usize,
}

/// The pre-images of one piece, in the order in which they came.
#[derive(Debug, Default)]
struct PreImages {
    rows: Vec<u64>,
    bytes: Vec<u8>,
    state: Vec<f32>,
}

impl Cut {
    /// A cut of `row_count` rows as they are now.
    pub fn begin(layout: &TableLayout, row_count: u64) -> Cut {
        let piece_rows = layout.piece_rows();
        Cut {
            row_count,
            row_bytes: layout.row_bytes(),
            state_floats: layout.state_floats(),
            piece_rows,
            piece_next: 0,
            kept: vec![0; row_count.div_ceil(64) as usize],
            logs: (0..row_count.div_ceil(piece_rows)).map(|_| PreImages::default()).collect(),
            kept_bytes: 0,
        }
    }

    /// Whether `row` must be kept before it changes.
    #[inline]
    pub fn wants(&self, row: u64) -> bool {
        row >= self.piece_next * self.piece_rows && self.kept[(row / 64) as usize] & (1 << (row % 64)) == 0
    }

    /// Keeps the present value of `row` if it is still wanted; call it before every change.
    ///
    /// # Panics
    /// If the slices do not have the length of a row and its state.
    #[inline]
    pub fn keep(&mut self, row: u64, bytes: &[u8], state: &[f32]) {
        if self.wants(row) {
            self.log(row, bytes, state);
        }
    }

    fn log(&mut self, row: u64, bytes: &[u8], state: &[f32]) {
        assert!(row < self.row_count, "row {row} of a cut of {} rows", self.row_count);
        assert_eq!((bytes.len(), state.len()), (self.row_bytes, self.state_floats), "row {row}");
        self.kept[(row / 64) as usize] |= 1 << (row % 64);
        let log = &mut self.logs[(row / self.piece_rows) as usize];
        log.rows.push(row);
        log.bytes.extend_from_slice(bytes);
        log.state.extend_from_slice(state);
        self.kept_bytes += self.kept_size();
    }

    /// Takes the next piece: `copy` fills in rows as they are now, and pre-images replace what has changed
    /// since. `None` after the last. A table without rows gives one empty piece, so that it too gets a file.
    pub fn sweep(&mut self, copy: impl FnOnce(Range<u64>, &mut [u8], &mut [f32])) -> Option<RowRun> {
        if self.is_done() {
            return None;
        }
        let first_row = self.piece_next * self.piece_rows;
        let end = (first_row + self.piece_rows).min(self.row_count);
        let row_count = (end - first_row) as usize;
        let mut run = RowRun {
            first_row,
            row_count: row_count as u64,
            bytes: vec![0; row_count * self.row_bytes],
            state: vec![0.0; row_count * self.state_floats],
        };
        copy(first_row..end, &mut run.bytes, &mut run.state);
        if let Some(log) = self.logs.get_mut(self.piece_next as usize) {
            let log = std::mem::take(log);
            self.kept_bytes -= log.rows.len() * self.kept_size();
            log.lay_over(&mut run, self.row_bytes, self.state_floats);
        }
        self.piece_next += 1;
        Some(run)
    }

    /// Whether all pieces are taken.
    pub fn is_done(&self) -> bool {
        self.piece_next >= self.logs.len().max(1) as u64
    }

    /// Memory that pre-images take now.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn kept_size(&self) -> usize {
        size_of::<u64>() + self.row_bytes + self.state_floats * size_of::<f32>()
    }
}

impl PreImages {
    fn lay_over(&self, run: &mut RowRun, row_bytes: usize, state_floats: usize) {
        for (entry, &row) in self.rows.iter().enumerate() {
            let place = (row - run.first_row) as usize;
            run.bytes[place * row_bytes..][..row_bytes]
                .copy_from_slice(&self.bytes[entry * row_bytes..][..row_bytes]);
            run.state[place * state_floats..][..state_floats]
                .copy_from_slice(&self.state[entry * state_floats..][..state_floats]);
        }
    }
}
