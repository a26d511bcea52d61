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

/// The bags of all peers as those of one batch: by feature, the samples of one peer after the other.
pub(super) fn read(messages: &[Buffer], features: usize, old: Bags) -> Bags {
    let (mut offsets, mut rows, mut weights) = old.into_parts();
    offsets.clear();
    rows.clear();
    weights.clear();
    offsets.push(0);
    let mut samples = 0;
    for feature in 0..features {
        samples = 0;
        for message in messages {
            let words = message.values::<u32>();
            let (count, ids, weighted) = (words[1] as usize, words[2] as usize, words[3] == 1);
            let (ends, ids_at) = (&words[4..4 + features * count], 4 + features * count);
            let start = if feature * count == 0 { 0 } else { ends[feature * count - 1] };
            let own = &ends[feature * count..(feature + 1) * count];
            let base = rows.len() as u32;
            offsets.extend(own.iter().map(|end| end - start + base));
            let range = start as usize..own.last().copied().unwrap_or(start) as usize;
            rows.extend_from_slice(&words[ids_at + range.start..ids_at + range.end]);
            if weighted {
                let at = ids_at + ids;
                weights.extend_from_slice(bytemuck::cast_slice(&words[at + range.start..at + range.end]));
            }
            samples += count;
        }
    }
    Bags::new(features, samples, offsets, rows, weights).expect("bags that were whole before they travelled")
}
