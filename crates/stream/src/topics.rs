//! The topics of the live loop, by name.

use crate::{
    log::{Log, LogError, TopicOptions},
    records::Schemas,
};

/// What was shown, with its features. Written by whoever serves.
pub const IMPRESSIONS: &str = "impressions";
/// What followed. Written by whoever sees it.
pub const FEEDBACK: &str = "feedback";
/// What a teacher says of impressions. Written by the augmentation.
pub const WORDS: &str = "words";
/// Impressions with labels and words. Written by the joiner.
pub const EXAMPLES: &str = "examples";
/// Labels that came too late. Written by the joiner.
pub const CORRECTIONS: &str = "corrections";

/// All of them, and whether names stand beside.
const ALL: [(&str, bool); 5] =
    [(IMPRESSIONS, true), (FEEDBACK, false), (WORDS, true), (EXAMPLES, true), (CORRECTIONS, false)];

/// Makes every topic that is not there.
///
/// # Errors
/// When the log fails.
pub fn create(log: &dyn Log, options: TopicOptions) -> Result<(), LogError> {
    create_kept(log, options, 0)
}

/// The same, where examples are written up to so long after their time, which is their impression's: they are kept by so much
/// longer, so that they do not expire before they are read.
///
/// # Errors
/// When the log fails.
pub fn create_kept(log: &dyn Log, options: TopicOptions, joined_after_ms: u64) -> Result<(), LogError> {
    for (topic, has_schema) in ALL {
        let is_joined = [EXAMPLES, CORRECTIONS].contains(&topic) && options.keep_ms > 0;
        let later_ms = if is_joined { joined_after_ms } else { 0 };
        log.create(topic, TopicOptions { keep_ms: options.keep_ms.saturating_add(later_ms), ..options })?;
        if has_schema {
            Schemas::create(log, topic, options.partitions)?;
        }
    }
    Ok(())
}
