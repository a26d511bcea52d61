//! A record of any topic, read.

use campanile_stream::{
    log::Stored,
    records::{Correction, Example, Feedback, Impression, TICK, Word},
};

use super::Topic;

/// A record, read.
pub(super) enum Content<'a> {
    Tick,
    Impression(Impression<'a>),
    Feedback(Feedback),
    Word(Word<'a>),
    Example { example: Example<'a>, is_late: bool },
    Correction(Correction),
}

impl<'a> Content<'a> {
    /// Reads a payload; in words, why it cannot be read.
    pub fn read(topic: Topic, record: &Stored<'a>) -> Result<Content<'a>, String> {
        let payload = record.payload;
        if payload == TICK {
            return Ok(Content::Tick);
        }
        let example = |is_late| move |example| Content::Example { example, is_late };
        let content = match topic {
            Topic::Impressions => Impression::decode(payload).map(Content::Impression),
            Topic::Feedback => Feedback::decode(payload).map(Content::Feedback),
            Topic::Words => Word::decode(payload).map(Content::Word),
            Topic::Examples if Example::is_late(payload) => Example::decode_late(payload).map(example(true)),
            Topic::Examples => Example::decode(payload).map(example(false)),
            Topic::Corrections => Correction::decode(payload).map(Content::Correction),
        };
        let content = content.ok_or_else(|| {
            let kind = payload.first().copied().unwrap_or_default();
            format!(
                "it is no record of this topic, or one of a later program: it begins with {kind:#04x} and has {} bytes",
                payload.len()
            )
        })?;
        if matches!(content, Content::Impression(_) | Content::Example { .. }) && content.features().is_none()
        {
            return Err("it has no features".to_owned());
        }
        Ok(content)
    }

    pub fn is_tick(&self) -> bool {
        matches!(self, Content::Tick)
    }

    pub fn is_late(&self) -> bool {
        matches!(self, Content::Example { is_late: true, .. })
    }

    /// The number of the columns' schema, and the row.
    pub fn features(&self) -> Option<(u32, &'a [u8])> {
        let features = match self {
            Content::Impression(impression) => impression.features,
            Content::Example { example, .. } => example.features,
            _ => return None,
        };
        let (number, row) = features.split_first_chunk()?;
        Some((u32::from_le_bytes(*number), row))
    }

    pub fn word(&self) -> Option<&Word<'a>> {
        match self {
            Content::Word(word) => Some(word),
            Content::Example { example, .. } => example.word.as_ref(),
            _ => None,
        }
    }

    pub fn id(&self) -> u64 {
        match self {
            Content::Tick => 0,
            Content::Impression(impression) => impression.id,
            Content::Feedback(feedback) => feedback.id,
            Content::Word(word) => word.id,
            Content::Example { example, .. } => example.id,
            Content::Correction(correction) => correction.id,
        }
    }

    pub fn task(&self) -> Option<u16> {
        match self {
            Content::Feedback(feedback) => Some(feedback.task),
            Content::Correction(correction) => Some(correction.task),
            _ => None,
        }
    }
}
