//! The memory of one forward and backward pass, made once and used for every grain.
//!
//! A layer reads and writes *places*: windows of columns in a buffer of the workspace, or in the caller's
//! dense inputs and pooled vectors. Putting two vectors side by side is then a matter of where their layers
//! write, and copies nothing. Every buffer has a twin for its gradient; twins that are never alive together
//! share memory (see `graph`).
//!
//! Invariant: the places that one layer writes are in other buffers than those that it reads.

use std::mem;

use campanile_kernels::{
    gemm, interact,
    matrix::{Matrix, MatrixMut},
};

/// Where a window of columns lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The caller's dense inputs: read only, and without a gradient.
    Dense,
    /// The caller's pooled vectors.
    Pooled,
    /// A buffer of the workspace.
    Buffer(usize),
}

/// A window of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub source: Source,
    pub start: usize,
    pub width: usize,
}

impl Place {
    /// Some columns of this window.
    pub fn columns(self, start: usize, width: usize) -> Place {
        assert!(start + width <= self.width, "columns {start}..{} of {}", start + width, self.width);
        Place { start: self.start + start, width, ..self }
    }

    /// Whether the two windows share a column.
    pub fn overlaps(self, other: Place) -> bool {
        self.source == other.source
            && self.start < other.start + other.width
            && other.start < self.start + self.width
    }
}

/// Rows of `stride` floats.
#[derive(Debug, Default)]
struct Buffer {
    data: Vec<f32>,
    stride: usize,
}

/// What the layers read and write on the way forward.
pub(crate) struct Values<'a> {
    pub samples: usize,
    pub dense: Matrix<'a>,
    pub pooled: Matrix<'a>,
    buffers: &'a mut [Buffer],
}

/// What they read and write on the way back.
pub(crate) struct Gradients<'a> {
    pub samples: usize,
    pooled: &'a mut [f32],
    pooled_width: usize,
    strides: &'a [usize],
    /// The slot of every buffer's gradient.
    slots_of: &'a [usize],
    slots: &'a mut [Vec<f32>],
}

/// Scratch memory of the kernels.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub gemm: gemm::Scratch,
    pub interact: interact::Scratch,
    /// Floats for a layer's own sums.
    pub sums: Vec<f32>,
}

/// All memory of one thread's passes; made by [`Network::workspace`](crate::Network::workspace).
#[derive(Debug)]
pub struct Workspace {
    samples_max: usize,
    values: Vec<Buffer>,
    strides: Vec<usize>,
    slots_of: Vec<usize>,
    slots: Vec<Vec<f32>>,
    logits: usize,
    pub(crate) scratch: Scratch,
}

/// The shape of a workspace, as the graph decides it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    /// The width of every buffer.
    pub widths: Vec<usize>,
    /// The slot of every buffer's gradient.
    pub slots_of: Vec<usize>,
    /// The buffer of the logits, whose rows have no gaps.
    pub logits: usize,
}

impl Workspace {
    pub(crate) fn new(shape: &Shape, samples_max: usize) -> Workspace {
        let stride = |buffer: usize| {
            if buffer == shape.logits { shape.widths[buffer] } else { padded(shape.widths[buffer]) }
        };
        let strides: Vec<usize> = (0..shape.widths.len()).map(stride).collect();
        let slot_count = shape.slots_of.iter().max().map_or(0, |slot| slot + 1);
        let mut slots = vec![Vec::new(); slot_count];
        for (slot, stride) in shape.slots_of.iter().zip(&strides) {
            let floats = (stride * samples_max).max(slots[*slot].len());
            slots[*slot].resize(floats, 0.0);
        }
        Workspace {
            samples_max,
            values: strides
                .iter()
                .map(|&stride| Buffer { data: vec![0.0; stride * samples_max], stride })
                .collect(),
            strides,
            slots_of: shape.slots_of.clone(),
            slots,
            logits: shape.logits,
            scratch: Scratch::default(),
        }
    }

    /// The most samples that a pass may have.
    pub fn samples_max(&self) -> usize {
        self.samples_max
    }

    /// The logits `[sample][task]` of the last forward pass over `samples` samples.
    pub fn logits(&self, samples: usize) -> &[f32] {
        let buffer = &self.values[self.logits];
        &buffer.data[..samples * buffer.stride]
    }

    /// A sample's part of a window of a buffer, as the last forward pass left it.
    pub(crate) fn row(&self, place: Place, sample: usize) -> &[f32] {
        let Source::Buffer(index) = place.source else { panic!("{place:?} is no buffer") };
        let Buffer { data, stride } = &self.values[index];
        &data[sample * stride + place.start..][..place.width]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let values: usize = self.values.iter().map(|buffer| buffer.data.len()).sum();
        let gradients: usize = self.slots.iter().map(Vec::len).sum();
        (values + gradients) * size_of::<f32>()
    }

    /// The rows of which a window is part, and how far they lie apart.
    pub(crate) fn rows_mut(&mut self, place: Place) -> (&mut [f32], usize) {
        let Source::Buffer(index) = place.source else { panic!("a layer writes to {place:?}") };
        let Buffer { data, stride } = &mut self.values[index];
        (data, *stride)
    }

    /// Copies a window of the first sample to all others.
    pub(crate) fn spread(&mut self, place: Place, samples: usize) {
        let Source::Buffer(index) = place.source else { panic!("a layer writes to {place:?}") };
        let Buffer { data, stride } = &mut self.values[index];
        for sample in 1..samples {
            data.copy_within(place.start..place.start + place.width, sample * *stride + place.start);
        }
    }

    /// The parts of a forward pass.
    pub(crate) fn forward<'a>(
        &'a mut self,
        samples: usize,
        dense: Matrix<'a>,
        pooled: Matrix<'a>,
    ) -> (Values<'a>, &'a mut Scratch) {
        assert!(samples <= self.samples_max, "{samples} samples in a workspace for {}", self.samples_max);
        (Values { samples, dense, pooled, buffers: &mut self.values }, &mut self.scratch)
    }

    /// The parts of a backward pass.
    pub(crate) fn backward<'a>(
        &'a mut self,
        samples: usize,
        dense: Matrix<'a>,
        pooled: Matrix<'a>,
        pooled_gradient: &'a mut [f32],
    ) -> (Values<'a>, Gradients<'a>, &'a mut Scratch) {
        assert!(samples <= self.samples_max, "{samples} samples in a workspace for {}", self.samples_max);
        let values = Values { samples, dense, pooled, buffers: &mut self.values };
        let gradients = Gradients {
            samples,
            pooled: pooled_gradient,
            pooled_width: pooled.columns(),
            strides: &self.strides,
            slots_of: &self.slots_of,
            slots: &mut self.slots,
        };
        (values, gradients, &mut self.scratch)
    }
}

/// Rows begin on cache lines, and never a multiple of 4 KiB apart: eight rows at the same offset in a page
/// would fight for the same ways of the first-level cache.
fn padded(width: usize) -> usize {
    let stride = width.next_multiple_of(16);
    if stride.is_multiple_of(1024) { stride + 16 } else { stride }
}

impl Values<'_> {
    /// A window to read.
    pub fn read(&self, place: Place) -> Matrix<'_> {
        match place.source {
            Source::Dense => self.dense.columns_from(place.start, place.width),
            Source::Pooled => self.pooled.columns_from(place.start, place.width),
            Source::Buffer(index) => {
                let Buffer { data, stride } = &self.buffers[index];
                Matrix::new(&data[place.start..], self.samples, place.width, *stride)
            }
        }
    }

    /// Lends a window to `write`, which may read all other buffers.
    pub fn write(&mut self, place: Place, write: impl FnOnce(&Self, MatrixMut<'_>)) {
        let Source::Buffer(index) = place.source else { panic!("a layer writes to {place:?}") };
        let mut buffer = mem::take(&mut self.buffers[index]);
        let window =
            MatrixMut::new(&mut buffer.data[place.start..], self.samples, place.width, buffer.stride);
        write(self, window);
        self.buffers[index] = buffer;
    }
}

impl Gradients<'_> {
    /// The gradient of a window, to read.
    pub fn read(&self, place: Place) -> Matrix<'_> {
        let Source::Buffer(index) = place.source else { panic!("the gradient of {place:?} is not kept") };
        let slot = &self.slots[self.slots_of[index]];
        Matrix::new(&slot[place.start..], self.samples, place.width, self.strides[index])
    }

    /// Lends the gradient of a window to `write`, which may read all others.
    pub fn write(&mut self, place: Place, write: impl FnOnce(&Self, MatrixMut<'_>)) {
        let samples = self.samples;
        match place.source {
            Source::Dense => panic!("dense inputs have no gradient"),
            Source::Pooled => {
                let pooled = mem::take(&mut self.pooled);
                write(
                    self,
                    MatrixMut::new(&mut pooled[place.start..], samples, place.width, self.pooled_width),
                );
                self.pooled = pooled;
            }
            Source::Buffer(index) => {
                let (slot, stride) = (self.slots_of[index], self.strides[index]);
                let mut data = mem::take(&mut self.slots[slot]);
                write(self, MatrixMut::new(&mut data[place.start..], samples, place.width, stride));
                self.slots[slot] = data;
            }
        }
    }

    /// Lends the gradients of two windows in different buffers.
    pub fn write_two(
        &mut self,
        one: Place,
        two: Place,
        write: impl FnOnce(&Self, MatrixMut<'_>, MatrixMut<'_>),
    ) {
        let Source::Buffer(index) = one.source else { panic!("the gradient of {one:?} is not kept") };
        let (slot, stride) = (self.slots_of[index], self.strides[index]);
        let mut data = mem::take(&mut self.slots[slot]);
        let window = MatrixMut::new(&mut data[one.start..], self.samples, one.width, stride);
        self.write(two, |gradients, other| write(gradients, window, other));
        self.slots[slot] = data;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_begin_on_lines_and_avoid_pages() {
        for width in 1..5000 {
            let stride = padded(width);
            assert!(stride >= width && stride.is_multiple_of(16) && !stride.is_multiple_of(1024), "{width}");
        }
    }
}
