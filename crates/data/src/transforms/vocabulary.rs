//! Ids that have a row of their own.
//!
//! Keys lie in row order, and an open-addressing table of row numbers finds them: 8 bytes a key and 8 to 16
//! for the slots, which is what a server must hold too.

use crate::value::mix;

/// Memory for one id, at most, while it is sorted and looked up.
pub(crate) const VOCABULARY_ID_BYTES: u64 = 24;

/// Key to row: row 0 is shared by all ids that are not here, the others have rows 1, 2, ...
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Vocabulary {
    keys: Vec<u64>,
    /// Rows, 0 where a slot is free; the length is a power of two, at least twice the keys.
    slots: Vec<u32>,
}

impl Vocabulary {
    /// The key at place `i` gets row `i + 1`; `None` when a key stands twice.
    pub fn new(keys: Vec<u64>) -> Option<Vocabulary> {
        if keys.is_empty() {
            return Some(Vocabulary::default());
        }
        let mut slots = vec![0_u32; (keys.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (index, &key) in keys.iter().enumerate() {
            let mut slot = mix(key) as usize & mask;
            while slots[slot] != 0 {
                if keys[slots[slot] as usize - 1] == key {
                    return None;
                }
                slot = (slot + 1) & mask;
            }
            slots[slot] = index as u32 + 1;
        }
        Some(Vocabulary { keys, slots })
    }

    /// The row of a key.
    #[inline]
    pub fn row(&self, key: u64) -> u32 {
        if self.slots.is_empty() {
            return 0;
        }
        let mask = self.slots.len() - 1;
        let mut slot = mix(key) as usize & mask;
        loop {
            let row = self.slots[slot];
            if row == 0 || self.keys[row as usize - 1] == key {
                return row;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The keys, in row order.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }
}
