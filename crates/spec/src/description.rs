//! Small TOML files beside the job, read with the job's own care: a mistake is told with its line, key and value.

use thiserror::Error;
use toml::de::DeTable;

use crate::config::{
    At, JobError,
    error::Problem,
    keys::{Keys, Reader},
};

/// Why a description was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DescriptionError {
    /// The text is not TOML.
    #[error("{what} is not valid TOML{at}: {problem}")]
    Syntax {
        /// What it should describe: `the cluster`.
        what: &'static str,
        /// Where.
        at: At,
        /// What the TOML reader says.
        problem: String,
    },
    /// A key is wrong, unknown or missing.
    #[error(transparent)]
    Key(JobError),
}

/// Reads and checks a description.
pub(crate) fn parse<T: Keys>(
    text: &str,
    what: &'static str,
    checked: impl FnOnce(T) -> Result<T, Problem>,
) -> Result<T, DescriptionError> {
    let document = DeTable::parse(text).map_err(|error| DescriptionError::Syntax {
        what,
        at: error.span().map_or_else(At::default, |span| At::of(text, span.start)),
        problem: error.message().to_owned(),
    })?;
    let mut reader = Reader::new(text, Some(document.get_ref()), 0..0, String::new());
    let value = T::take(&mut reader).and_then(checked);
    value.map_err(|problem| DescriptionError::Key(named(problem.locate(text, &document), what)))
}

/// Whether a text is TOML with this key at its top: how one kind of file is told from another.
pub fn has_key(text: &str, key: &str) -> bool {
    DeTable::parse(text)
        .is_ok_and(|document| document.get_ref().iter().any(|(name, _)| name.get_ref() == key))
}

/// The reader speaks of jobs where a key stands in no section.
pub(crate) fn named(error: JobError, what: &str) -> JobError {
    let rename = |section: String| if section == "the job" { what.to_owned() } else { section };
    match error {
        JobError::UnknownKey { at, key, section, advice } => {
            JobError::UnknownKey { at, key, section: rename(section), advice }
        }
        JobError::MissingKey { at, key, section, meaning } => {
            JobError::MissingKey { at, key, section: rename(section), meaning }
        }
        JobError::WrongType { at, key, section, value, wanted } => {
            JobError::WrongType { at, key, section: rename(section), value, wanted }
        }
        JobError::BadValue { at, key, section, value, advice } => {
            JobError::BadValue { at, key, section: rename(section), value, advice }
        }
        JobError::Syntax { .. } => error,
    }
}

/// Complains of the first value that is not above zero.
pub(crate) fn above_zero(values: &[(&str, f64)]) -> Result<(), Problem> {
    match values.iter().find(|(_, value)| *value <= 0.0) {
        Some((path, value)) => Err(Problem::value(path, value, "it must be above zero")),
        None => Ok(()),
    }
}

/// Complains of the first value that is no share.
pub(crate) fn shares(values: &[(&str, f64)]) -> Result<(), Problem> {
    match values.iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
        Some((path, value)) => Err(Problem::value(path, value, "it is a share, from 0 to 1")),
        None => Ok(()),
    }
}
