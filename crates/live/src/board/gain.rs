//! What a student gains over its twin, and how sure that is.
//!
//! The metrics run over a window of the stream. Each time both models have trained on a whole window more, the gain over that
//! window is noted; such windows have no example in common. The gain that is shown is their mean, and its interval is that of
//! Student for the mean of so many: it has the noise of samples in it, and that of a world that changes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Windows that are kept: what is older says little of today.
const WINDOWS_MAX: usize = 12;

/// Windows below which there is no interval.
const WINDOWS_MIN: usize = 3;

/// An NE that differs by a smaller share than this is the same for everybody.
const SAME: f64 = 0.0005;

/// Student's t for 95 %, by the number of windows, from [`WINDOWS_MIN`] on.
const STUDENT: [f64; WINDOWS_MAX - WINDOWS_MIN + 1] =
    [4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201];

/// The gains of one student, window by window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gains {
    /// Examples that the slower of the two had trained on when the last window was noted.
    noted: u64,
    /// By window and task: the student's share below its twin's NE.
    windows: VecDeque<Vec<Option<f64>>>,
}

/// What is known of a gain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// The mean over the windows.
    pub mean: f64,
    /// Half the interval of 95 %; nothing when there are too few windows.
    pub error: Option<f64>,
    /// How many windows.
    pub windows: usize,
}

/// What a gain says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is above nothing.
    Better,
    /// It is below nothing.
    Worse,
    /// It is so near nothing that nobody would notice, or its interval has nothing in it.
    Same,
    /// There are too few windows to say.
    Early,
}

impl Gains {
    /// Notes the gains of the present window, if it has no example of the last one that was noted.
    pub fn look(&mut self, examples: u64, window: u64, gains: Vec<Option<f64>>) {
        // A run that began anew has nothing to do with what was noted.
        if examples < self.noted {
            *self = Gains::default();
        }
        if examples < self.noted + window || gains.iter().all(Option::is_none) {
            return;
        }
        self.noted = examples;
        self.windows.push_back(gains);
        if self.windows.len() > WINDOWS_MAX {
            self.windows.pop_front();
        }
    }

    /// The gain of a task.
    pub fn of(&self, task: usize) -> Option<Gain> {
        let gains: Vec<f64> = self.windows.iter().filter_map(|window| *window.get(task)?).collect();
        let windows = gains.len();
        let mean = gains.iter().sum::<f64>() / windows as f64;
        let squares = gains.iter().map(|gain| (gain - mean) * (gain - mean)).sum::<f64>();
        let student = windows.checked_sub(WINDOWS_MIN).and_then(|place| STUDENT.get(place));
        let error = student.map(|t| t * (squares / (windows - 1) as f64 / windows as f64).sqrt());
        (windows > 0).then_some(Gain { mean, error, windows })
    }
}

impl Gain {
    /// What it says.
    pub fn verdict(&self) -> Verdict {
        match self.error {
            None => Verdict::Early,
            Some(error) if self.mean > SAME && self.mean > error => Verdict::Better,
            Some(error) if self.mean < -SAME && self.mean < -error => Verdict::Worse,
            Some(_) => Verdict::Same,
        }
    }
}

impl Verdict {
    /// In a word, for the page.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Same => "same",
            Verdict::Early => "early",
        }
    }
}

/// All gains in a sentence, by student and task; it says what the gains one by one say, for it is made of them.
pub fn headline(gains: &[(String, String, Verdict)]) -> String {
    let all = |verdict| gains.iter().all(|gain| gain.2 == verdict);
    if gains.is_empty() || all(Verdict::Early) {
        return format!(
            "It is too early to tell whom the teacher helps: that takes {WINDOWS_MIN} whole windows."
        );
    }
    if all(Verdict::Better) {
        return "The teacher helps every student.".to_owned();
    }
    let parts = [
        (Verdict::Better, "helps "),
        (Verdict::Worse, "harms "),
        (Verdict::Same, "makes no clear difference to "),
        (Verdict::Early, "has said too little yet to judge "),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter_map(|(verdict, words)| {
            let names = named(gains, verdict);
            (!names.is_empty()).then(|| format!("{words}{}", listed(&names)))
        })
        .collect();
    format!("The teacher {}.", listed(&parts))
}

/// Students with a verdict; with the tasks, where not all of a student's say the same.
fn named(gains: &[(String, String, Verdict)], verdict: Verdict) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (student, task, own) in gains.iter().filter(|gain| gain.2 == verdict) {
        let whole = gains.iter().filter(|gain| gain.0 == *student).all(|gain| gain.2 == *own);
        let name = if whole { student.clone() } else { format!("{student} with {task}") };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gains: &[f64]) -> Gain {
        let mut all = Gains::default();
        for (place, gain) in gains.iter().enumerate() {
            all.look(1000 * (place as u64 + 1), 1000, vec![None, Some(*gain)]);
        }
        assert_eq!(all.of(0), None);
        all.of(1).unwrap()
    }

    #[test]
    fn an_interval_is_students_for_the_mean_of_windows() {
        let gain = of(&[0.010, 0.012, 0.014]);
        // The deviation is 0.002; over the root of 3, times 4.303.
        assert!((gain.mean - 0.012).abs() < 1e-12 && (gain.error.unwrap() - 0.004_968_7).abs() < 1e-6);
        assert_eq!((gain.windows, gain.verdict()), (3, Verdict::Better));
        assert_eq!(of(&[-0.010, -0.012, -0.014]).verdict(), Verdict::Worse);
        assert_eq!(of(&[0.010, -0.012, 0.014]).verdict(), Verdict::Same, "nothing is in the interval");
        assert_eq!(of(&[0.0004; 5]).verdict(), Verdict::Same, "sure, and too small to matter");
        assert_eq!(of(&[0.01, 0.01]).verdict(), Verdict::Early);
        assert_eq!(of(&[0.01; 40]).windows, WINDOWS_MAX);
    }

    #[test]
    fn windows_have_no_example_in_common_and_a_run_anew_begins_anew() {
        let mut gains = Gains::default();
        for examples in (0..5000).step_by(100) {
            gains.look(examples, 1000, vec![Some(0.01)]);
        }
        assert_eq!(gains.of(0).unwrap().windows, 4);
        gains.look(1000, 1000, vec![Some(-0.5)]);
        assert_eq!(gains.of(0).unwrap(), Gain { mean: -0.5, error: None, windows: 1 });
    }

    #[test]
    fn the_headline_says_what_the_gains_say() {
        let gain = |student: &str, task: &str, verdict| (student.to_owned(), task.to_owned(), verdict);
        use Verdict::{Better, Early, Same, Worse};
        assert!(headline(&[]).starts_with("It is too early"));
        assert!(headline(&[gain("a", "click", Early)]).starts_with("It is too early"));
        assert_eq!(
            headline(&[gain("a", "click", Better), gain("b", "click", Better)]),
            "The teacher helps every student."
        );
        let mixed = [
            gain("a", "click", Better),
            gain("a", "buy", Worse),
            gain("b", "click", Better),
            gain("b", "buy", Better),
            gain("c", "click", Same),
            gain("c", "buy", Same),
        ];
        assert_eq!(
            headline(&mixed),
            "The teacher helps a with click and b, harms a with buy and makes no clear difference to c."
        );
    }
}
