//! Rows as a checkpoint stores them, file by file: for comparing two checkpoints and for writing others.

use super::{Checkpoint, Result, TableLayout, read::TableTensors};

impl Checkpoint {
    /// The stored rows of one file of a table, without their state; `buffer` holds the file.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn stored_rows<'a>(
        &self,
        table: &TableLayout,
        file: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let path = self.read_verified(&table.file_name(file), buffer)?;
        let rows = table.rows_of_file(file);
        Ok(TableTensors::parse(&path, buffer, table, rows.end - rows.start)?.rows)
    }
}
