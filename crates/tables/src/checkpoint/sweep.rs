//! One rank's part of a checkpoint, from the cut to the disk, in small turns between the steps.

use std::{path::Path, sync::Arc};

use super::{
    CheckpointWriter, DenseLayout, Offer, PIECE_BYTES_MAX, Piece, Result, TableLayout, Written, disk::Disk,
};
use crate::cut::RowStore;

/// How much a checkpoint may ask of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that one [`Sweep::advance`] copies, which is all that it costs; at least one piece is taken.
    pub advance_bytes_max: usize,
    /// Memory for rows that changed before the sweep came to them. Above it, `advance` waits for the disk.
    pub kept_bytes_max: usize,
}

impl Default for Limits {
    /// 4 pieces a turn, and 512 MiB of pre-images.
    fn default() -> Limits {
        Limits { advance_bytes_max: 4 * PIECE_BYTES_MAX, kept_bytes_max: 512 << 20 }
    }
}

/// How far a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Rows are still to be taken from the tables.
    Sweeping,
    /// All rows are taken; the thread is writing the last of them. The tables are free.
    Writing,
    /// Everything is on disk, or failed; [`Sweep::finish`] returns at once.
    Written,
}

/// One rank's part of a checkpoint under way. Every call must get the same tables in the same order.
#[derive(Debug)]
pub struct Sweep {
    writer: CheckpointWriter,
    layouts: Vec<Arc<TableLayout>>,
    limits: Limits,
    table_next: usize,
    /// A piece that found the queue full.
    waiting: Option<Piece>,
    swept: bool,
}

impl Sweep {
    /// Freezes the tables as they are now, and starts to write into the directory that [`super::prepare`] made
    /// for `step`. Every rank calls it between the same two steps.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin<T: RowStore>(dir: &Path, step: u64, tables: &mut [T], limits: Limits) -> Result<Sweep> {
        Sweep::begin_on(Disk::default(), dir, step, tables, limits)
    }

    pub(super) fn begin_on<T: RowStore>(
        disk: Disk,
        dir: &Path,
        step: u64,
        tables: &mut [T],
        limits: Limits,
    ) -> Result<Sweep> {
        let writer = CheckpointWriter::begin_on(disk, dir, step)?;
        let layouts = tables.iter().map(|table| Arc::new(table.layout())).collect();
        for table in tables {
            table.begin_cut();
        }
        Ok(Sweep { writer, layouts, limits, table_next: 0, waiting: None, swept: false })
    }

    /// Adds neighbouring elements of a dense file, right after `begin`: `first_element` counts over all tensors
    /// of the file in order, so a rank that holds a slice of them adds that slice.
    ///
    /// # Errors
    /// What the writing thread met.
    pub fn dense(&mut self, file: &Arc<DenseLayout>, first_element: u64, values: Vec<f32>) -> Result<()> {
        self.writer.offer_waiting(Piece::Dense { file: Arc::clone(file), first_element, values })
    }

    /// Takes the next rows, between two steps: copies a few pieces while the queue has room, and returns.
    ///
    /// # Errors
    /// What the writing thread met. The checkpoint is lost then: call [`Sweep::abandon`].
    pub fn advance<T: RowStore>(&mut self, tables: &mut [T]) -> Result<Progress> {
        let mut pieces_left = (self.limits.advance_bytes_max / PIECE_BYTES_MAX).max(1);
        while !self.swept {
            let kept: usize =
                tables.iter_mut().filter_map(|table| Some(table.cut().as_ref()?.kept_bytes())).sum();
            let must = kept > self.limits.kept_bytes_max;
            if pieces_left == 0 && !must {
                break;
            }
            let Some(piece) = self.next_piece(tables) else {
                self.end();
                break;
            };
            if must {
                self.writer.offer_waiting(piece)?;
            } else if let Offer::Full(piece) = self.writer.offer(piece)? {
                self.waiting = Some(piece);
                break;
            }
            pieces_left = pieces_left.saturating_sub(1);
        }
        Ok(self.progress())
    }

    /// How far this rank is.
    pub fn progress(&self) -> Progress {
        match (self.swept, self.writer.is_finished()) {
            (false, _) => Progress::Sweeping,
            (true, false) => Progress::Writing,
            (true, true) => Progress::Written,
        }
    }

    /// Takes all that is left and waits for the disk; returns at once after [`Progress::Written`].
    ///
    /// # Errors
    /// What the writing thread met. The cuts of the tables are ended all the same.
    pub fn finish<T: RowStore>(mut self, tables: &mut [T]) -> Result<Written> {
        while let Some(piece) = self.next_piece(tables) {
            if let Err(error) = self.writer.offer_waiting(piece) {
                self.abandon(tables);
                return Err(error);
            }
        }
        self.writer.finish()
    }

    /// Gives the checkpoint up: ends the cuts and waits for the thread. The directory is for
    /// [`super::discard`] to remove, when every rank has given up.
    pub fn abandon<T: RowStore>(self, tables: &mut [T]) {
        for table in tables {
            *table.cut() = None;
        }
    }

    fn next_piece<T: RowStore>(&mut self, tables: &mut [T]) -> Option<Piece> {
        assert_eq!(tables.len(), self.layouts.len(), "tables of a sweep");
        if let Some(piece) = self.waiting.take() {
            return Some(piece);
        }
        while let Some(table) = tables.get_mut(self.table_next) {
            if let Some(run) = table.sweep(self.writer.spare()) {
                let layout = Arc::clone(&self.layouts[self.table_next]);
                return Some(Piece::Rows { table: layout, columns: table.columns(), run });
            }
            self.table_next += 1;
        }
        None
    }

    fn end(&mut self) {
        self.swept = true;
        self.writer.close();
    }
}
