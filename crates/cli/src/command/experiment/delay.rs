//! How a teacher ages: the NE of its words when only snapshots may speak that ended some time before a row (Fig. 2 of ExFM).

use anyhow::{Context, Result};
use campanile_spec::{Batch, config::Job};
use campanile_train::metrics::{Scored, TaskMetrics};
use serde::Serialize;

use super::{lab::Lab, table::Mean};
use crate::command::{
    augment::{Manner, Versions, augment},
    prep,
};

/// Rows that are judged at a time.
const ROWS_AT_ONCE: u64 = 4096;

/// The words of one delay, on all seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Aged {
    /// How long after its newest example a snapshot may speak, at the earliest.
    pub delay_seconds: f64,
    /// One per seed.
    pub judged: Vec<Judged>,
}

/// What words were worth, over the second half of the rows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Judged {
    /// Normalised entropy.
    pub ne: f64,
    /// Area under the ROC curve.
    pub auc: f64,
    /// Mean prediction over mean label.
    pub calibration: f64,
    /// Rows of the second half with a word.
    pub rows: u64,
}

/// Lets snapshots score a job's rows with every delay, and judges what they say.
pub fn judge(lab: &Lab, job: &Job, versions: &Versions, manner: Manner, aged: &mut [Aged]) -> Result<()> {
    for aged in aged {
        let words = lab.place("aged");
        let manner = Manner { delay_seconds: aged.delay_seconds, ..manner };
        augment((job, 0), versions, manner, &words, true)?;
        let mut job = job.clone();
        job.process.data.teacher = Some(words.clone());
        aged.judged.push(judge_words(&job)?);
        std::fs::remove_file(&words).with_context(|| format!("cannot remove {}", words.display()))?;
    }
    Ok(())
}

/// What the words beside a job's rows are worth, for its first task.
fn judge_words(job: &Job) -> Result<Judged> {
    let rows = prep::prepared(job, true)?.train;
    let (mut reader, mut batch) = (rows.reader()?, Batch::default());
    let mut metrics = TaskMetrics::for_training(1);
    let (mut start, end) = (rows.row_count() / 2, rows.row_count());
    while start < end {
        let stop = end.min(start + ROWS_AT_ONCE);
        reader.read(0, start..stop, &mut batch)?;
        let count = batch.sample_count;
        let said =
            batch.teacher_logits[..count].iter().zip(&batch.labels[..count]).filter(|(z, _)| !z.is_nan());
        let (logits, labels): (Vec<f32>, Vec<f32>) = said.unzip();
        metrics.add(&Scored { logits: &logits, labels: &labels, ..Scored::default() });
        start = stop;
    }
    let values = metrics.snapshot();
    let or_none = |value: Option<f64>| value.unwrap_or(f64::NAN);
    Ok(Judged {
        ne: or_none(values.ne),
        auc: or_none(values.auc),
        calibration: or_none(values.calibration),
        rows: values.count,
    })
}

/// Prints what came of it as Markdown.
pub fn print(title: &str, aged: &[Aged]) {
    println!("\n**{title}**\n");
    println!("| a snapshot is at least so old | NE of its words | AUC | calibration | rows |");
    println!("|---|---|---|---|---|");
    for aged in aged {
        let mean = |of: fn(&Judged) -> f64| Mean::of(aged.judged.iter().map(of));
        let ne = mean(|judged| judged.ne);
        println!(
            "| {} | {:.4} ± {:.4} | {:.4} | {:.3} | {:.0} |",
            told(aged.delay_seconds),
            ne.value,
            ne.error,
            mean(|judged| judged.auc).value,
            mean(|judged| judged.calibration).value,
            mean(|judged| judged.rows as f64).value
        );
    }
}

/// A time in its largest whole unit.
fn told(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length && seconds % length == 0.0);
    let (length, name) = unit.unwrap_or((1.0, "s"));
    format!("{} {name}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_whole_units() {
        assert_eq!([0.0, 90.0, 120.0, 7200.0, 172_800.0].map(told), ["0 s", "90 s", "2 min", "2 h", "2 d"]);
    }
}
