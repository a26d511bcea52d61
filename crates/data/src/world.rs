//! The seeded synthetic world: samples whose true probabilities are known.
//!
//! Sample `i` of the stream is a pure function of (world, seed, `i`): there is no state, so any rank can read any
//! range in any order and gets the same bits, and resuming needs a position and nothing else. Nothing is stored
//! per id either; hidden effects are hashes of the row, and tables of forty million rows cost no memory here.
//! A world of 26 one-id features gives about a million samples a second on one core (`docs/world.md`).
//!
//! ```text
//!   index ──impressions──► domain, user, dense inputs, ids ──truth──► parts of the logit
//!         ──calibrate──► probabilities ──outcomes──► click, conversion, delays
//! ```
//!
//! What the knobs are and which values they may have is [`campanile_spec::world`]'s.

mod calibrate;
mod ids;
mod impressions;
mod logged;
mod maths;
mod outcomes;
mod random;
mod teacher;
mod truth;

use std::ops::Range;

use campanile_spec::data::Split;
pub use campanile_spec::world::{View, WorldError, WorldSpec};
use campanile_spec::{Bags, Batch};

use calibrate::Calibration;
use impressions::{Audience, From, Impressions};
use outcomes::{Outcome, conversion_label, outcome};
pub use truth::HIDDEN_RANK;
use truth::Truth;

/// A world that can be read.
#[derive(Debug, Clone)]
pub struct World {
    spec: WorldSpec,
    view: View,
    /// Sparse features in the order of a batch's bags.
    seen: Vec<usize>,
    audience: Audience,
    truth: Truth,
    calibration: Calibration,
}

/// One impression and what came of it, for a stream that must wait for its labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// The place in the stream; unique.
    pub example_id: u64,
    /// When it was shown, in milliseconds since the start of the stream.
    pub time_ms: i64,
    /// The user: the group of a batch.
    pub user: u64,
    /// The domain: the segment of a batch.
    pub domain: u32,
    /// True probability of a click.
    pub click_probability: f32,
    /// Whether it was clicked.
    pub click: bool,
    /// From impression to click; meaningful where there is one.
    pub click_delay_ms: i64,
    /// True probability of a conversion, given a click.
    pub conversion_probability: f32,
    /// Whether the click converted, however late.
    pub conversion: bool,
    /// From click to conversion; meaningful where there is one.
    pub conversion_delay_ms: i64,
}

impl World {
    /// Checks a world, measures it, and shows it to whom its description says.
    ///
    /// # Errors
    /// When a knob has a value that it cannot have.
    pub fn new(spec: &WorldSpec, seed: u64) -> Result<World, WorldError> {
        spec.check()?;
        let audience = Audience::new(spec, seed);
        let truth = Truth::new(spec, seed);
        let calibration = Calibration::new(spec, &audience, &truth);
        let view = spec.view;
        Ok(World { spec: spec.clone(), view, seen: spec.sparse_seen(view), audience, truth, calibration })
    }

    /// The same world, seen by somebody else.
    pub fn seen_by(mut self, view: View) -> World {
        self.view = view;
        self.seen = self.spec.sparse_seen(view);
        self
    }

    /// The description it was made from.
    pub fn spec(&self) -> &WorldSpec {
        &self.spec
    }

    /// Samples of a split.
    pub fn sample_count(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.spec.train_samples,
            Split::Valid => self.spec.valid_samples,
            Split::Test => self.spec.test_samples,
        }
    }

    /// The hidden groups: sparse features by their place in the world, teacher-only ones included.
    pub fn hidden_groups(&self) -> &[Vec<usize>] {
        &self.truth.groups
    }

    /// The pairs of features of different groups that interact.
    pub fn across_pairs(&self) -> &[(usize, usize)] {
        &self.truth.across
    }

    /// The part of the stream, in samples, in which an id can appear; `None` when it never does.
    pub fn life(&self, feature: usize, row: u32) -> Option<Range<u64>> {
        let length = self.spec.sample_count() as f64;
        let life = self.audience.ids[feature].life(row)?;
        Some((life.start * length) as u64..(life.end * length).ceil() as u64)
    }

    /// Writes the samples at `positions` of a split to `out`. Every epoch is the same, as it is with files.
    ///
    /// # Panics
    /// If `positions` is not inside the split.
    pub fn read(&self, split: Split, _epoch: u64, positions: Range<u64>, out: &mut Batch) {
        let indices = self.indices(split, positions);
        let seen = self.audience.impressions(indices.clone(), From::Anywhere);
        let count = seen.keys.len();
        out.sample_count = count;
        out.times.clear();
        out.times.extend(indices.clone().map(|index| self.time_ms(index)));
        out.groups.clear();
        out.groups.extend(seen.users.iter().map(|&user| u64::from(user)));
        out.weights.clear();
        let tasks = 1 + usize::from(self.spec.conversion.is_some());
        for column in [&mut out.labels, &mut out.true_probabilities] {
            column.clear();
            column.resize(tasks * count, 0.0);
        }
        teacher::speak(self, indices.start, &seen, out);
        for (sample, outcome) in self.outcomes(&seen).enumerate() {
            out.labels[sample] = f32::from(outcome.click);
            out.true_probabilities[sample] = outcome.click_probability;
            if let Some(knobs) = &self.spec.conversion {
                let (label, probability) = conversion_label(&outcome, knobs);
                out.labels[count + sample] = label;
                out.true_probabilities[count + sample] = probability;
            }
        }
        self.write_inputs(seen, out);
    }

    /// The impressions at `positions` of a split with all that came of them.
    ///
    /// # Panics
    /// If `positions` is not inside the split.
    pub fn events(&self, split: Split, positions: Range<u64>) -> Vec<Event> {
        let indices = self.indices(split, positions);
        let seen = self.audience.impressions(indices.clone(), From::Anywhere);
        let event = |(sample, (outcome, index)): (usize, (Outcome, u64))| Event {
            example_id: index,
            time_ms: self.time_ms(index),
            user: u64::from(seen.users[sample]),
            domain: seen.domains[sample],
            click_probability: outcome.click_probability,
            click: outcome.click,
            click_delay_ms: outcome.click_delay_ms,
            conversion_probability: outcome.conversion_probability,
            conversion: outcome.conversion,
            conversion_delay_ms: outcome.conversion_delay_ms,
        };
        self.outcomes(&seen).zip(indices).enumerate().map(event).collect()
    }

    /// Places in the stream: the splits follow each other in time.
    fn indices(&self, split: Split, positions: Range<u64>) -> Range<u64> {
        let count = self.sample_count(split);
        assert!(
            positions.start <= positions.end && positions.end <= count,
            "samples {positions:?} of {split:?}, which has {count}"
        );
        let first = match split {
            Split::Train => 0,
            Split::Valid => self.spec.train_samples,
            Split::Test => self.spec.train_samples + self.spec.valid_samples,
        };
        first + positions.start..first + positions.end
    }

    fn time_ms(&self, index: u64) -> i64 {
        (index as f64 * 1000.0 / self.spec.samples_per_second) as i64
    }

    fn outcomes<'a>(&'a self, seen: &'a Impressions) -> impl Iterator<Item = Outcome> + 'a {
        let parts = self.truth.parts(seen);
        let conversion = self.spec.conversion.as_ref();
        (0..seen.keys.len())
            .map(move |sample| outcome(conversion, &self.calibration, seen, &parts[sample], sample))
    }

    /// Dense inputs, bags and segments, without what this view does not see.
    fn write_inputs(&self, seen: Impressions, out: &mut Batch) {
        let (count, features) = (seen.keys.len(), self.audience.ids.len());
        let (width, shown) = (self.spec.dense_count, self.spec.dense_seen(self.view));
        if shown == width {
            out.dense = seen.dense;
        } else {
            out.dense.clear();
            out.dense.extend(seen.dense.chunks_exact(width).flat_map(|inputs| &inputs[..shown]));
        }
        out.segments = seen.domains;
        let (mut offsets, mut rows) = (seen.offsets, seen.rows);
        if self.seen.len() < features {
            let (all_offsets, all_rows) = (std::mem::take(&mut offsets), std::mem::take(&mut rows));
            offsets.push(0);
            for &feature in &self.seen {
                let part = &all_offsets[feature * count..=(feature + 1) * count];
                let start = rows.len() as u32;
                rows.extend_from_slice(&all_rows[part[0] as usize..part[count] as usize]);
                offsets.extend(part[1..].iter().map(|offset| offset - part[0] + start));
            }
        }
        out.bags = Bags::new(self.seen.len(), count, offsets, rows, Vec::new())
            .expect("offsets are counted up as rows are pushed");
    }
}
