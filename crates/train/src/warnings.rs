//! What is worth a word before a run begins, though it may be meant so.

use campanile_spec::{LearningRate, config::Run};

/// What to tell of a run of `steps` steps; `u64::MAX` where a stream has no end.
pub(crate) fn of(run: &Run, steps: u64) -> Vec<String> {
    let rates =
        [("run.sparse", "rows", run.sparse.learning_rate), ("run.dense", "network", run.dense.learning_rate)];
    rates.into_iter().filter_map(|(section, what, rate)| idle_end(section, what, rate, steps)).collect()
}

/// A schedule that comes to a rate of 0 before the run ends: the steps after it cost time and learn nothing.
fn idle_end(section: &str, what: &str, rate: LearningRate, steps: u64) -> Option<String> {
    let end = rate.ends_at().filter(|end| *end < steps)?;
    let (rest, cure) = match steps {
        u64::MAX => (
            "while the stream goes on: what comes after teaches".to_owned(),
            "give it an `end_factor` above 0, or a constant rate".to_owned(),
        ),
        steps => (
            format!("and the run has {steps}: its last {} steps teach", steps - end),
            format!("let the schedule end at {steps}, or give it an `end_factor` above 0"),
        ),
    };
    Some(format!(
        "the learning rate of {section}.schedule is 0 from step {end} on, {rest} the {what} nothing; {cure}"
    ))
}

#[cfg(test)]
mod tests {
    use campanile_spec::Schedule;

    use super::*;

    fn told(schedule: Schedule, steps: u64) -> Option<String> {
        idle_end("run.dense", "network", LearningRate { base: 0.1, schedule }, steps)
    }

    #[test]
    fn a_schedule_that_ends_before_the_run_is_told() {
        let cosine = |end_factor| Schedule::Cosine { warmup_steps: 10, total_steps: 100, end_factor };
        let warning = told(cosine(0.0), 150).unwrap();
        assert!(warning.contains("0 from step 100 on") && warning.contains("its last 50 steps"), "{warning}");
        assert!(warning.contains("run.dense.schedule") && warning.contains("end at 150"), "{warning}");
        assert_eq!(told(cosine(0.0), 100), None);
        assert_eq!(told(cosine(0.01), 150), None);
        assert!(told(cosine(0.0), u64::MAX).unwrap().contains("the stream goes on"));
        let decay = Schedule::WarmupPolynomial {
            warmup_steps: 0,
            decay_start: 50,
            decay_steps: 20,
            power: 2.0,
            end_factor: 0.0,
        };
        assert!(told(decay, 71).unwrap().contains("from step 70 on"));
        assert_eq!(told(decay, 70), None);
        assert_eq!(told(Schedule::Constant, u64::MAX), None);
        // The step that is told is the first whose rate is 0.
        for schedule in [cosine(0.0), decay] {
            let rate = LearningRate { base: 0.1, schedule };
            let end = rate.ends_at().unwrap();
            assert!(rate.at(end - 1) > 0.0 && rate.at(end) == 0.0);
        }
    }
}
