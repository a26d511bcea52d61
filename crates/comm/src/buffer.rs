//! A message: bytes that can be seen as numbers.
//!
//! A buffer starts on a cache line, so that a received message can be read as `f32` or `u64` in place, and it
//! keeps its memory when it is resized, so that a step that sends the same buffers round and round allocates
//! nothing after its first turn.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes on cache lines.
#[derive(Default, Clone)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// An empty buffer without memory.
    pub fn new() -> Buffer {
        Buffer::default()
    }

    /// A buffer that holds a copy of `values`.
    pub fn of<T: Pod>(values: &[T]) -> Buffer {
        let mut buffer = Buffer::new();
        buffer.resize(size_of_val(values));
        buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        buffer
    }

    /// Sets the length in bytes. Bytes that were inside before keep their value; new ones hold anything.
    pub fn resize(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.len = bytes;
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it can have without asking for memory.
    pub fn capacity(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    /// The bytes as numbers.
    ///
    /// # Panics
    /// If the length is not a multiple of the number's size.
    pub fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The bytes as numbers, to write.
    ///
    /// # Panics
    /// If the length is not a multiple of the number's size.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_memory_stays() {
        let mut buffer = Buffer::of(&[1.5f32, -2.0, 3.25]);
        assert_eq!(buffer.values::<f32>(), [1.5, -2.0, 3.25]);
        assert_eq!(buffer.bytes().as_ptr().align_offset(64), 0);
        buffer.resize(4000);
        buffer.resize(8);
        let memory = buffer.bytes().as_ptr();
        buffer.values_mut::<u64>()[0] = 7;
        buffer.resize(4000);
        assert_eq!(memory, buffer.bytes().as_ptr());
        assert_eq!(buffer.values::<u64>()[0], 7);
    }
}
