//! Why a job was refused, with the place in the file.

use std::{fmt, ops::Range};

use thiserror::Error;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A place in the job file, counted from 1; line 0 when the file has no such place (a default was wrong).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct At {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// Why a job was refused.
///
/// `section` is how the file writes it: `[run.data]`, or `[[run.data.sparse]] number 3`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobError {
    /// The text is not TOML.
    #[error("the job is not valid TOML{at}: {problem}")]
    Syntax {
        /// Where.
        at: At,
        /// What the TOML reader says.
        problem: String,
    },
    /// A key that means nothing there.
    #[error("unknown key `{key}` in {section}{at}: {advice}")]
    UnknownKey {
        /// Where.
        at: At,
        /// The key.
        key: String,
        /// Its section.
        section: String,
        /// The nearest known key, or all of them.
        advice: String,
    },
    /// A key that has no default.
    #[error("missing key `{key}` in {section}{at}: {meaning}")]
    MissingKey {
        /// Where the section begins.
        at: At,
        /// The key.
        key: String,
        /// Its section.
        section: String,
        /// What the key says.
        meaning: String,
    },
    /// A value of the wrong type, or a word that is none of the choices.
    #[error("`{key}` in {section}{at} is {value}: it must be {wanted}")]
    WrongType {
        /// Where.
        at: At,
        /// The key.
        key: String,
        /// Its section.
        section: String,
        /// What stands there.
        value: String,
        /// What may stand there.
        wanted: String,
    },
    /// A value of the right type that cannot work.
    #[error("`{key}` in {section}{at} is {value}: {advice}")]
    BadValue {
        /// Where.
        at: At,
        /// The key.
        key: String,
        /// Its section.
        section: String,
        /// The value.
        value: String,
        /// What is wrong and what to write instead.
        advice: String,
    },
}

impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { Ok(()) } else { write!(out, " at line {}, column {}", self.line, self.column) }
    }
}

impl At {
    /// The place of a byte offset.
    pub(crate) fn of(text: &str, offset: usize) -> At {
        let before = &text[..text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        At { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

/// An error whose place is not yet turned into a line; boxed, for it travels in every `Result` of the checks.
#[derive(Debug)]
pub(crate) struct Problem(Box<Unplaced>);

#[derive(Debug)]
struct Unplaced {
    place: Place,
    error: JobError,
}

#[derive(Debug)]
enum Place {
    Span(Range<usize>),
    Path(String),
}

impl Problem {
    /// A problem at a span of the text.
    pub(crate) fn at(span: Range<usize>, error: JobError) -> Problem {
        Problem(Box::new(Unplaced { place: Place::Span(span), error }))
    }

    /// A value found wrong after reading: `path` is the key's, such as `run.data.sparse[2].rows`.
    pub(crate) fn value(path: &str, value: impl fmt::Display, advice: impl Into<String>) -> Problem {
        let (section, key) = split_path(path);
        let (value, advice) = (value.to_string(), advice.into());
        let error = JobError::BadValue { at: At::default(), key, section, value, advice };
        Problem(Box::new(Unplaced { place: Place::Path(path.to_owned()), error }))
    }

    /// A key that is needed because of other keys.
    pub(crate) fn missing(path: &str, meaning: impl Into<String>) -> Problem {
        let (section, key) = split_path(path);
        let error = JobError::MissingKey { at: At::default(), key, section, meaning: meaning.into() };
        Problem(Box::new(Unplaced { place: Place::Path(path.to_owned()), error }))
    }

    /// The error, with its place in `text`.
    pub(crate) fn locate(self, text: &str, document: &Spanned<DeTable<'_>>) -> JobError {
        let Unplaced { place, mut error } = *self.0;
        let span = match &place {
            // A section that is not in the file has no place there.
            Place::Span(span) => Some(span.clone()).filter(|span| !span.is_empty()),
            Place::Path(path) => find(document.get_ref(), path),
        };
        let at_place = span.map_or_else(At::default, |span| At::of(text, span.start));
        if let (Place::Span(span), JobError::MissingKey { section, .. }) = (&place, &mut error)
            && span.is_empty()
            && section.starts_with('[')
        {
            section.push_str(", which the file does not have");
        }
        match &mut error {
            JobError::Syntax { at, .. }
            | JobError::UnknownKey { at, .. }
            | JobError::MissingKey { at, .. }
            | JobError::WrongType { at, .. }
            | JobError::BadValue { at, .. } => *at = at_place,
        }
        error
    }
}

/// `run.data.sparse[2].rows` as (`[[run.data.sparse]] number 3`, `rows`).
pub(crate) fn split_path(path: &str) -> (String, String) {
    match path.rsplit_once('.') {
        Some((section, key)) => (section_label(section), key.to_owned()),
        None => ("the job".to_owned(), path.to_owned()),
    }
}

/// How the file writes a section.
pub(crate) fn section_label(path: &str) -> String {
    if path.is_empty() {
        return "the job".to_owned();
    }
    if let Some((list, inside)) = path.rsplit_once("].") {
        return format!("`{inside}` of {}", section_label(&format!("{list}]")));
    }
    if let Some((list, index)) = path.strip_suffix(']').and_then(|path| path.rsplit_once('[')) {
        let number = index.parse::<usize>().map_or(0, |index| index + 1);
        return format!("[[{list}]] number {number}");
    }
    format!("[{path}]")
}

/// The span of the deepest part of `path` that the document has.
fn find(document: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    let mut table = document;
    let mut found = None;
    for part in path.split('.') {
        let (name, index) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((_, mut value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        if let (Some(index), DeValue::Array(list)) = (index, value.get_ref()) {
            let Some(element) = list.get(index) else { break };
            value = element;
        }
        found = Some(value.span());
        match value.get_ref() {
            DeValue::Table(below) => table = below,
            _ => break,
        }
    }
    found
}
