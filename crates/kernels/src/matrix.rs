//! Row-major views of `f32` slices, and how a kernel writes into one.
//!
//! A view may be a window: its rows may lie `stride` floats apart, so that a layer can write straight into its
//! place in a wider matrix and no concatenation ever copies. Invariant, checked once on construction and relied
//! on by every kernel: each of the `rows` rows has `columns` floats inside `data`, and rows do not overlap.

/// A matrix to read: `rows` rows of `columns` floats, the beginnings of two rows `stride` floats apart.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

/// A matrix to write, laid out as a [`Matrix`]. The floats between two rows are not touched.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

/// What happens to the value that stood in an output element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// It is forgotten; it may be anything, NaN too.
    Replace,
    /// The result is added to it: `old + result`.
    Add,
}

/// The floats that a window needs, from its first element to its last.
fn span(rows: usize, columns: usize, stride: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * stride + columns }
}

fn check(floats: usize, rows: usize, columns: usize, stride: usize) {
    assert!(columns <= stride, "rows of {columns} floats overlap at a stride of {stride}");
    assert!(
        span(rows, columns, stride) <= floats,
        "{rows} rows of {columns} floats at a stride of {stride} do not fit in {floats} floats"
    );
}

impl<'a> Matrix<'a> {
    /// A window into `data`.
    ///
    /// # Panics
    ///
    /// If rows would overlap or reach past `data`.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Matrix<'a> {
        check(data.len(), rows, columns, stride);
        Matrix { data, rows, columns, stride }
    }

    /// All of `data`, rows without gaps.
    ///
    /// # Panics
    ///
    /// If `columns` is zero or does not divide the length.
    pub fn contiguous(data: &'a [f32], columns: usize) -> Matrix<'a> {
        let rows = whole_rows(data.len(), columns);
        Matrix { data, rows, columns, stride: columns }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many floats a row has.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How many floats lie between the beginnings of two rows.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Row `index`.
    pub fn row(&self, index: usize) -> &'a [f32] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        &self.data[index * self.stride..][..self.columns]
    }

    /// Rows `first..first + rows`.
    pub fn rows_from(&self, first: usize, rows: usize) -> Matrix<'a> {
        assert!(first + rows <= self.rows, "rows {first}..{} of {}", first + rows, self.rows);
        let start = (first * self.stride).min(self.data.len());
        Matrix::new(&self.data[start..], rows, self.columns, self.stride)
    }

    /// Columns `first..first + columns` of every row.
    pub fn columns_from(&self, first: usize, columns: usize) -> Matrix<'a> {
        assert!(first + columns <= self.columns, "columns {first}..{} of {}", first + columns, self.columns);
        let start = first.min(self.data.len());
        Matrix::new(&self.data[start..], self.rows, columns, self.stride)
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

impl<'a> MatrixMut<'a> {
    /// A window into `data`.
    ///
    /// # Panics
    ///
    /// If rows would overlap or reach past `data`.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> MatrixMut<'a> {
        check(data.len(), rows, columns, stride);
        MatrixMut { data, rows, columns, stride }
    }

    /// All of `data`, rows without gaps.
    ///
    /// # Panics
    ///
    /// If `columns` is zero or does not divide the length.
    pub fn contiguous(data: &'a mut [f32], columns: usize) -> MatrixMut<'a> {
        let rows = whole_rows(data.len(), columns);
        MatrixMut { data, rows, columns, stride: columns }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many floats a row has.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How many floats lie between the beginnings of two rows.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The same window, to read.
    pub fn view(&self) -> Matrix<'_> {
        Matrix { data: self.data, rows: self.rows, columns: self.columns, stride: self.stride }
    }

    /// The same window, lent for one call.
    pub fn lend(&mut self) -> MatrixMut<'_> {
        MatrixMut { data: self.data, rows: self.rows, columns: self.columns, stride: self.stride }
    }

    /// Rows `first..first + rows`, lent for one call.
    pub fn rows_from(&mut self, first: usize, rows: usize) -> MatrixMut<'_> {
        assert!(first + rows <= self.rows, "rows {first}..{} of {}", first + rows, self.rows);
        let start = (first * self.stride).min(self.data.len());
        MatrixMut::new(&mut self.data[start..], rows, self.columns, self.stride)
    }

    /// Columns `first..first + columns` of every row, lent for one call.
    pub fn columns_from(&mut self, first: usize, columns: usize) -> MatrixMut<'_> {
        assert!(first + columns <= self.columns, "columns {first}..{} of {}", first + columns, self.columns);
        let start = first.min(self.data.len());
        MatrixMut::new(&mut self.data[start..], self.rows, columns, self.stride)
    }

    /// Row `index`.
    pub fn row(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        &mut self.data[index * self.stride..][..self.columns]
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.data.as_mut_ptr()
    }
}

fn whole_rows(floats: usize, columns: usize) -> usize {
    assert!(columns > 0 && floats.is_multiple_of(columns), "{floats} floats are no rows of {columns}");
    floats / columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_sees_its_own_floats_only() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let all = Matrix::contiguous(&data, 4);
        assert_eq!(all.rows(), 3);
        let window = all.rows_from(1, 2).columns_from(1, 2);
        assert_eq!(window.row(0), &[5.0, 6.0]);
        assert_eq!(window.row(1), &[9.0, 10.0]);
    }

    #[test]
    fn an_empty_window_at_the_end_is_allowed() {
        let data = [1.0, 2.0];
        let all = Matrix::new(&data, 1, 2, 5);
        assert_eq!(all.rows_from(1, 0).rows(), 0);
    }

    #[test]
    fn overlapping_rows_and_short_data_are_refused() {
        let data = vec![0.0; 10];
        assert!(std::panic::catch_unwind(|| Matrix::new(&data, 2, 5, 4)).is_err());
        assert!(std::panic::catch_unwind(|| Matrix::new(&data, 2, 5, 6)).is_err());
        assert_eq!(Matrix::new(&data, 2, 4, 6).row(1).len(), 4);
    }
}
