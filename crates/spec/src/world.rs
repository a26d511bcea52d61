//! The knobs of the seeded synthetic world.
//!
//! A world is a stream of impressions whose true click probability is known, so a model can be judged against
//! the best possible result. All strengths are in units of the logit: `signal.main = 0.8` means that the part
//! of the true logit owed to single ids has standard deviation 0.8. `docs/world.md` gives every formula.
//!
//! This file says what a world is, `check` what it may be; `data::world` turns it into samples.

mod check;
mod ready;

pub use check::WorldError;
use serde::{Deserialize, Serialize};

use crate::{
    config::keys::{defaults, section, words},
    data::{BagShape, Columns, DenseColumn, IdMap, Keep, LabelColumn, SparseColumn},
};

/// The most sparse features of a world.
pub const SPARSE_MAX: usize = 1024;

/// The most ids in a bag.
pub const BAG_MAX: u32 = 1024;

/// The most domains of a world.
pub const DOMAINS_MAX: usize = 64;

section! {
    /// A synthetic world; `data::world` turns it into samples.
    #[serde(deny_unknown_fields, default)]
    pub struct WorldSpec {
        /// Samples of the training split, the first of the stream.
        pub train_samples: u64 = 1_000_000,
        /// Samples of the validation split; they follow the training split in time.
        pub valid_samples: u64 = 100_000,
        /// Samples of the test split; they follow the validation split in time.
        pub test_samples: u64 = 100_000,
        /// Impressions in a second of stream time; times and delays are in milliseconds.
        pub samples_per_second: f64 = 1000.0,
        /// Dense inputs, each of mean 0 and deviation 1.
        pub dense_count: usize = 13,
        /// How many of the dense inputs, the last ones, only a teacher sees.
        pub dense_teacher_only: usize = 0,
        /// Sparse features, named `sparse_1`, `sparse_2`, ...; the first is the user, which is also the group.
        pub sparse_count: usize = 26,
        /// Ids a feature has over the whole stream: the rows of its table.
        pub vocabulary: PerFeature<u64> = PerFeature::All(1000),
        /// Popularity of the live id of rank k (from 1) falls as k to the power of minus this; 0 is uniform.
        pub zipf_exponent: PerFeature<f64> = PerFeature::All(1.05),
        /// Fewest ids in a bag; 0 lets values be missing.
        pub bag_min: PerFeature<u32> = PerFeature::All(1),
        /// Most ids in a bag; lengths are uniform between the two.
        pub bag_max: PerFeature<u32> = PerFeature::All(1),
        /// How often all live ids of a feature are replaced during the stream; 0 keeps them, 2.5 replaces them two
        /// and a half times. Vocabulary is shared out among the generations.
        pub turnover: PerFeature<f64> = PerFeature::All(0.0),
        /// Names of sparse features that only a teacher sees.
        pub teacher_only: Vec<String> = Vec::new(),
        /// Who looks at this world: a teacher has all inputs in its batches.
        pub view: View = View::Student,
        /// Share of clicks where a domain does not say otherwise, between 0 and 1.
        pub click_rate: f64 = 0.25,
        /// How many hidden groups the sparse features form.
        pub hidden_groups: usize = 6,
        /// How many pairs of features of different groups interact as well.
        pub across_pairs: usize = 4,
        /// Strength of the parts of the true logit.
        pub signal: Signal,
        /// How the truth changes over the stream.
        pub drift: Drift,
        /// Segments of the traffic; none means one domain named `all`.
        pub domains: Vec<Domain> = Vec::new(),
        /// A second label, the conversion of a click.
        pub conversion: Option<Conversion> = None,
        /// A teacher that nobody has to train, for experiments: the truth, as it was some time ago, with errors.
        pub teacher: Option<SimulatedTeacher> = None,
    }
}

/// One value for all features, or one for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected one number for all features or a list with one number per feature")]
pub enum PerFeature<T> {
    /// The same for all.
    All(T),
    /// As many values as features, in order.
    Each(Vec<T>),
}

section! {
    /// Standard deviations of the parts of the true click logit; 0 leaves a part out.
    #[derive(Copy)]
    #[serde(deny_unknown_fields, default)]
    pub struct Signal {
        /// Effects of single ids.
        pub main: f64 = 0.8,
        /// Interactions of two features of the same hidden group.
        pub inside: f64 = 0.8,
        /// Interactions of the `across_pairs` pairs.
        pub across: f64 = 0.2,
        /// Effects of the dense inputs.
        pub dense: f64 = 0.5,
        /// Share of the dense effects' variance that is not linear, from 0 to 1.
        pub dense_curve: f64 = 0.3,
        /// How far an id's effect in one domain departs from its effect elsewhere: the bias of a teacher trained on
        /// all domains.
        pub domain: f64 = 0.0,
    }
}

section! {
    /// Standard deviation, at the end of the stream, of what a random walk has added to the logit since its start.
    #[derive(Copy)]
    #[serde(deny_unknown_fields, default)]
    pub struct Drift {
        /// One walk for all samples.
        pub global: f64 = 0.0,
        /// One walk for each domain.
        pub segment: f64 = 0.0,
        /// One walk for each id; the figure is of their sum over the features of a sample.
        pub item: f64 = 0.0,
    }
}

section! {
    /// A segment of the traffic.
    #[serde(deny_unknown_fields, default)]
    pub struct Domain {
        /// Its name.
        pub name: String,
        /// Its part of the traffic, relative to the other domains' shares.
        pub share: f64 = 1.0,
        /// Its share of clicks; by default the world's.
        pub click_rate: Option<f64> = None,
        /// Its share of conversions among clicks; by default the world's.
        pub conversion_rate: Option<f64> = None,
        /// Sparse features that are always empty here.
        pub absent: Vec<String> = Vec::new(),
    }
}

section! {
    /// Conversions: what some clicks lead to, later.
    #[serde(deny_unknown_fields, default)]
    pub struct Conversion {
        /// Share of conversions among clicks where a domain does not say otherwise.
        pub rate: f64 = 0.1,
        /// Standard deviation of the conversion logit's own effects of single ids.
        pub signal: f64 = 0.6,
        /// How much of the click logit's signal is in the conversion logit too; may be negative.
        pub follows_click: f64 = 0.3,
        /// Mean time from impression to click, exponential.
        pub click_delay_seconds: f64 = 20.0,
        /// Mean time from click to conversion, exponential.
        pub delay_seconds: f64 = 1800.0,
        /// A conversion later than this after its click is not seen in the label; 0 sees all.
        pub window_seconds: f64 = 0.0,
        /// What the label says of an impression without a click.
        pub label: ConversionLabel = ConversionLabel::GivenClick,
    }
}

section! {
    /// A teacher that needs no training: it says the true logit of some time ago, plus errors.
    #[derive(Copy)]
    #[serde(deny_unknown_fields, default)]
    pub struct SimulatedTeacher {
        /// Deviation of its error from sample to sample, in units of the logit.
        pub noise: f64 = 0.3,
        /// Added to all its logits: the bias of a teacher trained on other traffic.
        pub bias: f64 = 0.0,
        /// How late it learns of drift: the age of its newest snapshot when that appears.
        pub delay_seconds: f64 = 0.0,
        /// Time between two of its snapshots; its age runs from `delay_seconds` to that much more. 0 is a new one for
        /// every sample.
        pub refresh_seconds: f64 = 0.0,
        /// Share of samples on which it has a word, from 0 to 1.
        pub coverage: f64 = 1.0,
    }
}

words! {
    /// What the conversion label says of an impression without a click.
    pub enum ConversionLabel {
        /// Absent: the task is the conversion of a click.
        GivenClick,
        /// Zero: the task is a click with a conversion.
        PerImpression,
    }
}

words! {
    /// Who looks at the samples.
    pub enum View {
        /// Sees what serving sees.
        Student,
        /// Sees the teacher-only inputs as well.
        Teacher,
    }
}

defaults!(WorldSpec, Signal, Drift, Conversion, SimulatedTeacher);

impl Default for Domain {
    fn default() -> Domain {
        Domain { name: "all".into(), share: 1.0, click_rate: None, conversion_rate: None, absent: Vec::new() }
    }
}

impl<T: Copy> PerFeature<T> {
    /// The value of one feature.
    ///
    /// # Panics
    /// If a list has no such feature; [`WorldSpec::check`] refuses such lists.
    pub fn at(&self, feature: usize) -> T {
        match self {
            PerFeature::All(value) => *value,
            PerFeature::Each(values) => values[feature],
        }
    }
}

/// What the rest of a job wants to know of a world.
impl WorldSpec {
    /// Samples of all splits together: the length of the stream.
    pub fn sample_count(&self) -> u64 {
        self.train_samples + self.valid_samples + self.test_samples
    }

    /// The name of a sparse feature.
    pub fn sparse_name(feature: usize) -> String {
        format!("sparse_{}", feature + 1)
    }

    /// The place of a sparse feature.
    pub fn sparse_index(&self, name: &str) -> Option<usize> {
        let number: usize = name.strip_prefix("sparse_")?.parse().ok()?;
        (1..=self.sparse_count).contains(&number).then(|| number - 1)
    }

    /// The sparse features that `view` sees, in order.
    pub fn sparse_seen(&self, view: View) -> Vec<usize> {
        let hidden =
            |feature: &usize| self.teacher_only.iter().any(|name| self.sparse_index(name) == Some(*feature));
        (0..self.sparse_count).filter(|feature| view == View::Teacher || !hidden(feature)).collect()
    }

    /// How many dense inputs `view` sees.
    pub fn dense_seen(&self, view: View) -> usize {
        match view {
            View::Student => self.dense_count.saturating_sub(self.dense_teacher_only),
            View::Teacher => self.dense_count,
        }
    }

    /// The labels, in task order.
    pub fn label_names(&self) -> Vec<&'static str> {
        if self.conversion.is_some() { vec!["click", "conversion"] } else { vec!["click"] }
    }

    /// The domains, or the one that stands for none; segment `s` of a batch is the domain at `s`.
    pub fn domains_or_one(&self) -> Vec<Domain> {
        if self.domains.is_empty() { vec![Domain::default()] } else { self.domains.clone() }
    }

    /// The columns of a checked world as `view` sees them: ids are rows, nothing is transformed.
    pub fn columns(&self, view: View) -> Columns {
        let sparse = |feature: usize| SparseColumn {
            name: WorldSpec::sparse_name(feature),
            shape: if self.bag_max.at(feature) == 1 {
                BagShape::One
            } else {
                BagShape::List { separator: ' ' }
            },
            bag_max: self.bag_max.at(feature) as usize,
            keep: Keep::First,
            map: IdMap::Direct,
            row_count: self.vocabulary.at(feature),
            weights: None,
        };
        let dense = |input: usize| DenseColumn {
            name: format!("dense_{}", input + 1),
            missing: 0.0,
            transforms: Vec::new(),
        };
        Columns {
            labels: self
                .label_names()
                .iter()
                .map(|&name| LabelColumn { name: name.into(), at_least: None, teacher: None })
                .collect(),
            dense: (0..self.dense_seen(view)).map(dense).collect(),
            sparse: self.sparse_seen(view).into_iter().map(sparse).collect(),

            time: Some("time".into()),
            group: Some("user".into()),
            segment: Some("domain".into()),
            ..Columns::default()
        }
    }
}

#[cfg(test)]
mod tests;
