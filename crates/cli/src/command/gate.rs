//! The gate before a registry: a candidate must not be worse on a hold-out than what is served now.

mod hold_out;

use std::{error, fmt};

use anyhow::{Result, bail};
use campanile_train::scores::TaskScores;

pub use self::hold_out::{HoldOut, Model, judge};

/// By how much a candidate may be worse.
#[derive(Debug, Clone, Copy)]
pub struct Margins {
    /// NE above the current one's.
    pub ne: f64,
    /// Distance of calibration from 1 above the current one's.
    pub calibration: f64,
}

/// A candidate was judged and is worse: the gate did its work, which is no failure of publishing.
#[derive(Debug)]
pub struct HeldBack(String);

impl fmt::Display for HeldBack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the gate holds it back: {}", self.0)
    }
}

impl error::Error for HeldBack {}

/// Fails, with all reasons, where the candidate is worse than the current version by more than the margins.
/// Without a current version only numbers that are none are refused.
pub fn compare(candidate: &[TaskScores], current: Option<&[TaskScores]>, margins: Margins) -> Result<()> {
    let mut reasons = Vec::new();
    let before = |task: &str| current.and_then(|all| all.iter().find(|other| other.task == task));
    if let Some(current) = current
        && candidate.iter().all(|scores| before(&scores.task).is_none())
    {
        let names = |scores: &[TaskScores]| {
            scores.iter().map(|scores| format!("`{}`", scores.task)).collect::<Vec<_>>().join(", ")
        };
        bail!(
            "the current version cannot be compared: it has task {}, and the candidate has {}; publish without the gate \
             (`--no-gate`, `gate_rows = 0`), or under another name (`--model`)",
            names(current),
            names(candidate)
        );
    }
    for scores in candidate {
        let task = &scores.task;
        if scores.values.non_finite > 0 {
            reasons.push(format!("task `{task}`: {} scores are no numbers", scores.values.non_finite));
        }
        let Some(before) = before(task) else { continue };
        let distance = |values: &TaskScores| values.values.calibration.map(|value| (value - 1.0).abs());
        let measures = [
            ("NE", scores.values.ne, before.values.ne, margins.ne),
            ("distance of calibration from 1", distance(scores), distance(before), margins.calibration),
        ];
        for (what, now, then, margin) in measures {
            // A current version without the value, for want of labels, forbids nothing.
            if let (Some(now), Some(then)) = (now, then)
                && now > then + margin
            {
                reasons.push(format!(
                    "task `{task}`: {what} is {now:.5}, the current version has {then:.5} and the margin is {margin}"
                ));
            }
        }
    }
    if !reasons.is_empty() {
        return Err(HeldBack(reasons.join("; ")).into());
    }
    Ok(())
}
