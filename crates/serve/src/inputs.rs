//! What a model takes: names, kinds, and the transforms from raw values, the same as in training.

use std::collections::BTreeMap;

use campanile_data::Transforms;
use campanile_spec::ModelSpec;

use crate::RequestError;

/// An input of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// A number per sample: the place among the dense columns.
    Dense(usize),
    /// A bag of ids per sample: the place among the features.
    Sparse(usize),
    /// One weight per id of a feature: the feature's place.
    Weights(usize),
}

/// The inputs of a model.
#[derive(Debug)]
pub struct Inputs {
    transforms: Transforms,
    fingerprint: String,
    by_name: BTreeMap<String, Input>,
    row_counts: Vec<u64>,
}

/// What a message lists of the known names before it says how many more there are.
const NAMES_SHOWN: usize = 12;

impl Inputs {
    pub(crate) fn new(transforms: Transforms, model: &ModelSpec) -> Inputs {
        let mut by_name = BTreeMap::new();
        for column in 0..transforms.sparse_count() {
            if let Some(name) = transforms.weights_name(column) {
                by_name.insert(name.to_owned(), Input::Weights(column));
            }
        }
        for column in 0..transforms.sparse_count() {
            by_name.insert(transforms.sparse_name(column).to_owned(), Input::Sparse(column));
        }
        for column in 0..transforms.dense_count() {
            by_name.insert(transforms.dense_name(column).to_owned(), Input::Dense(column));
        }
        let row_counts =
            (0..model.data_features()).map(|feature| model.table_of(feature).row_count).collect();
        Inputs { fingerprint: transforms.fingerprint(), transforms, by_name, row_counts }
    }

    /// How raw values become inputs.
    pub fn transforms(&self) -> &Transforms {
        &self.transforms
    }

    /// The fingerprint of the transforms.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// How many dense inputs.
    pub fn dense_count(&self) -> usize {
        self.transforms.dense_count()
    }

    /// How many features.
    pub fn feature_count(&self) -> usize {
        self.transforms.sparse_count()
    }

    /// Rows of a feature's table.
    pub fn row_count(&self, feature: usize) -> u64 {
        self.row_counts[feature]
    }

    /// Whether a feature has several ids a sample.
    pub fn is_list(&self, feature: usize) -> bool {
        self.transforms.is_list(feature)
    }

    /// The name of an input.
    pub fn name(&self, input: Input) -> &str {
        match input {
            Input::Dense(column) => self.transforms.dense_name(column),
            Input::Sparse(column) => self.transforms.sparse_name(column),
            Input::Weights(column) => {
                self.transforms.weights_name(column).unwrap_or(self.transforms.sparse_name(column))
            }
        }
    }

    /// Every input by name, in the order of the names.
    pub fn all(&self) -> impl Iterator<Item = (&str, Input)> {
        self.by_name.iter().map(|(name, input)| (name.as_str(), *input))
    }

    /// The input of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, name: &str) -> Result<Input, RequestError> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let mut names: Vec<String> =
                self.by_name.keys().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
            if self.by_name.len() > NAMES_SHOWN {
                names.push(format!("{} more", self.by_name.len() - NAMES_SHOWN));
            }
            RequestError::Unknown { name: name.to_owned(), known: names.join(", ") }
        })
    }

    /// Whether a request prepared for these inputs may be scored with the others.
    pub fn same_as(&self, other: &Inputs) -> bool {
        std::ptr::eq(self, other)
            || (self.fingerprint == other.fingerprint && self.row_counts == other.row_counts)
    }
}
