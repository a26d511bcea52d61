//! Floats that begin on a cache line, so that a vector load of a packed panel never straddles two.
#![allow(unsafe_code)]

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; FLOATS_PER_LINE]);

const FLOATS_PER_LINE: usize = 16;

/// A buffer that grows when asked and never shrinks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Buffer(Vec<Line>);

impl Buffer {
    /// `count` floats to write. What they hold is left over from earlier calls.
    pub(crate) fn room(&mut self, count: usize) -> &mut [f32] {
        let lines = count.div_ceil(FLOATS_PER_LINE);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; FLOATS_PER_LINE]));
        }
        // SAFETY: `Line` is `repr(C)` around an array of floats as large as its alignment, so lines are floats
        // without gaps, and there are at least `count` of them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }

    /// `count` words to write, instead of floats.
    pub(crate) fn word_room(&mut self, count: usize) -> &mut [u32] {
        let floats = self.room(count);
        // SAFETY: floats and words have the same size and alignment, and any bits are valid for both.
        unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
    }

    /// What [`Buffer::floats`] gives, as words.
    pub(crate) fn words(&self) -> &[u32] {
        let floats = self.floats();
        // SAFETY: as in `word_room`.
        unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
    }

    /// All floats that were ever asked for, rounded up to whole lines.
    pub(crate) fn floats(&self) -> &[f32] {
        // SAFETY: as in `room`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * FLOATS_PER_LINE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_on_a_line_and_outlive_growth() {
        let mut buffer = Buffer::default();
        assert!(buffer.floats().is_empty());
        for count in [1, 15, 16, 17, 100] {
            let room = buffer.room(count);
            assert_eq!((room.len(), room.as_ptr().addr() % 64), (count, 0));
            room.fill(count as f32);
        }
        buffer.room(3);
        assert_eq!(buffer.floats()[99], 100.0);
        buffer.word_room(2)[1] = 1f32.to_bits();
        assert_eq!((buffer.floats()[1], buffer.words()[99]), (1.0, 100f32.to_bits()));
    }
}
