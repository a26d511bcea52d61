//! What differs between two runs, in the words of the job file.

use std::collections::BTreeMap;

use super::{Run, effective::run_text};

/// Keys of `[run]` that only say when to stop; `[run.evaluate]` only says when to look. A run goes on when they change.
const STOPS: [&str; 2] = ["epochs", "steps_max"];

/// A key in its section, and its value.
type Line = ((String, String), String);

impl Run {
    /// What `now` says otherwise than this run did, key by key: "`learning_rate` in [run.sparse] was 0.05 and is 0.1 now".
    /// Keys that change no step are left out.
    pub fn changes(&self, now: &Run) -> Vec<String> {
        let (before, after) = (lines(&run_text(self)), lines(&run_text(now)));
        let found: BTreeMap<_, _> = before.iter().cloned().collect();
        let wanted: BTreeMap<_, _> = after.iter().cloned().collect();
        let gone = before.iter().filter(|(key, _)| !wanted.contains_key(key));
        let gone =
            gone.map(|((section, key), value)| format!("`{key}` in {section} was {value} and is gone"));
        let changed = after.iter().filter_map(|((section, key), value)| {
            match found.get(&(section.clone(), key.clone())) {
                Some(was) if was == value => None,
                Some(was) => Some(format!("`{key}` in {section} was {was} and is {value} now")),
                None => Some(format!("`{key}` in {section} is {value} now and was not there")),
            }
        });
        changed.chain(gone).collect()
    }
}

/// The keys of a run's text that change results, in its order.
fn lines(text: &str) -> Vec<Line> {
    let mut section = "[run]".to_owned();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("[[") {
            let number = numbers.entry(line).or_insert(0);
            *number += 1;
            section = format!("{line} number {number}");
        } else if line.starts_with('[') {
            section = line.to_owned();
        } else if let Some((key, value)) = line.split_once(" = ") {
            let stops = section == "[run]" && STOPS.contains(&key);
            // How many bad rows a stream may have bends no step that was taken.
            let is_patience = section == "[run.data]" && key == "on_bad_row";
            if !stops && !is_patience && section != "[run.evaluate]" {
                found.push(((section.clone(), key.to_owned()), value.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn keys_are_told_with_their_sections() {
        let text = "seed = 1\nepochs = 2\n\n[run.evaluate]\nevery_steps = 4\n\n[[run.table]]\nname = \"a\"\n\n[[run.table]]\nname = \"b\"\n";
        let found = lines(text);
        let shown: Vec<String> =
            found.iter().map(|((section, key), value)| format!("{section} {key} {value}")).collect();
        assert_eq!(
            shown,
            ["[run] seed 1", "[[run.table]] number 1 name \"a\"", "[[run.table]] number 2 name \"b\""]
        );
    }
}
