//! Impressions: who saw what, before anybody clicks.
//!
//! An impression is a function of its index in the stream: the index gives a key, and every value is a draw from
//! that key. Features are filled one after the other, because [`campanile_spec::Bags`] is feature-major.

use campanile_spec::world::WorldSpec;

use super::ids::Ids;
use super::random::{below, draw, key_for, normal, unit};

/// Draws of one impression are numbered: first the few of the impression itself, then the dense inputs, then the
/// ids of each feature.
const DRAW_DOMAIN: u64 = 0;
/// Where the dense inputs' draws begin.
const DRAW_DENSE: u64 = 16;
/// Where the first feature's draws begin; each feature has twice the largest bag.
const DRAW_SPARSE: u64 = 1 << 16;
/// Draws reserved for a feature.
const DRAWS_PER_FEATURE: u64 = 2048;

/// A run of impressions, all inputs, the teacher's included.
#[derive(Debug, Clone, Default)]
pub struct Impressions {
    /// A key per impression; labels draw from it as well.
    pub keys: Vec<u64>,
    /// Where in the stream, from 0 to 1.
    pub moments: Vec<f64>,
    /// The domain of each.
    pub domains: Vec<u32>,
    /// The user of each: the row of the first feature, drawn even where the feature is absent.
    pub users: Vec<u32>,
    /// `[impression][dense]`.
    pub dense: Vec<f32>,
    /// As in `Bags`: feature-major.
    pub offsets: Vec<u32>,
    /// Rows, feature after feature.
    pub rows: Vec<u32>,
}

/// Makes impressions.
#[derive(Debug, Clone)]
pub struct Audience {
    key: u64,
    stream_length: f64,
    dense_count: usize,
    /// The ids of each feature.
    pub ids: Vec<Ids>,
    /// Rising; the last is 1.
    shares: Vec<f64>,
    /// `[domain][feature]`.
    absent: Vec<Vec<bool>>,
}

/// Which domain impressions come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// As the shares of traffic say.
    Anywhere,
    /// Only this one: for measuring a domain.
    Domain(u32),
}

impl Audience {
    /// The audience of a checked world.
    pub fn new(spec: &WorldSpec, seed: u64) -> Audience {
        let domains = spec.domains_or_one();
        let total: f64 = domains.iter().map(|domain| domain.share).sum();
        let mut sum = 0.0;
        let mut share = |part: f64| {
            sum += part;
            sum / total
        };
        let absent = |names: &[String]| {
            (0..spec.sparse_count)
                .map(|f| names.iter().any(|name| spec.sparse_index(name) == Some(f)))
                .collect()
        };
        Audience {
            key: key_for(seed, "impressions"),
            stream_length: spec.sample_count() as f64,
            dense_count: spec.dense_count,
            ids: (0..spec.sparse_count).map(|feature| Ids::new(spec, seed, feature)).collect(),
            shares: domains.iter().map(|domain| share(domain.share)).collect(),
            absent: domains.iter().map(|domain| absent(&domain.absent)).collect(),
        }
    }

    /// The impressions at these places of the stream.
    pub fn impressions(&self, indices: impl Iterator<Item = u64>, from: From) -> Impressions {
        let mut seen = Impressions::default();
        for index in indices {
            let key = draw(self.key, index);
            seen.keys.push(key);
            seen.moments.push(index as f64 / self.stream_length);
            seen.domains.push(match from {
                From::Domain(domain) => domain,
                From::Anywhere => self.domain(unit(draw(key, DRAW_DOMAIN))),
            });
            seen.dense
                .extend((0..self.dense_count as u64).map(|input| normal(draw(key, DRAW_DENSE + input))));
        }
        let users = seen.keys.iter().zip(&seen.moments);
        seen.users = users.map(|(&key, &moment)| self.ids[0].row(draw(key, DRAW_SPARSE), moment)).collect();
        seen.offsets.reserve_exact(self.ids.len() * seen.keys.len() + 1);
        seen.rows.reserve(self.ids.len() * seen.keys.len());
        seen.offsets.push(0);
        for (feature, ids) in self.ids.iter().enumerate() {
            self.fill(feature, ids, &mut seen);
        }
        seen
    }

    fn domain(&self, u: f64) -> u32 {
        let last = self.shares.len() - 1;
        self.shares[..last].iter().take_while(|&&share| u >= share).count() as u32
    }

    fn fill(&self, feature: usize, ids: &Ids, seen: &mut Impressions) {
        let first = DRAW_SPARSE + feature as u64 * DRAWS_PER_FEATURE;
        let (least, most) = ids.bag;
        let always_one = (least, most) == (1, 1) && self.absent.iter().all(|absent| !absent[feature]);
        if always_one {
            let samples = seen.keys.iter().zip(&seen.moments);
            seen.rows.extend(samples.map(|(&key, &moment)| ids.row(draw(key, first), moment)));
            let start = seen.offsets[seen.offsets.len() - 1];
            seen.offsets.extend(start + 1..=start + seen.keys.len() as u32);
            return;
        }
        for sample in 0..seen.keys.len() {
            let (key, moment) = (seen.keys[sample], seen.moments[sample]);
            if !self.absent[seen.domains[sample] as usize][feature] {
                let length_bits = draw(key, first + DRAWS_PER_FEATURE - 1);
                let length = u64::from(least) + below(length_bits, u64::from(most - least) + 1);
                seen.rows.extend((0..length).map(|place| ids.row(draw(key, first + place), moment)));
            }
            seen.offsets.push(seen.rows.len() as u32);
        }
    }
}
