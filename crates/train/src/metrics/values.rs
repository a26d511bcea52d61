//! The values of the metrics, as reports, logs and event files show them.

use serde::{Deserialize, Serialize};

/// The metrics of some samples. A value that does not exist (no samples, one class only, a logit that is not a
/// number) is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricValues {
    /// Samples with a label.
    pub count: u64,
    /// Samples among them whose logit was infinite or not a number: the model has diverged.
    pub non_finite: u64,
    /// Mean label.
    pub label_rate: Option<f64>,
    /// Mean predicted probability.
    pub prediction_mean: Option<f64>,
    /// Mean cross-entropy, in nats.
    pub logloss: Option<f64>,
    /// Normalised entropy: logloss over that of always predicting the mean label.
    pub ne: Option<f64>,
    /// The NE that a model which knows the truth would expect; synthetic data only.
    pub best_ne: Option<f64>,
    /// The NE of the true probabilities on these very labels, luck included; synthetic data only.
    pub truth_ne: Option<f64>,
    /// Mean prediction over mean label.
    pub calibration: Option<f64>,
    /// Area under the ROC curve; ties count half.
    pub auc: Option<f64>,
    /// How the AUC was found.
    pub auc_kind: AucKind,
    /// Mean AUC of the groups that have both classes, weighted by their impressions.
    pub gauc: Option<f64>,
    /// Groups that have both classes.
    pub gauc_groups: u64,
    /// The share of groups that GAUC looked at: 1, unless they were too many to hold.
    pub gauc_group_share: f64,
    /// By segment, those that have samples.
    pub segments: Vec<SegmentValues>,
}

/// How an AUC was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AucKind {
    /// All samples were sorted.
    Exact,
    /// From a histogram over the logit.
    Histogram {
        /// The AUC is off by no more than this; `None` where there is no AUC.
        error_max: Option<f64>,
    },
}

/// The metrics of one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentValues {
    /// Its number.
    pub segment: u32,
    /// Its value in the data; none where segments are numbers to begin with, as those of worlds and of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Samples with a label.
    pub count: u64,
    /// Mean label.
    pub label_rate: Option<f64>,
    /// Mean prediction over mean label.
    pub calibration: Option<f64>,
    /// Normalised entropy: the segment's logloss over that of always predicting its own mean label.
    #[serde(default)]
    pub ne: Option<f64>,
}

/// A value, if it is one.
pub(super) fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
