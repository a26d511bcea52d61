//! Figures over seeds, and how they are printed.

use serde::Serialize;

use super::lab::Measured;

/// One way to train, on all seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was different.
    pub name: String,
    /// One per seed.
    pub measured: Vec<Measured>,
}

/// A table: rows that are compared with the first.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// What all rows have in common.
    pub title: String,
    /// The first is the twin without a teacher.
    pub rows: Vec<Row>,
}

/// A mean and its standard error.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Its standard error; 0 for one seed.
    pub error: f64,
}

impl Mean {
    /// Of some values.
    pub fn of(values: impl Iterator<Item = f64>) -> Mean {
        let values: Vec<f64> = values.collect();
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let square: f64 = values.iter().map(|other| (other - value).powi(2)).sum();
        let error = if values.len() > 1 { (square / (count - 1.0) / count).sqrt() } else { 0.0 };
        Mean { value, error }
    }
}

impl Table {
    /// The relative gain in NE of a row over the first, in per cent, seed by seed.
    pub fn gain(&self, row: &Row) -> Mean {
        let pairs = row.measured.iter().zip(&self.rows[0].measured);
        Mean::of(pairs.map(|(own, twin)| 100.0 * (twin.ne - own.ne) / twin.ne))
    }

    /// The relative gain in AUC of a row over the first, in per cent, seed by seed.
    pub fn auc_gain(&self, row: &Row) -> Mean {
        let pairs = row.measured.iter().zip(&self.rows[0].measured);
        Mean::of(pairs.map(|(own, twin)| 100.0 * (own.auc - twin.auc) / twin.auc))
    }

    /// The share of the teacher's gain over the twin that arrives.
    pub fn transfer(&self, row: &Row) -> Mean {
        let pairs = row.measured.iter().zip(&self.rows[0].measured);
        Mean::of(pairs.map(|(own, twin)| (twin.ne - own.ne) / (twin.ne - own.teacher_ne)))
    }

    /// The transfer in per cent; a dash where the teacher is worse than the twin and has no gain to hand on.
    pub fn transfer_told(&self, row: &Row) -> String {
        let teacher = Mean::of(row.measured.iter().map(|own| own.teacher_ne)).value;
        let twin = Mean::of(self.rows[0].measured.iter().map(|twin| twin.ne)).value;
        match teacher < twin && self.gain(row).value != 0.0 {
            true => format!("{:.0} %", 100.0 * self.transfer(row).value),
            false => "–".to_owned(),
        }
    }

    /// Prints the table as Markdown.
    pub fn print(&self) {
        println!("\n**{}**\n", self.title);
        println!("| | NE | gain over none | AUC | calibration | teacher's NE | transfer |");
        println!("|---|---|---|---|---|---|---|");
        for row in &self.rows {
            let mean = |of: fn(&Measured) -> f64| Mean::of(row.measured.iter().map(of));
            let (gain, teacher) = (self.gain(row), mean(|m| m.teacher_ne));
            let teacher_ne =
                if teacher.value.is_nan() { "–".to_owned() } else { format!("{:.4}", teacher.value) };
            let transfer = self.transfer_told(row);
            println!(
                "| {} | {:.4} | {:+.2} ± {:.2} % | {:.4} | {:.3} | {teacher_ne} | {transfer} |",
                row.name,
                mean(|m| m.ne).value,
                gain.value,
                gain.error,
                mean(|m| m.auc).value,
                mean(|m| m.calibration).value,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ne: f64) -> Measured {
        let (teacher_ne, teacher_auc, teacher_calibration) = (0.8, 0.8, 1.0);
        let (auc, calibration, best_ne) = (1.5 - ne, 1.0, 0.7);
        Measured {
            ne,
            auc,
            calibration,
            teacher_ne,
            teacher_auc,
            teacher_calibration,
            best_ne,
            domains: Vec::new(),
        }
    }

    #[test]
    fn gains_are_paired_by_seed() {
        let twin = Row { name: "none".into(), measured: vec![measured(0.9), measured(1.0)] };
        let student = Row { name: "auxiliary".into(), measured: vec![measured(0.81), measured(0.9)] };
        let table = Table { title: String::new(), rows: vec![twin, student] };
        let gain = table.gain(&table.rows[1]);
        assert!((gain.value - 10.0).abs() < 1e-9 && gain.error < 1e-9, "{gain:?}");
        assert!((table.transfer(&table.rows[1]).value - (0.9 + 0.5) / 2.0).abs() < 1e-9);
        assert!((table.auc_gain(&table.rows[1]).value - (15.0 + 20.0) / 2.0).abs() < 1e-9);
        assert_eq!(table.transfer_told(&table.rows[1]), "70 %");
        assert_eq!(table.transfer_told(&table.rows[0]), "–");
        let mean = Mean::of([1.0, 3.0].into_iter());
        assert_eq!((mean.value, mean.error), (2.0, 1.0));
    }
}
