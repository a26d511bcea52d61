//! The topics that can be exported.

use std::str::FromStr;

use campanile_stream::topics;

/// A topic that can be exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// What was shown.
    Impressions,
    /// What followed.
    Feedback,
    /// What a teacher says.
    Words,
    /// All three joined.
    Examples,
    /// Labels that came late.
    Corrections,
}

impl Topic {
    /// All of them.
    pub const ALL: [Topic; 5] =
        [Topic::Impressions, Topic::Feedback, Topic::Words, Topic::Examples, Topic::Corrections];

    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Impressions => topics::IMPRESSIONS,
            Topic::Feedback => topics::FEEDBACK,
            Topic::Words => topics::WORDS,
            Topic::Examples => topics::EXAMPLES,
            Topic::Corrections => topics::CORRECTIONS,
        }
    }
}

impl FromStr for Topic {
    type Err = String;

    fn from_str(name: &str) -> Result<Topic, String> {
        Topic::ALL.into_iter().find(|topic| topic.name() == name).ok_or_else(|| {
            let known = Topic::ALL.map(Topic::name).join("`, `");
            format!("`{name}` is no topic with records of the loop; there are `{known}`")
        })
    }
}
