//! Vectors between rows of floats and messages.

use std::ops::Range;

use campanile_comm::Buffer;
use campanile_kernels::{Isa, codec::Codec};
use campanile_spec::{ModelSpec, Seating};

/// Where the vectors of a message lie in a row of floats, and how they are encoded.
pub(super) struct Lanes {
    runs: Vec<Range<usize>>,
    row_width: usize,
    row_bytes: usize,
    codec: Codec,
    isa: Isa,
}

impl Lanes {
    /// Vectors at some places of rows of `row_width` floats.
    pub fn new(vectors: &[Range<usize>], row_width: usize, (codec, isa): (Codec, Isa)) -> Lanes {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for vector in vectors {
            match runs.last_mut() {
                // Neighbours travel as one where the codec looks at single elements; an int8 vector has its own scales.
                Some(last) if last.end == vector.start && codec != Codec::Int8 => last.end = vector.end,
                _ => runs.push(vector.clone()),
            }
        }
        let row_bytes = runs.iter().map(|run| codec.bytes(run.len())).sum();
        Lanes { runs, row_width, row_bytes, codec, isa }
    }

    /// Whether a message is the rows as they are, end to end.
    fn is_all(&self) -> bool {
        self.codec != Codec::Int8 && self.runs.len() == 1 && self.runs[0].len() == self.row_width
    }

    /// Writes the vectors of some rows to the end of a message, row by row.
    pub fn encode(&self, rows: &[f32], message: &mut Buffer) {
        let count = rows.len().checked_div(self.row_width).unwrap_or(0);
        message.resize(count * self.row_bytes);
        let mut bytes = message.bytes_mut();
        if self.is_all() {
            return self.codec.encode(self.isa, rows, bytes);
        }
        for row in rows.chunks_exact(self.row_width.max(1)) {
            for run in &self.runs {
                let (own, rest) = bytes.split_at_mut(self.codec.bytes(run.len()));
                self.codec.encode(self.isa, &row[run.clone()], own);
                bytes = rest;
            }
        }
    }

    /// The way back: into rows.
    pub fn decode(&self, message: &Buffer, rows: &mut [f32]) {
        let mut bytes = message.bytes();
        if self.is_all() {
            return self.codec.decode(self.isa, bytes, rows);
        }
        for row in rows.chunks_exact_mut(self.row_width.max(1)) {
            for run in &self.runs {
                let (own, rest) = bytes.split_at(self.codec.bytes(run.len()));
                self.codec.decode(self.isa, own, &mut row[run.clone()]);
                bytes = rest;
            }
        }
    }
}

/// By group the places of the vectors that it hands on in a sample's row above, and that row's width: first the vectors that
/// pass as they are, in feature order, then the modules', in the towers' order ([`ModelSpec::vector_widths`]).
pub(super) fn above(model: &ModelSpec, seating: &Seating) -> (Vec<Vec<Range<usize>>>, usize) {
    let plain = model.plain_features();
    let mut starts = vec![0];
    model.vector_widths().iter().for_each(|width| starts.push(starts[starts.len() - 1] + width));
    let mut groups: Vec<Vec<Range<usize>>> = vec![Vec::new(); seating.groups];
    for (place, feature) in plain.iter().enumerate() {
        let group = seating.features.iter().position(|own| own.contains(feature)).unwrap_or(0);
        groups[group].push(starts[place]..starts[place + 1]);
    }
    let mut place = plain.len();
    for tower in model.tower_modules() {
        let number = model.towers.list.iter().position(|other| other == tower).unwrap_or(0);
        let group = seating.towers.iter().position(|own| own.contains(&number)).unwrap_or(0);
        for _ in 0..tower.vector_count() {
            groups[group].push(starts[place]..starts[place + 1]);
            place += 1;
        }
    }
    (groups, starts[starts.len() - 1])
}

/// The same vectors side by side, as their group has them.
pub(super) fn side_by_side(vectors: &[Range<usize>]) -> (Vec<Range<usize>>, usize) {
    let mut start = 0;
    let place = |vector: &Range<usize>| {
        start += vector.len();
        start - vector.len()..start
    };
    (vectors.iter().map(place).collect(), start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_back_to_their_places() {
        let isa = Isa::detect();
        let rows: Vec<f32> = (0..5 * 120).map(|i| i as f32 * 0.37 - 90.0).collect();
        let vectors = [8..48, 48..51, 60..120];
        for codec in [Codec::F32, Codec::F16, Codec::Bf16, Codec::Int8] {
            let mut message = Buffer::new();
            Lanes::new(&vectors, 120, (codec, isa)).encode(&rows, &mut message);
            let mut found = vec![7.0; rows.len()];
            Lanes::new(&vectors, 120, (codec, isa)).decode(&message, &mut found);
            let mut want = vec![7.0; rows.len()];
            for (row, want) in rows.chunks(120).zip(want.chunks_mut(120)) {
                for vector in &vectors {
                    want[vector.clone()].copy_from_slice(&row[vector.clone()]);
                    codec.round(isa, &mut want[vector.clone()]);
                }
            }
            assert!(found.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{codec:?}");
            // What lies side by side in its group is cut there as it is cut here.
            let (places, width) = side_by_side(&vectors);
            let mut close = vec![0.0; 5 * width];
            Lanes::new(&places, width, (codec, isa)).decode(&message, &mut close);
            for (row, close) in want.chunks(120).zip(close.chunks(width)) {
                for (vector, place) in vectors.iter().zip(&places) {
                    assert_eq!(row[vector.clone()], close[place.clone()]);
                }
            }
        }
    }
}
