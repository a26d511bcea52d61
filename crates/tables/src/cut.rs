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
//! Pre-images are written one behind the other, whatever row they are of, which costs an update little more than
//! the copy: one bit per row says whether it was kept, a chain per piece leads through what was, and a piece that
//! is taken gives its chain back to be written over.
//!
//! Invariant: the pieces of a cut, put together, are the table at the moment of [`Cut::begin`], in any
//! interleaving of changes and sweeps. Everything happens on the rank's own thread: there is no race to lose.
//! Writing the pieces to disk is [`crate::checkpoint`]'s.

use std::{num::NonZeroU32, ops::Range};

use crate::checkpoint::TableLayout;

/// Rows that [`Cut::keep_rows`] asks for before it copies the first of them.
const ROWS_ON_THEIR_WAY: usize = 32;

/// Memory moves in lines of this size; a guess that is wrong costs only time.
const CACHE_LINE_BYTES: usize = 64;

/// What a table shows to a checkpoint. Rows are counted in the whole table, not in the part that is held.
pub trait RowStore {
    /// What the whole table looks like.
    fn layout(&self) -> TableLayout;

    /// The rows held here.
    fn held(&self) -> Range<u64>;

    /// The columns held here.
    fn columns(&self) -> Range<usize>;

    /// Copies rows and their state as they are now; `bytes` and `state` have the length of `rows`.
    fn copy_rows(&self, rows: Range<u64>, bytes: &mut [u8], state: &mut [f32]);

    /// Overwrites rows and their state.
    fn write_rows(&mut self, rows: Range<u64>, bytes: &[u8], state: &[f32]);

    /// The cut under way, which every change of a row consults.
    fn cut(&mut self) -> &mut Option<Cut>;

    /// Begins a cut at the table's present state; one that was under way is dropped.
    fn begin_cut(&mut self) {
        let held = self.held();
        let cut = Cut::begin(&self.layout(), held.end - held.start, &self.columns());
        *self.cut() = Some(cut);
    }

    /// Takes the next piece of the cut, in the memory of `spare`; `None` when there is no cut or it has given all
    /// its pieces, which ends it.
    fn sweep(&mut self, spare: RowRun) -> Option<RowRun> {
        let mut cut = self.cut().take()?;
        let first = self.held().start;
        let run = cut.sweep(spare, |rows, bytes, state| {
            self.copy_rows(first + rows.start..first + rows.end, bytes, state);
        })?;
        *self.cut() = Some(cut);
        Some(RowRun { first_row: first + run.first_row, ..run })
    }
}

/// Consecutive rows with their state, as they were when the cut began.
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// One bit per row: it has been kept.
    kept: Vec<u64>,
    /// The newest pre-image of each piece.
    newest: Vec<Link>,
    /// A place that can be written over.
    free: Link,
    places: Vec<Place>,
    bytes: Vec<u8>,
    state: Vec<f32>,
    kept_count: usize,
}

/// Where a pre-image lies, or nowhere.
type Link = Option<NonZeroU32>;

/// A pre-image: which row, and which other one comes next in the chain.
#[derive(Debug, Clone, Copy)]
struct Place {
    row: u64,
    next: Link,
}

impl Cut {
    /// A cut of some columns of `row_count` rows as they are now. Pieces have as many rows as if all columns were
    /// here, so that those who hold the other columns take the same pieces.
    pub fn begin(layout: &TableLayout, row_count: u64, columns: &Range<usize>) -> Cut {
        let piece_rows = layout.piece_rows();
        Cut {
            row_count,
            row_bytes: columns.len() * layout.format.element_bytes(),
            state_floats: layout.state_floats_of(columns),
            piece_rows,
            piece_next: 0,
            kept: vec![0; row_count.div_ceil(64) as usize],
            newest: vec![None; row_count.div_ceil(piece_rows) as usize],
            free: None,
            places: Vec::new(),
            bytes: Vec::new(),
            state: Vec::new(),
            kept_count: 0,
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

    /// Keeps those of `rows` that are still wanted, before they change; `bytes` and `state` are those of all rows
    /// held. As [`Cut::keep`] for each, but a row's memory is read while others are still on their way, and so
    /// waits in the cache for the update that follows.
    ///
    /// # Panics
    /// If a row is not among those held.
    pub fn keep_rows(&mut self, rows: impl IntoIterator<Item = u32>, bytes: &[u8], state: &[f32]) {
        let (row_bytes, state_floats) = (self.row_bytes, self.state_floats);
        let mut rows = rows.into_iter();
        let mut wanted = [0; ROWS_ON_THEIR_WAY];
        loop {
            let mut count = 0;
            // A load that nothing waits for fetches a cache line; the sum keeps it from being left out.
            let mut fetched = 0u64;
            for row in rows.by_ref().map(u64::from).filter(|&row| self.wants(row)).take(ROWS_ON_THEIR_WAY) {
                let place = row as usize;
                wanted[count] = row;
                count += 1;
                let lines = bytes[place * row_bytes..][..row_bytes].iter().step_by(CACHE_LINE_BYTES);
                fetched += lines.map(|&byte| u64::from(byte)).sum::<u64>();
                let lines =
                    state[place * state_floats..][..state_floats].iter().step_by(CACHE_LINE_BYTES / 4);
                fetched += lines.map(|value| u64::from(value.to_bits())).sum::<u64>();
            }
            std::hint::black_box(fetched);
            if count == 0 {
                return;
            }
            for &row in &wanted[..count] {
                let place = row as usize;
                // `keep`, for a row may come twice.
                self.keep(
                    row,
                    &bytes[place * row_bytes..][..row_bytes],
                    &state[place * state_floats..][..state_floats],
                );
            }
        }
    }

    fn log(&mut self, row: u64, bytes: &[u8], state: &[f32]) {
        assert!(row < self.row_count, "row {row} of a cut of {} rows", self.row_count);
        assert_eq!((bytes.len(), state.len()), (self.row_bytes, self.state_floats), "row {row}");
        self.kept[(row / 64) as usize] |= 1 << (row % 64);
        self.kept_count += 1;
        let newest = &mut self.newest[(row / self.piece_rows) as usize];
        let place = Place { row, next: *newest };
        match self.free {
            Some(link) => {
                let index = index(link);
                self.free = self.places[index].next;
                self.places[index] = place;
                self.bytes[index * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
                self.state[index * self.state_floats..][..self.state_floats].copy_from_slice(state);
                *newest = Some(link);
            }
            None => {
                self.places.push(place);
                self.bytes.extend_from_slice(bytes);
                self.state.extend_from_slice(state);
                // At most one pre-image per row, and a row's number fits in 32 bits.
                *newest = NonZeroU32::new(self.places.len() as u32);
            }
        }
    }

    /// Takes the next piece, in the memory of `spare`: `copy` fills in rows as they are now, and pre-images
    /// replace what has changed since. `None` after the last. A table without rows gives one empty piece, so that
    /// it too gets a file.
    pub fn sweep(
        &mut self,
        spare: RowRun,
        copy: impl FnOnce(Range<u64>, &mut [u8], &mut [f32]),
    ) -> Option<RowRun> {
        if self.is_done() {
            return None;
        }
        let first_row = self.piece_next * self.piece_rows;
        let end = (first_row + self.piece_rows).min(self.row_count);
        let row_count = end - first_row;
        let mut run = RowRun { first_row, row_count, ..spare };
        run.bytes.resize(row_count as usize * self.row_bytes, 0);
        run.state.resize(row_count as usize * self.state_floats, 0.0);
        copy(first_row..end, &mut run.bytes, &mut run.state);
        self.lay_over(&mut run);
        self.piece_next += 1;
        Some(run)
    }

    /// Puts the pre-images of the next piece over its rows, and frees their places.
    fn lay_over(&mut self, run: &mut RowRun) {
        let (row_bytes, state_floats) = (self.row_bytes, self.state_floats);
        let mut link = self.newest.get_mut(self.piece_next as usize).and_then(Option::take);
        while let Some(place) = link {
            let from = index(place);
            let to = (self.places[from].row - run.first_row) as usize;
            run.bytes[to * row_bytes..][..row_bytes]
                .copy_from_slice(&self.bytes[from * row_bytes..][..row_bytes]);
            run.state[to * state_floats..][..state_floats]
                .copy_from_slice(&self.state[from * state_floats..][..state_floats]);
            link = std::mem::replace(&mut self.places[from].next, self.free);
            self.free = Some(place);
            self.kept_count -= 1;
        }
    }

    /// Whether all pieces are taken.
    pub fn is_done(&self) -> bool {
        self.piece_next >= self.newest.len().max(1) as u64
    }

    /// Bytes of the pre-images that are kept now.
    pub fn kept_bytes(&self) -> usize {
        self.kept_count * (size_of::<Place>() + self.row_bytes + self.state_floats * size_of::<f32>())
    }
}

/// The index that a link stands for; links count from 1, so that none costs no space.
fn index(link: NonZeroU32) -> usize {
    link.get() as usize - 1
}
