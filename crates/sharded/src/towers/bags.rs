//! Bags on their way to the peers: what a rank's samples name of other groups' features.

use campanile_comm::Buffer;
use campanile_spec::{Bags, ModelSpec};

/// Says which row is beyond its table, if any is. Asked before the bags leave their home, so that all ranks learn of it
/// with the bags.
pub(super) fn check(model: &ModelSpec, bags: &Bags) -> Result<(), String> {
    for feature in 0..model.features.len() {
        let table = model.table_of(feature);
        let beyond = |row: &&u32| u64::from(**row) >= table.row_count;
        if let Some(row) = bags.feature(feature).rows.iter().find(beyond) {
            return Err(format!(
                "table `{}` has {} rows, and row {row} was asked for; give it more rows, or hash its ids",
                table.name, table.row_count
            ));
        }
    }
    Ok(())
}

/// Some features' bags: status, samples, ids, whether weighted; ends of all bags, feature by feature; rows; weights.
pub(super) fn write(message: &mut Buffer, bags: &Bags, features: &[usize]) {
    let ids: usize = features.iter().map(|&feature| bags.feature(feature).rows.len()).sum();
    let (samples, weighted) = (bags.sample_count(), !bags.weights().is_empty());
    let words = 4 + features.len() * samples + ids * (1 + usize::from(weighted));
    message.resize(words * size_of::<u32>());
    let (head, mut rest) = message.values_mut::<u32>().split_at_mut(4);
    head.copy_from_slice(&[0, samples as u32, ids as u32, u32::from(weighted)]);
    let mut take = |count: usize| {
        let (taken, left) = std::mem::take(&mut rest).split_at_mut(count);
        rest = left;
        taken
    };
    let mut before = 0;
    for &feature in features {
        let own = bags.feature(feature);
        let ends = take(samples).iter_mut().zip(&own.offsets[1..]);
        ends.for_each(|(to, end)| *to = end - own.offsets[0] + before);
        before += own.rows.len() as u32;
    }
    for &feature in features {
        let rows = bags.feature(feature).rows;
        take(rows.len()).copy_from_slice(rows);
    }
    if weighted {
        for &feature in features {
            let weights: &[u32] = bytemuck::cast_slice(bags.feature(feature).weights);
            take(weights.len()).copy_from_slice(weights);
        }
    }
}

/// The bags of all peers as those of one batch: by feature, a run of each peer's samples after the other, then their next
/// runs. `run_ends` says where each of these runs ends.
pub(super) fn read(messages: &[Buffer], features: usize, run_ends: &[usize], old: Bags) -> Bags {
    let (mut offsets, mut rows, mut weights) = old.into_parts();
    offsets.clear();
    rows.clear();
    weights.clear();
    offsets.push(0);
    let of_peers: Vec<Words<'_>> = messages.iter().map(|message| Words::new(message, features)).collect();
    let mut taken = vec![0; of_peers.len()];
    for feature in 0..features {
        taken.fill(0);
        let mut start = 0;
        for (run, end) in run_ends.iter().enumerate() {
            let peer = run % of_peers.len();
            let (words, samples) = (&of_peers[peer], taken[peer]..taken[peer] + end - start);
            (taken[peer], start) = (samples.end, *end);
            let first = words.first_id(feature, samples.start);
            let base = rows.len() as u32;
            let ends = &words.ends[feature * words.samples..][samples];
            offsets.extend(ends.iter().map(|end| end - first + base));
            let ids = first as usize..ends.last().copied().unwrap_or(first) as usize;
            rows.extend_from_slice(&words.rows[ids.clone()]);
            if !words.weights.is_empty() {
                weights.extend_from_slice(&words.weights[ids]);
            }
        }
    }
    let samples = run_ends.last().copied().unwrap_or(0);
    Bags::new(features, samples, offsets, rows, weights).expect("bags that were whole before they travelled")
}

/// A message, taken apart.
struct Words<'a> {
    samples: usize,
    /// By feature, then by sample: where the bag's ids end.
    ends: &'a [u32],
    rows: &'a [u32],
    weights: &'a [f32],
}

impl<'a> Words<'a> {
    fn new(message: &'a Buffer, features: usize) -> Words<'a> {
        let (head, rest) = message.values::<u32>().split_at(4);
        let (samples, ids, weighted) = (head[1] as usize, head[2] as usize, head[3] == 1);
        let (ends, rest) = rest.split_at(features * samples);
        let (rows, rest) = rest.split_at(ids);
        let weights = if weighted { bytemuck::cast_slice(rest) } else { &[] };
        Words { samples, ends, rows, weights }
    }

    /// Where the ids of a sample's bag begin.
    fn first_id(&self, feature: usize, sample: usize) -> u32 {
        (feature * self.samples + sample).checked_sub(1).map_or(0, |before| self.ends[before])
    }
}
