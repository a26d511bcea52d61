//! The knobs of the seeded synthetic world.

use serde::{Deserialize, Serialize};

/// A synthetic world; `data::world` turns it into samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorldSpec {
    /// Samples of the training split.
    pub train_samples: u64,
    /// Samples of the validation split.
    pub valid_samples: u64,
    /// Samples of the test split.
    pub test_samples: u64,
}
