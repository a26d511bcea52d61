//! Jobs drawn for a table: which transforms, tables and order its columns have.

use std::{fmt::Write, path::Path};

use campanile_spec::config::Job;

use crate::draw::{Column, Kind, Numbers, Table};

/// A job in two halves, between which the form of the files is named.
pub struct Drawn {
    text: String,
}

impl Drawn {
    /// A job for the table: other numbers, other transforms.
    pub fn of(numbers: &mut Numbers, table: &Table) -> Drawn {
        let mut columns: Vec<usize> = (0..table.columns.len()).collect();
        numbers.shuffle(&mut columns);
        let mut text = String::new();
        let group = numbers.pick(&columns);
        if !table.columns[group].is_list && numbers.once_in(2) {
            let _ = writeln!(text, "group = {:?}", table.columns[group].name);
        }
        let _ = writeln!(text, "shuffle = {}\n[[run.data.label]]\nname = \"click\"", numbers.once_in(2));
        if numbers.once_in(2) {
            text += "[[run.data.label]]\nname = \"rating\"\nat_least = 3\n";
        }
        for place in columns {
            let column = &table.columns[place];
            match column.weighs {
                Some(_) => {}
                None if column.is_dense => text += &dense(numbers, column),
                None => {
                    let weights = table.columns.iter().find(|other| other.weighs == Some(place));
                    text += &sparse(numbers, column, weights);
                }
            }
        }
        Drawn { text }
    }

    /// The job for the files of a form in `files`, which leaves what it makes in `place`. The rows that are held out are its
    /// `held_out`: `valid` or `test`.
    pub fn text(&self, kind: &str, held_out: &str, files: &Path, place: &Path) -> String {
        let named = |part: &str| format!("{:?}", files.join(format!("{part}*.{kind}")));
        format!(
            "[run]\nbatch_size = 32\n[run.data]\nkind = \"{kind}\"\n{}\
             [run.tables]\ndim = 4\n[run.model]\nkind = \"dlrm\"\nbottom = [8, 4]\ntop = [8]\n\
             [run.sparse]\nlearning_rate = 0.02\n[run.dense]\noptimizer = \"adam\"\nlearning_rate = 0.001\n\
             [process]\nthreads = 1\noutput_dir = {:?}\ncache_dir = {:?}\n\
             [process.data]\ntrain = [{}]\n{held_out} = [{}]\n",
            self.text,
            place.join("out"),
            place.join("cache"),
            named("train"),
            named("held_out"),
        )
    }

    /// The same, read; its rows that are held out are the test.
    pub fn job(&self, kind: &str, files: &Path, place: &Path) -> Job {
        let text = self.text(kind, "test", files, place);
        Job::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

fn dense(numbers: &mut Numbers, column: &Column) -> String {
    let transforms = numbers.pick(&[
        "",
        "\"log1p\"",
        "\"standardise\"",
        "\"log1p\", \"standardise\"",
        "{ kind = \"clip\", min = -2, max = 9.5 }",
    ]);
    let missing = numbers.pick(&["0", "-1.5", "7"]);
    // Numbers of all sizes would drown the model.
    let transforms =
        if transforms.is_empty() && column.kind != Kind::Small { "\"log1p\"" } else { transforms };
    format!(
        "[[run.data.dense]]\nname = {:?}\nmissing = {missing}\ntransforms = [{transforms}]\n",
        column.name
    )
}

fn sparse(numbers: &mut Numbers, column: &Column, weights: Option<&Column>) -> String {
    let hash = format!("{{ kind = \"hash\", salt = {} }}", numbers.below(9));
    let vocabulary = format!("{{ kind = \"vocabulary\", min_count = {} }}", 1 + numbers.below(3));
    let buckets = "{ kind = \"bucketise\", boundaries = [-7.5, 0.1, 0.7, 3, 11] }".to_owned();
    let mut maps = vec![hash, vocabulary];
    maps.extend(column.is_number.then_some(buckets));
    maps.extend((column.kind == Kind::Small).then(|| "\"direct\"".to_owned()));
    let map = &maps[numbers.below(maps.len() as u64) as usize];
    let rows = if map == "\"direct\"" { 30 } else { numbers.pick(&[8, 50, 1000]) };
    let mut text = format!("[[run.data.sparse]]\nname = {:?}\nmap = {map}\nrows = {rows}\n", column.name);
    if column.is_list {
        let _ = writeln!(text, "list = true\nbag_max = {}", numbers.pick(&[2, 3, 100]));
        match weights {
            Some(weights) if numbers.once_in(2) => {
                let _ = writeln!(text, "pooling = \"weighted\"\nweights = {:?}", weights.name);
            }
            _ => text += numbers.pick(&["pooling = \"mean\"\n", "pooling = \"sum\"\n"]),
        }
    }
    text
}
