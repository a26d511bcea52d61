//! The payloads of the live loop. Numbers are little-endian.
//!
//! ```text
//!   impression   0x11 | id u64 | features
//!   feedback     0x21 | id u64 | task u16
//!   example      0x31 | id u64 | tasks u16 | labels u32 | known u32 | word? u8 [, word] | features   time: the impression's
//!                                                                 word? is 2 where the word has an embedding
//!   late example 0x32 | as an example: only the label that came late is known, and no word
//!   correction   0x41 | id u64 | task u16 | in its window? u8                                     the label is 1 after all
//!   word         0x51 | id u64 | schema u32 | version u64 | data time i64 | count u16 | logits f16  time: the impression's
//!   word with an embedding
//!                0x52 | as a word, then: floats u16 | embedding f16
//!   tick         0x61                                                                             only time has passed
//!   features     schema u32 | a row of raw values, as `campanile-data` writes it
//! ```
//!
//! The first byte is the kind of a record and the version of its layout, so that a record in a wrong topic, or one of a
//! later program, is named and not misread. Names (of columns, of tasks) are not repeated in every record: it carries
//! the number of a [`Schema`], which stands in the topic `<topic>.schema` beside.

mod schema;

pub use schema::{Schema, Schemas, declare};

const IMPRESSION: u8 = 0x11;
const FEEDBACK: u8 = 0x21;
const EXAMPLE: u8 = 0x31;
const LATE_EXAMPLE: u8 = 0x32;
const CORRECTION: u8 = 0x41;
const WORD: u8 = 0x51;
const EMBEDDED_WORD: u8 = 0x52;

/// The payload of a record that says only that time has passed: it closes windows when nothing else happens.
pub const TICK: &[u8] = &[0x61];

/// The id of the impression of one candidate of a request, so that whoever sees a click can name it by what the answer
/// carried: FNV-1a over the request's id and the candidate's place (u32), then mixed. A request that is sent again under
/// its id is the same impression.
pub fn impression_id(request: &str, sample: u32) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = request.as_bytes().iter().chain(&sample.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step);
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Something was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impression<'a> {
    /// Unique; feedback names it.
    pub id: u64,
    /// What the model saw.
    pub features: &'a [u8],
}

/// Something followed an impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// The impression's.
    pub id: u64,
    /// What: the place of the task.
    pub task: u16,
}

/// An impression, what followed, and what a teacher says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Example<'a> {
    /// The impression's.
    pub id: u64,
    /// How many tasks there are.
    pub tasks: u16,
    /// A bit per task.
    pub labels: u32,
    /// A bit per task whose label has a meaning: a conversion may be one of clicks alone.
    pub known: u32,
    /// The teacher's word, if it came before the windows closed.
    pub word: Option<Word<'a>>,
    /// What the model saw.
    pub features: &'a [u8],
}

/// A label that became 1 after its example was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Correction {
    /// The impression's.
    pub id: u64,
    /// The task.
    pub task: u16,
    /// Whether it happened inside the task's window, and only its record was late.
    pub in_window: bool,
}

/// What a teacher says of an impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// The impression's.
    pub id: u64,
    /// The names of the teacher's tasks.
    pub schema: u32,
    /// The teacher's version in its registry.
    pub version: u64,
    /// The time of the newest example that this version was trained on.
    pub data_time_ms: i64,
    /// A logit per task, IEEE half precision.
    pub logits: &'a [u8],
    /// The teacher's embedding, IEEE half precision; empty where it was not asked for one.
    pub embedding: &'a [u8],
}

impl<'a> Impression<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(IMPRESSION);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(self.features);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Option<Impression<'a>> {
        let (id, features) = head(payload, IMPRESSION)?;
        Some(Impression { id, features })
    }
}

impl Feedback {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(FEEDBACK);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.task.to_le_bytes());
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Option<Feedback> {
        let (id, rest) = head(payload, FEEDBACK)?;
        let (task, rest) = rest.split_first_chunk()?;
        rest.is_empty().then_some(Feedback { id, task: u16::from_le_bytes(*task) })
    }
}

impl<'a> Example<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(EXAMPLE, out);
    }

    /// Appends the payload of an example that comes once more, for a label that came late.
    pub fn encode_late(&self, out: &mut Vec<u8>) {
        self.encode_as(LATE_EXAMPLE, out);
    }

    /// Whether a payload is that of an example that comes once more.
    pub fn is_late(payload: &[u8]) -> bool {
        payload.first() == Some(&LATE_EXAMPLE)
    }

    /// Reads the payload of an example that comes once more.
    pub fn decode_late(payload: &'a [u8]) -> Option<Example<'a>> {
        Example::decode_as(LATE_EXAMPLE, payload)
    }

    fn encode_as(&self, kind: u8, out: &mut Vec<u8>) {
        out.push(kind);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.tasks.to_le_bytes());
        out.extend_from_slice(&self.labels.to_le_bytes());
        out.extend_from_slice(&self.known.to_le_bytes());
        out.push(self.word.as_ref().map_or(0, |word| 1 + u8::from(word.is_embedded())));
        if let Some(word) = &self.word {
            word.encode_tail(out);
        }
        out.extend_from_slice(self.features);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Option<Example<'a>> {
        Example::decode_as(EXAMPLE, payload)
    }

    fn decode_as(kind: u8, payload: &'a [u8]) -> Option<Example<'a>> {
        let (id, rest) = head(payload, kind)?;
        let (tasks, rest) = rest.split_first_chunk()?;
        let (labels, rest) = rest.split_first_chunk()?;
        let (known, rest) = rest.split_first_chunk()?;
        let (has_word, rest) = rest.split_first()?;
        let (word, features) = match has_word {
            0 => (None, rest),
            1 | 2 => Word::decode_tail(id, *has_word == 2, rest).map(|(word, rest)| (Some(word), rest))?,
            _ => return None,
        };
        Some(Example {
            id,
            tasks: u16::from_le_bytes(*tasks),
            labels: u32::from_le_bytes(*labels),
            known: u32::from_le_bytes(*known),
            word,
            features,
        })
    }

    /// A task's label; `None` where it has no meaning.
    pub fn label(&self, task: u16) -> Option<bool> {
        (self.known & (1 << task) != 0).then_some(self.labels & (1 << task) != 0)
    }
}

impl Correction {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(CORRECTION);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.task.to_le_bytes());
        out.push(u8::from(self.in_window));
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Option<Correction> {
        let (id, rest) = head(payload, CORRECTION)?;
        let (task, rest) = rest.split_first_chunk()?;
        let &[in_window @ (0 | 1)] = rest else { return None };
        Some(Correction { id, task: u16::from_le_bytes(*task), in_window: in_window == 1 })
    }
}

impl<'a> Word<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.is_embedded() { EMBEDDED_WORD } else { WORD });
        out.extend_from_slice(&self.id.to_le_bytes());
        self.encode_tail(out);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Option<Word<'a>> {
        let is_embedded = payload.first() == Some(&EMBEDDED_WORD);
        let (id, rest) = head(payload, if is_embedded { EMBEDDED_WORD } else { WORD })?;
        let (word, rest) = Word::decode_tail(id, is_embedded, rest)?;
        rest.is_empty().then_some(word)
    }

    /// All but kind and id, as it stands inside an example.
    fn encode_tail(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.schema.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.data_time_ms.to_le_bytes());
        out.extend_from_slice(&((self.logits.len() / 2) as u16).to_le_bytes());
        out.extend_from_slice(self.logits);
        if self.is_embedded() {
            out.extend_from_slice(&((self.embedding.len() / 2) as u16).to_le_bytes());
            out.extend_from_slice(self.embedding);
        }
    }

    fn decode_tail(id: u64, is_embedded: bool, bytes: &'a [u8]) -> Option<(Word<'a>, &'a [u8])> {
        let (schema, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (data_time_ms, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (logits, rest) = rest.split_at_checked(2 * usize::from(u16::from_le_bytes(*count)))?;
        let (embedding, rest) = if is_embedded {
            let (floats, rest) = rest.split_first_chunk()?;
            rest.split_at_checked(2 * usize::from(u16::from_le_bytes(*floats)))?
        } else {
            (&[][..], rest)
        };
        let word = Word {
            id,
            schema: u32::from_le_bytes(*schema),
            version: u64::from_le_bytes(*version),
            data_time_ms: i64::from_le_bytes(*data_time_ms),
            logits,
            embedding,
        };
        Some((word, rest))
    }

    /// The bits of each logit.
    pub fn halves(&self) -> impl ExactSizeIterator<Item = u16> + 'a {
        halves(self.logits)
    }

    /// The bits of each float of the embedding.
    pub fn embedding_halves(&self) -> impl ExactSizeIterator<Item = u16> + 'a {
        halves(self.embedding)
    }

    /// Whether it has an embedding.
    pub fn is_embedded(&self) -> bool {
        !self.embedding.is_empty()
    }
}

fn halves(bytes: &[u8]) -> impl ExactSizeIterator<Item = u16> + '_ {
    bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half))
}

/// The id of a record of this kind, and what follows.
fn head(payload: &[u8], kind: u8) -> Option<(u64, &[u8])> {
    let (found, rest) = payload.split_first()?;
    let (id, rest) = rest.split_first_chunk()?;
    (*found == kind).then_some((u64::from_le_bytes(*id), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(encode: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn candidates_of_requests_have_ids_of_their_own() {
        let requests = ["", "a", "aa", "1f-0", "1f-1", "0f-1"];
        let ids = requests.iter().flat_map(|request| (0..1000).map(|sample| impression_id(request, sample)));
        let distinct: std::collections::BTreeSet<u64> = ids.collect();
        assert_eq!(distinct.len(), 6000);
        // Clients in other languages compute it too, so it must never change.
        assert_eq!(impression_id("1f-0", 2), 0x896c_a712_8474_14d5);
    }

    #[test]
    fn every_record_comes_back_and_none_passes_for_another() {
        let word =
            Word { id: 7, schema: 5, version: 9, data_time_ms: -1, logits: &[1, 2, 3, 4], embedding: &[] };
        let embedded = Word { embedding: &[5, 6, 7, 8, 9, 10], ..word };
        let plain = Example { id: 7, tasks: 2, labels: 1, known: 3, word: None, features: b"row" };
        let impression = Impression { id: 7, features: b"row" };
        let correction = Correction { id: 7, task: 1, in_window: true };
        let all = [
            bytes(|out| impression.encode(out)),
            bytes(|out| Feedback { id: 7, task: 1 }.encode(out)),
            bytes(|out| plain.encode(out)),
            bytes(|out| Example { word: Some(word), ..plain }.encode(out)),
            bytes(|out| correction.encode(out)),
            bytes(|out| word.encode(out)),
            TICK.to_vec(),
            bytes(|out| plain.encode_late(out)),
            bytes(|out| embedded.encode(out)),
            bytes(|out| Example { word: Some(embedded), ..plain }.encode(out)),
        ];
        // A word without an embedding has the bytes that it always had.
        assert_eq!((all[5][0], all[5].len(), all[8][0], all[8].len()), (0x51, 35, 0x52, 43));
        assert_eq!(Word::decode(&all[8]), Some(embedded));
        assert_eq!(Example::decode(&all[9]), Some(Example { word: Some(embedded), ..plain }));
        assert_eq!(embedded.embedding_halves().collect::<Vec<_>>(), [0x0605, 0x0807, 0x0a09]);
        assert_eq!(Example::decode_late(&all[7]), Some(plain));
        assert_eq!(Example::decode(&all[3]), Some(Example { word: Some(word), ..plain }));
        assert_eq!(word.halves().collect::<Vec<_>>(), [0x0201, 0x0403]);
        for (place, payload) in all.iter().enumerate() {
            assert_eq!(Impression::decode(payload), (place == 0).then_some(impression), "{place}");
            assert_eq!(Feedback::decode(payload).is_some(), place == 1, "{place}");
            assert_eq!(Example::decode(payload).is_some(), matches!(place, 2 | 3 | 9), "{place}");
            assert_eq!(Example::decode_late(payload).is_some(), place == 7, "{place}");
            assert_eq!(Example::is_late(payload), place == 7, "{place}");
            assert_eq!(Correction::decode(payload), (place == 4).then_some(correction), "{place}");
            assert_eq!(Word::decode(payload).is_some(), place == 5 || place == 8, "{place}");
        }
        // Whatever is cut off, nothing is read past the end.
        for payload in [&all[3], &all[9]] {
            for end in 0..payload.len() {
                if let Some(example) = Example::decode(&payload[..end]) {
                    assert!(example.features.len() < 3, "{end}");
                }
            }
        }
    }
}
