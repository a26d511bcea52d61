//! Numbers that are none. A state that holds one is no state to go on from: whatever touches it becomes none as well, and
//! a weight whose optimizer state is infinite never moves again.

use std::{ops::Range, path::Path};

use campanile_spec::RowFormat;

use super::{CheckpointError, Result, TableLayout, TensorEntry};

/// Neighbouring rows of a table, or of some of its columns.
pub(super) struct Rows<'a> {
    pub table: &'a TableLayout,
    pub columns: Range<usize>,
    pub first_row: u64,
    pub rows: &'a [u8],
    pub state: &'a [f32],
}

impl Rows<'_> {
    /// Fails where a value, or a float of the optimizer's state, is not finite; `holder` is what holds them.
    pub fn check(&self, holder: &Path) -> Result<()> {
        let Rows { table, columns, first_row, rows, state } = self;
        if let Some(place) = first_in_bytes(rows, table.format) {
            let (row, column) = (place / columns.len(), columns.start + place % columns.len());
            let row = first_row + row as u64;
            return Err(error(holder, format!("table `{}`, row {row}: float {column}", table.name)));
        }
        if let Some(place) = first(state) {
            let row = first_row + (place / table.state_floats_of(columns)) as u64;
            let place = place % table.state_floats_of(columns);
            let runs = table.state_runs(columns).zip(&table.state);
            let names = runs.take_while(|(run, _)| run.part <= place).map(|(_, column)| column.name.as_str());
            let name = names.last().unwrap_or_default();
            return Err(error(
                holder,
                format!("table `{}`, row {row}: optimizer state `{name}`", table.name),
            ));
        }
        Ok(())
    }
}

/// Fails where an element of dense tensors is not finite; `first_element` counts over all of them.
pub(super) fn check_dense(
    holder: &Path,
    tensors: &[TensorEntry],
    first_element: u64,
    values: &[f32],
) -> Result<()> {
    let Some(place) = first(values) else { return Ok(()) };
    let mut left = first_element + place as u64;
    for tensor in tensors {
        match left.checked_sub(tensor.element_count()) {
            Some(after) => left = after,
            None => return Err(error(holder, format!("tensor `{}`, element {left}", tensor.name))),
        }
    }
    Err(error(holder, format!("element {left} after the last tensor")))
}

fn error(holder: &Path, place: String) -> CheckpointError {
    CheckpointError::NotFinite { path: holder.to_owned(), place }
}

/// The first value that is not finite.
fn first(values: &[f32]) -> Option<usize> {
    // Nearly always there is none, and this loop has no way out of the middle.
    let is_bad = values.iter().fold(false, |bad, value| bad | !value.is_finite());
    if is_bad { values.iter().position(|value| !value.is_finite()) } else { None }
}

fn first_in_bytes(bytes: &[u8], format: RowFormat) -> Option<usize> {
    let exponent = match format {
        RowFormat::F32 => {
            let (floats, _) = bytes.as_chunks::<4>();
            return floats.iter().position(|bytes| !f32::from_le_bytes(*bytes).is_finite());
        }
        RowFormat::F16 => 0x7c00,
        RowFormat::Bf16 => 0x7f80,
    };
    let (halves, _) = bytes.as_chunks::<2>();
    halves.iter().position(|bytes| u16::from_le_bytes(*bytes) & exponent == exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_and_what_is_no_number_are_found_in_every_format() {
        let floats =
            |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(first_in_bytes(&floats(&[1.0, f32::MAX, f32::MIN_POSITIVE]), RowFormat::F32), None);
        assert_eq!(first_in_bytes(&floats(&[1.0, f32::NEG_INFINITY]), RowFormat::F32), Some(1));
        let halves =
            |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        // The largest and the smallest, then infinity, then what is no number.
        for (format, largest, infinite) in
            [(RowFormat::F16, 0x7bff, 0x7c00), (RowFormat::Bf16, 0x7f7f, 0x7f80)]
        {
            assert_eq!(first_in_bytes(&halves(&[0, 1, largest, largest | 0x8000]), format), None);
            assert_eq!(first_in_bytes(&halves(&[0, infinite | 0x8000]), format), Some(1));
            assert_eq!(first_in_bytes(&halves(&[0, 0, infinite + 1]), format), Some(2));
        }
        assert_eq!(first(&[0.0; 9]), None);
        assert_eq!(first(&[0.0, f32::NAN]), Some(1));
    }
}
