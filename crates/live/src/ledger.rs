//! What the models cost in arithmetic, and how the teacher's part is shared by its students.
//!
//! Counted are the operations of the dense network, which nobody can avoid; a look-up moves bytes and computes next to
//! nothing. A sample's way back costs twice its way forward, so training is three times a forward pass. The teacher is
//! trained on every example and scores every impression once, however many students listen.

use serde_json::{Value, json};

/// Forward passes that training on a sample costs.
const TRAINING: u64 = 3;

/// What one model did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The model.
    pub name: String,
    /// Floating-point operations of a forward pass, for one sample.
    pub forward: u64,
    /// Samples it was trained on.
    pub trained: u64,
}

impl Work {
    fn training(&self) -> u64 {
        TRAINING * self.forward * self.trained
    }
}

/// The ledger: the teacher's work with the words it said, and that of the students that serve.
pub fn ledger(teacher: &Work, words: u64, students: &[Work]) -> Value {
    let (training, scoring) = (teacher.training(), teacher.forward * words);
    let each = (training + scoring) as f64 / students.len().max(1) as f64;
    let lines = students.iter().map(|student| {
        let own = student.training() as f64;
        let share = each / (each + own).max(1.0);
        json!({ "name": student.name, "forward": student.forward, "trained": student.trained, "training": student.training(),
                "teacher": each, "teacher_share": share })
    });
    json!({
        "teacher": { "forward": teacher.forward, "trained": teacher.trained, "words": words,
                     "training": training, "scoring": scoring },
        "students": lines.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_teacher_is_paid_once_however_many_listen() {
        let work = |name: &str, forward, trained| Work { name: name.to_owned(), forward, trained };
        let teacher = work("teacher", 100, 10);
        let students = [work("a", 10, 10), work("b", 40, 5)];
        let two = ledger(&teacher, 20, &students);
        // 3 * 100 * 10 to train and 100 * 20 to speak: 5000, half of it for each.
        assert_eq!((&two["teacher"]["training"], &two["teacher"]["scoring"]), (&3000.into(), &2000.into()));
        assert_eq!(two["students"][0]["teacher"], 2500.0);
        assert_eq!(two["students"][0]["training"], 300);
        assert_eq!(two["students"][1]["teacher_share"], 2500.0 / (2500.0 + 600.0));
        assert_eq!(ledger(&teacher, 20, &students[..1])["students"][0]["teacher"], 5000.0);
        // Before anything has happened nothing is divided by nothing.
        assert_eq!(
            ledger(&work("teacher", 100, 0), 0, &[work("a", 1, 0)])["students"][0]["teacher_share"],
            0.0
        );
    }
}
