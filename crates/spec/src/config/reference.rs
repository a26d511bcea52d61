//! The reference page, written from the declarations of the keys.

/// `docs/job.md`: every key with its type, default and meaning.
pub fn reference_page() -> String {
    String::new()
}
