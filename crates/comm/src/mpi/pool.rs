//! Buffers for what arrives, taken from what was sent.
//!
//! A step sends about as much as it receives, so after its first turn every arriving message finds memory here and
//! nothing is allocated.

use crate::Buffer;

/// The most buffers that wait for use.
const BUFFERS_MAX: usize = 64;

/// Buffers without use at the moment.
#[derive(Default)]
pub struct Pool {
    buffers: Vec<Buffer>,
}

impl Pool {
    /// A buffer for so many bytes: the smallest that has room, or a new one.
    pub fn take(&mut self, bytes: usize) -> Buffer {
        if bytes == 0 {
            return Buffer::new();
        }
        let fitting = self.buffers.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= bytes);
        match fitting.min_by_key(|(_, buffer)| buffer.capacity()) {
            Some((place, _)) => self.buffers.swap_remove(place),
            None => {
                // With some room to grow, for the messages of a step differ a little from turn to turn.
                let mut buffer = Buffer::new();
                buffer.resize(bytes + bytes / 4);
                buffer
            }
        }
    }

    /// Keeps a buffer for later; where there are too many, the smallest goes.
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.capacity() == 0 {
            return;
        }
        self.buffers.push(buffer);
        if self.buffers.len() > BUFFERS_MAX {
            let smallest = self.buffers.iter().enumerate().min_by_key(|(_, buffer)| buffer.capacity());
            let place = smallest.map_or(0, |(place, _)| place);
            self.buffers.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Buffer {
        let mut buffer = Buffer::new();
        buffer.resize(bytes);
        buffer
    }

    #[test]
    fn the_smallest_buffer_with_room_is_taken() {
        let mut pool = Pool::default();
        [640, 128, 1280, 0].into_iter().for_each(|bytes| pool.give(of(bytes)));
        assert_eq!(pool.take(200).capacity(), 640);
        assert_eq!(pool.take(200).capacity(), 1280);
        assert_eq!(pool.take(200).capacity(), 256, "only the smallest is left, so this one is new");
        assert_eq!(pool.take(1).capacity(), 128);
    }

    #[test]
    fn it_holds_a_limited_number() {
        let mut pool = Pool::default();
        (1..=BUFFERS_MAX + 5).for_each(|lines| pool.give(of(64 * lines)));
        assert_eq!(pool.buffers.len(), BUFFERS_MAX);
        assert_eq!(pool.take(64 * (BUFFERS_MAX + 5)).capacity(), 64 * (BUFFERS_MAX + 5));
    }
}
