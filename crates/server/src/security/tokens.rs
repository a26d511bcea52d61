//! Bearer tokens, out of a file that may change while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use http::{HeaderMap, header::AUTHORIZATION};

use super::{SecurityError, file_error};

/// The shortest token that is taken: 16 characters.
pub(super) const TOKEN_BYTES_MIN: usize = 16;

/// Who may ask. Copies share their tokens.
#[derive(Debug, Clone, Default)]
pub enum Access {
    /// Everybody who can connect.
    #[default]
    Everybody,
    /// Who has one of these tokens.
    Tokens(Arc<Tokens>),
}

/// Tokens that count.
#[derive(Debug)]
pub struct Tokens {
    known: ArcSwap<Vec<String>>,
    path: Option<PathBuf>,
    /// Why the file could not be read when it was last looked at.
    problem: Mutex<Option<String>>,
}

impl Access {
    /// Who has one of these tokens.
    pub fn tokens(tokens: Vec<String>) -> Access {
        let known = ArcSwap::from_pointee(tokens);
        Access::Tokens(Arc::new(Tokens { known, path: None, problem: Mutex::default() }))
    }

    /// Reads tokens, one a line; empty lines and lines that begin with `#` are left out.
    ///
    /// # Errors
    /// When there is none, or one is too short.
    pub fn from_file(path: &Path) -> Result<Access, SecurityError> {
        let known = ArcSwap::from_pointee(read(path)?);
        Ok(Access::Tokens(Arc::new(Tokens { known, path: Some(path.to_owned()), problem: Mutex::default() })))
    }

    /// Whether a request with these headers may pass.
    pub fn allows(&self, headers: &HeaderMap) -> bool {
        let Access::Tokens(tokens) = self else { return true };
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let Some((scheme, token)) = given.and_then(|value| value.split_at_checked(7)) else { return false };
        // All tokens are compared to the end, so that time tells nothing about them.
        let known = tokens.known.load();
        scheme.eq_ignore_ascii_case(b"bearer ")
            && known.iter().fold(false, |found, known| found | is_same(known.as_bytes(), token))
    }

    /// Reads the file of tokens again. Says how many count when they changed, or why they cannot be read, once; then those
    /// that were read before still count.
    pub fn refresh(&self) -> Option<Result<usize, SecurityError>> {
        let Access::Tokens(tokens) = self else { return None };
        let found = read(tokens.path.as_deref()?);
        let mut problem = tokens.problem.lock().unwrap_or_else(PoisonError::into_inner);
        let said = found.as_ref().err().map(ToString::to_string);
        let is_news = *problem != said;
        *problem = said;
        match found {
            Err(error) => is_news.then_some(Err(error)),
            Ok(found) if found == **tokens.known.load() => is_news.then_some(Ok(found.len())),
            Ok(found) => {
                let count = found.len();
                tokens.known.store(Arc::new(found));
                Some(Ok(count))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<String>, SecurityError> {
    let text = std::fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let token = line.trim();
        if token.is_empty() || token.starts_with('#') {
            continue;
        }
        if token.len() < TOKEN_BYTES_MIN || token.contains(char::is_whitespace) {
            return Err(SecurityError::WeakToken { path: path.to_owned(), line: index + 1 });
        }
        tokens.push(token.to_owned());
    }
    if tokens.is_empty() { Err(SecurityError::NoTokens { path: path.to_owned() }) } else { Ok(tokens) }
}

fn is_same(known: &[u8], given: &[u8]) -> bool {
    let differences =
        known.iter().zip(given.iter().chain(std::iter::repeat(&0))).fold(0, |all, (a, b)| all | (a ^ b));
    differences == 0 && known.len() == given.len()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn only_a_whole_known_token_passes() {
        let access = Access::tokens(vec!["0123456789abcdef".to_owned(), "fedcba9876543210".to_owned()]);
        assert!(access.allows(&headers("Bearer fedcba9876543210")));
        assert!(access.allows(&headers("bearer 0123456789abcdef")));
        for wrong in
            ["Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef", "Bearer", ""]
        {
            assert!(!access.allows(&headers(wrong)), "{wrong}");
        }
        assert!(!access.allows(&HeaderMap::new()));
        assert!(Access::Everybody.allows(&HeaderMap::new()));
    }

    #[test]
    fn a_token_file_needs_long_tokens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\n\n0123456789abcdef\n").unwrap();
        assert!(Access::from_file(file.path()).unwrap().allows(&headers("Bearer 0123456789abcdef")));
        std::fs::write(file.path(), "short\n").unwrap();
        assert!(Access::from_file(file.path()).unwrap_err().to_string().contains("line 1"));
        std::fs::write(file.path(), "# none\n").unwrap();
        assert!(Access::from_file(file.path()).unwrap_err().to_string().contains("no token"));
    }

    #[test]
    fn a_changed_file_counts_and_a_damaged_one_is_told_once_and_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("0123456789abcdef\n");
        let access = Access::from_file(file.path()).unwrap();
        let copy = access.clone();
        assert!(access.refresh().is_none());
        write("fedcba9876543210\n");
        assert_eq!(access.refresh().unwrap().unwrap(), 1);
        assert!(copy.allows(&headers("Bearer fedcba9876543210")));
        assert!(!copy.allows(&headers("Bearer 0123456789abcdef")));
        write("short\n");
        assert!(access.refresh().unwrap().is_err());
        assert!(access.refresh().is_none(), "it is said once");
        assert!(copy.allows(&headers("Bearer fedcba9876543210")));
        write("fedcba9876543210\n");
        assert_eq!(access.refresh().unwrap().unwrap(), 1, "it can be read again");
    }
}
