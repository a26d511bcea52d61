//! A matrix of samples, with the few things that the oracle does to one.

use std::ops::Range;

/// A matrix, row by row.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub samples: usize,
    pub width: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    pub fn zeros(samples: usize, width: usize) -> Matrix {
        Matrix { samples, width, data: vec![0.0; samples * width] }
    }

    pub fn from(samples: usize, width: usize, mut value: impl FnMut(usize, usize) -> f32) -> Matrix {
        let places = (0..samples).flat_map(|n| (0..width).map(move |i| (n, i)));
        Matrix { samples, width, data: places.map(|(n, i)| value(n, i)).collect() }
    }

    /// Every element becomes a function of its sample, its column and its old value.
    pub fn change(&mut self, value: impl Fn(usize, usize, f32) -> f32) {
        let width = self.width;
        let places = self.data.iter_mut().enumerate();
        places.for_each(|(place, v)| *v = value(place / width, place % width, *v));
    }

    pub fn row(&self, sample: usize) -> &[f32] {
        &self.data[sample * self.width..][..self.width]
    }

    pub fn row_mut(&mut self, sample: usize) -> &mut [f32] {
        &mut self.data[sample * self.width..][..self.width]
    }

    pub fn rows(&self, range: Range<usize>) -> Matrix {
        let data = self.data[range.start * self.width..range.end * self.width].to_vec();
        Matrix { samples: range.len(), width: self.width, data }
    }
}
