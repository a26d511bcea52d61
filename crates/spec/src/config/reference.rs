//! The reference page, written from the declarations of the keys.
//!
//! One chapter per section of the file, in the order in which the saved job prints them: a table of its keys,
//! and below it the words that a key may have, with their own keys.

use super::{
    keys::{Form, Key, Value, Variant, Word},
    raw::RawJob,
    value::inline,
};

const HEAD: &str = "\
# The job file

<!-- Written by `cargo xtask reference` from the doc comments in crates/spec/src. Change it there. -->

A job is one TOML file with two parts. `[run]` is what changes results: the same `run` on the same data gives
the same bits, whatever the threads, and its hash is kept in every checkpoint. `[process]` is what changes
none: threads, memory, paths. Ready jobs stand in `examples/`.

- An unknown key is an error that names the nearest known one. A key without a default is required.
- A key that is *one of several words* is written as the word, `optimizer = \"adam\"`, or, to set the keys of that
  word, as a table: `optimizer = { kind = \"adam\", beta2 = 0.99 }`.
- Paths are relative to the directory in which the program is started, not to the job file.
- The job with every key filled in is printed at the start of a run and saved with it.
";

/// `docs/job.md`: every key with its type, default and meaning.
pub fn reference_page() -> String {
    let mut page = HEAD.to_owned();
    if let Form::Section { keys, .. } = RawJob::form() {
        below(&mut page, "", &keys);
    }
    page
}

/// The chapters of the sections among `keys`.
fn below(page: &mut String, path: &str, keys: &[Key]) {
    for key in keys {
        let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        match section_of(&key.form) {
            Some((docs, keys, true)) => chapter(page, &path, &format!("[[{path}]]"), docs, keys),
            Some((docs, keys, false)) => chapter(page, &path, &format!("[{path}]"), docs, keys),
            None => {}
        }
    }
}

/// A section's docs and keys, and whether it may come several times.
fn section_of(form: &Form) -> Option<(&'static str, &[Key], bool)> {
    match form {
        Form::Section { docs, keys } => Some((docs, keys, false)),
        Form::List(form) => section_of(form).map(|(docs, keys, _)| (docs, keys, true)),
        Form::Optional(form) => section_of(form),
        Form::Plain(_) | Form::PerFeature(_) | Form::Words { .. } | Form::Choice { .. } => None,
    }
}

fn chapter(page: &mut String, path: &str, title: &str, docs: &str, keys: &[Key]) {
    page.push_str(&format!("\n## `{title}`\n\n{}\n", prose(docs)));
    let plain: Vec<&Key> = keys.iter().filter(|key| section_of(&key.form).is_none()).collect();
    key_table(page, &plain);
    for key in plain {
        match inner(&key.form) {
            Form::Words { words } => {
                page.push_str(&format!("\n`{}` is one of\n", key.name));
                words.iter().for_each(|word| word_line(page, word));
            }
            Form::Choice { variants } => {
                page.push_str(&format!("\n`{}` is one of\n", key.name));
                variants.iter().for_each(|variant| variant_lines(page, variant));
            }
            _ => {}
        }
    }
    below(page, path, keys);
}

fn key_table(page: &mut String, keys: &[&Key]) {
    if keys.is_empty() {
        return;
    }
    page.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
    for key in keys {
        let (value, default) = (value_text(&key.form), default_text(key));
        page.push_str(&format!("| `{}` | {value} | {default} | {} |\n", key.name, cell(key.docs)));
    }
}

fn word_line(page: &mut String, word: &Word) {
    page.push_str(&format!("- `\"{}\"`: {}\n", word.name, prose(word.docs)));
}

fn variant_lines(page: &mut String, variant: &Variant) {
    word_line(page, &variant.word);
    for key in &variant.keys {
        let default =
            if key.default.is_some() { format!(", default {}", default_text(key)) } else { String::new() };
        let value = value_text(&key.form);
        page.push_str(&format!("  - `{}`: {value}{default}. {}\n", key.name, prose(key.docs)));
    }
}

/// A list's or an optional's element.
fn inner(form: &Form) -> &Form {
    match form {
        Form::List(form) | Form::Optional(form) => inner(form),
        form => form,
    }
}

fn value_text(form: &Form) -> String {
    match form {
        Form::Plain(text) => (*text).to_owned(),
        Form::List(form) => format!("list of {}", value_text(form)),
        Form::PerFeature(form) => format!("{}, or a list with one per feature", value_text(form)),
        Form::Optional(form) => value_text(form),
        Form::Words { words } => {
            words.iter().map(|word| format!("`\"{}\"`", word.name)).collect::<Vec<_>>().join(", ")
        }
        Form::Choice { .. } => "one of several words".to_owned(),
        Form::Section { .. } => "section".to_owned(),
    }
}

fn default_text(key: &Key) -> String {
    match &key.default {
        None => "required".to_owned(),
        Some(node) => inline(node).map_or_else(|| "absent".to_owned(), |text| format!("`{text}`")),
    }
}

/// Doc lines as one paragraph.
fn prose(docs: &str) -> String {
    docs.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Doc lines in a cell of a table.
fn cell(docs: &str) -> String {
    prose(docs).replace('|', "\\|")
}
