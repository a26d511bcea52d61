//! Scores as a table.

use campanile_train::scores::TaskScores;

use crate::format;

/// A table of scores, a row for each split and task. Columns without any value are left out.
pub fn scores_table(splits: &[(&str, &[TaskScores])]) -> String {
    let several = splits.iter().any(|(_, scores)| scores.len() > 1);
    type Column = (&'static str, fn(&TaskScores) -> Option<String>);
    let columns: [Column; 8] = [
        ("rows", |s| Some(format::count(s.values.count))),
        ("NE", |s| decimals(s.values.ne)),
        ("best NE", |s| decimals(s.values.best_ne)),
        ("logloss", |s| decimals(s.values.logloss)),
        ("AUC", |s| decimals(s.values.auc)),
        ("GAUC", |s| decimals(s.values.gauc)),
        ("calibration", |s| decimals(s.values.calibration)),
        ("label rate", |s| decimals(s.values.label_rate)),
    ];
    let mut rows = vec![vec![String::new()]];
    for (split, scores) in splits {
        for score in *scores {
            rows.push(vec![if several { format!("{split} {}", score.task) } else { (*split).to_owned() }]);
        }
    }
    for (title, value) in columns {
        let cells: Vec<Option<String>> =
            splits.iter().flat_map(|(_, scores)| scores.iter().map(value)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        rows[0].push(title.to_owned());
        for (row, cell) in rows[1..].iter_mut().zip(cells) {
            row.push(cell.unwrap_or_else(|| "–".to_owned()));
        }
    }
    align(&rows)
}

fn decimals(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.5}"))
}

/// First column to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_titles() {
        let rows = [vec!["".into(), "NE".into()], vec!["test".into(), "0.91".into()]];
        assert_eq!(align(&rows), "        NE\ntest  0.91\n");
    }
}
