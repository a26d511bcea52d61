//! What the knobs of a world may say.

use thiserror::Error;

use super::{
    BAG_MAX, Conversion, DOMAINS_MAX, PerFeature, SPARSE_MAX, Signal, SimulatedTeacher, View, WorldSpec,
};

/// Why a world cannot be.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WorldError {
    /// A number is outside its range.
    #[error("synthetic world: `{key}` is {value}, it must be {wanted}")]
    Range {
        /// The key.
        key: String,
        /// What it says.
        value: String,
        /// What it may say.
        wanted: String,
    },
    /// A per-feature list has the wrong length.
    #[error(
        "synthetic world: `{key}` lists {found} values for {features} sparse features; give one per feature or a single number"
    )]
    ListLength {
        /// The key.
        key: &'static str,
        /// Values given.
        found: usize,
        /// Values wanted.
        features: usize,
    },
    /// A name that no sparse feature has.
    #[error(
        "synthetic world: `{key}` names `{name}`, but the sparse features are `sparse_1` to `sparse_{features}`"
    )]
    UnknownFeature {
        /// The key.
        key: String,
        /// The name.
        name: String,
        /// How many features there are.
        features: usize,
    },
    /// Two domains of one name.
    #[error("synthetic world: two domains are named `{name}`; names must differ")]
    DomainTwice {
        /// The name.
        name: String,
    },
    /// A part of the logit that has nothing to work with.
    #[error("synthetic world: `{key}` is {value}, but {why}; set it to 0 or {remedy}")]
    NothingToShow {
        /// The key.
        key: &'static str,
        /// What it says.
        value: f64,
        /// What is missing.
        why: String,
        /// What to change.
        remedy: &'static str,
    },
}

impl WorldSpec {
    /// Checks every knob.
    ///
    /// # Errors
    /// The first knob that cannot be, with its value and what it may be.
    pub fn check(&self) -> Result<(), WorldError> {
        let features = self.sparse_count;
        in_range("sparse_count", features as f64, 1.0, SPARSE_MAX as f64)?;
        in_range("train_samples", self.train_samples as f64, 1.0, 1e15)?;
        in_range("valid_samples", self.valid_samples as f64, 0.0, 1e15)?;
        in_range("test_samples", self.test_samples as f64, 0.0, 1e15)?;
        in_range("samples_per_second", self.samples_per_second, 1e-6, 1e9)?;
        in_range("dense_count", self.dense_count as f64, 0.0, 4096.0)?;
        in_range("dense_teacher_only", self.dense_teacher_only as f64, 0.0, self.dense_count as f64)?;
        self.check_features()?;
        self.check_names("teacher_only", &self.teacher_only)?;
        if self.sparse_seen(View::Student).is_empty() {
            let value = format!("all {features} sparse features");
            return Err(WorldError::Range {
                key: "teacher_only".into(),
                value,
                wanted: "fewer, so that a student sees at least one".into(),
            });
        }
        in_range("click_rate", self.click_rate, 0.0001, 0.9999)?;
        in_range("hidden_groups", self.hidden_groups as f64, 1.0, features as f64)?;
        self.check_signal()?;
        for (key, value) in [
            ("drift.global", self.drift.global),
            ("drift.segment", self.drift.segment),
            ("drift.item", self.drift.item),
        ] {
            in_range(key, value, 0.0, 10.0)?;
        }
        self.check_domains()?;
        self.conversion.as_ref().map_or(Ok(()), Conversion::check)?;
        self.teacher.as_ref().map_or(Ok(()), SimulatedTeacher::check)
    }

    fn check_features(&self) -> Result<(), WorldError> {
        let features = self.sparse_count;
        self.vocabulary.check("vocabulary", features)?;
        self.zipf_exponent.check("zipf_exponent", features)?;
        self.bag_min.check("bag_min", features)?;
        self.bag_max.check("bag_max", features)?;
        self.turnover.check("turnover", features)?;
        for feature in 0..features {
            let key = |name: &str| format!("{name} of {}", WorldSpec::sparse_name(feature));
            in_range(&key("turnover"), self.turnover.at(feature), 0.0, 1e6)?;
            // Every generation of ids needs at least one.
            let generations = self.turnover.at(feature).ceil() + 1.0;
            let vocabulary = self.vocabulary.at(feature) as f64;
            in_range(&key("vocabulary"), vocabulary, generations, f64::from(u32::MAX))?;
            in_range(&key("zipf_exponent"), self.zipf_exponent.at(feature), 0.0, 4.0)?;
            in_range(&key("bag_max"), f64::from(self.bag_max.at(feature)), 1.0, f64::from(BAG_MAX))?;
            let bag_max = f64::from(self.bag_max.at(feature));
            in_range(&key("bag_min"), f64::from(self.bag_min.at(feature)), 0.0, bag_max)?;
        }
        Ok(())
    }

    fn check_signal(&self) -> Result<(), WorldError> {
        let Signal { main, inside, across, dense, dense_curve, domain } = self.signal;
        for (key, value) in [
            ("signal.main", main),
            ("signal.inside", inside),
            ("signal.across", across),
            ("signal.dense", dense),
            ("signal.domain", domain),
        ] {
            in_range(key, value, 0.0, 10.0)?;
        }
        in_range("signal.dense_curve", dense_curve, 0.0, 1.0)?;
        let features = self.sparse_count;
        let nothing =
            |key, value, why: String, remedy| Err(WorldError::NothingToShow { key, value, why, remedy });
        if inside > 0.0 && self.hidden_groups == features {
            let why = format!("{features} features in {} groups leave no pair inside", self.hidden_groups);
            return nothing("signal.inside", inside, why, "lower `hidden_groups`");
        }
        if across > 0.0 && self.across_pairs == 0 {
            return nothing("signal.across", across, "`across_pairs` is 0".into(), "raise `across_pairs`");
        }
        if dense > 0.0 && self.dense_count == 0 {
            return nothing("signal.dense", dense, "`dense_count` is 0".into(), "raise `dense_count`");
        }
        in_range("across_pairs", self.across_pairs as f64, 0.0, self.pairs_across_max() as f64)
    }

    /// How many pairs of features stand in different groups, when groups are as equal as can be.
    fn pairs_across_max(&self) -> usize {
        let (features, groups) = (self.sparse_count, self.hidden_groups);
        let pairs = |n: usize| n * n.saturating_sub(1) / 2;
        let inside: usize =
            (0..groups).map(|g| pairs(features * (g + 1) / groups - features * g / groups)).sum();
        pairs(features) - inside
    }

    fn check_names(&self, key: &str, names: &[String]) -> Result<(), WorldError> {
        match names.iter().find(|name| self.sparse_index(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let features = self.sparse_count;
                Err(WorldError::UnknownFeature { key: key.into(), name: name.clone(), features })
            }
        }
    }

    fn check_domains(&self) -> Result<(), WorldError> {
        in_range("domains", self.domains.len() as f64, 0.0, DOMAINS_MAX as f64)?;
        for (place, domain) in self.domains.iter().enumerate() {
            if self.domains[..place].iter().any(|other| other.name == domain.name) {
                return Err(WorldError::DomainTwice { name: domain.name.clone() });
            }
            let key = |name: &str| format!("domains.{}.{name}", domain.name);
            in_range(&key("share"), domain.share, 1e-6, 1e6)?;
            in_range(&key("click_rate"), domain.click_rate.unwrap_or(self.click_rate), 0.0001, 0.9999)?;
            in_range(&key("conversion_rate"), domain.conversion_rate.unwrap_or(0.5), 0.0001, 0.9999)?;
            self.check_names(&key("absent"), &domain.absent)?;
        }
        Ok(())
    }
}

impl<T> PerFeature<T> {
    fn check(&self, key: &'static str, features: usize) -> Result<(), WorldError> {
        match self {
            PerFeature::Each(values) if values.len() != features => {
                Err(WorldError::ListLength { key, found: values.len(), features })
            }
            _ => Ok(()),
        }
    }
}

impl Conversion {
    fn check(&self) -> Result<(), WorldError> {
        in_range("conversion.rate", self.rate, 0.0001, 0.9999)?;
        in_range("conversion.signal", self.signal, 0.0, 10.0)?;
        in_range("conversion.follows_click", self.follows_click, -10.0, 10.0)?;
        in_range("conversion.click_delay_seconds", self.click_delay_seconds, 0.0, 1e9)?;
        in_range("conversion.delay_seconds", self.delay_seconds, 0.0, 1e9)?;
        in_range("conversion.window_seconds", self.window_seconds, 0.0, 1e9)
    }
}

impl SimulatedTeacher {
    fn check(&self) -> Result<(), WorldError> {
        in_range("teacher.noise", self.noise, 0.0, 10.0)?;
        in_range("teacher.bias", self.bias, -10.0, 10.0)?;
        in_range("teacher.delay_seconds", self.delay_seconds, 0.0, 1e9)?;
        in_range("teacher.refresh_seconds", self.refresh_seconds, 0.0, 1e9)?;
        in_range("teacher.coverage", self.coverage, 0.0, 1.0)
    }
}

fn in_range(key: &str, value: f64, low: f64, high: f64) -> Result<(), WorldError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let wanted = format!("from {low} to {high}");
    Err(WorldError::Range { key: key.into(), value: value.to_string(), wanted })
}
