//! What an error says to a person: each thing once, and nothing that a terminal would act on.

use anyhow::Error;

/// The longest error that is printed.
const ERROR_CHARACTERS_MAX: usize = 8 << 10;

/// An error as it may be printed: it can quote a file that anybody wrote, and control characters would change the terminal
/// or what it seems to say.
pub fn printable(error: &str) -> String {
    let mut shown = String::new();
    for c in error.chars().take(ERROR_CHARACTERS_MAX) {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() || is_invisible(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    let left = error.chars().count().saturating_sub(ERROR_CHARACTERS_MAX);
    if left > 0 {
        shown.push_str(&format!("… ({left} more characters)"));
    }
    shown
}

/// Characters that change the order of those around them, or are not seen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// An error and what caused it. Some errors say their cause themselves, and it is not said again.
pub fn words(error: &Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words.push_str(": ");
            words.push_str(&cause);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_cannot_write_to_the_terminal_and_has_an_end() {
        let said = printable("rows.csv line 2\n\tvalue `\u{1b}[2J\u{202e}\0é`: not a number");
        assert_eq!(said, "rows.csv line 2\n\tvalue `\\u{1b}[2J\\u{202e}\\u{0}é`: not a number");
        let long = printable(&"é".repeat(ERROR_CHARACTERS_MAX + 7));
        assert!(long.ends_with("é… (7 more characters)") && long.len() < 3 * ERROR_CHARACTERS_MAX, "{long}");
    }

    #[test]
    fn a_cause_is_said_once() {
        let system = || std::io::Error::other("Address already in use (os error 98)");
        let own = Error::from(system()).context("cannot listen: Address already in use (os error 98)");
        assert_eq!(words(&own), "cannot listen: Address already in use (os error 98)");
        let outer = Error::from(system()).context("cannot listen at 127.0.0.1:80").context("serve");
        let all = "serve: cannot listen at 127.0.0.1:80: Address already in use (os error 98)";
        assert_eq!(words(&outer), all);
    }
}
